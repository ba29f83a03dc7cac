"""What is written down of a cell and of a sweep: cell.json and sweep.json, typed and versioned.

A file without ``format`` was written before there was one, and is read like format 1.
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
"""Raised where a reader of the format before would misread a file, not where a key is added."""


class UnreadableRecordError(ValueError):
    """A record that is missing, cut short, or of a newer tinygpt; "it has no cell.json"."""


@dataclass(frozen=True, kw_only=True)
class Record(Owner):
    """What cells and sweeps have in common; the process is the one that ran them."""

    FILE: ClassVar[str]
    """Its name in the folder of the cell or sweep."""

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
    """A cell: ``running`` as long as it runs, and then what it came to."""

    FILE = "cell.json"

    cell: str
    """Its id."""
    sweep: str | None
    """The id of the sweep that it is part of; None for a lone cell."""
    choices: dict[str, str]
    """Option by group, followed by what was overridden in it by value."""
    outcome: str
    """``running``, or an outcome of ``measure.result.CellResult``."""
    load_average: list[float] | None = None
    """Processes that wanted to run when it started: means of 1, 5 and 15 minutes."""
    reason: str = ""
    """Why it is not ok; one line."""
    headline: str = ""
    """Its most telling figures, in one line."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures by the names of results/README.md."""
    tags: dict[str, str] = field(default_factory=dict)
    """Facts that are no figures, by the names of MLflow's tags."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know."""
    ended: float = 0.0
    """Seconds since 1970; 0 while it runs."""

    @property
    def running(self) -> bool:
        """Whether it has not come to its end; it never will if its process is gone."""
        return self.outcome == "running"

    @property
    def fine(self) -> bool:
        """Whether nothing went wrong."""
        return self.outcome in ("ok", "skipped")


@dataclass(frozen=True, kw_only=True)
class SweepRecord(Record):
    """A sweep."""

    FILE = "sweep.json"

    sweep: str
    """Its id."""
    overrides: list[str]
    """The words it was asked for with."""
    cells: int
    """How many it was planned to have."""
    digests: list[str]
    """The digest of each cell's config, by number."""
    run_id: str
    """MLflow's id of its run."""
    uri: str = ""
    """The store in which that run is; empty where that was not written down."""


CELL, SWEEP = CellRecord.FILE, SweepRecord.FILE


@lru_cache
def _adapter(record: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # a tenth of a second, which --help does without

    return TypeAdapter(record)


def read_json(path: Path) -> dict[str, Any]:
    """The content of another JSON file of ours; empty where it is missing or half of it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, content: Any) -> None:
    """Write a file that is either the old one or the new one, never half of either."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def sweep_outcome(folder: Path) -> str:
    """What a sweep came to, by its cells on disk: ``ok`` where all that were planned are fine."""
    fine = sum(cell.fine for cell in _cells_of(folder))
    return "ok" if fine == SweepRecord.load(folder).cells else "failed"


def _cells_of(folder: Path) -> Iterator[CellRecord]:
    for path in folder.glob(f"*/{CELL}"):
        with suppress(UnreadableRecordError):
            yield CellRecord.load(path.parent)
