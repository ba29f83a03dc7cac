"""Reads the sweeps and lone cells on disk, and finds those whose process is gone.

The list of processes is made after the folders were read. A cell that seemed to run and whose
process is gone by then is read once more, since it may have ended in between.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runners.harness.machine.processes import Processes
from runners.harness.store.disk import TRACKED
from runners.harness.store.local import to_path
from runners.harness.store.records import (
    CellRecord,
    Record,
    SweepRecord,
    UnreadableRecordError,
    read_json,
)
from runners.harness.store.runs import Runs
from runners.harness.store.tracking import Store

_DELIVERING_S = 600.0  # after this time a process on another host has delivered, or never will


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    what: str
    """What is wrong and where, in one line."""
    cure: str
    """What fix=true does about it; if it can do nothing, what the user can do."""
    mend: Callable[[], str] | None = None
    """Mends it, and returns what was done; None if fix=true cannot mend it."""
    counts: bool = True
    """Whether something has to be done; a finding that does not count is only a note."""


@dataclass
class Cell:
    """A cell's folder and its record."""

    folder: Path
    record: CellRecord

    @property
    def identity(self) -> str:
        """Its id."""
        return self.record.cell

    @property
    def key(self) -> tuple[str, int]:
        """Id and start time in milliseconds; together they identify this result's MLflow run."""
        return self.identity, int(self.record.started * 1000)

    @property
    def ended(self) -> float:
        """When the cell ended, in seconds since 1970; if it never did, the last change in its
        folder.
        """
        return self.record.ended or last_change(self)


@dataclass
class ResultFolder:
    """The folder of a sweep or of a lone cell."""

    path: Path
    sweep: SweepRecord | None = None
    """The record of a sweep; None for a lone cell, or if the record cannot be read."""
    cells: list[Cell] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    """Folders that cannot become rows of a table, each with the reason."""

    @property
    def identity(self) -> str:
        """Its id."""
        return self.path.name

    @property
    def is_sweep(self) -> bool:
        """Whether this is the folder of a sweep."""
        return self.path.parent.name == "sweeps"

    @property
    def record(self) -> Record | None:
        """The record of the sweep or lone cell; None if it cannot be read."""
        if self.is_sweep:
            return self.sweep
        return self.cells[0].record if self.cells else None

    @property
    def name(self) -> str:
        """The name of the sweep or cell in messages."""
        return f"{'sweep' if self.is_sweep else 'cell'} {self.identity}"

    @property
    def ended(self) -> float:
        """When its last cell ended, in seconds since 1970."""
        started = self.record.started if self.record else 0.0
        return max((cell.ended for cell in self.cells), default=started)


def last_change(cell: Cell) -> float:
    """When a file in the cell's folder was last written, in seconds since 1970."""
    times = [path.stat().st_mtime for path in cell.folder.rglob("*") if path.is_file()]
    return max([cell.record.started, *times])


def scan(folder: Path, gone: str | None = None) -> tuple[list[ResultFolder], Processes]:
    """Read the sweeps and lone cells of a results folder, then the list of processes.

    Processes of the host ``gone`` count as gone.
    """
    found = [_sweep(path) for path in _folders(folder / "sweeps")]
    found += [_lone(path) for path in _folders(folder / "cells")]
    processes = Processes(gone)
    for cell in (cell for result in found for cell in result.cells):
        if cell.record.running and processes.state(cell.record) == "gone":
            with suppress(UnreadableRecordError):
                cell.record = CellRecord.load(cell.folder)
    return found, processes


def settled(cell: Cell, processes: Processes) -> bool:
    """Whether the result is complete and no process is still delivering it to MLflow."""
    state = processes.state(cell.record)
    old = cell.ended < time.time() - _DELIVERING_S
    return not cell.record.running and (state == "gone" or (state == "elsewhere" and old))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _lone(folder: Path) -> ResultFolder:
    found = ResultFolder(folder)
    _add(found, folder)
    return found


def _sweep(folder: Path) -> ResultFolder:
    found = ResultFolder(folder)
    numbers = [path for path in _folders(folder) if path.name.isdigit()]
    for path in sorted(numbers, key=lambda path: int(path.name)):
        _add(found, path)
    try:
        found.sweep = SweepRecord.load(folder)
    except UnreadableRecordError as error:
        found.unreadable.append((folder, str(error)))
    return found


def _add(found: ResultFolder, folder: Path) -> None:
    try:
        record = CellRecord.load(folder)
        for name in ("config.yaml", "overrides.yaml"):
            _require(folder / name)
    except UnreadableRecordError as error:
        found.unreadable.append((folder, str(error)))
    else:
        found.cells.append(Cell(folder, record))


def _require(path: Path) -> None:
    if not path.is_file():
        raise UnreadableRecordError(f"it has no {path.name}")
    if not path.stat().st_size:
        raise UnreadableRecordError(f"its {path.name} is empty")


def other_store(store: Store, runs: Runs, result: ResultFolder) -> str:
    """The URI of another store in which ``result`` was tracked; empty if none is known."""
    if result.identity in runs.by_sweep:
        return ""
    told = [result.sweep.uri] if result.sweep else []
    told += [read_json(cell.folder / TRACKED).get("uri", "") for cell in result.cells]
    for uri in filter(None, told):
        path = to_path(uri)
        moved = path and not path.is_file()  # this store, before it was moved or deleted
        if uri != store.uri and path != store.own_database and not moved:
            return uri
    return ""
