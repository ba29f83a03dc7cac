"""Shows the progress of cells and sweeps on a terminal.

Nothing is drawn from a thread or inside timed code, since drawing would disturb measuring.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from runners.harness.measure.result import CellResult
from runners.harness.store.disk import Place
from runners.harness.terminal import console, duration

_BAR_WIDTH = 20
_STYLE = {"ok": "green", "skipped": "yellow"}


class SweepProgress:
    """The progress bar of a sweep; a process has one sweep at a time."""

    def __init__(self, estimates_s: Sequence[float]) -> None:
        self.estimates_s = list(estimates_s)
        self.done = 0
        self.started = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=_BAR_WIDTH),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
            console=console,
            auto_refresh=False,  # a refreshing thread would compete with what is measured
            transient=True,
        )
        self._task = self._bar.add_task("", total=len(self.estimates_s), left=self.left())

    def left(self) -> str:
        """The time left: the estimates of the cells ahead, corrected by how long the finished ones
        took.
        """
        past, ahead = sum(self.estimates_s[: self.done]), sum(self.estimates_s[self.done :])
        if self.done:
            ahead *= (time.monotonic() - self.started) / past
        return duration(ahead)

    def show(self, phase: str) -> None:
        """Draw the bar with the phase of the current cell, cut so that the line does not wrap."""
        left = self.left()
        count = f"{self.done}/{len(self.estimates_s)}"
        others = _BAR_WIDTH + len(count) + len(f"{left} left") + 3  # 3 spaces between the columns
        text = Text(phase)
        text.truncate(max(console.width - others, 10), overflow="ellipsis")
        self._bar.update(self._task, description=text.plain, completed=self.done, left=left)
        self._bar.refresh()


_PLACE = ("tracking.", "prompt.", "device.threads")
"""Overrides that are left out of a lone cell's title, since they are long and say little."""
_sweep: SweepProgress | None = None
_axes: set[str] | None = None


@contextmanager
def sweep(estimates_s: Sequence[float], axes: set[str]) -> Iterator[None]:
    """Show the progress of a sweep while the block runs; ``estimates_s`` has each cell's seconds.

    Each cell is named by its values of ``axes``.
    """
    global _sweep
    _sweep = SweepProgress(estimates_s)
    with named_by(axes), _sweep._bar if console.is_terminal else _nothing():
        try:
            yield
        finally:
            _sweep = None


@contextmanager
def named_by(axes: set[str]) -> Iterator[None]:
    """Name each cell by its values of ``axes``, which a sweep varies, while the block runs."""
    global _axes
    _axes = axes
    try:
        yield
    finally:
        _axes = None


class CellProgress:
    """Shows the phases of one cell and finally its outcome."""

    def __init__(self, place: Place) -> None:
        names = place.overrides
        if _axes is not None:
            names = [name for name in names if name.partition("=")[0] in _axes]
        self.swept = _axes is not None
        if place.rerun_of:
            names = [f"{place.rerun_of} again"]
        elif not self.swept:  # named by the id that other commands take
            names = [place.cell, *(name for name in names if not name.startswith(_PLACE))]
        self.title = " ".join(names) or "one cell"

    def __call__(self, phase: str) -> None:
        if not console.is_terminal:
            return
        if _sweep:
            _sweep.show(f"{self.title}: {phase}")
        else:
            text = Text(f"{self.title}: {phase}")
            text.truncate(console.width - 1, overflow="ellipsis", pad=True)
            console.print(text, end="\r", soft_wrap=False)

    def done_before(self, outcome: str) -> None:
        """Print that the cell was done before and is not run."""
        self.finished(CellResult(outcome, headline="done before"))

    def finished(self, result: CellResult) -> None:
        """Print a line with the outcome of the cell."""
        if _sweep:
            _sweep.done += 1
            count = f"{_sweep.done}/{len(_sweep.estimates_s)} "
            left = f", {_sweep.left()} left" if _sweep.done < len(_sweep.estimates_s) else ""
        else:
            count = left = ""
        text = result.headline or result.reason
        outcome = Text(result.outcome, style=_STYLE.get(result.outcome, "red"))
        console.print(Text(f"{count}{self.title}: ") + outcome + Text(f" {text}{left}"))
        for note in result.notes:
            console.print(f"  note: {note}")


@contextmanager
def _nothing() -> Iterator[None]:
    yield
