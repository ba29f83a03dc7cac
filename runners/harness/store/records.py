"""The records of a cell and of a sweep (cell.json and sweep.json), typed and with a format number.

A file without ``format`` is older than that key, and is read as format 1.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from runners.harness.machine.processes import Owner

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT = 1
"""The format number; it goes up only when a program for the old format would misread the new."""


class UnreadableRecordError(ValueError):
    """A record is missing, incomplete, or of a newer tinygpt. The message completes a sentence
    about a folder, such as "it has no cell.json".
    """


@dataclass(frozen=True, kw_only=True)
class Record(Owner):
    """What the records of cells and sweeps have in common. The owner is the process that ran it."""

    FILE: ClassVar[str]
    """The name of the record's file."""

    kind: str
    """``bench``, ``sample``, ``verify`` or ``train``."""
    started: float
    """Seconds since 1970."""
    rerun_of: str | None = None
    """The id of the cell or sweep that this one runs again."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The record in ``folder``. Raises UnreadableRecordError."""
        try:
            found = json.loads((folder / cls.FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UnreadableRecordError(f"it has no {cls.FILE}") from None
        except (OSError, ValueError) as error:
            raise UnreadableRecordError(f"its {cls.FILE} cannot be read ({error})") from None
        if not isinstance(found, dict):
            raise UnreadableRecordError(f"its {cls.FILE} is not complete")
        if found.get("format", FORMAT) != FORMAT:
            raise UnreadableRecordError(
                f"its {cls.FILE} has format {found['format']}, and this tinygpt reads {FORMAT}; it "
                "was written by a newer one"
            )
        try:
            record: Self = _adapter(cls).validate_python(found)  # type: ignore[arg-type]
        except ValueError as error:
            first = error.errors()[0]  # type: ignore[attr-defined]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise UnreadableRecordError(f"its {cls.FILE} is not complete ({what})") from None
        return record

    def save(self, folder: Path) -> None:
        """Write the record into ``folder``, in place of the one that is there."""
        write_json(folder / self.FILE, {"format": FORMAT, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
class CellRecord(Record):
    """The record of a cell: its outcome is ``running`` until it ends."""

    FILE = "cell.json"

    cell: str
    """The cell's id."""
    sweep: str | None
    """The id of the sweep that it is part of; None for a lone cell."""
    choices: dict[str, str]
    """The chosen option of each group, followed by the values that were overridden in it."""
    outcome: str
    """``running``, or an outcome of ``measure.result.CellResult``."""
    load_average: list[float] | None = None
    """The number of runnable processes at the start: means over 1, 5 and 15 minutes."""
    reason: str = ""
    """Why it is not ok; one line."""
    headline: str = ""
    """Its most telling figures, in one line."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures by the names of results/README.md."""
    tags: dict[str, str] = field(default_factory=dict)
    """Other facts, by the names of MLflow's tags."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know, such as a prompt that was cut."""
    ended: float = 0.0
    """Seconds since 1970; 0 while it runs."""

    @property
    def running(self) -> bool:
        """Whether it has not ended; it never will if its process is gone."""
        return self.outcome == "running"

    @property
    def fine(self) -> bool:
        """Whether it is ok, or was skipped with a reason."""
        return self.outcome in ("ok", "skipped")


@dataclass(frozen=True, kw_only=True)
class SweepRecord(Record):
    """The record of a sweep."""

    FILE = "sweep.json"

    sweep: str
    """The sweep's id."""
    overrides: list[str]
    """The words of the command that made it."""
    cells: int
    """The planned number of cells."""
    digests: list[str]
    """The digest of each cell's config, by number."""
    run_id: str
    """MLflow's id of its run."""
    uri: str = ""
    """The URI of the store that has this run; empty in old records."""


CELL, SWEEP = CellRecord.FILE, SweepRecord.FILE


@lru_cache
def _adapter(record: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # here, since importing it takes a tenth of a second

    return TypeAdapter(record)


def read_json(path: Path) -> dict[str, Any]:
    """The contents of a JSON file that is no record; empty if it is missing or incomplete."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically: at any time it is either the old file or the new one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def sweep_outcome(folder: Path) -> str:
    """The outcome of a sweep by its cells on disk: ``ok`` if all planned cells are ok or skipped,
    otherwise ``failed``.
    """
    fine = sum(cell.fine for cell in _cells_of(folder))
    return "ok" if fine == SweepRecord.load(folder).cells else "failed"


def _cells_of(folder: Path) -> Iterator[CellRecord]:
    for path in folder.glob(f"*/{CELL}"):
        with suppress(UnreadableRecordError):
            yield CellRecord.load(path.parent)
