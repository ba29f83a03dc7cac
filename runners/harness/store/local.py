"""The sqlite file of a local store: its URI, how to read it, and whether MLflow can open it.

MLflow adds its tables to any sqlite file that lacks one of them. So every command first inspects
the file without MLflow.
"""

import re
import shlex
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from runners.harness.config.commands import command
from runners.harness.config.paths import unwritable

_REVISION = re.compile(r"""^(down_)?revision\b[^=]*=\s*["'](\w+)["']""", re.MULTILINE)
_URI = re.compile(r"sqlite(?:\+pysqlite)?:///([^?]+)")
_PARTS = ("", "-wal", "-journal")
"""Suffixes of the files that make up a database, since a log beside it may have recent changes."""
_UNREADABLE = "see whether you may read it, and whether another process holds it"
_OF_MLFLOW = {
    "alembic_version": "0",
    "experiments": "name != 'Default'",
    "workspaces": "name != 'default'",
}
"""Tables into which MLflow itself puts rows, each with the condition that tells a user's rows
apart.
"""


class Obstacle(NamedTuple):
    """The reason why MLflow cannot or must not open a file."""

    what: str
    """What is wrong, and with which file."""
    cure: str
    """What to do about it."""
    unfinished: bool = False
    """Whether making the store was cut short, so that it has no data of a user."""


class _Schema(NamedTuple):
    revision: str
    tables: set[str]
    used: bool
    """Whether it has any data of a user."""


def to_uri(path: Path) -> str:
    """The tracking URI of an sqlite file, as MLflow and SQLAlchemy read it."""
    quoted = re.sub("[%?#]", lambda found: quote(found[0]), str(path))
    # For a plain sqlite: URI MLflow makes the folder without unquoting its name first.
    return f"{'sqlite' if quoted == str(path) else 'sqlite+pysqlite'}:///{quoted}"


def to_path(uri: str) -> Path | None:
    """The sqlite file that a tracking URI names; None for any other store."""
    found = _URI.match(uri)
    return Path(unquote(found[1])) if found else None


def connect(path: Path, mode: str = "ro") -> sqlite3.Connection:
    """Open an sqlite file that exists; reading also works where nothing can be written.

    Raises sqlite3.Error or OSError.
    """
    if mode == "ro" and needs_copy(path):
        memory = sqlite3.connect(":memory:")
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(_open(copy(path, Path(folder)), "rw")) as copied,
        ):
            copied.execute("PRAGMA journal_mode=DELETE")  # a database in memory has no log
            copied.backup(memory)
        return memory
    return _open(path, mode)


def needs_copy(path: Path) -> bool:
    """Whether sqlite cannot read the file in place because it cannot write beside it.

    A file with a write-ahead log is read with the help of a second file in the same folder. That
    one exists as long as another process has the database open; if it is missing, no process is
    writing.
    """
    try:
        with closing(_open(path, "ro")) as connection:
            tables_of(connection)
    except sqlite3.OperationalError:
        return bool(unwritable(path.parent))
    except sqlite3.Error:
        pass
    return False


def copy(path: Path, folder: Path) -> Path:
    """Copy a database that no process is writing into ``folder``; returns the copy."""
    for part in _PARTS:
        source = path.with_name(path.name + part)
        if source.exists():
            shutil.copyfile(source, folder / source.name)
    return folder / path.name


