"""Compares two runs or sweeps cell by cell: the rates of ``b`` over those of ``a``, and facts.

Cells are matched by what they measure, and their rounds are pooled. Machine, threads, torch and
code may differ: they are often what a comparison is about, so their differences come first.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from runners.harness import stats
from runners.harness.config.commands import command
from runners.harness.store.find import StoredCell, SweepRef, find_cells
from runners.harness.store.tracking import Store
from runners.harness.tables import frames, noise
from runners.harness.tables.columns import KEY, LABELS, NAMES, PLACE

_CODE = {"tinygpt": "version", "code": "code_sha256", "git commit": "git_sha"}
_FOLLOWS = {"prompt": {"batch", "prompt_tokens", "seed", "shape"}, "weights": {"seed", "shape"}}
"""Columns that naturally differ if one of the columns in their set differs."""


class Side(NamedTuple):
    """A run or sweep: its cells as stored, by their ids, and as rows of the cells table."""

    top: SweepRef
    cells: dict[str, StoredCell]
    frame: pd.DataFrame

    @property
    def name(self) -> str:
        """The id of the sweep, or of the one cell that was chosen."""
        return next(iter(self.cells)) if len(self.cells) == 1 else self.top.identity

    @property
    def measured(self) -> pd.DataFrame:
        """The cells that can be compared."""
        return frames.measured(self.frame)


class Unmatched(NamedTuple):
    """Cells of one side without a partner, and why."""

    side: str
    cells: list[str]
    reason: str


class Difference(NamedTuple):
    """A fact that differs between the two sides, and in how many matched cells it does."""

    what: str
    a: str
    b: str
    cells: int


@dataclass(frozen=True)
class Matched:
    """The same cell on both sides: its rows, one per round."""

    a: pd.DataFrame
    b: pd.DataFrame

    @property
    def pair(self) -> stats.Pair:
        """The rates (tokens/s) of ``b`` over those of ``a``."""
        b, a = ([json.loads(rates) for rates in rows["rates"]] for rows in (self.b, self.a))
        after, before = (rows["reference_ms"].dropna().tolist() for rows in (self.b, self.a))
        return stats.Pair(b, a, stats.drift(after, before), quiet=self.noise == noise.QUIET)

    @property
    def noise(self) -> str:
        """``quiet``, the kinds of noise while the cells were measured, or "" if it is not known."""
        return noise.together([*self.a.to_dict("records"), *self.b.to_dict("records")])

    def row(self) -> dict[str, Any]:
        """Its line of the table: names, rates (tokens/s), their ratio, n, rounds, noise, ids."""
        pair = self.pair
        found = stats.compare(pair)
        threads = [str(rows["threads"].iloc[0]) for rows in (self.a, self.b)]
        return {
            **{name: self.b[name].iloc[0] for name in NAMES},
            "threads": " / ".join(dict.fromkeys(threads)),
            **frames.rates(pair.b, "a_"),
            **frames.rates(pair.a, "b_"),
            "ratio": found.ratio,
            "low": found.low,
            "high": found.high,
            "verdict": found.verdict,
            "n_a": found.n[1],
            "n_b": found.n[0],
            "rounds_a": len(self.a),
            "rounds_b": len(self.b),
            "drift": pair.drift,
            "noise": self.noise,
            "cells_a": " ".join(self.a["cell"]),
            "cells_b": " ".join(self.b["cell"]),
        }


@dataclass(frozen=True)
class Comparison:
    """The comparison of ``b`` with ``a``; ``overall`` is the geometric mean of the ratios."""

    a: Side
    b: Side
    frame: pd.DataFrame
    """One row per matched cell."""
    overall: stats.Ratio
    differences: list[Difference]
    same: list[str]
    """Facts that are known and are the same on both sides of every cell."""
    unmatched: list[Unmatched]


def load(store: Store, wanted: str, key: str) -> Side:
    """The cells of ``wanted``, the value typed for ``key``; ValueError if they have no timings."""
    top, found = find_cells(store, wanted, key)
    if top.kind != "bench":
        raise ValueError(
            f"{key}={wanted}: a run of {top.kind} has no timings to compare; its tokens are "
            "compared with a new run's by "
            + command("rerun", f"run={top.identity}", folder=store.dir, uri=store.server)
        )
    frame, cells = frames.cells(top.identity, store), {cell.cell: cell for cell in found}
    side = Side(top, cells, frame[frame["cell"].isin(list(cells))])
    if side.measured.empty:
        first = side.frame.iloc[0].to_dict()
        raise ValueError(f"{key}={wanted}: no cell has timings; {first['cell']} {_state(first)}")
    return side


def compare(a: Side, b: Side) -> Comparison:
    """Match the cells and judge ``b`` against ``a``; ValueError if no cells match."""
    matched, unmatched = _match({"a": a, "b": b})
    if not matched:
        nearest = min(unmatched, key=lambda one: one.reason.count(" / ") or len(KEY))
        raise ValueError(
            f"a={a.name} b={b.name}: no cell of one measures what a cell of the "
            f"other does; {nearest.side}'s {nearest.cells[0]}: {nearest.reason}"
        )
    frame = pd.DataFrame([one.row() for one in matched]).astype({"low": float, "high": float})
    overall = stats.overall([one.pair for one in matched])
    return Comparison(a, b, frame, overall, *_facts(a, b, frame), unmatched)


def _match(sides: dict[str, Side]) -> tuple[list[Matched], list[Unmatched]]:
    """The matched pairs in the order of ``a``, and the cells of either side without a partner."""
    matched: list[Matched] = []
    left: list[Unmatched] = []
    for group in _groups(pd.concat([s.measured.assign(side=name) for name, s in sides.items()])):
        rows = {str(name): part for name, part in group.groupby("side")}
        mixed = {name: _places(part) for name, part in rows.items() if _places(part)}
        if len(rows) == 2 and not mixed:
            matched.append(Matched(rows["a"], rows["b"]))
            continue
        for name, part in rows.items():
            if mixed:
                reason = mixed.get(name) or f"no partner: {' '.join(mixed.values())}"
            else:
                other = sides["b" if name == "a" else "a"].frame
                reason = _nearest(part.iloc[0].to_dict(), other, swap=name == "b")
            left.append(Unmatched(name, part["cell"].tolist(), reason))
    for name, side in sides.items():
        for row in side.frame.drop(side.measured.index).to_dict("records"):
            left.append(Unmatched(name, [str(row["cell"])], _state(row)))
    return matched, _together(left)


def _groups(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Groups of cells that measure the same, split by threads if a side swept over them."""
    for _, group in rows.groupby(list(KEY), sort=False, dropna=False):
        if (group.groupby("side")["threads"].nunique(dropna=False) > 1).any():
            yield from (part for _, part in group.groupby("threads", sort=False, dropna=False))
        else:
            yield group


