"""Finds what is in the store by the ids that people type."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.harness.config.commands import command
from runners.harness.errors import first_line
from runners.harness.store.records import CELL, read_json
from runners.harness.store.tracking import Store, TrackingError

if TYPE_CHECKING:
    from mlflow.entities import Run

ENDED = "attributes.status != 'RUNNING' and attributes.status != 'KILLED'"
_TOP = "tags.`tinygpt.top` = 'true'"
_CELL = "tags.`tinygpt.cell` LIKE '%'"
KINDS = ("bench", "sample", "verify")
"""Kinds of runs that can be run again; each has its MLflow experiment ``tinygpt/KIND``."""


@dataclass(frozen=True)
class StoredCell:
    """A cell that has ended, as MLflow knows it, and where its files are."""

    kind: str
    run: "Run"
    store: Store

    @property
    def cell(self) -> str:
        """Its id."""
        return str(self.run.data.tags["tinygpt.cell"])

    @property
    def folder(self) -> Path:
        """The folder of its files, if it ran on this machine."""
        sweep, _, number = self.cell.rpartition("-")
        if sweep:
            return self.store.dir / "sweeps" / sweep / number
        return self.store.dir / "cells" / self.cell

    def path(self, name: str) -> Path:
        """The path from which its file ``name`` can be read: in its folder, or a copy of MLflow's
        artifact.

        Raises TrackingError, with the cure, if there is neither.
        """
        if (self.folder / CELL).is_file():
            return self.folder / name
        try:
            return self.store.artifact(self.run.info.run_id, name)
        except TrackingError as error:
            raise TrackingError(
                f"{self.cell}: {name} cannot be read ({first_line(error)}); if the results folder "
                "was moved: "
                + command("doctor", "fix=true", folder=self.store.dir, uri=self.store.server)
            ) from None

    @property
    def environment(self) -> dict[str, Any]:
        """The contents of environment.json: machine and code. Raises TrackingError if it cannot be
        read.
        """
        found = read_json(self.path("environment.json"))
        if not found:
            raise TrackingError(f"{self.cell}: its environment.json is missing or not complete")
        return found


@dataclass(frozen=True)
class SweepRef:
    """A sweep or lone cell that was found in the store."""

    kind: str
    identity: str
    """Its id."""
    overrides: str
    """The words of the command that made it."""


def find_sweep(
    store: Store, wanted: str, kinds: tuple[str, ...] = KINDS, key: str = "run"
) -> SweepRef:
    """Find the sweep or lone cell that ``wanted`` names: an id, the beginning of one, or
    ``latest``.

    ``latest`` is the newest one of kind bench that has ended and is no rerun. Raises ValueError if
    there is none or more than one; the message begins with ``key``, which ``wanted`` was typed for.
    """
    if not store.exists:
        raise ValueError(
            f"{key}={wanted}: nothing is tracked in {store.dir} yet; measure something first: "
            + command("bench", "-m", "device=cpu,cuda", "batch=1,16", folder=store.dir)
        )
    safe = "".join(c for c in wanted if c.isalnum() or c == "-")
    found: list[tuple[str, Run]] = []
    if wanted == "latest":
        # A sweep that was stopped can be found by its id, but not as the latest.
        where = f"{_TOP} and {ENDED} and tags.`tinygpt.kind` != 'rerun'"
        found = [("bench", run) for run in store.search("bench", where, limit=1)]
    elif safe == wanted and wanted:
        where = f"{_TOP} and tags.`tinygpt.sweep` LIKE '{safe}%'"
        found = [(kind, run) for kind in kinds for run in store.search(kind, where)]
    if not found:
        raise ValueError(f"{key}={wanted}: {_not_found(store, wanted, safe, kinds)}")
    ids = sorted({run.data.tags["tinygpt.sweep"] for _, run in found})
    if len(ids) > 1:
        raise ValueError(f"{key}={wanted}: {len(ids)} begin so ({', '.join(ids[:5])}); say more")
    kind, run = found[0]
    return SweepRef(kind, ids[0], run.data.tags.get("tinygpt.overrides", ""))


def _not_found(store: Store, wanted: str, safe: str, kinds: tuple[str, ...]) -> str:
    """Why nothing was found: whether it is a run of another kind, or an experiment was deleted."""
    deleted = next(filter(None, map(store.deleted, kinds)), "")
    for kind in KINDS if safe == wanted and wanted else ():
        where = f"{_TOP} and tags.`tinygpt.sweep` LIKE '{safe}%'"
        if kind not in kinds and store.search(kind, where, limit=1):
            return f"is a run of {kind}, and this is about {', '.join(kinds)}"
    ids = command("tables", "table=runs", folder=store.dir, uri=store.server)
    return (
        f"no such sweep or cell in {store.dir}; latest is the newest of kind bench that is no "
        f"rerun, and `{ids}` lists the ids of all of them" + (f"; {deleted}" if deleted else "")
    )


def cells_of(store: Store, top: SweepRef) -> list[StoredCell]:
    """The cells of a sweep in their order, or the lone cell itself.

    A cell that was measured again in the same sweep appears once, with its last result.
    """
    where = (
        f"tags.`tinygpt.sweep` = '{top.identity}' and {_CELL} and attributes.status != 'RUNNING'"
    )
    newest: dict[str, StoredCell] = {}
    for run in store.search(top.kind, where):
        cell = StoredCell(top.kind, run, store)
        newest.setdefault(cell.cell, cell)
    return sorted(newest.values(), key=lambda cell: int(cell.cell.rpartition("-")[2], 36))


def find_part(
    store: Store, wanted: str, kinds: tuple[str, ...] = KINDS, key: str = "run"
) -> tuple[SweepRef, list[StoredCell]]:
    """Find the sweep or lone cell of ``wanted``, and its cells that have ended.

    If ``wanted`` is the id of one cell of a sweep, ``SWEEP-NUMBER``, the list has only that cell.
    """
    beginning, dash, number = wanted.partition("-")
    top = find_sweep(store, beginning, kinds, key)
    cells = cells_of(store, top)
    if not dash:
        return top, cells
    chosen = [cell for cell in cells if cell.cell == f"{top.identity}-{number}"]
    if not chosen:
        known = ", ".join(cell.cell for cell in cells[:8]) or "none that has ended"
        raise ValueError(f"{key}={wanted}: sweep {top.identity} has no such cell; it has {known}")
    return top, chosen


def find_cells(store: Store, wanted: str, key: str = "run") -> tuple[SweepRef, list[StoredCell]]:
    """Like ``find_part`` for all kinds that can be run again. Raises ValueError if no cell has
    ended.
    """
    top, cells = find_part(store, wanted, key=key)
    if not cells:
        raise ValueError(
            f"{key}={wanted}: no cell of {top.identity} has ended; if its process is gone: "
            + command("doctor", "fix=true", folder=store.dir, uri=store.server)
        )
    return top, cells
