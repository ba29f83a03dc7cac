"""Checks of the folders that a command would write to, before Hydra makes any of them.

A lone cell is kept in tracking.dir/cells/ID, a cell of a sweep in tracking.dir/sweeps/ID/NUMBER.
Hydra would make any folder it is told to, and a run writes files with fixed names. So a folder that
is not the run's own is refused, with a UsageError, before anything is written.
"""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from runners.harness.config.paths import absolute, unwritable
from runners.harness.config.schema import TrackingConfig
from runners.harness.errors import UsageError
from runners.harness.launch.entry import EntryPoint, Sweep
from runners.harness.store.tracking import Store, TrackingError, open_store

_NUMBER = "${hydra.job.num}"  # what conf/harness.yaml says
_PLACES = ("cells", "sweeps", "artifacts", "checkpoints")


def check_job(entry: EntryPoint, hydra: DictConfig, sweep: Path | None = None) -> None:
    """Check the folders in one job's Hydra config; ``sweep`` is the folder of its sweep, if any."""
    below = hydra.output_subdir
    if not entry.keeps:
        for key, value, own in (
            ("hydra.run.dir", hydra.run.dir, "."),
            ("hydra.output_subdir", below, None),
        ):
            if value != own:
                raise UsageError(f"{key}={value}: {entry.name} keeps no folder; leave {key} out")
        return
    if below is not None and (Path(below).name != below or below in ("", "..")):
        raise UsageError(
            f"hydra.output_subdir={below}: must be the name of a folder in the cell's own, such as "
            ".hydra"
        )
    if sweep is None:
        return
    subdir = OmegaConf.to_container(hydra.sweep, resolve=False)["subdir"]  # type: ignore[index,call-overload]
    if subdir != _NUMBER:
        raise UsageError(
            f"hydra.sweep.subdir={subdir}: the cells of a sweep are kept by their numbers; leave "
            "hydra.sweep.subdir out"
        )
    folder = Path(hydra.sweep.dir).absolute()
    if folder != sweep:
        raise UsageError(
            f"tracking.dir: a sweep is kept in one folder, and a cell of it would go to {folder}; "
            "give it one value"
        )


def check_sweep(entry: EntryPoint, sweep: Sweep) -> None:
    """Check that a lone job or a sweep has a folder of its own, in a store that can be used."""
    if not entry.keeps:
        return
    tracking: TrackingConfig = sweep.configs[0].tracking
    key, place = ("run", "cells") if sweep.lone else ("sweep", "sweeps")
    key, parent, folder = f"hydra.{key}.dir", absolute(tracking.dir) / place, sweep.folder
    if folder.resolve().parent != absolute(tracking.dir).resolve() / place:
        raise UsageError(
            f"{key}={folder}: must be in {parent}, where tables, rerun and doctor look; leave it "
            "out, and put all results elsewhere with tracking.dir=PATH"
        )
    new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not new and not sweep.resumed:
        raise UsageError(
            f"{key}={folder}: is not empty, and nothing in it is replaced; leave it out, or name a "
            "folder that is not there"
        )
    check_store(tracking, entry.name)


def check_store(tracking: TrackingConfig, kind: str) -> None:
    """Check that the results of a run can be written and, as far as a quick look shows, tracked in
    the experiment of ``kind``.
    """
    store = open_store(tracking)
    check_writable(store)
    try:
        store.check()
        deleted = store.deleted(kind) if store.database else ""
    except TrackingError as error:
        deleted = str(error)
    if deleted:
        raise UsageError(f"nothing was run; tracking: {deleted}")


def check_writable(store: Store) -> None:
    """Check that the results folder, its subfolders and the file of a local store are writable."""
    file = store.database
    places = [store.dir, *(store.dir / name for name in _PLACES), *([file.parent] if file else [])]
    for place in dict.fromkeys(_above(place) for place in places):
        reason = unwritable(place)
        if reason:
            raise _cannot_write(store, place, reason)
    for path in (file, file.with_name("mlflow.lock")) if file else ():
        if path.exists() and not os.access(path, os.W_OK):
            raise _cannot_write(store, path, "Permission denied")


def _above(path: Path) -> Path:
    """The path itself if it exists, otherwise the nearest parent that does."""
    return next(p for p in (path, *path.absolute().parents) if p.exists())


def _cannot_write(store: Store, path: Path, reason: str) -> UsageError:
    return UsageError(
        f"tracking.dir={store.dir}: {path} cannot be written ({reason}); nothing was done; give a "
        "folder that can, tracking.dir=PATH, or see to its permissions"
    )