def tables_of(connection: sqlite3.Connection) -> set[str]:
    """The names of the database's tables."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    return {row[0] for row in connection.execute(query)}


def obstacle(path: Path) -> Obstacle | None:
    """What keeps the installed MLflow from opening the file; None if nothing does."""
    try:
        found = _schema(path)
    except (sqlite3.OperationalError, OSError) as error:  # the file itself may be sound
        return Obstacle(f"{path}: cannot be read ({error})", _UNREADABLE)
    except sqlite3.Error as error:
        return Obstacle(f"{path}: {error}", _another(path))
    _, head = _revisions()
    if not found.tables or not head or found.revision == head:
        return None
    if "experiments" not in found.tables:
        return Obstacle(f"{path}: a database, but none of MLflow's", _another(path))
    if not found.used:
        what = f"{path}: making it was cut short, so that MLflow cannot open it; no run is in it"
        return Obstacle(what, f"{_doctor(path)} removes it", True)
    return of_version(to_uri(path), found.revision)


def _doctor(path: Path) -> str:
    return command("doctor", "fix=true", folder=path.parent)


def _another(path: Path) -> str:
    return f"move it away; {_doctor(path)} then makes a new store of what is here"


def deleted_experiments(path: Path) -> dict[str, str]:
    """The ids, by name, of experiments that their user deleted."""
    with closing(connect(path)) as connection:
        if "experiments" not in tables_of(connection):
            return {}
        query = "SELECT name, experiment_id FROM experiments WHERE lifecycle_stage = 'deleted'"
        return {name: str(identity) for name, identity in connection.execute(query)}


_ARTIFACT_COLUMNS = {
    "experiments": ("artifact_location", "experiment_id"),
    "runs": ("artifact_uri", "run_uuid"),
}


def artifact_places(path: Path) -> list[tuple[str, str, str]]:
    """All artifact locations of tinygpt's experiments and runs, as (table, key, URI)."""
    with closing(connect(path)) as connection:
        if "runs" not in tables_of(connection):
            return []
        ours = "WHERE experiments.name LIKE 'tinygpt/%'"
        query = f"SELECT experiment_id, artifact_location FROM experiments {ours}"
        places = [("experiments", str(key), uri) for key, uri in connection.execute(query)]
        query = "SELECT run_uuid, artifact_uri FROM runs JOIN experiments USING (experiment_id)"
        return places + [("runs", key, uri) for key, uri in connection.execute(f"{query} {ours}")]


def move_artifacts(path: Path, places: list[tuple[str, str, str]]) -> None:
    """Set artifact locations, given as (table, key, URI), all in one transaction."""
    with closing(connect(path, "rw")) as connection, connection:
        for table, (column, key) in _ARTIFACT_COLUMNS.items():
            values = [(uri, row) for of, row, uri in places if of == table]
            connection.executemany(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", values)


def of_version(uri: str, revision: str) -> Obstacle:
    """What to do about a store whose schema is not that of the installed MLflow."""
    known, head = _revisions()
    path, ours = to_path(uri), f"mlflow {metadata.version('mlflow')}"
    theirs = f"{path or uri}: its schema ({revision})"
    if revision not in known:
        newer = f"{theirs} is unknown to {ours}, it was made by a newer one"
        return Obstacle(newer, "pip install --upgrade mlflow")
    commands = [["mlflow", "db", "upgrade", uri]]
    if path:
        parts = [path.with_name(path.name + part) for part in _PARTS]
        parts = [part for part in parts if part.exists() and part.stat().st_size]
        kept = [p.with_name(p.name.replace(path.name, f"{path.name}.{revision}")) for p in parts]
        commands = [["cp", *map(str, pair)] for pair in zip(parts, kept, strict=True)] + commands
    upgrade = " && ".join(map(shlex.join, commands))
    cure = f"this copies and upgrades it: {upgrade}" if path else f"copy it, then: {upgrade}"
    return Obstacle(f"{theirs} is older than that of {ours} ({head})", cure)


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=20.0)


def _schema(path: Path) -> _Schema:
    with closing(connect(path)) as connection:
        tables = tables_of(connection)
        rows = [("",)]
        if "alembic_version" in tables:
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall() or rows
        used = any(
            connection.execute(
                f'SELECT 1 FROM "{table}" WHERE {_OF_MLFLOW.get(table, "1")} LIMIT 1'
            ).fetchone()
            for table in tables
        )
    return _Schema(rows[0][0], tables, used)


@lru_cache(maxsize=1)
def _revisions() -> tuple[set[str], str]:
    """All schema revisions that the installed MLflow knows, and the newest; empty if unknown.

    They are read from the files of its migrations, since importing these files, as Alembic does,
    takes seconds.
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
