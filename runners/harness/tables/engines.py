"""The engines side by side: each cell's rate as a multiple of one yardstick, and its share of the
limit. All engines and precisions of a model are in one column of figures that way.
"""

from typing import Any

import pandas as pd

from runners.harness.tables.frames import SORT, ratio
from tinygpt.config import CACHE_KINDS, ENGINE_KINDS, PRECISION_KINDS

YARDSTICK = "eager rolling fp32 at batch 1"
_KEY = ["shape", "prompt_tokens", "new_tokens", "sampling", "seed", "device", "threads", "machine"]
_KEY += ["torch"]
"""What a cell shares with its yardstick; weights differ by precision, prompts by batch."""
_CELL = ["precision", "batch", "cache", "engine"]
_FIGURES = ["tok_per_s", "lowest", "highest", "speedup", "low", "high", "tpot_ms", "limit_ms"]
_FIGURES += ["limit_share"]


def engines(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, rounds pooled, of every series in which more than one engine was measured.

    A series without a yardstick has rates and shares, and no multiples.
    """
    rows = []
    measured = frame[frame["outcome"].eq("ok") & frame["rates"].ne("[]")]
    for _, series in measured.groupby(_KEY, sort=False, dropna=False):
        if series["engine"].nunique() < 2:
            continue
        base = _yardstick(series)
        for _, cell in series.groupby(_CELL, sort=True, dropna=False):
            rows.append(_row(cell, base))
    ordered = [*_CELL, *(name for name in SORT if name not in _CELL)]
    table = pd.DataFrame(rows, columns=[*ordered, *_FIGURES, "n", "noise"])
    for name in _FIGURES:  # a column that lacks some is one of figures all the same
        table[name] = pd.to_numeric(table[name], errors="coerce").astype("Float64")
    kinds = [*PRECISION_KINDS, *CACHE_KINDS, *ENGINE_KINDS]
    order = {name: n for n, name in enumerate(kinds)}
    return table.sort_values(
        _CELL, key=lambda c: c if c.name == "batch" else c.map(order), ignore_index=True
    )


def _yardstick(series: pd.DataFrame) -> pd.DataFrame:
    of_it = series["engine"].eq("eager") & series["cache"].eq("rolling")
    return series[of_it & series["precision"].eq("fp32") & series["batch"].eq(1)]


def _row(cell: pd.DataFrame, base: pd.DataFrame) -> dict[str, Any]:
    row = {name: cell[name].iloc[0] for name in SORT}
    figures = ratio(cell, base if len(base) else cell, "yardstick")
    if base.empty:
        figures |= {"speedup": None, "low": None, "high": None}
    medians = {name: cell[name].median() for name in ("tpot_ms", "limit_ms", "limit_share")}
    kept = ("tok_per_s", "speedup", "low", "high", "n", "lowest", "highest", "noise")
    return row | {name: figures[name] for name in kept} | medians


def beyond_limit(table: pd.DataFrame) -> list[str]:
    """A line on rows that are faster than their limit, which no engine is; none if no row is."""
    if not table["limit_share"].gt(1).any():
        return []
    return [
        "of limit above 1: the limit was measured in another, slower minute than the steps; "
        "measure again on a quiet machine"
    ]
