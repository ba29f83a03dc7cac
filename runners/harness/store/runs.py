"""All of our runs in the store, in one go.

A local store's file is read as it is: MLflow takes ten seconds to tell of ten thousand runs what
two queries tell at once. A server is asked in pages.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from runners.harness.store.local import connect, tables_of
from runners.harness.store.tracking import Store

_TAGS = ("cell", "sweep", "top", "host", "pid", "process_started")


@dataclass
class Run:
    """A run of ours in MLflow."""

    identity: str
    status: str
    deleted: bool
    """Whether its user put it into the bin; it stays there."""
    started_ms: int
    ended_ms: int
    artifacts: str
    """Their URI."""
    tags: dict[str, str] = field(default_factory=dict)
    """Without ``tinygpt.``; and mlflow.parentRunId."""

    @property
    def open(self) -> bool:
        """Whether it was never ended."""
        return self.status == "RUNNING" and not self.deleted


class Runs:
    """All of our runs: those that were there, and those that were made since."""

    def __init__(self, found: Iterable[Run]) -> None:
        self.by_id: dict[str, Run] = {}
        self.by_cell: dict[tuple[str, int], list[Run]] = {}
        self.by_sweep: dict[str, list[Run]] = {}
        for run in found:
            self.add(run)

    def add(self, run: Run) -> None:
        """Take one in."""
        self.by_id[run.identity] = run
        self.by_sweep.setdefault(run.tags["sweep"], []).append(run)
        if "cell" in run.tags:
            self.by_cell.setdefault((run.tags["cell"], run.started_ms), []).append(run)

    def parent(self, sweep: str) -> Run | None:
        """The sweep's own run."""
        tops = [run for run in self.by_sweep.get(sweep, []) if "cell" not in run.tags]
        return next((run for run in tops if not run.deleted), tops[0] if tops else None)


def local_path(uri: str) -> Path | None:
    """What a file URI is of."""
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def read_runs(store: Store) -> Runs:
    """All of our runs that are in the store."""
    path = store.own_database
    if path is None:
        return Runs(_served(store))
    return Runs(_read(path) if path.is_file() else [])


def _read(path: Path) -> Iterator[Run]:
    with closing(connect(path)) as connection:
        if "runs" not in tables_of(connection):
            return
        keys = ["mlflow.parentRunId", *(f"tinygpt.{name}" for name in _TAGS)]
        marks = ", ".join("?" * len(keys))
        tags: dict[str, dict[str, str]] = {}
        query = f"SELECT run_uuid, key, value FROM tags WHERE key IN ({marks})"
        for identity, key, value in connection.execute(query, keys):
            tags.setdefault(identity, {})[key.removeprefix("tinygpt.")] = value
        rows = connection.execute(
            "SELECT run_uuid, status, 'deleted' IN (r.lifecycle_stage, e.lifecycle_stage), "
            "start_time, end_time, artifact_uri "
            "FROM runs r JOIN experiments e USING (experiment_id) WHERE e.name LIKE 'tinygpt/%'"
        )
        for identity, status, deleted, started, ended, uri in rows:
            own = tags.get(identity, {})
            if "sweep" in own:
                yield Run(identity, status, bool(deleted), started or 0, ended or 0, uri, own)


def _served(store: Store) -> Iterator[Run]:
    from mlflow.entities import ViewType

    def pages(search: Any) -> Iterator[Any]:
        page = search(page_token=None)
        yield from page
        while page.token:
            page = search(page_token=page.token)
            yield from page

    find, ours = store.client.search_experiments, "name LIKE 'tinygpt/%'"
    found = list(pages(partial(find, ViewType.ALL, 1000, ours)))
    binned = {e.experiment_id for e in found if e.lifecycle_stage == "deleted"}
    ids, where = [e.experiment_id for e in found], "tags.`tinygpt.sweep` LIKE '%'"
    search = partial(store.client.search_runs, ids, where, ViewType.ALL, 1000)
    for run in pages(search) if ids else ():
        info, tags = run.info, {k.removeprefix("tinygpt."): v for k, v in run.data.tags.items()}
        own = {k: v for k, v in tags.items() if k in (*_TAGS, "mlflow.parentRunId")}
        deleted = info.lifecycle_stage == "deleted" or info.experiment_id in binned
        times = info.start_time or 0, info.end_time or 0
        yield Run(info.run_id, info.status, deleted, *times, info.artifact_uri, own)
