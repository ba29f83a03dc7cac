"""What a run came to, before anything of it is kept."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class CellResult:
    """What one cell came to."""

    outcome: str
    """``ok``, ``skipped``, ``oom``, ``failed``, ``mismatch`` or ``interrupted``."""
    reason: str = ""
    """Why it is not ok; one line."""
    headline: str = ""
    """Its most telling figures, in one line for the terminal."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures by the names of results/README.md: rates, times in ms, sizes in bytes."""
    tags: dict[str, str] = field(default_factory=dict)
    """Facts about the cell that are no figures: hashes, stability, machine."""
    timings: dict[str, list[float]] = field(default_factory=dict)
    """Every raw second."""
    generations: list[dict[str, Any]] = field(default_factory=list)
    """One row each: prompt ids, new ids, text."""
    files: dict[str, str] = field(default_factory=dict)
    """Further artifacts, text by file name: what is best read as a page."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know: a prompt that was cut, too many threads."""
    error: str = ""
    """The traceback of an exception."""
