"""Tables as people read them: rich for the terminal, markdown, csv and json.

A column that is the same in every row says so once, above the table; reasons stand below it.
"""

import csv
import json
import shlex
import sys
from pathlib import Path
from typing import Literal, TextIO

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from runners.harness.store.disk import TABLES
from runners.harness.tables import engines as engine_table
from runners.harness.tables import frames, noise
from runners.harness.tables.columns import HEADINGS, folded, numeric, texts
from runners.harness.tables.table import Table
from runners.harness.terminal import reader_gone

_CELL_COLUMNS = (
    "cell model device threads batch prompt_tokens new_tokens cache sampler engine precision round "
    "outcome output_tok_per_s low high repeats ttft_ms tpot_ms kv_cache_bytes peak_memory_bytes "
    "stable noise reason"
).split()
_RANGES = {"": "range"} | {f"{side}_": f"{side} range" for side in ("none", "cpu", "a", "b")}
"""The columns that the ends of a side's rates become, by the side's prefix."""
_FIGURES = (
    "cell outcome output_tok_per_s tok_per_s none_tok_per_s cpu_tok_per_s a_tok_per_s b_tok_per_s "
    "speedup ratio interval verdict wins limit_share repeats ttft_ms tpot_ms kv_cache_bytes "
    "peak_memory_bytes id kind when cells ok overrides setting noise n n_none n_cpu"
).split()  # always columns, however alike
_FIGURES += _RANGES.values()
_FIRST_TO_GO = [
    "peak MiB",
    "limit ms",
    "stable",
    "TTFT ms",
    "cache MiB",
    "TPOT ms",
    "cell",
    "n none",
    "n cpu",
]
_FIRST_TO_GO += ["rounds a", "rounds b", "n a", "n b", *_RANGES.values(), "noise"]
_PIPED_WIDTH = 140


def bench_tables(cells: pd.DataFrame, note: str = "", where: str = "") -> list[Table]:
    """The tables of a benchmark sweep, in the order of reading; of its cells that ``where``
    left, if there are any, and ``note`` says why if there are not.
    """
    overrides = str(cells["overrides"].iloc[0]) if len(cells) else ""
    caches, devices = frames.cache_speedup(cells), frames.device_comparison(cells)
    engines = engine_table.engines(cells)
    missed = cells["outcome"].ne("ok") & cells["device"].ne("cpu")
    other = str(cells["device"][missed].iloc[0]) if missed.any() else "cuda"
    elsewhere = f" on a machine with {other}" if missed.any() else ""
    only = f" where {where}" if where else ""

    def filled_by(what: str, place: str, **axes: str) -> str:
        if where:
            return note or f"{what} where {where}"
        if overrides.startswith(("run=", "config=")):  # a rerun, of one cell as it was
            return what
        return f"{what}; this fills it{place}: {command(overrides, **axes)}"

    return [
        Table(
            "cells",
            cells[_CELL_COLUMNS],
            f"cells{only} (interval: of the median, 95 %)",
            note or "there are none",
            _lines(noise.of_cells(cells.to_dict("records"))),
        ),
        Table(
            "cache",
            caches,
            f"cache against none{only} (interval: of the speed-up, 99 %)",
            filled_by("no two cells differ in the cache alone", "", cache="none,rolling"),
            _lines(noise.of_pairs(caches["noise"])),
        ),
        Table(
            "device",
            devices,
            f"device against cpu{only} (interval: of the speed-up, 99 %)",
            filled_by("no cell was measured on two devices", elsewhere, device=f"cpu,{other}"),
            frames.crossovers(devices) + _lines(noise.of_pairs(devices["noise"])),
        ),
        Table(
            "engine",
            engines,
            f"engines as multiples of {engine_table.YARDSTICK}{only} (interval: 99 %)",
            filled_by(
                "no two engines were measured", "", engine="eager,compiled", cache="rolling,static"
            ),
            engine_table.beyond_limit(engines) + _lines(noise.of_pairs(engines["noise"])),
        ),
    ]


def _lines(line: str) -> list[str]:
    return [line] if line else []


def command(overrides: str, **axes: str) -> str:
    """The sweep ``overrides`` with each group of ``axes`` swept over its options, as typed."""
    try:
        words = [w for w in shlex.split(overrides) if not w.startswith(("resume=", "plan="))]
    except ValueError:  # cut in the middle of a quote: longer than MLflow keeps
        words = []
    for group, options in axes.items():
        axis = f"{group}={options}"
        at = [n for n, word in enumerate(words) if word.partition("=")[0] == group]
        for n in at:
            words[n] = axis
        words += [] if at else [axis]
    return "python -m runners.bench -m " + shlex.join(words)


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


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process, with what runs in it."""
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
    """Raw figures, a figure that is not there left empty."""
    # Quoted only where need be, a lone carriage return would end a row for whoever reads it.
    odd = any(frame[name].astype(str).str.contains("\r", regex=False).any() for name in frame)
    how: Literal[0, 2] = csv.QUOTE_NONNUMERIC if odd else csv.QUOTE_MINIMAL
    return frame.to_csv(index=False, lineterminator="\n", quoting=how)


def to_json(frame: pd.DataFrame) -> str:
    """A list of rows; a figure that is not there is null."""
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
    for name in _FIRST_TO_GO:
        if sum(max(len(str(c)), *rows[c].str.len()) + 2 for c in rows) <= console.width:
            break
        if name in rows:
            rows = rows.drop(columns=name)
            left_out.append(name)
    drawn = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in rows.columns:
        side: Literal["left", "right"] = "right" if numeric(rows[name]) else "left"
        drawn.add_column(name, justify=side, no_wrap=name != "overrides")
    for row in rows.itertuples(index=False):  # what is no_wrap has its width; the rest is cut
        drawn.add_row(*(Text(value, no_wrap=True, overflow="ellipsis") for value in row))
    console.print(drawn)
    for line in footer:
        console.print(line, soft_wrap=True)
    if left_out:
        console.print(f"for want of width without {', '.join(left_out)}", style="dim")


def _shown(table: Table) -> tuple[str, pd.DataFrame, list[str]]:
    """What all rows share, in words; the columns that differ, as text; the lines below."""
    frame = table.frame
    footer = list(table.footer)
    columns = {str(name): texts(str(name), frame[name]) for name in frame.columns}
    if "reason" in columns:
        reasons = columns.pop("reason")
        for reason in dict.fromkeys(r for r in reasons if r != "-"):
            names = next(iter(columns.values()))
            which = [c for c, r in zip(names, reasons, strict=True) if r == reason]
            footer.append(f"{', '.join(which)}: {reason}")
    columns = folded(columns, "low", "high", "interval", ("output_tok_per_s", "speedup"))
    for prefix, name in _RANGES.items():
        columns = folded(
            columns, f"{prefix}lowest", f"{prefix}highest", name, (f"{prefix}tok_per_s",)
        )
        if "-" not in columns.get("interval", []):  # which says it better
            columns.pop(name, None)
    if not any(map(noise.is_noisy, frame.get("noise", []))):
        columns.pop("noise", None)
    said, kept = [], {}
    for name, column in columns.items():
        values = set(column) - {"-"}
        heading = HEADINGS.get(name, name)
        if not values:
            continue
        if len(values) == 1 and name not in _FIGURES:
            said.append(f"{heading} {values.pop()}")
        else:
            kept[heading] = column
    return ", ".join(said), pd.DataFrame(kept), footer
