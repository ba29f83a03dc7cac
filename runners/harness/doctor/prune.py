"""Removes old sweeps and lone cells: their folders, and their runs with all artifacts.

Nothing that still runs counts as old. Nothing outside the results folder is removed, even if a link
or a URI leads there. A sweep or cell with a file that no run writes is left alone.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from runners.harness.doctor.disk import Finding, ResultFolder, other_store
from runners.harness.machine.processes import Processes
from runners.harness.store.disk import foreign
from runners.harness.store.runs import Run, Runs, local_path
from runners.harness.store.tracking import Store


def old(
    store: Store,
    found: list[ResultFolder],
    processes: Processes,
    runs: Runs,
    age: str,
    age_s: float,
) -> Iterator[tuple[str, Finding]]:
    """Find sweeps and lone cells that ended longer ago than ``age``; yields ids with findings."""
    away = _away(store)
    for left in sorted(away.iterdir()) if away.is_dir() else ():
        what = f"{left}: it was not removed to its end"
        yield "", Finding(what, "remove it yourself", counts=False)
    before = time.time() - age_s
    for result in found:
        own = runs.by_sweep.get(result.identity, [])
        if not result.record or result.ended >= before or _busy(result, processes, own):
            continue
        if not other_store(store, runs, result):  # that store would keep runs without folders
            finding = _finding(store, result.name, result.ended, age, [result.path], own)
            yield result.identity, finding
    on_disk = {result.identity for result in found}
    for identity, own in runs.by_sweep.items():
        if identity in on_disk or all(run.deleted for run in own) or any(run.open for run in own):
            continue
        ended = max(run.ended_ms or run.started_ms for run in own) / 1000
        if ended < before:
            yield identity, _finding(store, f"{identity} (no folder)", ended, age, [], own)


def _busy(result: ResultFolder, processes: Processes, own: list[Run]) -> bool:
    """Whether a part of ``result`` may still run, here or on a host that cannot be asked."""
    states = {processes.state(cell.record) for cell in result.cells if cell.record.running}
    whole = processes.state(result.record) if result.record else "gone"
    left_open = whole == "elsewhere" and any(run.open for run in own)
    return whole == "alive" or left_open or bool(states - {"gone"})


def _finding(
    store: Store, name: str, ended: float, age: str, folders: list[Path], own: list[Run]
) -> Finding:
    day = time.strftime("%Y-%m-%d", time.localtime(ended))
    what = f"{name}: ended {day}, longer ago than {age}"
    paths = [path for run in own if (path := local_path(run.artifacts))]
    why = next(filter(None, (_not_ours(path, store.dir) for path in [*folders, *paths])), "")
    astray = [
        r for r in own if (p := local_path(r.artifacts)) and p.exists() and not _own(p, r, store)
    ]
    if not why and astray:
        why = f"{astray[0].artifacts} is not where a run has its artifacts"
    if why:
        return Finding(what, f"left alone, since {why}", counts=False)
    held = " and ".join(["its folder"] * len(folders) + [f"{len(own)} runs"] * bool(own))
    mend = partial(_remove, store, folders, paths, own)
    return Finding(what, f"removes {held}", mend)


def _not_ours(path: Path, folder: Path) -> str:
    """Why ``path`` must not be removed; empty if all of it belongs to runs in ``folder``."""
    if not path.exists() and not path.is_symlink():
        return ""
    if path.is_symlink() or not path.resolve().is_relative_to(folder.resolve()):
        return f"{path} is not in {folder}"
    strange = foreign(path)
    return f"{strange} is not of a run" if strange else ""


def _own(path: Path, run: Run, store: Store) -> bool:
    """Whether ``path`` is artifacts/KIND/RUN/artifacts in the results folder, for this run."""
    kind = path.resolve().parents[1]
    return (path.parent.name, path.name, kind.parent) == (
        run.identity,
        "artifacts",
        (store.dir / "artifacts").resolve(),
    )


def _away(store: Store) -> Path:
    """The folder into which a result is moved before it is removed, so that a removal that is cut
    short leaves no half of it in its place.
    """
    return store.dir / ".pruned"


def _remove(store: Store, folders: list[Path], paths: list[Path], own: list[Run]) -> str:
    for folder in folders:
        away = _away(store)
        away.mkdir(exist_ok=True)
        shutil.rmtree(folder.rename(away / folder.name))
        with suppress(OSError):  # something else is in it
            away.rmdir()
    for path in paths:
        if path.exists():
            shutil.rmtree(path)
            with suppress(OSError):
                path.parent.rmdir()
    for run in own:
        if not run.deleted:
            store.client.delete_run(run.identity)
    return f"removed{store.erase([run.identity for run in own]) if own else ''}"
