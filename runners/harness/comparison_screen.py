"""A comparison as it is read: what differs first, then the cells, then what it comes to."""

import json
import math
import re
import sys
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pandas as pd
from rich.console import Console

from runners.harness import drift, render
from runners.harness.comparison import NAMES, Comparison
from runners.harness.tools_schema import CompareConfig
from runners.harness.tracking import TrackingError


def gate(found: Comparison, config: CompareConfig) -> tuple[bool, str]:
    """Whether b is slower by more than is allowed, all of an interval beyond it; and where."""
    frame, mean, least = found.frame, found.overall, 1.0 - config.allowed
    beyond = least * (1 - 1e-9)  # exactly as slow as is allowed is allowed, whatever the rounding
    slower = frame["high"] < beyond
    unclear = int((~slower & ~(frame["low"] >= beyond)).sum())
    names = [name for name in _names(frame) if frame[name].nunique() > 1]
    said = []
    for row in frame[slower].sort_values("ratio").to_dict("records"):
        label = " ".join(f"{name} {row[name]}".replace("_", " ") for name in names)
        said.append(f"{label or row['cells_b']} by {1 - row['ratio']:.1%}")
    if len(frame) > 1 and mean.high is not None and mean.high < beyond:
        said.append(f"the mean by {1 - mean.ratio:.1%}")
    words = [f"FAILED, slower: {', '.join(said)}" if said else "passed, none is slower for sure"]
    if unclear:
        where = f"no interval, or one around {least:g}"
        words.append(
            f"{unclear} of {len(frame)} unclear ({where}): more repeats or rounds would tell"
        )
    missing = sum(len(lone.cells) for lone in found.unmatched if lone.side == "a")
    if missing:
        words.append(f"{missing} of a's cells are not compared")
    return bool(said), f"fail_if_slower={config.fail_if_slower}: {'; '.join(words)}"


def show(found: Comparison, form: str) -> None:
    """Heading, table, overall and what has no partner; a csv's stdout holds the rows alone."""
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
    """What a reader has to know first: what is compared, and what else is not the same."""
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
    """What differs between the environments of the first matched cells and is in no tag."""
    one, other = found.frame[["cells_a", "cells_b"]].iloc[0].str.split().str[0]
    try:
        old, new = found.a.cells[one].environment, found.b.cells[other].environment
    except (ValueError, TrackingError) as error:
        return [str(error)]
    told = re.compile(r"torch (threads|\d)")
    lines = [each.line for each in drift.differences(old, new) if each.kind != "code"]
    return [line for line in lines if not told.match(line)]


def _names(frame: pd.DataFrame) -> list[str]:
    """The columns that tell the rows apart; hashes and seed only where it takes them."""
    hashes = ["seed", "weights", "prompt"]
    plain = [name for name in NAMES if name not in hashes] + ["threads"]
    alike = frame.duplicated(plain).any()
    return plain + [name for name in hashes if alike and frame[name].nunique() > 1]


def _table(found: Comparison) -> render.Table:
    """As it is read: the names that vary, both rates, the ratio; overall and the rest below it."""
    frame, overall = found.frame, found.overall
    shown = frame[_names(frame)].copy()
    for name in shown.columns.intersection(["weights", "prompt"]):
        shown[name] = shown[name].str[:12]
    shown = shown.rename(columns={"prompt": "prompt ids"})
    shown["a_tok_per_s"], shown["b_tok_per_s"] = frame["a_tok_per_s"], frame["b_tok_per_s"]
    shown["ratio"] = frame["ratio"].map("{:.3f}".format)
    spans = zip(frame["low"], frame["high"], strict=True)
    shown["interval"] = ["" if pd.isna(low) else f"{low:.3f}–{high:.3f}" for low, high in spans]
    for name in ("verdict", "n_a", "n_b", "rounds_a", "rounds_b"):
        shown[name.replace("_", " ")] = frame[name]
    span = "no interval" if overall.low is None else f"{overall.low:.3f}–{overall.high:.3f}"
    footer = [
        f"overall: {overall.ratio:.3f} ({span}), {overall.verdict}: geometric mean of "
        f"{len(frame)} matched cell{'s' * (len(frame) > 1)}; n a {overall.n[1]}, n b "
        f"{overall.n[0]}, {_rounds(frame)}"
    ]
    for lone in found.unmatched:
        footer.append(f"not compared, {lone.side}: {', '.join(lone.cells)}: {lone.reason}")
    title = "b against a (ratio of tok/s, above 1: b is faster; interval: of the ratio, 99 %)"
    return render.Table("compare", shown, title, footer=footer)


def _rounds(frame: pd.DataFrame) -> str:
    """How many rounds a side, and what a single one means."""
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
    """The whole comparison, as json has it."""
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
        "unmatched": [lone._asdict() for lone in found.unmatched],
    }
