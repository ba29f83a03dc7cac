"""Lists tinygpt's runs in the store: all for the doctor, only sweeps and lone cells for people.

The file of a local store is read directly, with two fast queries, since MLflow loads all figures of
all runs it finds, which takes ten seconds for ten thousand runs. A server is asked page by page,
and only for sweeps and lone cells if these are enough.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from runners.harness.machine.processes import Owner
from runners.harness.store.find import KINDS
from runners.harness.store.local import connect, tables_of
from runners.harness.store.tracking import Store, reaching

EXPERIMENTS = (*KINDS, "train", "profiling")
"""All kinds of runs that the store may have."""
_TAGS = ("cell", "sweep", "top", "host", "pid", "process_started")


@dataclass
class Run:
    """A run of tinygpt in MLflow."""

    identity: str
    """MLflow's id."""
    status: str
    deleted: bool
    """Whether its user deleted it."""
    started_ms: int
    ended_ms: int
    artifacts: str
    """The URI of its artifacts."""
    tags: dict[str, str] = field(default_factory=dict)
    """The tags in ``_TAGS``, without their prefix ``tinygpt.``, and mlflow.parentRunId."""

    @property
    def owner(self) -> Owner | None:
        """The process that made it, if its tags say so."""
        if "host" not in self.tags:
            return None
        pid, started = int(self.tags["pid"]), float(self.tags["process_started"])
        return Owner(host=self.tags["host"], pid=pid, process_started=started)

    @property
    def open(self) -> bool:
        """Whether it was never ended or deleted."""
        return self.status == "RUNNING" and not self.deleted


class Runs:
    """All runs of tinygpt in MLflow: by id, by cell (id and start time in ms), and by sweep."""

    def __init__(self, found: Iterable[Run]) -> None:
        self.by_id: dict[str, Run] = {}
        self.by_cell: dict[tuple[str, int], list[Run]] = {}
        self.by_sweep: dict[str, list[Run]] = {}
        for run in found:
            self.add(run)

    def add(self, run: Run) -> None:
        """Add a run."""
        self.by_id[run.identity] = run
        self.by_sweep.setdefault(run.tags["sweep"], []).append(run)
        if "cell" in run.tags:
            self.by_cell.setdefault((run.tags["cell"], run.started_ms), []).append(run)

    def parent(self, sweep: str) -> Run | None:
        """The run of the sweep itself, preferably one that is not deleted; None without one."""
        tops = [run for run in self.by_sweep.get(sweep, []) if "cell" not in run.tags]
        return next((run for run in tops if not run.deleted), tops[0] if tops else None)


def local_path(uri: str) -> Path | None:
    """The path that a file URI names; None for other URIs."""
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def read_runs(store: Store) -> Runs:
    """Read all runs of tinygpt in the store."""
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


_TOP_TAGS = ("sweep", "outcome", "overrides", "rerun_of")
_TOP = "tags.`tinygpt.top` = 'true'"
_TAG_JOINS = "\n".join(
    f"LEFT JOIN tags {tag} ON {tag}.run_uuid = r.run_uuid AND {tag}.key = 'tinygpt.{tag}'"
    for tag in _TOP_TAGS
)
_RUNS_SQL = f"""
SELECT substr(e.name, 9), r.status, r.start_time, p.value,
{", ".join(f"{tag}.value" for tag in _TOP_TAGS)}
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
class TopRun:
    """A sweep or a lone cell, as the table of runs lists it."""

    experiment: str
    """``bench``, ``sample``, ..."""
    status: str
    """MLflow's status."""
    started_ms: int
    """Milliseconds since 1970."""
    cells: str | None
    """The number of cells of a sweep; None for a lone cell."""
    identity: str
    """The id that tinygpt gave it, not MLflow's."""
    outcome: str | None
    overrides: str | None
    rerun_of: str | None


def top_runs(store: Store) -> tuple[list[TopRun], dict[str, int] | None]:
    """All sweeps and lone cells, and the number of ok cells by sweep (None from a server)."""
    if not store.exists:
        return [], {}
    path = store.database
    if not path:
        return _top_runs_from_server(store), None
    store.check()
    with reaching(store.uri):
        return _top_runs_from_database(path)


def _top_runs_from_database(path: Path) -> tuple[list[TopRun], dict[str, int]]:
    with closing(connect(path)) as database:
        found = [TopRun(*row) for row in database.execute(_RUNS_SQL)]
        return found, dict(database.execute(_OK_SQL).fetchall())


def _top_runs_from_server(store: Store) -> list[TopRun]:
    return [
        TopRun(
            kind,
            run.info.status,
            run.info.start_time,
            run.data.params.get("cells"),
            run.data.tags["tinygpt.sweep"],
            *(run.data.tags.get(f"tinygpt.{name}") for name in _TOP_TAGS[1:]),
        )
        for kind in EXPERIMENTS
        for run in store.search(kind, _TOP)
    ]
