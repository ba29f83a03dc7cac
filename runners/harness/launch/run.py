"""Runs a job of any kind and keeps its result: first on disk, then in MLflow."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from runners.harness import terminal
from runners.harness.config.conversion import to_dict
from runners.harness.errors import UsageError, first_line
from runners.harness.launch import place as places
from runners.harness.launch.entry import Finished, Terminated
from runners.harness.launch.kinds import Kind
from runners.harness.launch.progress import CellProgress
from runners.harness.launch.tracked import Delivery
from runners.harness.measure.result import CellResult
from runners.harness.store import disk
from runners.harness.store.disk import Place
from runners.harness.store.tracking import Store, TrackingError, open_store

TERMINATED = "SIGTERM"
"""The reason of an ``interrupted`` result that was caused by SIGTERM."""


@dataclass(frozen=True)
class JobResult:
    """A result, and where it is kept."""

    place: Place
    config: Any
    result: CellResult
    store: Store
    tracked: bool
    """Whether MLflow has the result; the folder has it in any case."""


def run_job(
    kind: Kind,
    config: Any,
    run: Callable[[Any, Any], CellResult] | None = None,
    show: Callable[[JobResult], None] | None = None,
    place: Place | None = None,
) -> Finished:
    """Run a job, keep its result at ``place`` (by default that of the job that Hydra runs), and
    show it.

    ``run`` and ``show`` replace the kind's own functions. A job that is stopped leaves an
    ``interrupted`` result, and the KeyboardInterrupt is raised again. A job that raises anything
    else leaves a ``failed`` result, and the other jobs of its sweep run. A job that was done before
    its sweep was resumed does not run.
    """
    from runners.harness.measure import subject  # here, since it loads torch

    if kind.done and place is None:
        kept: Finished | None = resolve_name(kind.done)(config)
        if kept is not None:
            return kept
    run = run or resolve_name(kind.run)
    show = show or (resolve_name(kind.show) if kind.show else _show_nothing)
    store, place = open_store(config.tracking), place or places.of_job(config)
    report, delivery = CellProgress(place), None
    try:
        with subject.threads(config.device, []):
            disk.begin(place, kind.name, to_dict(config))
        try:
            if kind.live:
                delivery = Delivery(store, place)
            measured = _measured(run, config, delivery or report)
        except TrackingError as error:
            measured = CellResult("failed", f"nothing was run; tracking: {error}")
            if place.sweep is None:
                disk.discard(place.folder)
                raise UsageError(measured.reason) from None
        except KeyboardInterrupt as stop:
            measured = CellResult("interrupted", _name(stop))
        disk.finish(place, measured)
    except OSError as error:
        measured = CellResult("failed", f"{place.folder}: {error}")
        report.finished(measured)
        return Finished(place.cell, measured.outcome, measured.reason, False)
    tracked = delivery.finish() if delivery else _track(store, place)
    report.finished(measured)
    show(JobResult(place, config, measured, store, tracked))
    if measured.outcome == "interrupted":
        raise Terminated if measured.reason == TERMINATED else KeyboardInterrupt
    return Finished(place.cell, measured.outcome, measured.reason, tracked)


def _measured(run: Callable[[Any, Any], CellResult], config: Any, report: Any) -> CellResult:
    """The result of ``run``, even if it raises, with the contents of the prompt's file."""
    copies: dict[str, str] = {}
    try:
        copies = config.prompt.content.files if hasattr(config, "prompt") else {}
        result = run(config, report)
    except KeyboardInterrupt as stop:
        result = CellResult("interrupted", _name(stop))
    except (Exception, SystemExit) as error:
        result = CellResult("failed", first_line(error), error=traceback.format_exc())
    result.files |= copies
    return result


def _name(stop: KeyboardInterrupt) -> str:
    return TERMINATED if isinstance(stop, Terminated) else "Ctrl-C"


def _track(store: Store, place: Place) -> bool:
    """Deliver the result to MLflow; returns whether that succeeded."""
    try:
        store.log_cell(place.folder)
    except TrackingError as error:
        terminal.complain(f"not tracked: {error}; the result is complete in {place.folder}")
        return False
    return True


def _show_nothing(result: JobResult) -> None:
    pass
