"""Shows how far a training run is: a line at every held-out loss, and on a terminal also a bar.

Both are drawn between steps by the process that trains, not by a thread.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from runners.harness.terminal import console, duration
from runners.harness.train.trainer import Row

_REDRAW_S = 0.2


class TrainProgress:
    """The progress of one run, from step ``first`` to ``last``."""

    def __init__(self) -> None:
        self.first = self.last = self.done = 0
        self._started = self._drawn = time.monotonic()
        self._loss, self._held_out = float("nan"), ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("", total=1, left="")

    @contextmanager
    def steps(self, first: int, last: int) -> Iterator[None]:
        """Count and show steps inside this context."""
        self.first = self.done = first
        self.last, self._started = last, time.monotonic()
        if not console.is_terminal:
            yield
            return
        self._bar.update(self._task, total=last, completed=first)
        with self._bar:
            yield

    def say(self, text: str) -> None:
        """Print a line that stays."""
        console.print(text, markup=False)

    def step(self, row: Row) -> None:
        """Show that a step is done."""
        self.done, self._loss = int(row["step"]), row["loss_nats"]
        now = time.monotonic()
        if console.is_terminal and (now - self._drawn >= _REDRAW_S or self.done == self.last):
            self._drawn = now
            text = f"loss {self._loss:.3f}{self._held_out}, {row['tok_per_s']:,.0f} tok/s"
            self._bar.update(
                self._task, completed=self.done, description=text, left=f"{self.left()} left"
            )
            self._bar.refresh()

    def looked(self, row: Row, tok_per_s: float) -> None:
        """Print the held-out loss that was just computed."""
        loss = row["held_out_loss_nats"]
        self._held_out = f", held out {loss:.3f}"
        left = f", {self.left()} left" if self.done < self.last else ""
        self.say(
            f"step {self.done}/{self.last}: loss {self._loss:.3f}, held out {loss:.3f} "
            f"nats a token ({row['held_out_bits_per_byte']:.3f} bits a byte), "
            f"{tok_per_s:,.0f} tok/s{left}"
        )

    def left(self) -> str:
        """Time left, estimated from the time of the steps so far and of all between them."""
        took = time.monotonic() - self._started
        return duration(took / max(1, self.done - self.first) * (self.last - self.done))
