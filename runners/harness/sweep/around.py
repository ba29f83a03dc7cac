"""Around a benchmark sweep's cells: its plan before, its tables after.

The sweep's folder holds sweep.json, tables/, and one folder a cell.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.harness import terminal
from runners.harness.config.schema import BenchConfig
from runners.harness.errors import UsageError
from runners.harness.launch import progress
from runners.harness.launch.app import Sweep
from runners.harness.launch.tracked import outcome_of, tracked_sweep
from runners.harness.store.tracking import Store, TrackingError, open_store
from runners.harness.sweep.plan import calibrate, estimate_s
from runners.harness.terminal import duration


def prepared(sweep: Sweep) -> Sweep:
    """``sweep``, or the old one that goes on with resume=true; plan=true shows it and leaves."""
    asked: BenchConfig = sweep.configs[0]
    if not (asked.resume or asked.plan):
        return sweep
    if asked.resume and sweep.lone:
        raise UsageError(
            "resume=true: is for sweeps, and this is one cell; add -m, or leave it out"
        )
    from runners.harness.sweep import plan_report, resume

    try:
        old = None if sweep.lone else resume.previous(open_store(asked.tracking), sweep.configs)
    except TrackingError as error:
        raise UsageError(f"tracking: {error}; nothing was run") from None
    if old:
        sweep = resume.reopened(sweep, old)
    if asked.plan:
        plan_report.show(sweep, old.folder if old else None)
        raise SystemExit(0)
    if old:
        done = f"{len(sweep.done)} of its {len(sweep.configs)} cells are done"
        terminal.console.print(f"resuming sweep {old.folder.name}: {done}")
    else:
        terminal.console.print(
            "nothing to resume: no sweep of these cells is here; a new one begins"
        )
    return sweep


@contextmanager
def tracked(sweep: Sweep) -> Iterator[None]:
    """Say what comes and how long it may take; then the cells run inside, tracked."""
    from runners.harness.measure.subject import missing_device
    from runners.harness.sweep.plan_report import obstacle

    with tracked_sweep("bench", sweep, _show_tables):
        machine = calibrate()
        absent = {kind: missing_device(kind) for kind in ("cuda", "mps")}
        blocked = [bool(obstacle(cell)) for cell in sweep.configs]
        estimates = [
            0.1 if n in sweep.done or blocked[n] else estimate_s(cell, machine)
            for n, cell in enumerate(sweep.configs)
        ]
        axes = " x ".join(f"{key} {', '.join(values)}" for key, values in sweep.axes.items())
        terminal.console.print(
            f"sweep {sweep.folder.name}: {len(sweep.configs)} cells ({axes or 'no axis'}), "
            f"about {duration(sum(estimates))}"
        )
        for kind, reason in absent.items():
            skipped = sum(reason != "" and cell.device.kind == kind for cell in sweep.configs)
            if skipped:
                terminal.console.print(f"{skipped} of them on {kind} cannot run: {reason}")
        running = [c for c, b in zip(sweep.configs, blocked, strict=True) if not b]
        compiled = {_shape(c) for c in running if c.engine.kind == "compiled"}
        if compiled:
            terminal.console.print(
                f"and a minute or two of compiling for each of {len(compiled)} shapes, once and "
                "for all: that is kept"
            )
        with progress.sweep(estimates, set(sweep.axes)):
            try:
                yield
            except KeyboardInterrupt:
                terminal.console.print(
                    "stopped; the same command with resume=true goes on from here"
                )
                raise


def _shape(cell: BenchConfig) -> str:
    """What compiled code is made for."""
    return repr((cell.model, cell.device, cell.batch, cell.cache, cell.precision))


def _show_tables(store: Store, folder: Path) -> str:
    """Write the sweep's tables down and print them; returns what its cells came to."""
    from runners.harness.report import bench

    bench.show_tables(bench.write_tables(store, folder), folder.name, store)
    return outcome_of(folder)
