"""Runs stored configs again: says what has changed since, runs them, and judges the results.

The stored config is taken as it is and not composed again. Today's presets are used only to say
what the same command would give now.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from runners.harness.config.conversion import (
    CONFIG_ERRORS,
    before_anything_runs,
    one_line,
    to_config,
    to_dict,
)
from runners.harness.config.nested import flatten
from runners.harness.config.paths import absolute
from runners.harness.config.schema import RerunConfig
from runners.harness.config.words import composed_today
from runners.harness.errors import UsageError
from runners.harness.launch.entry import Finished, Sweep
from runners.harness.launch.folders import check_store
from runners.harness.launch.kinds import KINDS
from runners.harness.launch.progress import CellProgress
from runners.harness.launch.run import JobResult, run_job
from runners.harness.launch.tracked import sum_up, tracked_sweep
from runners.harness.machine import changes, environment
from runners.harness.measure import subject
from runners.harness.measure.result import CellResult
from runners.harness.report.bench import write_tables
from runners.harness.rerun import original, verdict
from runners.harness.rerun.original import ChangedConfig, Original
from runners.harness.store.disk import Place
from runners.harness.store.find import SweepRef, find_cells
from runners.harness.store.records import sweep_outcome
from runners.harness.store.tracking import Store, TrackingError, open_store
from tinygpt.checkpoint import weights_sha256


@dataclass(frozen=True)
class Job:
    """One cell to run again."""

    old: Original
    again: ChangedConfig
    since: list[str]
    """What has changed since the old run, one line each."""


def rerun(config: RerunConfig, words: Sequence[str]) -> list[Finished]:
    """Run again what ``config`` names, changed by ``words``. Raises UsageError before anything
    runs.
    """
    with before_anything_runs():
        top, olds = _originals(config)
        jobs = [_prepare(old, words, config) for old in olds]
    if config.strict:
        _refuse_changes(jobs)
    _tell(top, jobs)
    check_store(config.tracking, olds[0].kind)
    typed = [f"run={config.run}" if config.run else f"config={config.config}", *words]
    folder = absolute(config.tracking.dir)
    if len(jobs) == 1:
        place = _place(folder / "cells" / secrets.token_hex(4), jobs[0], None, 0, typed)
        return [_run(jobs[0], place)]
    assert top is not None
    sweep = Sweep(
        folder / "sweeps" / secrets.token_hex(4),
        typed,
        [typed] * len(jobs),
        [job.again.config for job in jobs],
        rerun_of=top.identity,
    )
    with tracked_sweep(top.kind, sweep, _tables if top.kind == "bench" else sum_up):
        places = [
            _place(sweep.folder / str(n), job, sweep.folder.name, n, typed)
            for n, job in enumerate(jobs)
        ]
        ended = [_run(job, place) for job, place in zip(jobs, places, strict=True)]
        print(f"{len(jobs)} cells of {top.identity} run again as {sweep.folder.name}")
        return ended


def _tables(store: Store, folder: Path) -> str:
    write_tables(store, folder)
    return sweep_outcome(folder)


def _originals(config: RerunConfig) -> tuple[SweepRef | None, list[Original]]:
    if config.config is not None:
        return None, [original.from_file(config.config)]
    assert config.run is not None
    try:
        top, cells = find_cells(open_store(config.tracking), config.run)
        return top, [original.from_store(cell) for cell in cells]
    except (ValueError, TrackingError) as error:
        raise UsageError(str(error)) from None


def _prepare(old: Original, words: Sequence[str], config: RerunConfig) -> Job:
    kind = KINDS[old.kind]
    again = original.changed_config(old, words, config.tracking, kind.schema)
    resolve_name(kind.check)(again.config)
    return Job(old, again, _changed_since(old, again))


def _tell(top: SweepRef | None, jobs: list[Job]) -> None:
    """Print what is run again and what has changed since; what all cells share is printed once."""
    name = jobs[0].old.cell if len(jobs) == 1 or top is None else f"sweep {top.identity}"
    print(f"{name}: {len(jobs)} {'cell' if len(jobs) == 1 else 'cells'} to run again")
    _say("asked for", jobs, [verdict.asked_for(job.again.changed) for job in jobs])
    if not _say("changed since", jobs, [job.since for job in jobs]):
        print("  nothing has changed since")


def _say(what: str, jobs: list[Job], told: list[list[str]]) -> bool:
    """Print each line once, with the cells it is about unless it is about all; returns whether
    there were any lines.
    """
    lines = list(dict.fromkeys(line for of_one in told for line in of_one))
    for line in lines:
        cells = [job.old.cell for job, of_one in zip(jobs, told, strict=True) if line in of_one]
        whose = "" if len(cells) == len(jobs) else f" ({', '.join(cells)})"
        print(f"  {what}: {line}{whose}")
    return bool(lines)


def _refuse_changes(jobs: list[Job]) -> None:
    lines = list(dict.fromkeys(line for job in jobs for line in job.since))
    if lines:
        raise UsageError(
            f"strict=true: changed since: {'; '.join(lines)}; nothing was run; leave strict out "
            "to run it all the same"
        )


def _changed_since(old: Original, again: ChangedConfig) -> list[str]:
    """What has changed in keys, presets, code, versions, hardware and weights, as far as it is
    known.
    """
    lines = [
        f"config: {key} is not in the stored config, which is older; today's default is used: "
        f"{value}"
        for key, value in again.filled.items()
    ]
    lines += _presets(old, again.config.tracking.dir)
    if old.environment:
        found = changes.differences(old.environment, environment.collect())
        lines += [difference.line for difference in found]
    before = old.tags.get("tinygpt.weights_sha256")
    same_task = not any(key.startswith(("model.", "precision.")) for key in again.changed)
    if before and same_task and not {"checkpoint", "seed"} & set(again.changed):
        try:
            now = weights_sha256(subject.make_model(again.config, torch.device("cpu")))[:12]
        except (ValueError, OSError) as error:  # its cell will fail, and the others run
            now = f"cannot be loaded: {error}"
        if now != before[:12]:
            lines.append(f"weights: {before[:12]} -> {now}")
    return lines


def _presets(old: Original, tracking_dir: str) -> list[str]:
    """The values that the old command gets from today's conf/ and did not get then."""
    told = old.overrides
    if told is None or (old.record and old.record.rerun_of):
        return []  # the words of a rerun cannot be composed
    words = [word for word in told if not word.startswith(("hydra", "tracking."))]
    try:
        composed = composed_today(old.kind, words)
        composed.tracking.dir = tracking_dir  # checkpoints are looked up there by name
        if any(word.startswith("checkpoint=") for word in words):
            composed.checkpoint = old.config["checkpoint"]  # the typed path may be relative
        today = flatten(to_dict(to_config(composed, KINDS[old.kind].schema)))
    except UsageError as error:
        return [f"presets: its command cannot be composed today: {error}"]
    except CONFIG_ERRORS as error:
        return [f"presets: its command cannot be composed today: {one_line(error)}"]
    stored, typed = flatten(old.config), {word.lstrip("+").partition("=")[0] for word in words}
    return [
        f"presets: {key} {stored[key]} -> {value} (the old value is used)"
        for key, value in today.items()
        if key in stored
        and value != stored[key]
        # Presets do not decide typed keys, and a typed path may mean another file from here.
        and key not in typed
        and not key.startswith("tracking.")
    ]


