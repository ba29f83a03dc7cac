"""Tables of what was measured: MLflow to DataFrame, and pairs of cells to speed-ups.

``cells`` gives one row per cell, whatever its outcome. The paired tables compare cells that differ
in one axis only, pool their rounds, and say how sure they are. This is an API for notebooks, too::

    from runners.harness.tables import cache_speedup, cells
    cache_speedup(cells("latest", where="batch.size>=4"))
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from runners.harness import stats
from runners.harness.config import filters
from runners.harness.config.conversion import to_dict
from runners.harness.config.grammar import text_keys
from runners.harness.config.nested import flatten
from runners.harness.config.paths import config_groups, results_dir
from runners.harness.config.schema import BenchConfig, TrackingConfig
from runners.harness.store.find import find_part
from runners.harness.store.tracking import Store, open_store
from runners.harness.tables import noise
from runners.harness.tables.columns import APPROXIMATE, CELLS, CSV, KEY, ORDERED, PLACE
from tinygpt.config import CACHE_KINDS

_SETS = {"batch": "batch.size", "length": "length.new_tokens"}
"""The key that a config group sets, for groups where it is not ``GROUP.kind``."""
_ORDER = {"device": ("cpu", "cuda", "mps"), "cache": CACHE_KINDS}


def cells(sweep: str = "latest", store: Store | None = None, where: str = "") -> pd.DataFrame:
    """One row per cell of ``sweep`` that fits ``where``, as in ``batch.size>=4 and device=cpu``.

    ``sweep`` is the id of a sweep or lone cell, a prefix of it, ``ID-NUMBER`` for one cell of a
    sweep, several of these with commas, or ``latest``. Raises ValueError if there is no such sweep
    or cell, or more than one with that prefix, and for a wrong ``where``.
    """
    return selected(sweep, store, where)[0]


def selected(
    sweep: str = "latest", store: Store | None = None, where: str = ""
) -> tuple[pd.DataFrame, str]:
    """What ``cells`` returns, and if ``where`` leaves no cell, which condition removed the last."""
    filters.parse(where)  # a wrong condition is reported before anything is looked up
    store = store or open_store(TrackingConfig(dir=str(results_dir())))
    found: dict[str, tuple[Any, str]] = {}
    for word in sweep.split(","):
        top, part = find_part(store, word.strip(), ("bench",), key="sweep")
        found |= {cell.cell: (cell.run, top.overrides) for cell in part}
    rows = [_row(run) | {"overrides": overrides} for run, overrides in found.values()]
    noise.mark(rows)  # before some are left out: a sweep's noise is that of all its cells
    facts = [
        _facts(run, row) if where else {}
        for (run, _), row in zip(found.values(), rows, strict=True)
    ]
    kept, note = filters.select(where, facts, *_keys())
    return _typed(pd.DataFrame([rows[n] for n in kept])), note


def cache_speedup(frame: pd.DataFrame) -> pd.DataFrame:
    """Every cache against none, by device, batch and new tokens: both rates and the speed-up."""
    rows = []
    for common, sides in _pairs(frame, "cache"):
        for kind in sides:
            if "none" in sides and kind != "none":
                rows.append(common | {"cache": kind} | ratio(sides[kind], sides["none"], "none"))
    columns = [*(name for name in ORDERED if name != "cache"), "cache", *ratio_columns("none")]
    return pd.DataFrame(rows, columns=columns)


def device_comparison(frame: pd.DataFrame) -> pd.DataFrame:
    """Every other device against the CPU, and which one wins."""
    rows = []
    for common, sides in _pairs(frame, "device", *PLACE):
        for kind in _ORDER["device"][1:]:
            if "cpu" in sides and kind in sides:
                row = common | {"device": kind} | ratio(sides[kind], sides["cpu"], "cpu")
                wins = {"faster": kind, "slower": "cpu", "same": "neither"}
                rows.append(row | {"wins": wins.get(row["verdict"], "unclear")})
    columns = [*(name for name in ORDERED if name != "device"), "device", *ratio_columns("cpu")]
    return pd.DataFrame(rows, columns=[*columns, "wins"])


def crossovers(devices: pd.DataFrame) -> list[str]:
    """From which batch on each device wins, one line for each series of the device table."""
    lines: list[str] = []
    if devices.empty:
        return lines
    series = [name for name in ORDERED if name != "batch"]
    for names, group in devices.groupby(series, sort=False, observed=True):
        what = dict(zip(series, names, strict=True))
        ahead = group.sort_values("batch")
        wins = ahead["wins"].eq(str(what["device"])).to_numpy()
        title = f"{what['device']} ({what['new_tokens']} new tokens, cache {what['cache']})"
        unclear = ahead["batch"][ahead["wins"].eq("unclear")].astype(str)
        but = f"; unclear at batch {', '.join(unclear)}" if len(unclear) else ""
        always = [i for i in range(len(wins)) if wins[i:].all()]
        if always:
            lines.append(f"{title} wins from batch {ahead['batch'].iloc[always[0]]} on{but}")
        else:
            lines.append(f"{title} does not win up to batch {ahead['batch'].max()}{but}")
    return lines


def read_csv(path: Path | str) -> pd.DataFrame:
    """A cells table from its csv, as it was written: ``none`` is read as a word."""
    text = Path(path).read_text(encoding="utf-8")
    return _typed(pd.read_csv(StringIO(text), dtype=str, keep_default_na=False))


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The cells that have timings."""
    return frame[frame["outcome"].eq("ok") & frame["rates"].ne("[]")]


