"""Shows on the terminal what verify found: one line per check, differences last, then texts."""

import json
import sys
import textwrap

from rich.console import Console
from rich.text import Text

from runners.harness.launch.run import JobResult
from runners.harness.measure.result import CellResult
from runners.harness.verify.report import side_by_side, two_texts

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped", "seen": ""}
_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow", "seen": ""}
_PIPED_WIDTH = 140


def show_result(verified: JobResult) -> None:
    """Print the checks of a verify run."""
    place = verified.place
    show(verified.result, " ".join(place.overrides) if place.sweep else "")


def show(result: CellResult, title: str) -> None:
    """Print the checks of a result, under ``title`` if there are several results."""
    if "checks.json" not in result.files:
        return
    tty = sys.stdout.isatty()
    console = Console(highlight=False, markup=False, width=None if tty else _PIPED_WIDTH)
    if title:
        console.print(f"\n{title}", style="bold", soft_wrap=True)
    checks = json.loads(result.files["checks.json"])
    names = max(len(check["name"]) for check in checks)
    for check in checks:
        mark = f"{_MARKS[check['outcome']]:8}"
        line = f"{mark}{check['name']:{names}}  {check['seen']}"
        if tty:
            indent = " " * (len(mark) + names + 2)
            line = textwrap.fill(line, console.width, subsequent_indent=indent)
        shown = Text(line)
        shown.stylize(_STYLES[check["outcome"]], 0, len(mark))
        console.print(shown, soft_wrap=True)
    texts = two_texts(result.generations)
    if texts and texts.right_name == "broken":
        console.print()
        for line, equal in side_by_side(texts.where_they_part(), min(console.width, _PIPED_WIDTH)):
            console.print(Text(line), style="dim" if equal else "", soft_wrap=True)
