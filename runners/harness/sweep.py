"""Around a benchmark sweep's cells: its plan before, its tables after.

The sweep's folder holds sweep.json, tables/, and one folder a cell.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.harness import progress
from runners.harness.app import Sweep
from runners.harness.delivery import tracked_sweep
from runners.harness.plan import calibrate, duration, estimate_s
from runners.harness.tracking import Store


@contextmanager
def tracked(sweep: Sweep) -> Iterator[None]:
    """Say what comes and how long it may take; then the cells run inside, tracked."""
    from runners.harness.inputs import missing_device

    with tracked_sweep("bench", sweep, _show_tables):
        machine = calibrate()
        absent = {kind: missing_device(kind) for kind in ("cuda", "mps")}
        estimates = [
            0.1 if absent.get(cell.device.kind) else estimate_s(cell, machine)
            for cell in sweep.configs
        ]
        axes = " x ".join(f"{key} {', '.join(values)}" for key, values in sweep.axes.items())
        progress.console.print(
            f"sweep {sweep.folder.name}: {len(sweep.configs)} cells ({axes or 'no axis'}), "
            f"about {duration(sum(estimates))}"
        )
        for kind, reason in absent.items():
            skipped = sum(reason != "" and cell.device.kind == kind for cell in sweep.configs)
            if skipped:
                progress.console.print(f"{skipped} of them on {kind} cannot run: {reason}")
        with progress.sweep(estimates, set(sweep.axes)):
            yield


def _show_tables(store: Store, folder: Path) -> str:
    """Write the sweep's tables down and print them; returns what its cells came to."""
    from runners.harness import render
    from runners.harness.tables import cells

    frame = cells(folder.name, store)
    shown = render.bench_tables(frame)
    render.write(folder / "tables", shown, frame)
    for table in shown:
        render.show(table)
    fine = int(frame["outcome"].isin(["ok", "skipped"]).sum())
    planned = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["cells"]
    return "ok" if fine == planned else "failed"