def _place(folder: Path, job: Job, sweep: str | None, number: int, typed: list[str]) -> Place:
    cell = folder.name if sweep is None else f"{sweep}-{number}"
    return Place(folder, cell, sweep, number, job.again.choices, typed, rerun_of=job.old.cell)


def _run(job: Job, place: Place) -> Finished:
    """Run a job again, judge the result, keep result and verdict, and print the verdict."""
    kind = KINDS[job.old.kind]
    judgement: list[verdict.Verdict] = []

    def run(config: Any, report: CellProgress) -> CellResult:
        result: CellResult = resolve_name(kind.run)(config, report)
        judged = verdict.judge(job.old, job.again.changed, job.since, result)
        result.tags |= {
            "tinygpt.rerun_tokens": judged.tokens,
            "tinygpt.rerun_timing": judged.timing,
        }
        judgement.append(judged)
        title = f"# {place.cell}, a rerun of {job.old.cell}\n"
        result.files["rerun.md"] = "\n- ".join([title, *judged.lines()]) + "\n"
        result.files["rerun.json"] = judged.to_json()
        if not judged.reproduced and result.outcome == "ok":
            result.outcome = "mismatch"
            result.reason = f"not the tokens of {job.old.cell}: {judged.tokens_said}"
        return result

    def show(kept: JobResult) -> None:
        print(f"{job.old.cell}, now {place.cell}")
        for judged in judgement:
            for line in judged.verdicts():
                print(f"  {line}")

    return run_job(kind, job.again.config, run, show, place)
