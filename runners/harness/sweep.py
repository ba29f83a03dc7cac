"""Around a sweep's cells: its plan before, its run in MLflow, its tables after.

The sweep's folder holds sweep.json, tables/, and one folder a cell.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.harness import progress
from runners.harness.app import Sweep
from runners.harness.config import UsageError
from runners.harness.plan import calibrate, duration, estimate_s
from runners.harness.result import write_json
from runners.harness.tracking import Store, TrackingError, open_store


@contextmanager
def tracked(cells: Sweep) -> Iterator[None]:
    """Open the sweep whose cells run inside; close it, with its tables, however they end."""
    from runners.harness.inputs import missing_device

    folder, overrides, configs = cells.folder, cells.overrides, cells.configs
    store = open_store(configs[0].tracking)
    try:
        run_id = store.begin_sweep(folder.name, "bench", overrides, len(configs))
    except TrackingError as error:
        raise UsageError(f"tracking: {error}; nothing was measured") from None
    folder.mkdir(parents=True, exist_ok=True)
    sweep = {"sweep": folder.name, "kind": "bench", "overrides": overrides, "run_id": run_id}
    write_json(folder / "sweep.json", {**sweep, "cells": len(configs), "started": time.time()})

    machine = calibrate()
    absent = {kind for kind in ("cuda", "mps") if missing_device(kind)}
    estimates = [0.1 if c.device.kind in absent else estimate_s(c, machine) for c in configs]
    axes = " x ".join(f"{key} {', '.join(values)}" for key, values in cells.axes.items())
    progress.console.print(
        f"sweep {folder.name}: {len(configs)} cells ({axes or 'no axis'}), "
        f"about {duration(sum(estimates))}"
    )
    outcome = "interrupted"
    try:
        with progress.sweep(estimates, set(cells.axes)):
            yield
        outcome = "ok"
    finally:
        _close(store, run_id, folder, outcome)


def _close(store: Store, run_id: str, folder: Path, outcome: str) -> None:
    """Write the sweep's tables down, print them, and end its run."""
    from runners.harness import render
    from runners.harness.tables import cells

    try:
        frame = cells(folder.name, store)
        if outcome == "ok" and not frame["outcome"].isin(["ok", "skipped"]).all():
            outcome = "failed"
        shown = render.bench_tables(frame)
        render.write(folder / "tables", shown, frame)
        for table in shown:
            render.show(table)
        store.end_sweep(run_id, outcome, folder / "tables")
    except TrackingError as error:
        progress.complain(f"not tracked: {error}; the sweep is complete in {folder}")
