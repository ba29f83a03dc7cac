"""What is wrong with one sweep or lone cell: on disk, and between its folder and MLflow."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runners.harness.doctor.deliver import adopt, deliver, end, interrupt, outcome, put_back
from runners.harness.doctor.disk import Cell, Finding, Unit, other_store, settled
from runners.harness.errors import first_line
from runners.harness.machine.processes import Processes
from runners.harness.store.disk import TRACKED, write_json
from runners.harness.store.runs import Run, Runs
from runners.harness.store.tracking import Store


@dataclass
class Ward:
    """What is known when a sweep or lone cell is looked at."""

    store: Store
    processes: Processes
    runs: Runs | None
    """None where the store cannot be looked at."""
    begun_ms: int
    """When the look at the folders began."""
    elsewhere: Counter[str] = field(default_factory=Counter)
    """How many sweeps and lone cells were tracked in other stores, by URI."""


def findings(ward: Ward, unit: Unit) -> Iterator[Finding]:
    """What is wrong with ``unit``, unless it runs."""
    if unit.facts and ward.processes.state(unit.facts) == "alive":
        return
    for folder, why in unit.odd:
        yield _odd(unit, folder, why)
    if not unit.facts:
        return
    runs = ward.runs
    uri = other_store(ward.store, runs, unit) if runs else ""
    if uri:
        ward.elsewhere[uri] += 1
        runs = None
    if runs and unit.is_sweep and unit.facts["run_id"] not in runs.by_id:
        parent = runs.parent(unit.identity)
        if parent:
            what = f"{unit.name}: its sweep.json names a run that is not in MLflow"
            mend = partial(_adopt, ward.store, runs, unit, parent.identity)
            yield Finding(what, f"names {parent.identity} in its place", mend)
        else:
            yield from _stopped(ward, unit, None)
            yield _not_there(ward, runs, unit)
            return
    yield from _stopped(ward, unit, runs)
    if runs:
        yield from _undelivered(ward, runs, unit)
        if unit.is_sweep:
            yield from _left_open(ward, runs, unit)


def _elsewhere(what: str, owner: Mapping[str, Any]) -> Finding:
    """Something that runs on another host, or did."""
    host = shlex.quote(f"gone={owner['host']}")
    cure = f"whether it still runs cannot be told from here; left alone ({host} says it does not)"
    return Finding(f"{what} runs as {owner['pid']} on {owner['host']}", cure, counts=False)


def _odd(unit: Unit, folder: Path, why: str) -> Finding:
    if not any(folder.iterdir()):
        return Finding(f"{folder}: an empty folder", "removes it", partial(_remove_empty, folder))
    again = ", or resume its sweep" if unit.is_sweep and unit.facts else ""
    return Finding(f"{folder}: {why}, it cannot become a row", f"remove it yourself{again}")


def _remove_empty(folder: Path) -> str:
    folder.rmdir()
    return "removed"


def _adopt(store: Store, runs: Runs, sweep: Unit, run_id: str) -> str:
    store.client.log_param(run_id, "cells", sweep.facts["cells"])  # if it did not come to that
    adopt(store, runs, sweep, run_id)
    return f"names {run_id} now"


def _stopped(ward: Ward, unit: Unit, runs: Runs | None) -> Iterator[Finding]:
    """Cells that did not come to their end."""
    for cell in unit.cells:
        state = ward.processes.state(cell.facts)
        who = "{pid} on {host}".format(**cell.facts)
        if cell.running and state == "gone":
            what = f"cell {cell.identity}: the process that ran it ({who}) is gone"
            mend = partial(_interrupt, ward.store, runs, cell)
            yield Finding(what, "makes it an interrupted row", mend)
        elif cell.running and state == "elsewhere":
            yield _elsewhere(f"cell {cell.identity}:", cell.facts)


def _interrupt(store: Store, runs: Runs | None, cell: Cell) -> str:
    interrupt(cell)
    if runs and not store.deleted(cell.facts["kind"]):
        deliver(store, runs, cell)
    return "an interrupted row now"


def _not_there(ward: Ward, runs: Runs, sweep: Unit) -> Finding:
    """A sweep that the store knows nothing of."""
    lacking = [cell for cell in sweep.cells if not runs.by_cell.get(cell.key)]
    what = f"{sweep.name}: its run and {len(lacking)} results are not in MLflow"
    mend = partial(_put_back, ward, runs, sweep)
    return _delivery(ward, sweep, what, "puts them there", mend)


def _put_back(ward: Ward, runs: Runs, sweep: Unit) -> str:
    put_back(ward.store, runs, sweep)
    lacking = [cell for cell in sweep.cells if not runs.by_cell.get(cell.key)]
    _deliver(ward.store, runs, [cell for cell in lacking if settled(cell, ward.processes)])
    if not _runs_on(ward, sweep):
        end(ward.store, sweep, anew=False)
        runs.by_id[sweep.facts["run_id"]].status = "FINISHED"
    return "put there"


def _undelivered(ward: Ward, runs: Runs, unit: Unit) -> Iterator[Finding]:
    lacking, half, untold = [], [], []
    for cell in unit.cells:
        there = runs.by_cell.get(cell.key, [])
        whole = [run for run in there if not run.deleted and not run.open]
        if whole and not (cell.folder / TRACKED).is_file():
            untold.append((cell, whole[0]))
        elif not whole and settled(cell, ward.processes):
            if not there:
                lacking.append(cell)
            elif any(run.open for run in there):
                half.append(cell)
    for cells, how in ((lacking, "not in MLflow"), (half, "only half in MLflow")):
        if cells:
            mend = partial(_deliver, ward.store, runs, cells)
            cure = "delivers it" if len(cells) == 1 else "delivers them"
            yield _delivery(ward, unit, f"{unit.name}: {_results(unit, cells)} {how}", cure, mend)
    if untold:
        cells = [cell for cell, _ in untold]
        what = f"{unit.name}: {_results(unit, cells)} in MLflow, and its folder does not say so"
        yield Finding(what, f"writes {TRACKED}", partial(_tell, ward.store, untold))


def _delivery(ward: Ward, unit: Unit, what: str, cure: str, mend: Callable[[], str]) -> Finding:
    """Something to deliver, unless its experiment was deleted."""
    deleted = ward.store.deleted(unit.facts["kind"])
    return Finding(what, deleted) if deleted else Finding(what, cure, mend)


def _results(unit: Unit, cells: list[Cell]) -> str:
    if not unit.is_sweep:
        return "its result is"
    if len(cells) == 1:
        return f"the result of {cells[0].identity} is"
    numbers = ", ".join(cell.folder.name for cell in cells[:8]) + ", ..." * (len(cells) > 8)
    return f"{len(cells)} results ({numbers}) are"


def _deliver(store: Store, runs: Runs, cells: list[Cell]) -> str:
    errors = []
    for cell in cells:
        try:
            deliver(store, runs, cell)
        except Exception as error:  # the other results can be delivered all the same
            errors.append(f"{cell.folder}: {first_line(error)}")
    if errors:
        raise RuntimeError(f"{len(cells) - len(errors)} of {len(cells)} delivered; {errors[0]}")
    return "delivered"


def _tell(store: Store, untold: list[tuple[Cell, Run]]) -> str:
    for cell, run in untold:
        write_json(cell.folder / TRACKED, {"uri": store.uri, "run_id": run.identity})
    return "written"


def _runs_on(ward: Ward, sweep: Unit) -> bool:
    """Whether a cell of it may still run, without the process that started the sweep."""
    return any(c.running and ward.processes.state(c.facts) != "gone" for c in sweep.cells)


def _left_open(ward: Ward, runs: Runs, sweep: Unit) -> Iterator[Finding]:
    run = runs.by_id.get(sweep.facts["run_id"])
    if run is None or not run.open or _runs_on(ward, sweep):
        return
    who = "{pid} on {host}".format(**sweep.facts)
    if ward.processes.state(sweep.facts) == "elsewhere":
        yield _elsewhere(f"{sweep.name}:", sweep.facts)
        return
    what = f"{sweep.name}: left open in MLflow, the process that ran it ({who}) is gone"
    yield Finding(what, f"ends it as {outcome(sweep)}", partial(_end, ward.store, run, sweep))


def _end(store: Store, run: Run, sweep: Unit) -> str:
    end(store, sweep)
    run.status = "FINISHED"
    return f"ended as {outcome(sweep)}"


def strays(ward: Ward, runs: Runs, units: list[Unit], pruned: set[str]) -> Iterator[Finding]:
    """Runs that were left open and belong to nothing that is on disk, or to nothing any more."""
    known = {unit.facts.get("run_id") for unit in units}
    known |= {r.identity for u in units for c in u.cells for r in runs.by_cell.get(c.key, [])}
    alive = {u.identity for u in units if u.facts and ward.processes.state(u.facts) == "alive"}
    skip = pruned | alive
    for run in [run for run in runs.by_id.values() if run.open and run.identity not in known]:
        # Of a process that began after the folders were looked at nothing is known here.
        if run.tags["sweep"] in skip or run.started_ms >= ward.begun_ms:
            continue
        ours = ward.store.own_database is not None
        state = ward.processes.state(run.tags) if "host" in run.tags else "gone" if ours else ""
        what = f"run {run.identity} of {run.tags.get('cell', run.tags['sweep'])}"
        if state == "gone":
            what += " was left open in MLflow; its process is gone, and no folder is of it"
            yield Finding(what, "ends it as interrupted", partial(_end_stray, ward.store, run))
        elif state == "elsewhere" and ours:
            yield _elsewhere(what, run.tags)


def _end_stray(store: Store, run: Run) -> str:
    store.end_sweep(run.identity, "interrupted", store.dir / "no tables")
    run.status = "KILLED"
    return "ended as interrupted"
