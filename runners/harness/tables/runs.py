"""The sweeps and lone cells of the store as a table, newest first, by the ids that people type."""

from datetime import datetime
from itertools import pairwise, takewhile
from typing import Any

import pandas as pd

from runners.harness.config import filters
from runners.harness.config.commands import command
from runners.harness.store.runs import EXPERIMENTS, TopRun, top_runs
from runners.harness.store.tracking import Store
from runners.harness.tables.table import Table

SHORTEST = 4
"""The fewest characters of an id that are shown."""


def runs(store: Store, where: str = "", limit: int = 50) -> Table:
    """The newest ``limit`` sweeps and lone cells that fit ``where``, which may ask for id, kind,
    outcome, cells and ok.
    """
    filters.parse(where)
    found, ok = top_runs(store)
    found.sort(key=lambda run: run.started_ms, reverse=True)
    short = short_ids([run.identity for run in found])
    rows = [_row(run, short, ok) for run in found]
    facts = [_facts(run, row) if where else {} for run, row in zip(found, rows, strict=True)]
    kept, note = filters.select(where, facts, _FACTS, f"table=runs has {', '.join(_FACTS)}")
    frame = pd.DataFrame([rows[n] for n in kept[:limit]], columns=_COLUMNS)
    more = len(kept) - limit
    return Table(
        "runs",
        frame.astype({"cells": "Int64", "ok": "Int64"}),
        f"runs where {where} (newest first)" if where else "runs (newest first)",
        note or ("" if found else _nothing(store)),
        [f"and {more:,} older; limit={len(kept)} shows all"] if more > 0 else [],
    )


def short_ids(ids: list[str]) -> dict[str, str]:
    """The beginning of each id that no other id shares."""
    ordered = ["", *sorted(set(ids)), ""]
    shared = [_shared(*pair) for pair in pairwise(ordered)]
    return {
        one: one[: max(SHORTEST, before + 1, after + 1)]
        for one, before, after in zip(ordered[1:-1], shared[:-1], shared[1:], strict=True)
    }


def _shared(a: str, b: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


_COLUMNS = ("id", "kind", "when", "outcome", "cells", "ok", "overrides")
_FACTS = ("id", "kind", "outcome", "cells", "ok")


def _row(run: TopRun, short: dict[str, str], ok: dict[str, int] | None) -> dict[str, Any]:
    kind = f"{run.experiment} sweep" if run.cells else run.experiment
    if run.rerun_of:
        sweep, dash, number = run.rerun_of.partition("-")
        kind = f"{run.experiment} rerun of {short.get(sweep, sweep)}{dash}{number}"
    silent = {"RUNNING": "running", "KILLED": "interrupted"}.get(run.status, "failed")
    outcome = silent if run.status == "RUNNING" else run.outcome or silent
    fine: int | None = int(outcome == "ok") if not run.cells else None
    if ok is not None:
        fine = ok.get(run.identity, 0)
    when = datetime.fromtimestamp(run.started_ms / 1000)
    return {
        "id": short[run.identity],
        "kind": kind,
        "when": f"{when:%Y-%m-%d %H:%M}",
        "outcome": outcome,
        "cells": int(run.cells or 1),
        "ok": fine,
        "overrides": run.overrides or "",
    }


def _facts(run: TopRun, row: dict[str, Any]) -> filters.Facts:
    """What ``where`` may ask about a run; its kind fits as a whole, or by either of its words."""
    return {
        "id": filters.values(row["id"], run.identity, text=True),
        "kind": filters.values(row["kind"], *row["kind"].split()[:2], text=True),
        "outcome": filters.values(row["outcome"], text=True),
        "cells": filters.values(row["cells"]),
        "ok": filters.values(row["ok"]),
    }


def _nothing(store: Store) -> str:
    """Why there is nothing to show."""
    deleted = next(filter(None, map(store.deleted, EXPERIMENTS)), "") if store.exists else ""
    place = store.dir if store.own_database else store.uri
    words = ("-m", "device=cpu,cuda", "batch=1,16")
    first = command("bench", *words, folder=store.dir, uri=store.server)
    return deleted or f"nothing is tracked in {place} yet; measure something first: {first}"