def _places(rows: pd.DataFrame) -> str:
    """Why the rounds of one side cannot be pooled; empty if they were measured in one place."""
    names = [name for name in PLACE if rows[name].nunique(dropna=False) > 1]
    places = [f"{name} {', '.join(map(str, rows[name].unique()))}" for name in names]
    return f"rounds measured in several places ({'; '.join(places)}) are no side" if names else ""


def _together(left: list[Unmatched]) -> list[Unmatched]:
    found: dict[tuple[str, str], list[str]] = {}
    for one in left:
        found.setdefault((one.side, one.reason), []).extend(one.cells)
    return [Unmatched(side, cells, reason) for (side, reason), cells in found.items()]


def _state(row: dict[Any, Any]) -> str:
    """Why a cell is not compared: its outcome and the reason for it."""
    if row["outcome"] != "ok":
        return f"{row['outcome']}: {row['reason']}" if row["reason"] else str(row["outcome"])
    return "no timings" if row["rates"] == "[]" else "ok, and not all is known of it"


def _nearest(row: dict[Any, Any], others: pd.DataFrame, *, swap: bool) -> str:
    """How the nearest cell of ``others`` differs, as a / b; ``swap`` if ``row`` is on side b."""

    def differing(other: dict[Any, Any], columns: Sequence[str]) -> list[str]:
        return _differing(*((other, row) if swap else (row, other)), columns)

    found = [(differing(o, KEY) or differing(o, PLACE), o) for o in others.to_dict("records")]
    words, best = min(found, key=lambda f: (bool(f[0]) and f[1]["outcome"] != "ok", len(f[0])))
    return f"no partner: {best['cell']} " + (f"has {', '.join(words)}" if words else _state(best))


def _differing(a: dict[Any, Any], b: dict[Any, Any], columns: Sequence[str]) -> list[str]:
    """``cache none / rolling`` for each column that differs and is known on both sides."""
    known = [name for name in columns if not any(pd.isna(s[name]) or s[name] == "" for s in (a, b))]
    names = [name for name in known if a[name] != b[name]]
    words = []
    for name in names:
        if name in LABELS:
            one, two = json.loads(a[name]), json.loads(b[name])
            keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
            words += [f"{key} {one.get(key, '-')} / {two.get(key, '-')}" for key in keys]
        elif not _FOLLOWS.get(name, set()).intersection(names):
            words.append(f"{name} {str(a[name])[:12]} / {str(b[name])[:12]}")
    return words


def _facts(a: Side, b: Side, frame: pd.DataFrame) -> tuple[list[Difference], list[str]]:
    """The facts that differ in matched cells, and those that are known and never differ."""
    differences, same = [], []
    for what in (*PLACE, *_CODE):
        ids = zip(frame["cells_a"], frame["cells_b"], strict=True)
        both = [(_fact(a, one, what), _fact(b, other, what)) for one, other in ids]
        odd = [pair for pair in both if pair[0] != pair[1]]
        differences += [Difference(what, *pair, odd.count(pair)) for pair in dict.fromkeys(odd)]
        if not odd and all(one for one, _ in both):
            same.append(what)
    return differences, same


def _fact(side: Side, ids: str, what: str) -> str:
    """The fact ``what`` in the tags of a side's cells ``ids``; empty if they do not have it."""
    tags = [side.cells[cell].run.data.tags for cell in ids.split()]
    found = dict.fromkeys(tag.get(f"tinygpt.{_CODE.get(what, what)}", "") for tag in tags)
    return ", ".join(value[:10] if what in _CODE else value for value in found)
