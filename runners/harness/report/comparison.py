"""A comparison as text: first what differs, then the cells, then the overall result."""

import json
import math
import re
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pandas as pd
from rich.console import Console

from runners.harness import stats
from runners.harness.config.commands import command
from runners.harness.config.schema import CompareConfig
from runners.harness.machine import changes
from runners.harness.report import render
from runners.harness.store.tracking import TrackingError
from runners.harness.tables import noise
from runners.harness.tables.bench import sweep_command
from runners.harness.tables.columns import HASHES, NAMES
from runners.harness.tables.comparison import Comparison, Side
from runners.harness.tables.table import Table

NOT_JUDGED = 3
"""Exit status if nothing is certainly slower, but not everything could be judged."""


@dataclass(frozen=True)
class SpeedCheck:
    """Whether b is certainly slower than a by more than is allowed."""

    status: int
    """Exit status: 1 if a cell or the mean is slower; else 3 if a cell cannot be judged; else 0."""
    line: str
    """The result in one line: which cells are slower, and how the rest could be judged."""
    slower: list[str]
    """The cells of b that are slower."""
    unjudged: list[str]
    """The cells of b that may be slower."""
    missing: list[str]
    """The measured cells of a that no cell of b was compared with."""


def check_speed(found: Comparison, config: CompareConfig) -> SpeedCheck:
    """Judge b by ``fail_if_slower``. A cell that cannot be judged does not pass, since a very slow
    cell has too few repeats for an interval, and a failed cell has none.
    """
    frame, mean, least = found.frame, found.overall, 1.0 - config.allowed
    beyond = least * (1 - 1e-9)  # exactly as slow as allowed passes, whatever the rounding
    few = frame["low"].isna()
    slower = frame["high"] < beyond
    if least >= 1 / stats.CLEAR_RATIO:
        slower |= few & frame["verdict"].eq("slower")
    unclear = ~slower & ~(frame["low"] >= beyond) & ~(few & frame["verdict"].eq("faster"))
    worst = frame[slower].sort_values("ratio")
    labels = zip(_labels(frame, worst), worst["ratio"], strict=True)
    said = [f"{label} by {1 - ratio:.1%}" for label, ratio in labels]
    if len(frame) > 1 and mean.high is not None and mean.high < beyond:
        said.append(f"the mean by {1 - mean.ratio:.1%}")
    known = set(found.a.measured["cell"])
    left = [cell for one in found.unmatched if one.side == "a" for cell in one.cells]
    missing = [cell for cell in left if cell in known]
    words = [f"FAILED, slower: {', '.join(said)}"] if said else []
    if unclear.any():
        rows = frame[unclear]
        words.append(
            f"NOT JUDGED: {len(rows)} of {len(frame)} cells ({', '.join(_labels(frame, rows))}: "
            f"fewer than {stats.MIN_VALUES} values a side, or an interval around {least:g}); "
            f"measure again with more rounds: {_more_rounds(found, rows)}"
        )
    if missing:
        words.append(
            f"NOT JUDGED: a's {', '.join(missing)} without a partner in b; measure b as a was: "
            f"`{_command(found.a)}`"
        )
    return SpeedCheck(
        1 if said else NOT_JUDGED if words else 0,
        f"fail_if_slower={config.fail_if_slower}: "
        + "; ".join(words or ["passed, none is slower by more"]),
        frame["cells_b"][slower].tolist(),
        frame["cells_b"][unclear].tolist(),
        missing,
    )


