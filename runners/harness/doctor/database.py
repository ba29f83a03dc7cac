"""Problems in the sqlite file of a local store: its schema, and where it says that artifacts are.

They are found and mended without MLflow, which either cannot open such a file or would change it.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from runners.harness.config.paths import unwritable
from runners.harness.doctor.disk import Finding
from runners.harness.store import local as local_store
from runners.harness.store.runs import local_path


class _Lost(NamedTuple):
    root: Path
    """The folder in which all artifacts were."""
    right: str
    """The URI of the place where they are now."""
    table: str
    key: str


def schema(path: Path) -> Finding | None:
    """What keeps the installed MLflow from opening the file; None if nothing does."""
    found = local_store.obstacle(path)
    if found and found.unfinished and not unwritable(path.parent):
        with FileLock(path.parent / "mlflow.lock"):  # wait, if a process is making it just now
            found = local_store.obstacle(path)
    if found and found.unfinished:
        return Finding(found.what, "removes it", partial(_remove, path))
    return Finding(found.what, found.cure) if found else None


def _remove(path: Path) -> str:
    with FileLock(path.parent / "mlflow.lock"):
        found = local_store.obstacle(path)
        if not (found and found.unfinished):
            return "left as it is: another process has finished it"
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return "removed; a new one is made when it is needed"


def locations(path: Path) -> list[Finding]:
    """Findings about artifact locations that are wrong since the results folder was moved, one per
    old place.
    """
    lost, found = _lost(path), []
    for root in sorted({one.root for one in lost}):
        rows = [one for one in lost if one.root == root]
        runs = sum(one.table == "runs" for one in rows)
        what = f"the artifacts of {runs} runs and {len(rows) - runs} experiments"
        found.append(
            Finding(
                f"{path}: {what} are said to be in {root}",
                f"corrects it to {path.parent / 'artifacts'}",
                partial(_point, path, rows),
            )
        )
    return found


def _lost(path: Path) -> list[_Lost]:
    here = path.parent / "artifacts"
    away = [
        place
        for place in local_store.artifact_places(path)
        if not place[2].startswith(f"{here.as_uri()}/")
    ]
    return [lost for place in away if (lost := _looked_up(here, *place))]


def _looked_up(here: Path, table: str, key: str, uri: str) -> _Lost | None:
    """The new place of an artifact location, if it was lost in a move or a copy of the results
    folder.

    An experiment's location is ROOT/KIND and a run's is ROOT/KIND/RUN/artifacts. It is lost if ROOT
    does not exist any more, or if ``here`` has the same folder, as a copy of ROOT has.
    """
    old, depth = local_path(uri), 1 if table == "experiments" else 3
    if old is None or len(old.parts) <= depth:
        return None
    new, root = here.joinpath(*old.parts[-depth:]), old.parents[depth - 1]
    if old.exists() and (not new.exists() or new.resolve() == old.resolve()):
        return None
    return _Lost(root, new.as_uri(), table, key) if new.exists() or not root.exists() else None


def _point(path: Path, rows: list[_Lost]) -> str:
    local_store.move_artifacts(path, [(row.table, row.key, row.right) for row in rows])
    return f"corrected to {path.parent / 'artifacts'}"
