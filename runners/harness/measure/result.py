"""The result of a run, before any of it is stored."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class CellResult:
    """The result of one cell, or of another run."""

    outcome: str
    """``ok``, ``skipped``, ``oom``, ``failed``, ``mismatch`` or ``interrupted``."""
    reason: str = ""
    """Why the outcome is not ``ok``, in one line."""
    headline: str = ""
    """Its most telling figures, in one line for the terminal."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures by the names of results/README.md: rates, times in ms, sizes in bytes."""
    tags: dict[str, str] = field(default_factory=dict)
    """Facts about the cell that are not figures: hashes, stability, machine."""
    timings: dict[str, list[float]] = field(default_factory=dict)
    """Every raw measurement: seconds, or tokens/s of each step of a training run."""
    generations: list[dict[str, Any]] = field(default_factory=list)
    """One entry per text: prompt ids, new ids, text."""
    files: dict[str, str] = field(default_factory=dict)
    """Further artifacts, which are best read as a page: their text by file name."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know, such as a prompt that was cut, or too many threads."""
    error: str = ""
    """The traceback of an exception."""
