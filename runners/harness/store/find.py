"""What is in the store, found by the ids that people type, with all that was kept of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from runners.harness.config.commands import command
from runners.harness.errors import first_line
from runners.harness.store.disk import read_rows
from runners.harness.store.tracking import Store, TrackingError

if TYPE_CHECKING:
    from mlflow.entities import Run

ENDED = "attributes.status != 'RUNNING' and attributes.status != 'KILLED'"
_TOP = "tags.`tinygpt.top` = 'true'"
_CELL = "tags.`tinygpt.cell` LIKE '%'"
KINDS = ("bench", "sample", "verify")
"""Kinds of runs that can be run again; each has its MLflow experiment ``tinygpt/KIND``."""


@dataclass(frozen=True)
class Stored:
    """A cell that has ended."""

    kind: str
    run: "Run"
    store: Store

    @property
    def cell(self) -> str:
        """Its id."""
        return str(self.run.data.tags["tinygpt.cell"])

    @property
    def folder(self) -> Path:
        """Where its files are, if it ran on this machine."""
        sweep, _, number = self.cell.rpartition("-")
        return (
            self.store.dir / "sweeps" / sweep / number
            if sweep
            else (self.store.dir / "cells" / self.cell)
        )

    def path(self, name: str) -> Path:
        """Where one of its files can be read: in its folder, or a copy of MLflow's artifact."""
        if (self.folder / "cell.json").is_file():
            return self.folder / name
        return self.store.artifact(self.run.info.run_id, name)

    def text(self, name: str) -> str:
        """One of its files; TrackingError, with the cure, where it is not to be had."""
        try:
            return self.path(name).read_text(encoding="utf-8")
        except (OSError, TrackingError) as error:
            raise TrackingError(
                f"{self.cell}: {name} cannot be read ({first_line(error)}); if the results folder "
                "was moved: "
                + command("doctor", "fix=true", folder=self.store.dir, uri=self.store.server)
            ) from None

    @property
    def config(self) -> dict[str, Any]:
        """Its resolved config, as it was stored."""
        values = yaml.safe_load(self.text("config.yaml"))
        assert isinstance(values, dict)
        return values

    @property
    def environment(self) -> dict[str, Any]:
        """What machine and which code it ran on; empty where it never came to that."""
        found = json.loads(self.text("environment.json"))
        assert isinstance(found, dict)
        return found

    @property
    def generations(self) -> list[dict[str, Any]]:
        """Its rows, with ``prompt_ids`` and ``new_ids`` each."""
        return read_rows(self.text("generations.jsonl"))


@dataclass(frozen=True)
class Top:
    """A sweep, or a cell that is part of none."""

    kind: str
    identity: str
    overrides: str
    """The command it was made with."""


def find_top(store: Store, wanted: str, kinds: tuple[str, ...] = KINDS, key: str = "run") -> Top:
    """The sweep or lone cell that ``wanted`` stands for: an id, the beginning of one, or
    ``latest``: the newest of kind bench that has ended and is no rerun. ValueError otherwise,
    naming the ``key`` it was typed for.
    """
    if not store.exists:
        raise ValueError(
            f"{key}={wanted}: nothing is tracked in {store.dir} yet; measure something first: "
            + command("bench", "-m", "device=cpu,cuda", "batch=1,16", folder=store.dir)
        )
    safe = "".join(c for c in wanted if c.isalnum() or c == "-")
    found: list[tuple[str, Run]] = []
    if wanted == "latest":
        # A sweep that was stopped is found by its id, not as the latest.
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
    return Top(kind, ids[0], run.data.tags.get("tinygpt.overrides", ""))


def _not_found(store: Store, wanted: str, safe: str, kinds: tuple[str, ...]) -> str:
    """Why there is no such run; that it is one of another kind, or was deleted, if it is so."""
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


def cells_of(store: Store, top: Top) -> list[Stored]:
    """The cells of a sweep in their order, or the lone cell; a cell that was measured again in the
    same sweep is there once, as it came out last.
    """
    where = (
        f"tags.`tinygpt.sweep` = '{top.identity}' and {_CELL} and attributes.status != 'RUNNING'"
    )
    newest: dict[str, Stored] = {}
    for run in store.search(top.kind, where):
        cell = Stored(top.kind, run, store)
        newest.setdefault(cell.cell, cell)
    return sorted(newest.values(), key=lambda cell: int(cell.cell.rpartition("-")[2], 36))


def find_part(
    store: Store, wanted: str, kinds: tuple[str, ...] = KINDS, key: str = "run"
) -> tuple[Top, list[Stored]]:
    """The sweep or lone cell of ``wanted``, and its cells, none where none has ended; one where
    ``wanted`` is a cell's id, ``SWEEP-NUMBER``.
    """
    beginning, dash, number = wanted.partition("-")
    top = find_top(store, beginning, kinds, key)
    cells = cells_of(store, top)
    if not dash:
        return top, cells
    chosen = [cell for cell in cells if cell.cell == f"{top.identity}-{number}"]
    if not chosen:
        known = ", ".join(cell.cell for cell in cells[:8]) or "none that has ended"
        raise ValueError(f"{key}={wanted}: sweep {top.identity} has no such cell; it has {known}")
    return top, chosen


def find_cells(store: Store, wanted: str, key: str = "run") -> tuple[Top, list[Stored]]:
    """``find_part`` of any kind that can be run again; ValueError where no cell has ended."""
    top, cells = find_part(store, wanted, key=key)
    if not cells:
        raise ValueError(
            f"{key}={wanted}: no cell of {top.identity} has ended; if its process is gone: "
            + command("doctor", "fix=true", folder=store.dir, uri=store.server)
        )
    return top, cells
