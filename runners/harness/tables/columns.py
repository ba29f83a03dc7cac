"""How columns read: their headings, their units, their digits."""

from collections.abc import Callable
from typing import Any

import pandas as pd

HEADINGS = {
    "new_tokens": "new",
    "prompt_tokens": "prompt",
    "output_tok_per_s": "tok/s",
    "tok_per_s": "tok/s",
    "none_tok_per_s": "none tok/s",
    "cpu_tok_per_s": "cpu tok/s",
    "repeats": "n",
    "n_none": "n none",
    "n_cpu": "n cpu",
    "limit_ms": "limit ms",
    "limit_share": "of limit",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "kv_cache_bytes": "cache MiB",
    "peak_memory_bytes": "peak MiB",
    "distinct_2": "distinct-2",
    "longest_repeat_tokens": "longest repeat",
    "mean_logprob_nats": "log-probability",
    "a_tok_per_s": "a tok/s",
    "b_tok_per_s": "b tok/s",
    "needed_bytes": "needs MiB",
    "seconds": "about s",
}


def texts(name: str, column: "pd.Series[Any]") -> list[str]:
    """A column's values as a person reads them, ``-`` where there is none."""
    form: Callable[[Any], str] = str
    if name.endswith("_bytes"):
        form = _mebibytes
    elif pd.api.types.is_float_dtype(column):
        form = _three_digits
    return ["-" if pd.isna(value) or value == "" else form(value) for value in column]


def numeric(column: "pd.Series[Any]") -> bool:
    """Whether such texts are figures, which stand to the right."""
    return bool(column.str.fullmatch(r"[-–\d,.]*").all())


def insert_after(
    columns: dict[str, list[str]], names: tuple[str, ...], new: str, column: list[str]
) -> dict[str, list[str]]:
    """``columns`` with a new one after each of those of ``names`` that are there."""
    out = {}
    for name, values in columns.items():
        out[name] = values
        if name in names:
            out[new] = column
    return out


def folded(
    columns: dict[str, list[str]], low: str, high: str, new: str, after: tuple[str, ...]
) -> dict[str, list[str]]:
    """``columns`` with those of both ends of a span as one, ``90–110``; as they are without."""
    ends = [columns.get(low), columns.get(high)]
    if ends[0] is None or ends[1] is None:
        return columns
    spans = [f"{a}–{b}" if "-" not in (a, b) else "-" for a, b in zip(*ends, strict=True)]
    rest = {name: column for name, column in columns.items() if name not in (low, high)}
    return insert_after(rest, after, new, spans)


def _mebibytes(value: int) -> str:
    return f"{value / 2**20:,.2f}"


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
