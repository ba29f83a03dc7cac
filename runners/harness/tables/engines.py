"""The engines side by side: each cell's rate as a multiple of one yardstick, and its share of the
limit. All engines and precisions of a model are in one column of figures that way.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from runners.harness.tables.columns import KEY, ORDERED, PLACE
from runners.harness.tables.frames import measured, ratio
from tinygpt.config import CACHE_KINDS, ENGINE_KINDS, PRECISION_KINDS

_CELL = ["precision", "batch", "cache", "engine"]
# A series shares all else, but for weights, which differ by precision, and prompts, by batch.
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
    """The cell of its series that a cell is a multiple of."""

    name: str
    fixed: dict[str, Any]
    """Columns of it with their values."""
    same: tuple[str, ...] = ()
    """Columns in which it is as the cell."""

    def of(self, cell: pd.DataFrame, series: pd.DataFrame) -> pd.DataFrame:
        """The rows of ``series``, one a round, that ``cell`` is measured by; none if none fits."""
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
"""From the one that makes the most cells comparable to what is left without it."""


def find_yardstick(frame: pd.DataFrame) -> Yardstick:
    """The first yardstick that at least one cell of another engine in ``frame`` has."""
    for yardstick in YARDSTICKS:
        for series in _series(frame):
            cells = series[series["engine"].ne("eager")].groupby(_CELL, dropna=False)
            if any(len(yardstick.of(cell, series)) for _, cell in cells):
                return yardstick
    return YARDSTICKS[0]


def _series(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Cells of which more than one engine was measured, alike in all but ``_CELL``."""
    for _, series in measured(frame).groupby(_SERIES, sort=False, dropna=False):
        if series["engine"].nunique() > 1:
            yield series


def engines(frame: pd.DataFrame, yardstick: Yardstick | None = None) -> pd.DataFrame:
    """One row a cell, rounds pooled, of every series in which more than one engine was measured.

    A cell whose series lacks the ``yardstick`` has its rate and share, and no multiple.
    """
    yardstick = yardstick or find_yardstick(frame)
    rows = [
        _row(cell, yardstick.of(cell, series))
        for series in _series(frame)
        for _, cell in series.groupby(_CELL, sort=True, dropna=False)
    ]
    ordered = [*_CELL, *(name for name in ORDERED if name not in _CELL)]
    table = pd.DataFrame(rows, columns=[*ordered, *_FIGURES, "n", "noise"])
    for name in _FIGURES:  # a column that lacks some is one of figures all the same
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
    """A line on rows that are faster than their limit, which no engine is; none if no row is."""
    if not table["limit_share"].gt(1).any():
        return []
    return [
        "of limit above 1: the limit was measured in another, slower minute than the steps; "
        "measure again on a quiet machine"
    ]
