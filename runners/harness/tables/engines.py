"""The engines side by side: each cell's rate as a multiple of one yardstick, and its share of the
limit. This puts all engines and precisions of a model into one column of figures.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from runners.harness.tables.columns import KEY, ORDERED, PLACE
from runners.harness.tables.frames import measured, ratio
from tinygpt.config import CACHE_KINDS, ENGINE_KINDS, PRECISION_KINDS

_CELL = ["precision", "batch", "cache", "engine"]
# A series has all else in common, except weights (by precision) and prompts (by batch).
_SERIES = [name for name in (*KEY, *PLACE) if name not in (*_CELL, "weights", "prompt")]
_FIGURES = (
    "tok_per_s",
    "lowest",
    "highest",
    "speedup",
    "low",
    "high",
    "tpot_ms",
    "limit_ms",
    "limit_share",
)


class Yardstick(NamedTuple):
    """The cell of a series by whose rate the rates of the other cells are divided."""

    name: str
    fixed: dict[str, Any]
    """The values that the yardstick has in these columns."""
    same: tuple[str, ...] = ()
    """Columns in which the yardstick has the same value as the cell."""

    def of(self, cell: pd.DataFrame, series: pd.DataFrame) -> pd.DataFrame:
        """The rows of ``cell``'s yardstick in ``series``, one per round; none if it is missing."""
        wanted = self.fixed | {name: cell[name].iloc[0] for name in self.same}
        for name, value in wanted.items():
            series = series[series[name].eq(value)]
        return series

    def __str__(self) -> str:
        return self.name


_EAGER = {"engine": "eager"}
YARDSTICKS = (
    Yardstick(
        "eager rolling fp32 at batch 1",
        _EAGER | {"cache": "rolling", "precision": "fp32", "batch": 1},
    ),
    Yardstick(
        "eager fp32 at batch 1 with the same cache",
        _EAGER | {"precision": "fp32", "batch": 1},
        ("cache",),
    ),
    Yardstick(
        "eager with the same cache, precision and batch",
        _EAGER,
        ("cache", "precision", "batch"),
    ),
)
"""In order of preference: the first makes the most cells comparable."""


def find_yardstick(frame: pd.DataFrame) -> Yardstick:
    """The first yardstick that serves at least one cell in ``frame`` that is not eager."""
    for yardstick in YARDSTICKS:
        for series in _series(frame):
            cells = series[series["engine"].ne("eager")].groupby(_CELL, dropna=False)
            if any(len(yardstick.of(cell, series)) for _, cell in cells):
                return yardstick
    return YARDSTICKS[0]


def _series(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Groups of cells that agree in ``_SERIES`` and were measured with more than one engine."""
    for _, series in measured(frame).groupby(_SERIES, sort=False, dropna=False):
        if series["engine"].nunique() > 1:
            yield series


def engines(frame: pd.DataFrame, yardstick: Yardstick | None = None) -> pd.DataFrame:
    """One row per cell, rounds pooled, of every series that was measured with several engines.

    A cell whose series lacks the ``yardstick`` has its rate and share, but no multiple.
    """
    yardstick = yardstick or find_yardstick(frame)
    rows = [
        _row(cell, yardstick.of(cell, series))
        for series in _series(frame)
        for _, cell in series.groupby(_CELL, sort=True, dropna=False)
    ]
    ordered = [*_CELL, *(name for name in ORDERED if name not in _CELL)]
    table = pd.DataFrame(rows, columns=[*ordered, *_FIGURES, "n", "noise"])
    for name in _FIGURES:  # a column with missing values is numeric as well
        table[name] = pd.to_numeric(table[name], errors="coerce").astype("Float64")
    kinds = [*PRECISION_KINDS, *CACHE_KINDS, *ENGINE_KINDS]
    order = {name: n for n, name in enumerate(kinds)}
    return table.sort_values(
        _CELL, key=lambda c: c if c.name == "batch" else c.map(order), ignore_index=True
    )


def _row(cell: pd.DataFrame, base: pd.DataFrame) -> dict[str, Any]:
    row = {name: cell[name].iloc[0] for name in ORDERED}
    figures = ratio(cell, base if len(base) else cell, "yardstick")
    if base.empty:
        figures |= {"speedup": None, "low": None, "high": None}
    medians = {name: cell[name].median() for name in ("tpot_ms", "limit_ms", "limit_share")}
    kept = ("tok_per_s", "speedup", "low", "high", "n", "lowest", "highest", "noise")
    return row | {name: figures[name] for name in kept} | medians


def beyond_limit(table: pd.DataFrame) -> list[str]:
    """A line about rows that are faster than their limit, which no engine can be; else no line."""
    if not table["limit_share"].gt(1).any():
        return []
    return [
        "of limit above 1: the limit was measured in another, slower minute than the steps; "
        "measure again on a quiet machine"
    ]
