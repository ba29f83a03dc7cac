"""Continuing a sweep that was stopped: which sweep it is, and which of its cells are done.

Two sweeps are the same if they have the same set of cells, in any order. A cell is done if its
result is ``ok`` and its hash shows that it was measured with the present code and weights, or if it
was skipped and its device is still missing. Other cells are measured again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from runners.harness import terminal
from runners.harness.config.conversion import digest, from_dict, to_dict
from runners.harness.config.schema import BenchConfig, RunConfig
from runners.harness.errors import UsageError
from runners.harness.launch import place as places
from runners.harness.launch import progress
from runners.harness.launch.entry import Finished, Sweep
from runners.harness.machine.processes import Processes
from runners.harness.measure import fingerprint, subject
from runners.harness.store.disk import TRACKED, Place
from runners.harness.store.records import CellRecord, SweepRecord, UnreadableRecordError
from runners.harness.store.run_data import cells_sha256
from runners.harness.store.tracking import Store, TrackingError, open_store
from tinygpt.model import GPT


@dataclass(frozen=True)
class Previous:
    """An earlier sweep of the same cells."""

    folder: Path
    record: SweepRecord
    running: bool
    """Whether a process other than this one is running it now."""


def previous(store: Store, configs: list[BenchConfig]) -> Previous | None:
    """The newest sweep of the same cells whose folder is here; None if there is none."""
    if not store.exists:
        return None
    wanted = cells_sha256(map(digest, configs))
    where = f"tags.`tinygpt.kind` = 'sweep' and tags.`tinygpt.cells_sha256` = '{wanted}'"
    for run in store.search("bench", where):
        folder = store.dir / "sweeps" / run.data.tags["tinygpt.sweep"]
        try:
            record = SweepRecord.load(folder)
        except UnreadableRecordError:  # its folder was removed
            continue
        open_elsewhere = run.info.status == "RUNNING" and record.pid != os.getpid()
        return Previous(folder, record, open_elsewhere and Processes().state(record) == "alive")
    return None


def reopened(sweep: Sweep, old: Previous) -> Sweep:
    """``sweep`` as a continuation of ``old``, with the folder and the job numbers of ``old``."""
    if old.running and not sweep.configs[0].plan:
        raise UsageError(
            f"resume=true: sweep {old.folder.name} is running now, in process {old.record.pid}; "
            "wait for it, or stop it first"
        )
    left = list(zip(map(digest, sweep.configs), sweep.jobs, sweep.configs, strict=True))
    jobs, configs = [], []
    for wanted in old.record.digests:
        at = next(n for n, (found, _, _) in enumerate(left) if found == wanted)
        _, job, config = left.pop(at)
        jobs.append(job)
        configs.append(config)
    done = done_cells(old.folder, dict(enumerate(configs)))
    return replace(sweep, folder=old.folder, jobs=jobs, configs=configs, done=done, resumed=True)


def finished(config: BenchConfig) -> Finished | None:
    """The stored outcome of the job that Hydra runs now, if it is done already; else None."""
    if not config.resume:
        return None
    place = places.of_job()
    if not done_cells(place.folder.parent, {place.number: config}):
        return None
    tracked = True
    if not (place.folder / TRACKED).is_file():
        try:
            _deliver(open_store(config.tracking), place)
        except TrackingError as error:
            terminal.complain(f"not tracked: {error}; the result is complete in {place.folder}")
            tracked = False
    outcome = CellRecord.load(place.folder).outcome
    progress.CellProgress(place).done_before(outcome)
    return Finished(place.cell, outcome, "", tracked)


def _deliver(store: Store, place: Place) -> None:
    """Log to MLflow a complete result whose process was killed before it could do so."""
    there = store.search("bench", f"tags.`tinygpt.cell` = '{place.cell}'", limit=1)
    if not there or there[0].info.status == "RUNNING":
        store.log_cell(place.folder, there[0].info.run_id if there else "")


def is_done(folder: Path, config: BenchConfig) -> bool:
    """Whether ``folder`` holds the result that running ``config`` now would give."""
    try:
        cell = CellRecord.load(folder)
    except UnreadableRecordError:  # missing or incomplete: the cell is measured again
        return False
    if cell.outcome == "skipped":
        return subject.missing_device(config.device.kind) != ""
    if cell.outcome != "ok":
        return False
    try:
        return cell.tags.get("tinygpt.cell_hash") == _cell_hash(config)
    except (ValueError, OSError):  # the checkpoint is broken now, which the cell will report
        return False


def done_cells(folder: Path, configs: Mapping[int, BenchConfig]) -> set[int]:
    """The numbers of those cells of ``configs`` that are done in ``folder``, a sweep's folder."""
    try:
        return {n for n, config in configs.items() if is_done(folder / str(n), config)}
    finally:
        _model.cache_clear()  # no weights may stay in memory during a measurement


def _cell_hash(config: BenchConfig) -> str:
    """The hash that the cell would have if it ran now; empty if it cannot run here."""
    if subject.missing_device(config.device.kind):
        return ""
    notes: list[str] = []
    values = to_dict(config)
    names = ("model", "device", "precision", "tracking", "seed", "checkpoint")
    model = _model(json.dumps({name: values[name] for name in names}))
    tokenizer = subject.make_tokenizer(config, notes) if config.prompt.content.texts else None
    [prompt] = subject.make_prompts(config, tokenizer, notes)
    with subject.threads(config.device, notes):
        return fingerprint.tags(config, model, prompt.tolist())["tinygpt.cell_hash"]


@lru_cache(maxsize=1)
def _model(values: str) -> GPT:
    """The weights of a run; consecutive cells that share them get the same object."""
    config = from_dict(json.loads(values), RunConfig)
    return subject.make_model(config, torch.device(config.device.kind))
