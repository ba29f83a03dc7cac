"""What never got to MLflow, or only by half, gets there from disk: with the times and the code of
its measurement, not those of the delivery.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.harness.doctor.disk import Cell, Unit, read_facts
from runners.harness.launch.tracked import outcome_of
from runners.harness.store import record
from runners.harness.store.disk import FILES, TRACKED, write_json
from runners.harness.store.record import Record
from runners.harness.store.runs import Run, Runs
from runners.harness.store.tracking import Store


def interrupt(cell: Cell) -> None:
    """Let a cell whose process is gone come to its end."""
    ended = cell.ended
    reason = "its process ({pid} on {host}) was gone; the doctor ended it".format(**cell.facts)
    facts = {**cell.facts, "outcome": "interrupted", "reason": reason, "ended": ended}
    for half in (name for name in FILES if name.endswith(".tmp")):
        (cell.folder / half).unlink(missing_ok=True)
    write_json(cell.folder / "cell.json", facts)
    cell.facts = facts


def deliver(store: Store, runs: Runs, cell: Cell) -> None:
    """Deliver an ended cell, into the run that was left open for it if there is one."""
    opened = next((run for run in runs.by_cell.get(cell.key, []) if run.open), None)
    run_id = opened.identity if opened else ""
    told = _as_measured(record.read(cell.folder), cell.folder)
    (cell.folder / TRACKED).unlink(missing_ok=True)  # of an older run; no artifact of this one
    rows = _steps(cell.folder)
    if rows and not run_id:
        run_id = store.open_cell(cell.folder, told)
    elif rows:
        rows = _missing(store, run_id, rows)
    if rows:
        store.log_steps(run_id, rows)
    run_id = store.log_cell(cell.folder, run_id, told)
    if opened:
        opened.status = "FINISHED"
    else:
        tags = {"cell": cell.identity, "sweep": told.tags["tinygpt.sweep"]}
        runs.add(Run(run_id, "FINISHED", False, cell.key[1], 0, "", tags))


def put_back(store: Store, runs: Runs, sweep: Unit) -> None:
    """Make a sweep's run anew."""
    tags = _with_code(record.sweep_tags(sweep.facts), *(cell.folder for cell in sweep.cells))
    run_id = store.begin_sweep(sweep.facts, tags)
    started = int(sweep.facts["started"] * 1000)
    own = {"sweep": sweep.identity, "top": "true"}
    runs.add(Run(run_id, "RUNNING", False, started, 0, "", own))
    adopt(store, runs, sweep, run_id)


def adopt(store: Store, runs: Runs, sweep: Unit, run_id: str) -> None:
    """Let a sweep's run be the parent of its cells, on disk and in MLflow."""
    sweep.facts = {**sweep.facts, "run_id": run_id}
    write_json(sweep.folder / "sweep.json", sweep.facts)
    for run in runs.by_sweep.get(sweep.identity, []):
        if "cell" in run.tags and not run.deleted:
            store.client.set_tag(run.identity, "mlflow.parentRunId", run_id)


def outcome(sweep: Unit) -> str:
    """What a sweep came to whose process is gone."""
    results = [cell.facts["outcome"] for cell in sweep.cells]
    stopped = {"running", "interrupted"} & set(results) or len(results) < sweep.facts["cells"]
    return "interrupted" if stopped else outcome_of(sweep.folder)


def end(store: Store, sweep: Unit, *, anew: bool = True) -> None:
    """End a sweep's run, with the tables of a benchmark: made ``anew``, or those that are there."""
    tables = sweep.folder / "tables"
    benchmark = sweep.facts["kind"] == "bench" and not sweep.facts.get("rerun_of")
    if benchmark and sweep.cells and (anew or not tables.is_dir()):
        from runners.harness.report.bench import write_tables

        write_tables(store, sweep.folder)
    store.end_sweep(sweep.facts["run_id"], outcome(sweep), tables, sweep.ended)


def _as_measured(cell: Record, folder: Path) -> Record:
    return replace(cell, tags=_with_code(cell.tags, folder))


def _with_code(tags: Mapping[str, str], *folders: Path) -> dict[str, str]:
    """Tags that tell of the code that one of ``folders`` says it ran with, not of ours."""
    own = {key: value for key, value in tags.items() if key not in record.code_tags()}
    for folder in folders:
        code = read_facts(folder / "environment.json", {"code"})[0].get("code")
        if code:
            own |= {"tinygpt.version": code["version"], "tinygpt.code_sha256": code["sha256"]}
        if code and "commit" in code:
            git = {"mlflow.source.git.commit": code["commit"], "tinygpt.git_sha": code["commit"]}
            own |= git | {"tinygpt.git_dirty": str(code["dirty"]).lower()}
        if code:
            break
    return own


def _steps(folder: Path) -> list[dict[str, Any]]:
    """What a training run kept of every step; a last line that is cut short is left out."""
    try:
        lines = (folder / "steps.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _missing(store: Store, run_id: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those figures that the run does not have."""
    there = {
        (name, metric.step)
        for name in {name for row in rows for name in row} - {"step"}
        for metric in store.client.get_metric_history(run_id, name)
    }
    left = [
        {name: value for name, value in row.items() if (name, row["step"]) not in there}
        for row in rows
    ]
    return [row for row in left if len(row) > 1]
