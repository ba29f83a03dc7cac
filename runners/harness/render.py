"""Tables as people read them: rich for the terminal, markdown, csv and json.

A column that is the same in every row says so once, above the table.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable

from runners.harness import tables

_CELL_COLUMNS = (
    "cell model device threads batch prompt_tokens new_tokens cache sampler engine precision round "
    "outcome output_tok_per_s low high repeats ttft_ms tpot_ms kv_cache_bytes peak_memory_bytes "
    "stable reason"
).split()
_HEADINGS = {
    "new_tokens": "new",
    "prompt_tokens": "prompt",
    "output_tok_per_s": "tok/s",
    "tok_per_s": "tok/s",
    "none_tok_per_s": "none tok/s",
    "cpu_tok_per_s": "cpu tok/s",
    "repeats": "n",
    "n_none": "n none",
    "n_cpu": "n cpu",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "kv_cache_bytes": "cache MiB",
    "peak_memory_bytes": "peak MiB",
}


@dataclass
class Table:
    """A table and how it is introduced."""

    name: str
    frame: pd.DataFrame
    title: str
    empty: str = ""
    """What fills it, where it has no rows."""
    footer: list[str] = field(default_factory=list)


def bench_tables(cells: pd.DataFrame) -> list[Table]:
    """The three tables of a benchmark sweep, in the order of reading."""
    overrides = cells["overrides"].iloc[0] if len(cells) else ""
    devices = tables.device_comparison(cells)
    absent = sorted(set(cells.loc[cells["outcome"].ne("ok"), "device"]) - {"cpu"})
    other = absent[0] if absent else "cuda"
    elsewhere = f" on a machine with {other}" if absent else ""
    return [
        Table("cells", cells[_CELL_COLUMNS], "cells: 95 % interval of the median in low, high"),
        Table(
            "cache",
            tables.cache_speedup(cells),
            "cache against none: 99 % interval of the speed-up in low, high",
            f"no two cells differ in the cache alone; fill it with: "
            f"{command(overrides, 'cache', 'none,rolling')}",
        ),
        Table(
            "device",
            devices,
            "device against cpu: 99 % interval of the speed-up in low, high",
            f"no cell was measured on two devices; fill it{elsewhere} with: "
            f"{command(overrides, 'device', f'cpu,{other}')}",
            tables.crossovers(devices),
        ),
    ]


def command(overrides: str, group: str, options: str) -> str:
    """The sweep ``overrides`` with ``group`` swept over ``options``, as one types it."""
    kept = [o for o in overrides.split() if o.partition("=")[0] != group]
    return " ".join(["python -m runners.bench -m", *kept, f"{group}={options}"])


def show(table: Table, format: str = "rich", stream: Any = None) -> None:
    """Print a table in one of the formats."""
    stream = stream or sys.stdout
    if format == "csv":
        table.frame.to_csv(stream, index=False, lineterminator="\n")
    elif format == "json":
        stream.write(to_json(table.frame) + "\n")
    elif format == "md":
        stream.write(to_markdown(table) + "\n")
    else:
        _show_rich(table, stream)


def write(folder: Path, shown: list[Table], cells: pd.DataFrame) -> None:
    """Write every table as csv, md and json; the csv of the cells holds every column."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in shown:
        frame = cells if table.name == "cells" else table.frame
        csv = frame.to_csv(index=False, lineterminator="\n")
        for suffix, text in (("csv", csv), ("json", to_json(frame)), ("md", to_markdown(table))):
            (folder / f"{table.name}.{suffix}").write_text(text + "\n", encoding="utf-8")


def to_json(frame: pd.DataFrame) -> str:
    """A list of rows; a figure that is not there is null."""
    return json.dumps(json.loads(frame.to_json(orient="records")), indent=1, ensure_ascii=False)


def to_markdown(table: Table) -> str:
    """The table with its title, constants and footer, as markdown."""
    lines = [f"### {table.title}", ""]
    if table.frame.empty:
        return "\n".join([*lines, table.empty])
    constants, rows = _split(table.frame)
    if constants:
        lines += [constants, ""]
    lines.append("| " + " | ".join(rows.columns) + " |")
    lines.append("|" + "|".join(" --- " for _ in rows.columns) + "|")
    for row in rows.itertuples(index=False):
        lines.append("| " + " | ".join(str(v).replace("|", "\\|") for v in row) + " |")
    return "\n".join([*lines, *([""] if table.footer else []), *table.footer])


def _show_rich(table: Table, stream: Any) -> None:
    console = Console(file=stream, highlight=False)
    console.print(f"\n[bold]{table.title}[/]")
    if table.frame.empty:
        console.print(table.empty, soft_wrap=True)
        return
    constants, rows = _split(table.frame)
    if constants:
        console.print(constants, style="dim")
    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    for name in rows.columns:
        numeric = rows[name].str.fullmatch(r"[-\d,.]*").all()
        drawn.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows.itertuples(index=False):
        drawn.add_row(*row)
    console.print(drawn)
    for line in table.footer:
        console.print(line)


def _split(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """What all rows share, in words, and the columns that differ, as text."""
    texts = {name: _texts(name, frame[name]) for name in frame.columns}
    rows = pd.DataFrame(texts)
    if len(rows) < 2:
        return "", rows.loc[:, rows.ne("-").any()].rename(columns=_HEADINGS)
    same = [name for name in rows if rows[name].nunique() == 1]
    figures = {"output_tok_per_s", "speedup", "verdict", "outcome"}
    same = [name for name in same if name not in figures]
    said = [f"{_HEADINGS.get(n, n)} {rows[n].iloc[0]}" for n in same if rows[n].iloc[0] != "-"]
    return ", ".join(said), rows.drop(columns=same).rename(columns=_HEADINGS)


def _texts(name: str, column: pd.Series) -> list[str]:
    form: Callable[[Any], str] = str
    if name.endswith("_bytes"):
        form = _mebibytes
    elif pd.api.types.is_float_dtype(column):
        form = _three_digits
    return ["-" if pd.isna(value) or value == "" else form(value) for value in column]


def _mebibytes(value: int) -> str:
    return f"{value / 2**20:,.2f}"


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
