"""What lies on disk: sweeps and lone cells, what of them can be read, and whose process is gone.

Processes are looked at after the folders, and what seemed to run is read once more: of a process
that was gone by then, what is on disk is the last word.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.harness.machine.processes import Processes
from runners.harness.store.disk import TRACKED
from runners.harness.store.local import to_path
from runners.harness.store.runs import Runs
from runners.harness.store.tracking import Store

_OWNER = {"host", "pid", "process_started", "started"}
_CELL = {"kind", "cell", "sweep", "choices", "outcome", *_OWNER}
_SWEEP = {"sweep", "kind", "overrides", "cells", "digests", "run_id", *_OWNER}
_DELIVERING_S = 600.0  # by then a process on another host has delivered its result, or never will


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    what: str
    """What it is and where, in one line."""
    cure: str
    """What fix=true does; where it cannot do anything, what to do."""
    mend: Callable[[], str] | None = None
    """Does it, and returns what was done."""
    counts: bool = True
    """Whether something has to be done; otherwise it is only said."""


@dataclass
class Cell:
    """A cell's folder, and its cell.json."""

    folder: Path
    facts: dict[str, Any]

    @property
    def identity(self) -> str:
        """Its id."""
        return str(self.facts["cell"])

    @property
    def key(self) -> tuple[str, int]:
        """By this the run is known that was made of this result, and not of an earlier one."""
        return self.identity, int(self.facts["started"] * 1000)

    @property
    def running(self) -> bool:
        """Whether its result is not there yet, nor ever will be if its process is gone."""
        return bool(self.facts["outcome"] == "running")

    @property
    def ended(self) -> float:
        """Seconds since 1970; the last change in its folder where it did not come to its end."""
        return float(self.facts.get("ended") or last_change(self))


@dataclass
class Unit:
    """A sweep, or a cell that is part of none."""

    folder: Path
    facts: dict[str, Any]
    """Its sweep.json or cell.json; empty where that cannot be read."""
    cells: list[Cell] = field(default_factory=list)
    odd: list[tuple[Path, str]] = field(default_factory=list)
    """Folders that cannot become rows, and why."""

    @property
    def identity(self) -> str:
        """Its id."""
        return self.folder.name

    @property
    def is_sweep(self) -> bool:
        """Whether it is one."""
        return self.folder.parent.name == "sweeps"

    @property
    def name(self) -> str:
        """What it is called in a line."""
        return f"{'sweep' if self.is_sweep else 'cell'} {self.identity}"

    @property
    def ended(self) -> float:
        """When the last of it ended, seconds since 1970."""
        return max((cell.ended for cell in self.cells), default=float(self.facts["started"]))


def last_change(cell: Cell) -> float:
    """When something in the cell's folder was written last, seconds since 1970."""
    times = [path.stat().st_mtime for path in cell.folder.rglob("*") if path.is_file()]
    return max([float(cell.facts["started"]), *times])


def scan(folder: Path, gone: str | None = None) -> tuple[list[Unit], Processes]:
    """The sweeps and lone cells of a results folder, and which processes there were after it;
    those of host ``gone`` are gone.
    """
    units = [_sweep(path) for path in _folders(folder / "sweeps")]
    units += [_lone(path) for path in _folders(folder / "cells")]
    processes = Processes(gone)
    for cell in (cell for unit in units for cell in unit.cells):
        if cell.running and processes.state(cell.facts) == "gone":
            cell.facts |= read_facts(cell.folder / "cell.json", _CELL)[0]
    return units, processes


def settled(cell: Cell, processes: Processes) -> bool:
    """Whether its result is there, and nobody is on the way to MLflow with it."""
    state = processes.state(cell.facts)
    old = cell.ended < time.time() - _DELIVERING_S
    return not cell.running and (state == "gone" or (state == "elsewhere" and old))


def read_facts(path: Path, needed: set[str] = _OWNER) -> tuple[dict[str, Any], str]:
    """A json file of ours; or nothing, and why."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"it has no {path.name}"
    except (OSError, ValueError) as error:
        return {}, f"its {path.name} cannot be read ({error})"
    if not isinstance(found, dict) or not needed <= found.keys():
        return {}, f"its {path.name} is not complete"
    return found, ""


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _lone(folder: Path) -> Unit:
    unit = Unit(folder, {})
    _add(unit, folder)
    unit.facts = unit.cells[0].facts if unit.cells else {}
    return unit


def _sweep(folder: Path) -> Unit:
    facts, why = read_facts(folder / "sweep.json", _SWEEP)
    unit = Unit(folder, facts)
    numbers = [path for path in _folders(folder) if path.name.isdigit()]
    for path in sorted(numbers, key=lambda path: int(path.name)):
        _add(unit, path)
    if why:
        unit.odd.append((folder, why))
    return unit


def _add(unit: Unit, folder: Path) -> None:
    facts, why = read_facts(folder / "cell.json", _CELL)
    for name in ("config.yaml", "overrides.yaml"):
        why = why or _lack(folder / name)
    if not why:
        unit.cells.append(Cell(folder, facts))
    else:
        unit.odd.append((folder, why))


def _lack(path: Path) -> str:
    if not path.is_file():
        return f"it has no {path.name}"
    return "" if path.stat().st_size else f"its {path.name} is empty"


def other_store(store: Store, runs: Runs, unit: Unit) -> str:
    """The URI of the store that a sweep or lone cell was tracked in, if it was not in this one."""
    if unit.identity in runs.by_sweep:
        return ""
    tracked = [read_facts(cell.folder / TRACKED, {"uri"})[0] for cell in unit.cells]
    for facts in [unit.facts, *tracked]:
        uri = str(facts.get("uri", store.uri))
        path = to_path(uri)
        moved = path and not path.is_file()  # this one, before it was moved or deleted
        if uri != store.uri and path != store.own_database and not moved:
            return uri
    return ""