def _row(run: Any) -> dict[str, Any]:
    return {column.name: column.source(run.data) for column in CELLS if column.source}


def _keys() -> tuple[set[str], str]:
    """All keys that ``where`` may ask about, whatever the rows have, and a text that lists them."""
    groups = config_groups()
    told = (
        f"there are the groups ({', '.join(sorted(groups))}), the keys of the config (batch.size), "
        "and the columns of table=cells format=csv (outcome, output_tok_per_s)"
    )
    return {*(c.name for c in CELLS), *groups, *flatten(to_dict(BenchConfig()))}, told


@lru_cache(maxsize=1)
def _texts() -> frozenset[str]:
    return frozenset({*(c.name for c in CELLS if c.type == "text"), *text_keys(BenchConfig)})


def _facts(run: Any, row: dict[str, Any]) -> filters.Facts:
    """What ``where`` may ask about a cell: its config, its figures, its row, and its groups. A
    group has two values: the name of the option that was chosen, and what that option sets.
    """
    params = run.data.params
    known = {**params, **run.data.metrics, **row}
    facts = {key: filters.values(value, text=key in _texts()) for key, value in known.items()}
    for group in config_groups():
        sets = params.get(_SETS.get(group, f"{group}.kind"))
        facts[group] = filters.values(params.get(f"choice.{group}"), sets)
    return facts


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the fixed columns in their types, and its rows in the order people expect."""
    frame = frame.reindex(columns=[column.name for column in CSV])
    for column in CSV:
        if column.type == "text":
            frame[column.name] = frame[column.name].astype("string").fillna("")
        else:
            figures = pd.to_numeric(frame[column.name], errors="coerce")
            frame[column.name] = figures.astype("Int64" if column.type == "whole" else "Float64")

    def rank(column: pd.Series) -> pd.Series:
        order = _ORDER.get(str(column.name))
        if not order:
            return column
        places = {name: n for n, name in enumerate(order)}
        return column.str.removesuffix(APPROXIMATE).map(places)

    return frame.sort_values([*ORDERED, "round", "cell"], key=rank, ignore_index=True)


def _pairs(
    frame: pd.DataFrame, axis: str, *with_it: str
) -> Iterator[tuple[dict[str, Any], dict[str, pd.DataFrame]]]:
    """Groups of measured cells alike in all but ``axis`` and ``with_it``, by the value of ``axis``.

    A side with several values of ``with_it``, such as one cell on two machines, is left out.
    """
    key = [name for name in (*KEY, *PLACE) if name not in (axis, *with_it)]
    shown = [name for name in ORDERED if name != axis]
    for _, group in measured(frame).groupby(key, sort=False, dropna=False):
        if group[axis].nunique() < 2:
            continue
        sides = {
            str(value): side
            for value, side in group.groupby(axis, sort=False)
            if not with_it or len(side[list(with_it)].drop_duplicates()) == 1
        }
        yield {name: group[name].iloc[0] for name in shown}, sides


def ratio_columns(base_name: str) -> list[str]:
    """The names of the values that ``ratio`` returns."""
    rates = [f"{base_name}_tok_per_s", "tok_per_s"]
    ends = [f"{base_name}_lowest", f"{base_name}_highest", "lowest", "highest"]
    return [*rates, "speedup", "low", "high", "verdict", f"n_{base_name}", "n", *ends, "noise"]


def ratio(side: pd.DataFrame, base: pd.DataFrame, base_name: str) -> dict[str, Any]:
    """Both rates, pooled over rounds, with the ends of their ranges, and the ratio of ``side``'s
    rate to ``base``'s.
    """
    side, base = (s.sort_values(["sweep", "round"]) for s in (side, base))
    a, b = ([json.loads(text) for text in s["rates"]] for s in (side, base))
    same_yardstick = side["device"].iloc[0] == base["device"].iloc[0]
    times = [s["reference_ms"].dropna().tolist() if same_yardstick else [] for s in (side, base)]
    turns = [s[["sweep", "round"]].to_numpy().tolist() for s in (side, base)]
    mark = noise.together([*side.to_dict("records"), *base.to_dict("records")])
    pair = stats.Pair(
        *(a, b, stats.drift(*times)), shared=turns[0] == turns[1], quiet=mark == noise.QUIET
    )
    result = stats.compare(pair)
    return {
        **rates(b, f"{base_name}_"),
        **rates(a),
        "speedup": result.ratio,
        "low": result.low,
        "high": result.high,
        "verdict": result.verdict,
        f"n_{base_name}": result.n[1],
        "n": result.n[0],
        "noise": mark,
    }


def rates(rounds: Sequence[Sequence[float]], prefix: str = "") -> dict[str, float]:
    """The rate (tokens/s) of all rounds' repeats together, and the ends of their range."""
    every = stats.pooled(rounds)
    return {
        f"{prefix}tok_per_s": stats.median_rate(every),
        f"{prefix}lowest": min(every),
        f"{prefix}highest": max(every),
    }
