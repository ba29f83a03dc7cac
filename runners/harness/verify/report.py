"""What verify found, as people read it: a list of checks, and two texts side by side."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, Self

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from runners.harness.terminal import printable

_BEFORE, _AFTER = 150, 450
"""Characters shown of two texts before and after they part."""
_PAGE_WIDTH = 120
"""Columns of two texts in the artifact."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    outcome: str
    """``passed``, ``failed``, ``skipped``, or ``seen`` for what is shown but not judged."""
    seen: str
    """What was found, or why nothing was looked at; one line."""


def judged(name: str, ok: bool, seen: str) -> Check:
    """A check that passed or failed."""
    return Check(name, "passed" if ok else "failed", seen)


def to_json(checks: Iterable[Check]) -> str:
    """The checks as a list of rows."""
    return json.dumps([asdict(check) for check in checks], indent=1, ensure_ascii=False) + "\n"


def to_markdown(title: str, checks: Iterable[Check], texts: "TwoTexts | None") -> str:
    """One page: the checks as a table, then two whole texts."""
    lines = [f"# {title}", "", "| check | outcome | what was seen |", "|---|---|---|"]
    for check in checks:
        row = (check.name, check.outcome, check.seen)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    if texts:
        lines += ["", f"## {texts.left_name} and {texts.right_name}", ""]
        # Indented lines are shown literally, whatever is in the texts.
        lines += [f"    {line}" for line, _ in side_by_side(texts, _PAGE_WIDTH)]
    return "\n".join([*lines, ""])


class TwoTexts(NamedTuple):
    """Two texts that differ, and their names."""

    left_name: str
    right_name: str
    left: str
    right: str

    def where_they_part(self) -> Self:
        """The same stretch of both: a little before the first difference, and more after it."""
        pairs = enumerate(zip_longest(self.left, self.right))
        parted = next((n for n, (one, two) in pairs if one != two), len(self.left))
        start = max(0, parted - _BEFORE)
        start = self.left.rfind("\n", start // 2, start) + 1 or start  # from a line's beginning
        if start < _BEFORE:
            start = 0
        stop = parted + _AFTER
        left, right = (
            ("…" if start else "") + text[start:stop] + ("…" if len(text) > stop else "")
            for text in (self.left, self.right)
        )
        return self._replace(left=left, right=right)


def two_texts(generations: Iterable[dict[str, Any]]) -> TwoTexts | None:
    """The texts of the correct and the broken cache, or of none and rolling; None if their ids are
    the same.
    """
    rows = {row["cache"]: row for row in generations}
    left, right = ("rolling", "broken") if "broken" in rows else ("none", "rolling")
    if not rows or rows[left]["new_ids"] == rows[right]["new_ids"]:
        return None
    texts = [f"{rows[name]['prompt']}{rows[name]['text']}" for name in (left, right)]
    return TwoTexts("correct" if right == "broken" else left, right, *texts)


def side_by_side(texts: TwoTexts, width: int) -> list[tuple[str, bool]]:
    """The lines of two texts in two columns, ``width`` terminal cells in all; true if equal."""
    half = (width - 3) // 2
    console = Console(width=half)
    left, right = (
        [line.plain.rstrip() for line in Text(printable(text)).wrap(console, half, tab_size=4)]
        for text in (texts.left, texts.right)
    )
    lines = [(texts.left_name, texts.right_name), *zip_longest(left, right, fillvalue="")]
    return [(f"{set_cell_size(one, half)} | {two}".rstrip(), one == two) for one, two in lines]
