"""The life of a job whose result is kept, whatever its kind: on disk first, in MLflow second."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from runners.harness import terminal
from runners.harness.config import checks
from runners.harness.config.conversion import to_dict
from runners.harness.config.schema import BenchConfig, SampleConfig, VerifyConfig
from runners.harness.errors import first_line
from runners.harness.launch import progress
from runners.harness.launch.app import Finished, Terminated
from runners.harness.measure import subject
from runners.harness.measure.result import CellResult
from runners.harness.store import disk
from runners.harness.store.disk import Place
from runners.harness.store.tracking import Store, TrackingError, open_store

C = TypeVar("C", BenchConfig, SampleConfig, VerifyConfig)


@dataclass(frozen=True)
class Kept:
    """A result, and where it lies."""

    place: Place
    result: CellResult
    store: Store
    tracked: bool
    """Whether MLflow has it; the place's folder does in any case."""


def keep(
    kind: str,
    config: C,
    run: Callable[[C, progress.CellProgress], CellResult],
    show: Callable[[Kept], None] = lambda kept: None,
    place: Place | None = None,
) -> Finished:
    """Run a job, keep what came of it at ``place`` (that of the job Hydra runs now), and show it.

    A job that is stopped leaves an ``interrupted`` result before the stop goes on its way.
    """
    store, place = open_store(config.tracking), place or Place.of_job()
    report = progress.CellProgress(place)
    stopped: KeyboardInterrupt | None = None
    copies: dict[str, str] = {}
    try:
        with subject.threads(config.device, []):
            disk.begin(place, kind, to_dict(config))
        try:
            copies = checks.prompt_files(config.prompt)
            measured = run(config, report)
        except KeyboardInterrupt as stop:
            stopped = stop
            reason = "SIGTERM" if isinstance(stop, Terminated) else "Ctrl-C"
            measured = CellResult("interrupted", reason)
        except (Exception, SystemExit) as error:  # the other jobs of a sweep run all the same
            measured = CellResult("failed", first_line(error), error=traceback.format_exc())
        measured.files |= copies
        disk.finish(place, measured)
    except OSError as error:
        measured = CellResult("failed", f"{place.folder}: {error}")
        report.finished(measured)
        return Finished(place.cell, measured.outcome, measured.reason, False)
    tracked = True
    try:
        store.log_cell(place.folder)
    except TrackingError as error:
        terminal.complain(f"not tracked: {error}; the result is complete in {place.folder}")
        tracked = False
    report.finished(measured)
    show(Kept(place, measured, store, tracked))
    if stopped:
        raise stopped
    return Finished(place.cell, measured.outcome, measured.reason, tracked)
