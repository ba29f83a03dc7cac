"""What is done before and after the cells of a benchmark sweep: estimate and plan, then tables.

The sweep's folder holds sweep.json, tables/, and a folder for each cell.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.harness import terminal
from runners.harness.config.schema import BenchConfig
from runners.harness.errors import UsageError
from runners.harness.launch import progress
from runners.harness.launch.entry import Sweep
from runners.harness.launch.run import JobResult
from runners.harness.launch.tracked import tracked_sweep
from runners.harness.store.records import sweep_outcome
from runners.harness.store.tracking import Store, TrackingError, open_store
from runners.harness.sweep.plan import estimate


def prepared(sweep: Sweep) -> Sweep:
    """The sweep that will run: ``sweep``, or with resume=true the older sweep that it continues.

    With plan=true the plan of that sweep is shown and the process ends (SystemExit).
    """
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
    """Print the number of cells and how long they will take. The cells run inside this context,
    tracked by MLflow and with a progress bar.
    """
    from runners.harness.measure.subject import missing_device
    from runners.harness.sweep.plan_report import obstacle

    absent = {kind: missing_device(kind) for kind in ("cuda", "mps")}
    idle = {n for n, cell in enumerate(sweep.configs) if n in sweep.done or obstacle(cell)}
    total = estimate(sweep.configs, idle)
    axes = " x ".join(f"{key} {', '.join(values)}" for key, values in sweep.axes.items())
    terminal.console.print(
        f"sweep {sweep.folder.name}: {len(sweep.configs)} cells ({axes or 'no axis'}), {total}"
    )
    for kind, reason in absent.items():
        skipped = sum(reason != "" and cell.device.kind == kind for cell in sweep.configs)
        if skipped:
            terminal.console.print(f"{skipped} of them on {kind} cannot run: {reason}")
    shown = progress.sweep([cell.seconds for cell in total.cells], set(sweep.axes))
    with tracked_sweep("bench", sweep, _show_tables), shown:
        try:
            yield
        except KeyboardInterrupt:
            terminal.console.print("stopped; the same command with resume=true goes on from here")
            raise


def _show_tables(store: Store, folder: Path) -> str:
    """Write and print the sweep's tables; returns the outcome of the sweep."""
    from runners.harness.report import bench

    bench.show_tables(bench.write_tables(store, folder), folder.name, store)
    return sweep_outcome(folder)


def show_lone(measured: JobResult) -> None:
    """Print the row of a lone cell; the rows of a sweep are printed together at its end."""
    from runners.harness.report import render
    from runners.harness.tables.bench import bench_tables
    from runners.harness.tables.frames import cells

    if measured.tracked and measured.place.sweep is None:
        render.show(bench_tables(cells(measured.place.cell, measured.store))[0])