def _labels(frame: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    """What tells each of ``rows`` from the other rows, as in ``batch 4``; ids if nothing does."""
    names = [name for name in _names(frame) if frame[name].nunique() > 1]
    return [
        " ".join(f"{name} {row[name]}".replace("_", " ") for name in names) or str(row["cells_b"])
        for row in rows.to_dict("records")
    ]


def _more_rounds(found: Comparison, unclear: pd.DataFrame) -> str:
    """The commands that measure the cells of the ``unclear`` rows again, with enough rounds."""
    commands: dict[str, list[str]] = {}
    for name, side in (("a", found.a), ("b", found.b)):
        n, rounds = unclear[f"n_{name}"], unclear[f"rounds_{name}"]
        short = n < stats.MIN_VALUES
        wide = unclear["low"].notna()
        if not (short | wide).any():
            continue  # it is the other side that has too few values
        wanted = (2 * rounds).where(wide, (stats.MIN_VALUES * rounds / n).map(math.ceil)).max()
        commands.setdefault(_command(side, max(3, int(wanted))), []).append(name)
    return ", ".join(f"{' and '.join(sides)} by `{line}`" for line, sides in commands.items())


def _command(side: Side, rounds: int = 0) -> str:
    """The command that a side was made with; with so many rounds if ``rounds`` is not 0."""
    overrides = side.top.overrides
    if overrides.startswith(("run=", "config=")):  # a rerun has the rounds of its original
        longer = ["timing=thorough"] if rounds else []
        return command("rerun", *shlex.split(overrides), *longer)
    numbers = ",".join(str(n + 1) for n in range(rounds))
    return sweep_command(overrides, **({"round": numbers} if rounds else {}))


def show(found: Comparison, form: str) -> None:
    """Print heading, table, overall result and unmatched cells; csv has only rows on stdout."""
    table = _table(found)
    if form == "csv":
        print(*_heading(found), *table.footer, sep="\n", file=sys.stderr)
        print(render.to_csv(found.frame), end="")
    elif form == "md":
        print(*(f"- {line}" for line in _heading(found)), "", render.to_markdown(table), sep="\n")
    else:
        console = Console(highlight=False, markup=False)
        for line in _heading(found):
            console.print(line, soft_wrap=not console.is_terminal)
        render.show(table)


def _heading(found: Comparison) -> list[str]:
    """What a reader has to know first: what is compared, and what else differs."""
    lines = []
    for name, side in (("a", found.a), ("b", found.b)):
        started = min(cell.run.info.start_time for cell in side.cells.values()) / 1000
        lines.append(
            f"{name}: {side.name} of {datetime.fromtimestamp(started):%Y-%m-%d %H:%M}, "
            f"{len(side.measured)} of {len(side.cells)} cells measured: {side.top.overrides or '-'}"
        )
    both = [cell for cell in found.a.cells if cell in found.b.cells]
    if both:
        same = len(both) == len(found.a.cells) == len(found.b.cells)
        what = "a and b are the same run" if same else f"on both sides: {', '.join(both)}"
        lines.append(f"{what}: compared with itself, a cell is as fast")
    for what, one, other, cells in found.differences:
        some = f" ({cells} of {len(found.frame)} cells)" if cells < len(found.frame) else ""
        lines.append(f"different {what}: {one or 'not told'} -> {other or 'not told'}{some}")
    further = _further(found)
    lines += [f"different as well: {'; '.join(further)}"] if further else []
    return [*lines, f"the same {', '.join(found.same)}"] if found.same else lines


def _further(found: Comparison) -> list[str]:
    """Differences between the environments of the first matched cells that no tag records."""
    one, other = found.frame[["cells_a", "cells_b"]].iloc[0].str.split().str[0]
    try:
        old, new = found.a.cells[one].environment, found.b.cells[other].environment
    except (ValueError, TrackingError) as error:
        return [str(error)]
    told = re.compile(r"torch (threads|\d)")
    lines = [each.line for each in changes.differences(old, new) if each.kind != "code"]
    return [line for line in lines if not told.match(line)]


def _names(frame: pd.DataFrame) -> list[str]:
    """The columns that tell the rows apart; hashes and seed only if the others do not."""
    plain = [name for name in NAMES if name not in HASHES] + ["threads"]
    alike = frame.duplicated(plain).any()
    return plain + [name for name in HASHES if alike and frame[name].nunique() > 1]


def _table(found: Comparison) -> Table:
    """The table for people: names, both rates and the ratio, with the overall result below."""
    frame, overall = found.frame, found.overall
    shown = frame[_names(frame)].copy()
    for name in shown.columns.intersection(["weights", "prompt"]):
        shown[name] = shown[name].str[:12]
    for name in (f"{side}_{what}" for side in "ab" for what in ("tok_per_s", "lowest", "highest")):
        shown[name] = frame[name]
    shown["ratio"] = frame["ratio"].map("{:.3f}".format)
    spans = zip(frame["low"], frame["high"], strict=True)
    shown["interval"] = ["" if pd.isna(low) else f"{low:.3f}–{high:.3f}" for low, high in spans]
    for name in ("verdict", "n_a", "n_b", "rounds_a", "rounds_b"):
        shown[name] = frame[name]
    shown["noise"] = frame["noise"]
    span = "no interval" if overall.low is None else f"{overall.low:.3f}–{overall.high:.3f}"
    footer = [
        f"overall: {overall.ratio:.3f} ({span}), {overall.verdict}: geometric mean of "
        f"{len(frame)} matched cell{'s' * (len(frame) > 1)}; n a {overall.n[1]}, n b "
        f"{overall.n[0]}, {_rounds(frame)}"
    ]
    busy = noise.of_pairs(frame["noise"])
    footer += [busy] if busy else []
    for one in found.unmatched:
        footer.append(f"not compared, {one.side}: {', '.join(one.cells)}: {one.reason}")
    title = "b against a (ratio of tok/s, above 1: b is faster; interval: of the ratio, 99 %)"
    return Table("compare", shown, title, footer=footer)


def _rounds(frame: pd.DataFrame) -> str:
    """How many rounds each side has, and what a single round means."""
    counts = [sorted(set(frame[name])) for name in ("rounds_a", "rounds_b")]
    text = " and ".join("–".join(str(n) for n in dict.fromkeys((c[0], c[-1]))) for c in counts)
    single = frame[frame[["rounds_a", "rounds_b"]].min(axis=1).eq(1)]
    if single.empty:
        return f"rounds {text}"
    most = math.exp(single["drift"].map(math.log).abs().max()) - 1
    return (
        f"rounds {text}; with one a side the interval is widened by what reference_ms changed, "
        f"here up to {most:.1%}: round=1,2,3 tells a change from drift"
    )


def to_object(found: Comparison) -> dict[str, Any]:
    """The whole comparison as an object for JSON."""
    overall = asdict(found.overall)
    overall["n_b"], overall["n_a"] = overall.pop("n")
    return {
        "a": {"id": found.a.name, "overrides": found.a.top.overrides},
        "b": {"id": found.b.name, "overrides": found.b.top.overrides},
        "environment": {
            "heading": _heading(found),
            "different": [difference._asdict() for difference in found.differences],
            "same": found.same,
        },
        "cells": json.loads(render.to_json(found.frame)),
        "overall": overall,
        "unmatched": [one._asdict() for one in found.unmatched],
    }
