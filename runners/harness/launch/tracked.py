"""Delivers sweeps and long runs to MLflow while they go on.

Everything is on disk before it goes to MLflow. If the store cannot be reached for a while, that is
reported once, and the store gets what it missed with the next figures.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from runners.harness import terminal
from runners.harness.config.conversion import digest
from runners.harness.errors import UsageError
from runners.harness.launch import progress
from runners.harness.launch.entry import Sweep, current
from runners.harness.machine.processes import Owner
from runners.harness.store.disk import Place
from runners.harness.store.records import SWEEP, SweepRecord, sweep_outcome
from runners.harness.store.tracking import Store, TrackingError, open_store

_RANK = ("interrupted", "failed", "ok")  # the worst first


class Delivery:
    """Delivers the job at ``place``. Raises TrackingError if its MLflow run cannot be opened."""

    def __init__(self, store: Store, place: Place) -> None:
        self.place = place
        self._store = store
        self._rows: list[dict[str, float]] = []
        self._files: list[Path] = []
        self._told = False
        self._run_id = self._store.open_cell(place.folder)

    def __call__(self, rows: Sequence[dict[str, float]], files: Sequence[Path] = ()) -> None:
        """Deliver figures by their ``step``, and files that are new or changed."""
        self._rows += rows
        self._files = list(dict.fromkeys([*self._files, *files]))
        try:
            self._store.log_steps(self._run_id, self._rows, self._files)
        except TrackingError as error:
            if not self._told:
                terminal.complain(f"not tracked for now: {error}; the run goes on")
            self._told = True
            return
        self._rows, self._files = [], []

    def finish(self) -> bool:
        """Deliver the finished folder and end the run; returns whether MLflow has everything."""
        folder = self.place.folder
        try:
            self._store.log_steps(self._run_id, self._rows)
            self._store.log_cell(folder, self._run_id)
        except TrackingError as error:
            terminal.complain(f"not tracked: {error}; the result is complete in {folder}")
            return False
        return True


def _begin(store: Store, kind: str, sweep: Sweep) -> str:
    """Open or reopen the run of a sweep, and write its record. Returns MLflow's id of the run."""
    folder, here = sweep.folder, Owner.here()
    if (folder / SWEEP).is_file():  # it is resumed
        record = replace(SweepRecord.load(folder), **asdict(here))
        store.reopen_sweep(record.run_id)
    else:
        record = store.begin_sweep(
            SweepRecord(
                **asdict(here),
                kind=kind,
                started=time.time(),
                rerun_of=sweep.rerun_of,
                sweep=folder.name,
                overrides=sweep.overrides,
                cells=len(sweep.configs),
                digests=[digest(config) for config in sweep.configs],
                run_id="",
            )
        )
        folder.mkdir(parents=True, exist_ok=True)
    record.save(folder)
    return record.run_id


def sum_up(store: Store, folder: Path) -> str:
    """The outcome of a sweep that has no tables."""
    return sweep_outcome(folder)


@contextmanager
def tracked_sweep(
    kind: str, sweep: Sweep, sum_up: Callable[[Store, Path], str] = sum_up
) -> Iterator[None]:
    """Open the MLflow run of a sweep for the block that runs its jobs, and end it in any case.

    ``sum_up`` may write tables into tables/ of the sweep's folder, and returns its outcome. Raises
    UsageError if the run cannot be opened.
    """
    store, folder = open_store(sweep.configs[0].tracking), sweep.folder
    try:
        run_id = _begin(store, kind, sweep)
    except TrackingError as error:
        raise UsageError(f"nothing was run; tracking: {error}") from None
    outcome = "interrupted"
    try:
        yield
        outcome = "ok"
    finally:
        summed_up = "failed"
        try:
            try:
                summed_up = sum_up(store, folder)
            finally:
                store.end_sweep(run_id, min(outcome, summed_up, key=_RANK.index), folder / "tables")
        except TrackingError as error:
            terminal.complain(f"not tracked: {error}; the sweep is complete in {folder}")


@contextmanager
def named_sweep(sweep: Sweep) -> Iterator[None]:
    """A tracked sweep without tables; its cells are named by their values on its axes."""
    with tracked_sweep(current().name, sweep), progress.named_by(set(sweep.axes)):
        yield
