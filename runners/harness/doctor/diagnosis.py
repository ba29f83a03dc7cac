"""Finds what is wrong with a sweep or lone cell: in its folder, or between folder and MLflow."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from runners.harness.doctor.deliver import adopt, deliver, end, interrupt, outcome, put_back
from runners.harness.doctor.disk import Cell, Finding, ResultFolder, other_store, settled
from runners.harness.errors import first_line
from runners.harness.machine.processes import Owner, Processes
from runners.harness.store.disk import TRACKED
from runners.harness.store.records import SweepRecord, write_json
from runners.harness.store.runs import Run, Runs
from runners.harness.store.tracking import Store


@dataclass
class Context:
    """What the checks of a sweep or lone cell need to know besides its folder."""

    store: Store
    processes: Processes
    runs: Runs | None
    """The runs in MLflow; None if the store cannot be read."""
    begun_ms: int
    """When reading the folders began, in milliseconds since 1970."""
    elsewhere: Counter[str] = field(default_factory=Counter)
    """How many sweeps and lone cells were tracked in other stores, by URI."""


def findings(context: Context, result: ResultFolder) -> Iterator[Finding]:
    """Find what is wrong with ``result``; nothing is reported about a process that still runs."""
    if result.record and context.processes.state(result.record) == "alive":
        return
    for folder, why in result.unreadable:
        yield _unreadable(result, folder, why)
    if not result.record:
        return
    runs, sweep = context.runs, result.sweep
    uri = other_store(context.store, runs, result) if runs else ""
    if uri:
        context.elsewhere[uri] += 1
        runs = None
    if runs and sweep and sweep.run_id not in runs.by_id:
        parent = runs.parent(result.identity)
        if parent:
            what = f"{result.name}: its sweep.json names a run that is not in MLflow"
            named = replace(sweep, run_id=parent.identity)
            mend = partial(_adopt, context.store, runs, result, named)
            yield Finding(what, f"names {parent.identity} in its place", mend)
        else:
            yield from _stopped(context, result, None)
            yield _not_there(context, runs, result, sweep)
            return
    yield from _stopped(context, result, runs)
    if runs:
        yield from _undelivered(context, runs, result)
        if result.sweep:
            yield from _left_open(context, runs, result, result.sweep)


def _elsewhere(what: str, owner: Owner) -> Finding:
    """A note about something that another host runs, or ran."""
    host = shlex.quote(f"gone={owner.host}")
    cure = f"whether it still runs cannot be told from here; left alone ({host} says it does not)"
    return Finding(f"{what} runs as {owner.pid} on {owner.host}", cure, counts=False)


def _unreadable(result: ResultFolder, folder: Path, why: str) -> Finding:
    if not any(folder.iterdir()):
        return Finding(f"{folder}: an empty folder", "removes it", partial(_remove_empty, folder))
    again = ", or resume its sweep" if result.sweep else ""
    return Finding(f"{folder}: {why}, it cannot become a row", f"remove it yourself{again}")


def _remove_empty(folder: Path) -> str:
    folder.rmdir()
    return "removed"


def _adopt(store: Store, runs: Runs, result: ResultFolder, sweep: SweepRecord) -> str:
    store.client.log_param(sweep.run_id, "cells", sweep.cells)  # if its process died before this
    adopt(store, runs, result, sweep)
    return f"names {sweep.run_id} now"


def _stopped(context: Context, result: ResultFolder, runs: Runs | None) -> Iterator[Finding]:
    """Find cells that never ended."""
    for cell in result.cells:
        state, record = context.processes.state(cell.record), cell.record
        who = f"{record.pid} on {record.host}"
        if record.running and state == "gone":
            what = f"cell {cell.identity}: the process that ran it ({who}) is gone"
            mend = partial(_interrupt, context.store, runs, cell)
            yield Finding(what, "makes it an interrupted row", mend)
        elif record.running and state == "elsewhere":
            yield _elsewhere(f"cell {cell.identity}:", cell.record)


def _interrupt(store: Store, runs: Runs | None, cell: Cell) -> str:
    interrupt(cell)
    if runs and not store.deleted(cell.record.kind):
        deliver(store, runs, cell)
    return "an interrupted row now"


def _not_there(context: Context, runs: Runs, result: ResultFolder, sweep: SweepRecord) -> Finding:
    """The finding about a sweep that is missing from the store."""
    lacking = [cell for cell in result.cells if not runs.by_cell.get(cell.key)]
    what = f"{result.name}: its run and {len(lacking)} results are not in MLflow"
    mend = partial(_put_back, context, runs, result, sweep)
    return _delivery(context, sweep.kind, what, "puts them there", mend)


def _put_back(context: Context, runs: Runs, result: ResultFolder, sweep: SweepRecord) -> str:
    put_back(context.store, runs, result, sweep)
    lacking = [cell for cell in result.cells if not runs.by_cell.get(cell.key)]
    _deliver(context.store, runs, [cell for cell in lacking if settled(cell, context.processes)])
    if result.sweep and not _runs_on(context, result):
        end(context.store, result, result.sweep, anew=False)
        runs.by_id[result.sweep.run_id].status = "FINISHED"
    return "put there"


def _undelivered(context: Context, runs: Runs, result: ResultFolder) -> Iterator[Finding]:
    lacking, half, untold = [], [], []
    for cell in result.cells:
        there = runs.by_cell.get(cell.key, [])
        whole = [run for run in there if not run.deleted and not run.open]
        if whole and not (cell.folder / TRACKED).is_file():
            untold.append((cell, whole[0]))
        elif not whole and settled(cell, context.processes):
            if not there:
                lacking.append(cell)
            elif any(run.open for run in there):
                half.append(cell)
    for cells, how in ((lacking, "not in MLflow"), (half, "only half in MLflow")):
        if cells:
            mend = partial(_deliver, context.store, runs, cells)
            cure = "delivers it" if len(cells) == 1 else "delivers them"
            what = f"{result.name}: {_results(result, cells)} {how}"
            yield _delivery(context, cells[0].record.kind, what, cure, mend)
    if untold:
        cells = [cell for cell, _ in untold]
        what = f"{result.name}: {_results(result, cells)} in MLflow, and its folder does not say so"
        yield Finding(what, f"writes {TRACKED}", partial(_tell, context.store, untold))


def _delivery(
    context: Context, kind: str, what: str, cure: str, mend: Callable[[], str]
) -> Finding:
    """A finding about results to deliver; it has no mend if their experiment was deleted."""
    deleted = context.store.deleted(kind)
    return Finding(what, deleted) if deleted else Finding(what, cure, mend)


def _results(result: ResultFolder, cells: list[Cell]) -> str:
    if not result.is_sweep:
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


def _runs_on(context: Context, result: ResultFolder) -> bool:
    """Whether a cell of the sweep may still run although the process that started the sweep is
    gone.
    """
    state = context.processes.state
    return any(c.record.running and state(c.record) != "gone" for c in result.cells)


def _left_open(
    context: Context, runs: Runs, result: ResultFolder, sweep: SweepRecord
) -> Iterator[Finding]:
    run = runs.by_id.get(sweep.run_id)
    if run is None or not run.open or _runs_on(context, result):
        return
    if context.processes.state(sweep) == "elsewhere":
        yield _elsewhere(f"{result.name}:", sweep)
        return
    who = f"{sweep.pid} on {sweep.host}"
    what = f"{result.name}: left open in MLflow, the process that ran it ({who}) is gone"
    mend = partial(_end, context.store, run, result, sweep)
    yield Finding(what, f"ends it as {outcome(result, sweep)}", mend)


def _end(store: Store, run: Run, result: ResultFolder, sweep: SweepRecord) -> str:
    end(store, result, sweep)
    run.status = "FINISHED"
    return f"ended as {outcome(result, sweep)}"


def orphans(
    context: Context, runs: Runs, results: list[ResultFolder], pruned: set[str]
) -> Iterator[Finding]:
    """Find runs that were left open in MLflow and belong to no folder on disk."""
    state = context.processes.state
    known = {result.sweep.run_id for result in results if result.sweep}
    cells = (cell for result in results for cell in result.cells)
    known |= {run.identity for cell in cells for run in runs.by_cell.get(cell.key, [])}
    alive = {r.identity for r in results if r.record and state(r.record) == "alive"}
    for run in [run for run in runs.by_id.values() if run.open and run.identity not in known]:
        # A run that began after the folders were read may have a folder that was not seen.
        if run.tags["sweep"] in pruned | alive or run.started_ms >= context.begun_ms:
            continue
        ours, owner = context.store.own_database is not None, run.owner
        found = state(owner) if owner else "gone" if ours else ""
        what = f"run {run.identity} of {run.tags.get('cell', run.tags['sweep'])}"
        if found == "gone":
            what += " was left open in MLflow; its process is gone, and no folder is of it"
            yield Finding(what, "ends it as interrupted", partial(_end_orphan, context.store, run))
        elif found == "elsewhere" and ours and owner:
            yield _elsewhere(what, owner)


def _end_orphan(store: Store, run: Run) -> str:
    store.end_sweep(run.identity, "interrupted", store.dir / "no tables")
    run.status = "KILLED"
    return "ended as interrupted"
