"""Decides whether the machine was quiet while a cell was measured; every table shows it.

Three signs show that it was not: other processes took the cores, the fixed reference work took
longer than for another cell, or decode steps were faster than the limit that was measured after
them. The load average is not used, since right after a cell it shows the cell's own work.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

QUIET_SHARE = 0.10
"""The largest share of the cores' time that other processes take on a quiet machine. An idle one
shows a few per cent; above this a cell that uses all cores waits for others again and again."""
QUIET_DRIFT = 1.10
"""The largest ``reference_ms`` on a quiet machine, over the least of the cells on the same device,
machine and threads. It is the median of many products, and repeats within a few per cent."""
QUIET = "quiet"
_SHOWN = 8
"""The most cells that a line names."""

Row = Mapping[Any, Any]
"""A cell of the cells table; what is not known of it is absent, None or NA."""


class _Kind(NamedTuple):
    name: str
    column: str
    most: float
    """The largest value on a quiet machine."""
    said: str


_KINDS = (
    _Kind(
        "load",
        "others_cpu_share",
        QUIET_SHARE,
        f"other processes took up to {{:.0%}} of the cores; {QUIET_SHARE:.0%} is quiet",
    ),
    _Kind(
        "reference",
        "reference_drift",
        QUIET_DRIFT,
        f"reference_ms up to {{:.2f}} times the least; {QUIET_DRIFT:g} is quiet",
    ),
    _Kind(
        "limit",
        "limit_share",
        1.0,
        "up to {:.2f} times as fast as the limit, which was measured in another minute",
    ),
)


def mark(rows: Sequence[MutableMapping[str, Any]]) -> None:
    """Give each row its ``reference_drift``, which is its ``reference_ms`` over the least, and its
    ``noise``: ``quiet``, the kinds of noise (``load, reference``), or "" if too little is known.
    """
    least: dict[Hashable, float] = {}
    for row in rows:
        time = _number(row.get("reference_ms"))
        if time:
            least[_place(row)] = min(time, least.get(_place(row), time))
    for row in rows:
        time = _number(row.get("reference_ms"))
        row["reference_drift"] = time / least[_place(row)] if time else None
        found = []
        for kind in _KINDS:
            value = _number(row.get(kind.column))
            if value is not None and value > kind.most:
                found.append(kind.name)
        known = time and _number(row.get("others_cpu_share")) is not None
        row["noise"] = ", ".join(found) or (QUIET if known else "")


def together(rows: Sequence[Row]) -> str:
    """The noise of cells that are compared: that of each cell, and the drift between them."""
    among = [dict(row) for row in rows]
    mark(among)
    marks = [row["noise"] for row in among] + [row["noise"] for row in rows if "noise" in row]
    return ", ".join(_kinds(marks)) or (QUIET if all(marks) else "")


def is_noisy(mark: str) -> bool:
    """Whether a ``noise`` says that the machine was not quiet."""
    return mark not in ("", QUIET)


def of_cells(rows: Sequence[Row]) -> str:
    """One line about the marked cells that were measured on a busy machine; empty if none was."""
    found = [row for row in rows if is_noisy(row["noise"])]
    if not found:
        return ""
    names = [row["cell"] for row in found]
    told = []
    for kind in _KINDS:
        values = [float(row[kind.column]) for row in found if kind.name in row["noise"]]
        if values:
            told.append(f"{kind.name} ({kind.said.format(max(values))})")
    return (
        f"noisy: {len(found)} of {len(rows)} cells "
        f"({', '.join(names[:_SHOWN] + ['...'] * (len(names) > _SHOWN))}): {', '.join(told)}; "
        "measure again on a quiet machine, or with round=1,2,3"
    )


def of_pairs(marks: Iterable[str]) -> str:
    """One line about the rows of a table of pairs, by their ``noise``; empty if all are quiet."""
    every = list(marks)
    found = [mark for mark in every if is_noisy(mark)]
    if not found:
        return ""
    return (
        f"noisy: {len(found)} of {len(every)} rows rest on cells that were measured on a busy "
        f"machine ({', '.join(_kinds(found))}); table=cells says which"
    )


def _kinds(marks: Sequence[str]) -> list[str]:
    return [kind.name for kind in _KINDS if any(kind.name in mark for mark in marks)]


def _place(row: Row) -> Hashable:
    return tuple(str(row.get(name)) for name in ("device", "machine", "threads"))


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):  # None, NA, an empty text
        return None
    return number if math.isfinite(number) else None
