"""What is in the store, newest first, by the ids that people type.

MLflow loads every figure of every run that it finds: seconds a thousand. So the local store's
database is read as it stands; a server is asked for its sweeps and lone cells alone, and how many
cells of a sweep are ok is left empty there.
"""

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pandas as pd

from runners.harness.config import filters
from runners.harness.config.commands import command
from runners.harness.store import local as local_store
from runners.harness.store.find import KINDS
from runners.harness.store.tracking import Store, reaching
from runners.harness.tables.table import Table

EXPERIMENTS = (*KINDS, "train", "profiling")
SHORTEST = 4
"""Characters of an id that are shown at least."""
_TAGS = ("sweep", "outcome", "overrides", "rerun_of")
_TOP = "tags.`tinygpt.top` = 'true'"
_TAG_JOINS = "\n".join(
    f"LEFT JOIN tags {tag} ON {tag}.run_uuid = r.run_uuid AND {tag}.key = 'tinygpt.{tag}'"
    for tag in _TAGS
)
_RUNS_SQL = f"""
SELECT substr(e.name, 9), r.status, r.start_time, p.value, {", ".join(f"{t}.value" for t in _TAGS)}
FROM tags top
JOIN runs r ON r.run_uuid = top.run_uuid AND r.lifecycle_stage = 'active'
JOIN experiments e ON e.experiment_id = r.experiment_id AND e.name LIKE 'tinygpt/%'
LEFT JOIN params p ON p.run_uuid = r.run_uuid AND p.key = 'cells'
{_TAG_JOINS}
WHERE top.key = 'tinygpt.top' AND top.value = 'true'
"""
_OK_SQL = """
SELECT sweep.value, count(DISTINCT cell.value)
FROM tags outcome
JOIN runs r ON r.run_uuid = outcome.run_uuid AND r.lifecycle_stage = 'active'
JOIN tags sweep ON sweep.run_uuid = outcome.run_uuid AND sweep.key = 'tinygpt.sweep'
JOIN tags cell ON cell.run_uuid = outcome.run_uuid AND cell.key = 'tinygpt.cell'
WHERE outcome.key = 'tinygpt.outcome' AND outcome.value = 'ok' AND r.status != 'RUNNING'
GROUP BY sweep.value
"""


@dataclass(frozen=True)
class Entry:
    """A sweep or a lone cell."""

    experiment: str
    """``bench``, ``sample``, ..."""
    status: str
    """MLflow's."""
    started_ms: int
    """Since 1970."""
    cells: str | None
    """How many a sweep has; None for a lone cell."""
    identity: str
    outcome: str | None
    overrides: str | None
    rerun_of: str | None


def runs(store: Store, where: str = "", limit: int = 50) -> Table:
    """The newest ``limit`` of those that ``where`` fits; it may ask for id, kind, outcome, cells
    and ok.
    """
    filters.parse(where)
    found, ok = _read(store)
    found.sort(key=lambda entry: entry.started_ms, reverse=True)
    short = short_ids([entry.identity for entry in found])
    rows = [_row(entry, short, ok) for entry in found]
    facts = [_facts(entry, row) if where else {} for entry, row in zip(found, rows, strict=True)]
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
    """The beginning of each id that no other shares."""
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


def _row(entry: Entry, short: dict[str, str], ok: dict[str, int] | None) -> dict[str, Any]:
    kind = f"{entry.experiment} sweep" if entry.cells else entry.experiment
    if entry.rerun_of:
        sweep, dash, number = entry.rerun_of.partition("-")
        kind = f"{entry.experiment} rerun of {short.get(sweep, sweep)}{dash}{number}"
    silent = {"RUNNING": "running", "KILLED": "interrupted"}.get(entry.status, "failed")
    outcome = silent if entry.status == "RUNNING" else entry.outcome or silent
    fine: int | None = int(outcome == "ok") if not entry.cells else None
    if ok is not None:
        fine = ok.get(entry.identity, 0)
    when = datetime.fromtimestamp(entry.started_ms / 1000)
    return {
        "id": short[entry.identity],
        "kind": kind,
        "when": f"{when:%Y-%m-%d %H:%M}",
        "outcome": outcome,
        "cells": int(entry.cells or 1),
        "ok": fine,
        "overrides": entry.overrides or "",
    }


def _facts(entry: Entry, row: dict[str, Any]) -> filters.Facts:
    """A kind is known by each of its words."""
    return {
        "id": filters.values(row["id"], entry.identity, text=True),
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


def _read(store: Store) -> tuple[list[Entry], dict[str, int] | None]:
    """All sweeps and lone cells, and how many cells of each are ok, where that is known."""
    if not store.exists:
        return [], {}
    path = store.database
    if not path:
        return _from_mlflow(store), None
    store.check()
    with reaching(store.uri):
        return _from_database(path)


def _from_database(path: Path) -> tuple[list[Entry], dict[str, int]]:
    with closing(local_store.connect(path)) as database:
        found = [Entry(*row) for row in database.execute(_RUNS_SQL)]
        return found, dict(database.execute(_OK_SQL).fetchall())


def _from_mlflow(store: Store) -> list[Entry]:
    return [
        Entry(
            kind,
            run.info.status,
            run.info.start_time,
            run.data.params.get("cells"),
            run.data.tags["tinygpt.sweep"],
            *(run.data.tags.get(f"tinygpt.{name}") for name in _TAGS[1:]),
        )
        for kind in EXPERIMENTS
        for run in store.search(kind, _TOP)
    ]
