"""The texts of a sweep side by side: a table to compare, a page to read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from runners.harness.launch import progress
from runners.harness.launch.entry import Sweep
from runners.harness.launch.tracked import tracked_sweep
from runners.harness.report import pages, render
from runners.harness.store.disk import read_rows
from runners.harness.store.records import CELL, CellRecord, sweep_outcome
from runners.harness.store.tracking import Store
from runners.harness.tables.table import Table
from runners.harness.terminal import printable
from runners.harness.text import figures as text_figures

COLUMNS = (
    *("setting", "prompt", "outcome", "new_tokens"),
    *("distinct_2", "longest_repeat_tokens", "mean_logprob_nats", "opening"),
    *("text", "longest_repeat", "reason"),
)
_SHORT = 40
_MARKED = 3
"""The fewest tokens of a repeat that is marked in a page."""


@contextmanager
def tracked(sweep: Sweep) -> Iterator[None]:
    """The sweep's texts are written inside this context, and then put side by side."""
    with tracked_sweep("sample", sweep, _sum_up), progress.named_by(set(sweep.axes)):
        yield


def _sum_up(store: Store, folder: Path) -> str:
    frame = grid(folder)
    shown = frame.drop(columns=["text", "longest_repeat"])
    for name in ("setting", "prompt", "opening"):
        shown[name] = shown[name].map(_short, na_action="ignore")
    table = Table(
        "samples",
        shown,
        "samples (figures of the new tokens; opening: shares its first tokens with)",
        "no text was written",
    )
    render.write(folder / "tables", [table], frame)
    for name, page in (("samples.md", to_markdown(frame)), ("samples.html", to_html(frame))):
        (folder / "tables" / name).write_text(page, encoding="utf-8")
    render.show(table)
    print(f"the texts side by side: {folder / 'tables' / 'samples.html'}")
    return sweep_outcome(folder)


def _short(text: str) -> str:
    """``text`` on one line, cut short, without characters that could steer a terminal."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def grid(folder: Path) -> pd.DataFrame:
    """One row per text of the sweep in ``folder``, from disk, with the columns ``COLUMNS``."""
    settings = _settings(folder)
    rows, ids = [], []
    for path, setting in zip(_cells(folder), settings, strict=True):
        cell = CellRecord.load(path.parent)
        known = {"setting": setting, "outcome": cell.outcome, "reason": cell.reason}
        lines = path.with_name("generations.jsonl")
        texts = read_rows(lines.read_text(encoding="utf-8")) if lines.is_file() else []
        for row in texts or [{}]:
            new = row.get("new_ids", [])
            rows.append({**row, **known, "new_tokens": len(new)})
            ids.append(new)
    for row, opening in zip(rows, _openings(rows, ids), strict=True):
        row["opening"] = opening
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def _settings(folder: Path) -> list[str]:
    """The overrides that set each cell apart from the others: ``greedy`` if one group is swept
    over, and ``sampler=greedy seed=2`` if several are.
    """
    files = [path.with_name("overrides.yaml") for path in _cells(folder)]
    every = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]
    shared = set.intersection(*map(set, every)) if len(every) > 1 else set()
    own = [[word for word in overrides if word not in shared] for overrides in every]
    if all(len(words) == 1 for words in own):
        return [words[0].partition("=")[2] for words in own]
    return [" ".join(words) or "as it is" for words in own]


def _cells(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/{CELL}"), key=lambda path: int(path.parent.name))


def _openings(rows: list[dict[str, Any]], ids: list[list[int]]) -> list[str]:
    """The other setting with which each text shares the most first tokens after the same prompt."""
    found = []
    for row, new in zip(rows, ids, strict=True):
        shared = [
            (text_figures.common_prefix(new, other_ids), other["setting"])
            for other, other_ids in zip(rows, ids, strict=True)
            if other["setting"] != row["setting"] and other.get("prompt") == row.get("prompt")
        ]
        most, setting = max(shared, key=lambda pair: pair[0], default=(0, ""))
        found.append(f"{setting} ({most})" if most else "")
    return found


def to_markdown(frame: pd.DataFrame) -> str:
    """The settings side by side as a table, with the text last."""
    lines = ["| setting | distinct-2 | longest repeat | log-probability | opening | text |"]
    lines.append("| --- | ---: | ---: | ---: | --- | --- |")
    for row in _records(frame):
        setting, opening, text = map(_plain, (row["setting"], row["opening"], _cell_text(row)))
        lines.append(f"| {' | '.join([setting, *_figures(row), opening, text])} |")
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """``text`` escaped so that a markdown table shows it unchanged."""
    text = re.sub(r"([\\`*_\[\]|~])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
    return re.sub(r"\r\n|\r|\n", "<br>", text)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _cell_text(row: dict[str, Any]) -> str:
    if row["outcome"] != "ok":
        return f"{row['outcome']}: {row['reason']}"
    return f"{row['prompt']}{row['text']}"


def _figures(row: dict[str, Any]) -> list[str]:
    forms = {"distinct_2": ".2f", "longest_repeat_tokens": ".0f", "mean_logprob_nats": ".2f"}
    return ["-" if pd.isna(row[name]) else format(row[name], form) for name, form in forms.items()]


def to_html(frame: pd.DataFrame) -> str:
    """One page that needs no other file: a card per text, with its longest repeat marked."""
    return pages.render("samples.html", cards=[_card(row) for row in _records(frame)])


def _card(row: dict[str, Any]) -> dict[str, Any]:
    names = ("distinct-2", "longest repeat", "log-probability", "opening as")
    figures = dict(zip(names, [*_figures(row), row["opening"] or "-"], strict=True))
    card = {"setting": row["setting"], "figures": figures, "prompt": "", "repeat": ""}
    if row["outcome"] != "ok":
        return card | {"parts": [_cell_text(row)]}
    parts, repeat = [row["text"]], row["longest_repeat"]
    if row["longest_repeat_tokens"] >= _MARKED and repeat.strip():
        parts = row["text"].split(repeat)
    return card | {"prompt": row["prompt"], "repeat": repeat, "parts": parts}
