"""A table as text: rich for the terminal, markdown, csv and json.

A value that is the same in every row is said once, above the table; reasons are below it.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Literal, TextIO

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from runners.harness.store.disk import TABLES
from runners.harness.tables import noise
from runners.harness.tables.columns import (
    DROPPED,
    INTERVAL,
    RANGES,
    column,
    folded,
    numeric,
    texts,
)
from runners.harness.tables.table import Table
from runners.harness.terminal import reader_gone

_PIPED_WIDTH = 140


def show(table: Table, form: str = "rich", stream: TextIO | None = None) -> None:
    """Print a table in one of the forms rich, md, csv, json."""
    stream = stream or sys.stdout
    if table.frame.empty and form in ("csv", "json"):
        print(table.empty, file=sys.stderr)  # stdout holds rows only
    try:
        if form == "rich":
            _show_rich(table, stream)
            return
        if form == "csv":
            text = to_csv(table.frame)
        else:
            text = to_json(table.frame) if form == "json" else to_markdown(table)
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        reader_gone()


def say(line: str) -> None:
    """Print a line below the tables."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        reader_gone()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Call ``reader_gone``, since Rich would end the process with all that runs in it."""
        reader_gone()


def write(folder: Path, shown: list[Table], whole: pd.DataFrame) -> None:
    """Write every table as csv, md and json; csv and json of the first hold all of ``whole``."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in shown:
        frame = whole if table is shown[0] else table.frame
        for suffix, text in (
            ("csv", to_csv(frame)),
            ("json", to_json(frame)),
            ("md", to_markdown(table)),
        ):
            name = f"{table.name}.{suffix}"
            assert name in TABLES, f"{name}: unknown to TABLES, so that prune would not remove it"
            (folder / name).write_text(text, encoding="utf-8")


def to_csv(frame: pd.DataFrame) -> str:
    """The rows as csv with raw figures; a missing figure is left empty."""
    # With minimal quoting, a lone carriage return would end a row for whoever reads the csv.
    odd = any(frame[name].astype(str).str.contains("\r", regex=False).any() for name in frame)
    how: Literal[0, 2] = csv.QUOTE_NONNUMERIC if odd else csv.QUOTE_MINIMAL
    return frame.to_csv(index=False, lineterminator="\n", quoting=how)


def to_json(frame: pd.DataFrame) -> str:
    """A list of rows; a missing figure is null."""
    rows = json.loads(frame.to_json(orient="records"))
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def to_markdown(table: Table) -> str:
    """The table with its title, constants and footer."""
    lines = [f"### {table.title}", ""]
    if table.frame.empty:
        return "\n".join([*lines, table.empty, ""])
    constants, rows, footer = _shown(table)
    lines += [constants, ""] if constants else []
    lines.append("| " + " | ".join(rows.columns) + " |")
    lines.append("|" + "|".join("---:" if numeric(rows[c]) else "---" for c in rows) + "|")
    for row in rows.itertuples(index=False):
        lines.append("| " + " | ".join(str(value).replace("|", "\\|") for value in row) + " |")
    for line in footer:
        lines += ["", line]
    return "\n".join([*lines, ""])


def _show_rich(table: Table, stream: TextIO) -> None:
    width = None if stream.isatty() else _PIPED_WIDTH
    console = _Console(file=stream, highlight=False, markup=False, width=width)
    console.print(f"\n{table.title}", style="bold")
    if table.frame.empty:
        console.print(table.empty, soft_wrap=True)
        return
    constants, rows, footer = _shown(table)
    if constants:
        console.print(constants, style="dim")
    left_out = []
    for name in (column(dropped).title for dropped in DROPPED):
        if sum(max(len(str(c)), *rows[c].str.len()) + 2 for c in rows) <= console.width:
            break
        if name in rows:
            rows = rows.drop(columns=name)
            left_out.append(name)
    drawn = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in rows.columns:
        side: Literal["left", "right"] = "right" if numeric(rows[name]) else "left"
        drawn.add_column(name, justify=side, no_wrap=name != "overrides")
    for row in rows.itertuples(index=False):  # no_wrap columns keep their width; others are cut
        drawn.add_row(*(Text(value, no_wrap=True, overflow="ellipsis") for value in row))
    console.print(drawn)
    for line in footer:
        console.print(line, soft_wrap=True)
    if left_out:
        console.print(f"for want of width without {', '.join(left_out)}", style="dim")


def _shown(table: Table) -> tuple[str, pd.DataFrame, list[str]]:
    """What all rows share, in words; the other columns, as text; the lines below the table."""
    frame = table.frame
    footer = list(table.footer)
    columns = {str(name): texts(str(name), frame[name]) for name in frame.columns}
    if "reason" in columns:
        reasons = columns.pop("reason")
        for reason in dict.fromkeys(r for r in reasons if r != "-"):
            names = next(iter(columns.values()))
            which = [c for c, r in zip(names, reasons, strict=True) if r == reason]
            footer.append(f"{', '.join(which)}: {reason}")
    columns = folded(columns, INTERVAL)
    for span in RANGES:
        columns = folded(columns, span)
        if "-" not in columns.get("interval", []):  # the interval says it better
            columns.pop(span.name, None)
    if not any(map(noise.is_noisy, frame.get("noise", []))):
        columns.pop("noise", None)
    said, kept = [], {}
    for name, shown in columns.items():
        values, how = set(shown) - {"-"}, column(name)
        if not values:
            continue
        if len(values) == 1 and not how.always:
            said.append(f"{how.title} {values.pop()}")
        else:
            kept[how.title] = shown
    return ", ".join(said), pd.DataFrame(kept), footer
