"""Delivers sweeps and cells to MLflow that never reached it, or reached it only in part.

The MLflow runs get the times and the code of the measurement, not those of the delivery.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.harness.doctor.disk import Cell, ResultFolder
from runners.harness.store.disk import FILES, STEPS, TRACKED
from runners.harness.store.records import SweepRecord, sweep_outcome
from runners.harness.store.run_data import RunData
from runners.harness.store.runs import Run, Runs
from runners.harness.store.tracking import Store


def interrupt(cell: Cell) -> None:
    """Mark a cell whose process is gone as interrupted."""
    old = cell.record
    reason = f"its process ({old.pid} on {old.host}) was gone; the doctor ended it"
    ended = replace(old, outcome="interrupted", reason=reason, ended=cell.ended)
    for half in (name for name in FILES if name.endswith(".tmp")):
        (cell.folder / half).unlink(missing_ok=True)
    ended.save(cell.folder)
    cell.record = ended


def deliver(store: Store, runs: Runs, cell: Cell) -> None:
    """Deliver an ended cell to MLflow, into the run that was left open for it if there is one."""
    opened = next((run for run in runs.by_cell.get(cell.key, []) if run.open), None)
    run_id = opened.identity if opened else ""
    data = RunData.of_cell(cell.folder).with_code_of([cell.folder])
    (cell.folder / TRACKED).unlink(missing_ok=True)  # it names an older run; no artifact
    rows = _steps(cell.folder)
    if rows and not run_id:
        run_id = store.open_cell(cell.folder, data)
    elif rows:
        rows = _missing(store, run_id, rows)
    if rows:
        store.log_steps(run_id, rows)
    run_id = store.log_cell(cell.folder, run_id, data)
    if opened:
        opened.status = "FINISHED"
    else:
        tags = {"cell": cell.identity, "sweep": data.tags["tinygpt.sweep"]}
        runs.add(Run(run_id, "FINISHED", False, cell.key[1], 0, "", tags))


def put_back(store: Store, runs: Runs, result: ResultFolder, sweep: SweepRecord) -> None:
    """Make the MLflow run of a sweep again, as the parent of the runs of its cells."""
    data = RunData.of_sweep(sweep).with_code_of(cell.folder for cell in result.cells)
    result.sweep = store.begin_sweep(sweep, data)
    own = {"sweep": result.identity, "top": "true"}
    started_ms = int(sweep.started * 1000)
    runs.add(Run(result.sweep.run_id, "RUNNING", False, started_ms, 0, "", own))
    adopt(store, runs, result, result.sweep)


def adopt(store: Store, runs: Runs, result: ResultFolder, sweep: SweepRecord) -> None:
    """Make the run that ``sweep`` names the parent of the sweep's cells, on disk and in MLflow."""
    result.sweep = sweep
    sweep.save(result.path)
    for run in runs.by_sweep.get(result.identity, []):
        if "cell" in run.tags and not run.deleted:
            store.client.set_tag(run.identity, "mlflow.parentRunId", sweep.run_id)


def outcome(result: ResultFolder, sweep: SweepRecord) -> str:
    """The outcome of a sweep whose process is gone."""
    found = {cell.record.outcome for cell in result.cells}
    stopped = {"running", "interrupted"} & found or len(result.cells) < sweep.cells
    return "interrupted" if stopped else sweep_outcome(result.path)


def end(store: Store, result: ResultFolder, sweep: SweepRecord, *, anew: bool = True) -> None:
    """End the run of a sweep.

    Tables are attached. Those of a benchmark are made again if ``anew``, or if there are none yet.
    """
    tables = result.path / "tables"
    benchmark = sweep.kind == "bench" and not sweep.rerun_of
    if benchmark and result.cells and (anew or not tables.is_dir()):
        from runners.harness.report.bench import write_tables

        write_tables(store, result.path)
    store.end_sweep(sweep.run_id, outcome(result, sweep), tables, result.ended)


def _steps(folder: Path) -> list[dict[str, Any]]:
    """The figures of every step that a training run wrote; an incomplete last line is left out."""
    try:
        lines = (folder / STEPS).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _missing(store: Store, run_id: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of ``rows`` that the MLflow run lacks."""
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
