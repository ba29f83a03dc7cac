"""Output to people: the console, safe text, durations, and lines on standard error."""

import os
import sys

from rich.console import Console

# Prompts and reasons are text, not rich's markup.
console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def complain(message: str) -> None:
    """Print one line to standard error."""
    print(message, file=sys.stderr)


def starting(loads: str) -> None:
    """Print on a terminal what is being loaded, since nothing else appears for some seconds."""
    if console.is_terminal:
        console.print(f"starting: loading {loads}", style="dim")


def reader_gone() -> None:
    """Drop all further output, once standard output has no reader any more (``| head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def printable(text: str) -> str:
    """``text`` made safe for a terminal: control characters except line feed and tab become U+FFFD.

    A model that writes bytes may write control characters.
    """
    steers = (*range(9), *range(11, 32), *range(127, 160))
    return text.translate(dict.fromkeys(steers, "�"))


def duration(seconds: float) -> str:
    """A number of seconds for people, in s, min or h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def three_digits(value: float) -> str:
    """A number with at least three digits: 0.12, 12.3, 1,234."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
