"""Around a benchmark sweep's cells: its plan before, its tables after.

The sweep's folder holds sweep.json, tables/, and one folder a cell.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runners.harness import terminal
from runners.harness.config.schema import BenchConfig
from runners.harness.errors import UsageError
from runners.harness.launch import progress
from runners.harness.launch.entry import Sweep
from runners.harness.launch.run import JobResult
from runners.harness.launch.tracked import outcome_of, tracked_sweep
from runners.harness.store.tracking import Store, TrackingError, open_store
from runners.harness.sweep.plan import calibrate, estimate_s
from runners.harness.terminal import duration

if TYPE_CHECKING:
    from runners.harness.tables.table import Table


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
        raise UsageError(f"nothing was run; tracking: {error}") from None
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
    from runners.harness.measure.subject import engine_plan, missing_device
    from runners.harness.sweep.plan_report import obstacle
    from tinygpt.engines import engine_class

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
        plans = [(c.engine.kind, engine_plan(c)) for c in running]
        distinct = {repr(plan): plan for plan in plans}.values()  # many cells run the same code
        code = [made for kind, plan in distinct for made in engine_class(kind).code(plan)]
        missing = {made.key for made in code if not made.kept}
        if missing:
            terminal.console.print(
                f"and up to a minute of compiling for each of {len(missing)} pieces of code, which "
                "are kept for later runs"
            )
        with progress.sweep(estimates, set(sweep.axes)):
            try:
                yield
            except KeyboardInterrupt:
                terminal.console.print(
                    "stopped; the same command with resume=true goes on from here"
                )
                raise


def write_tables(store: Store, folder: Path) -> list["Table"]:
    """Write a sweep's tables into its folder."""
    from runners.harness.report import render
    from runners.harness.tables.frames import cells

    frame = cells(folder.name, store)
    tables = render.bench_tables(frame)
    render.write(folder / "tables", tables, frame)
    return tables


def _show_tables(store: Store, folder: Path) -> str:
    """Write the sweep's tables down and print them; returns what its cells came to."""
    from runners.harness.report import render

    for table in write_tables(store, folder):
        render.show(table)
    return outcome_of(folder)


def show_lone(measured: JobResult) -> None:
    """A lone cell's row; those of a sweep are shown together, at its end."""
    from runners.harness.report import render
    from runners.harness.tables.frames import cells

    if measured.tracked and measured.place.sweep is None:
        render.show(render.bench_tables(cells(measured.place.cell, measured.store))[0])
