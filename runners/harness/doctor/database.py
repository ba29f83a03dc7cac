"""What can be wrong with the sqlite file of a local store: its schema, and where it says that
artefacts are. Found and mended without MLflow, which cannot open such a file, or changes it.
"""

import re
import sqlite3
from contextlib import closing
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from runners.harness.doctor.disk import Finding
from runners.harness.doctor.store import connect, local_path, tables_of

_REVISION = re.compile(r"""^(down_)?revision\b[^=]*=\s*["'](\w+)["']""", re.MULTILINE)
_AFRESH = "move it away; fix=true then makes a new store of what is on disk"


class _Schema(NamedTuple):
    revision: str
    tables: set[str]
    used: bool
    """Whether anything of a user's is in it."""


class _Lost(NamedTuple):
    root: Path
    """Where the artefacts were, all of them."""
    right: str
    """The URI of where they are."""
    table: str
    key: str


_COLUMNS = {
    "experiments": ("artifact_location", "experiment_id"),
    "runs": ("artifact_uri", "run_uuid"),
}


def schema(path: Path) -> Finding | None:
    """What keeps the installed MLflow from opening the file, if anything does."""
    known, head = _revisions()
    try:
        found = _schema(path)
        if found.tables and not found.used and found.revision != head:
            with FileLock(path.parent / "mlflow.lock"):  # unless it is being made just now
                found = _schema(path)
    except sqlite3.Error as error:
        return Finding(f"{path}: {error}", _AFRESH)
    if not found.tables or not head or found.revision == head:
        return None
    if "experiments" not in found.tables:
        return Finding(f"{path}: a database, but none of MLflow's", _AFRESH)
    if not found.used:
        what = f"{path}: making it was cut short, so that MLflow cannot open it; no run is in it"
        return Finding(what, "removes it", partial(_remove, path))
    theirs, ours = f"{path}: its schema ({found.revision})", f"mlflow {metadata.version('mlflow')}"
    if found.revision in known:
        upgrade = f"copy the file, then: mlflow db upgrade sqlite:///{path}"
        return Finding(f"{theirs} is older than that of {ours} ({head})", upgrade)
    newer = f"{theirs} is unknown to {ours}, it was made by a newer one"
    return Finding(newer, "pip install --upgrade mlflow")


def _schema(path: Path) -> _Schema:
    with closing(connect(path)) as connection:
        tables = tables_of(connection)
        rows = [("",)]
        if "alembic_version" in tables:
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall() or rows
        used = any(
            connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
            for table in ("runs", "experiments WHERE name != 'Default'")
            if table.split()[0] in tables
        )
    return _Schema(rows[0][0], tables, used)


def _revisions() -> tuple[set[str], str]:
    """Every schema that the installed MLflow knows, and its own; nothing where that is not told.

    Read from the files of its migrations: to import them, as Alembic does, takes seconds.
    """
    spec = find_spec("mlflow")
    folders = [Path(path) for path in (spec and spec.submodule_search_locations) or ()]
    known: set[str] = set()
    before: set[str] = set()
    for path in (p for f in folders for p in f.glob("store/db_migrations/versions/*.py")):
        for down, revision in _REVISION.findall(path.read_text(encoding="utf-8")):
            (before if down else known).add(revision)
    heads = known - before
    return known, heads.pop() if len(heads) == 1 else ""


def _remove(path: Path) -> str:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return "removed; a new one is made when it is needed"


def locations(path: Path) -> list[Finding]:
    """Artefact locations from when the folder had another name: one finding a name."""
    lost, found = _lost(path), []
    for root in sorted({one.root for one in lost}):
        rows = [one for one in lost if one.root == root]
        runs = sum(one.table == "runs" for one in rows)
        what = f"the artefacts of {runs} runs and {len(rows) - runs} experiments"
        found.append(
            Finding(
                f"{path}: {what} are said to be in {root}",
                f"corrects it to {path.parent / 'artifacts'}",
                partial(_point, path, rows),
            )
        )
    return found


def _lost(path: Path) -> list[_Lost]:
    with closing(connect(path)) as connection:
        if "runs" not in tables_of(connection):
            return []
        ours = "WHERE experiments.name LIKE 'tinygpt/%'"
        query = f"SELECT experiment_id, artifact_location FROM experiments {ours}"
        places = [("experiments", str(key), uri) for key, uri in connection.execute(query)]
        query = "SELECT run_uuid, artifact_uri FROM runs JOIN experiments USING (experiment_id)"
        places += [("runs", key, uri) for key, uri in connection.execute(f"{query} {ours}")]
    here = path.parent / "artifacts"
    away = [place for place in places if not place[2].startswith(f"{here.as_uri()}/")]
    return [lost for place in away if (lost := _looked_up(here, *place))]


def _looked_up(here: Path, table: str, key: str, uri: str) -> _Lost | None:
    """ROOT/KIND of an experiment and ROOT/KIND/RUN/artifacts of a run, if ROOT is not there, or is
    where this folder was copied from.
    """
    old, depth = local_path(uri), 1 if table == "experiments" else 3
    if old is None or len(old.parts) <= depth:
        return None
    new, root = here.joinpath(*old.parts[-depth:]), old.parents[depth - 1]
    if old.exists() and (not new.exists() or new.resolve() == old.resolve()):
        return None
    return _Lost(root, new.as_uri(), table, key) if new.exists() or not root.exists() else None


def _point(path: Path, rows: list[_Lost]) -> str:
    with closing(connect(path, "rw")) as connection, connection:  # one transaction
        for table, (column, key) in _COLUMNS.items():
            values = [(row.right, row.key) for row in rows if row.table == table]
            connection.executemany(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", values)
    return f"corrected to {path.parent / 'artifacts'}"
