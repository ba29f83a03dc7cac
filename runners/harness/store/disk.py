"""Writes a cell's result to disk, where it is complete before it goes to MLflow.

A cell's folder holds cell.json (the record, replaced atomically; the final one is written last),
config.yaml, overrides.yaml, environment.json, code.diff, timings.json with every raw measurement,
and generations.jsonl. Files whose names are not in ``FILES`` are not tinygpt's, and are neither
replaced nor removed.
"""

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runners.harness.machine import environment
from runners.harness.machine.processes import Owner
from runners.harness.measure.result import CellResult
from runners.harness.store.records import (
    CELL,
    SWEEP,
    CellRecord,
    UnreadableRecordError,
    write_json,
)

TRACKED = "tracked.json"
"""The file that names the MLflow run that a cell was delivered as."""
STEPS, SAMPLES, LOSSES = "steps.jsonl", "samples.txt", "loss.png"
"""Files that a training run keeps beside its result."""
FILES = (
    *(CELL, "config.yaml", "overrides.yaml", "environment.json", "code.diff", "timings.json"),
    *("generations.jsonl", "error.txt", "text.txt", "prompt.txt", "prompts.jsonl"),
    *("checks.json", "verify.md", "rerun.md", "rerun.json"),
    *(STEPS, SAMPLES, LOSSES, TRACKED),
    *("cell.tmp", "environment.tmp", "timings.tmp", "tracked.tmp"),
)
"""The names of all files that are written into a cell's folder, unfinished ones included."""
TABLES = tuple(
    f"{name}.{suffix}"
    for name in ("cells", "cache", "device", "engine", "samples")
    for suffix in ("csv", "md", "json", "html")
)
"""The names of all files that are written into a sweep's tables/."""


@dataclass
class Place:
    """Where a job keeps its result: folder, cell and sweep, and the command that it came from."""

    folder: Path
    cell: str
    """The cell's id."""
    sweep: str | None
    """The id of the sweep that the cell is part of; None for a lone cell."""
    number: int
    """The cell's number in the sweep."""
    choices: dict[str, str]
    """The chosen option of each group, followed by the values that were overridden in it."""
    overrides: list[str]
    rerun_of: str | None = None
    """The id of the cell that this one runs again."""


def begin(place: Place, kind: str, config: dict[str, Any]) -> None:
    """Write the record of a cell that is about to run, its config and its environment.

    Call it after torch's threads are set for the run, since their number is written down. Raises
    FileExistsError if the folder has files of the same names that do not belong to a cell.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    _clear(place)
    now = environment.state()
    CellRecord(  # first, since it marks the folder as a cell's
        **asdict(Owner.here()),
        kind=kind,
        started=time.time(),
        rerun_of=place.rerun_of,
        cell=place.cell,
        sweep=place.sweep,
        choices=place.choices,
        outcome="running",
        load_average=now["load_average"],
    ).save(place.folder)
    for name, content in (("config", config), ("overrides", place.overrides)):
        with (place.folder / f"{name}.yaml").open("w", encoding="utf-8") as file:
            yaml.safe_dump(content, file, sort_keys=False, allow_unicode=True)
    noise = {name: {"start": told, "end": None} for name, told in now.items()}
    facts = {**environment.collect(), "threads": environment.threads(), **noise}
    write_json(place.folder / "environment.json", facts)
    diff = environment.code().get("diff")
    if diff:
        (place.folder / "code.diff").write_bytes(diff.encode())


def _clear(place: Place) -> None:
    """Remove the earlier result of a cell that is measured again."""
    old = [path for name in FILES if (path := place.folder / name).is_file()]
    if not old:
        return
    beside = place.folder.parent / SWEEP  # a cell of a sweep may have lost its cell.json
    if not is_cell(place.folder) and not (place.sweep and beside.is_file()):
        raise FileExistsError(f"{old[0].name} is there and not of a run; nothing is replaced")
    for path in old:
        path.unlink()


def discard(folder: Path) -> None:
    """Remove the files that ``begin`` wrote, and the folder if it is empty then."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def is_cell(folder: Path) -> bool:
    """Whether ``folder`` is the folder of a cell, with a record that can be read."""
    try:
        CellRecord.load(folder)
    except UnreadableRecordError:
        return False
    return True


def foreign(folder: Path) -> Path | None:
    """The first file that no run writes, in the folder of a cell, a sweep or its artifacts; None if
    there is none.
    """
    return next(
        (
            path
            for path in sorted(folder.rglob("*"))
            if (path.is_symlink() or not path.is_dir())
            and not _is_ours(path.relative_to(folder).parts)
        ),
        None,
    )


def _is_ours(parts: tuple[str, ...]) -> bool:
    match parts:
        case (name,):
            return name in (*FILES, SWEEP, "sweep.tmp")
        case ("tables", name):
            return name in TABLES
        case (number, name):
            return number.isdigit() and name in FILES
    return False


def finish(place: Place, result: CellResult) -> None:
    """Write the result. The record is written last, since it makes the result count."""
    folder = place.folder
    record, here = CellRecord.load(folder), Owner.here()
    if (record.host, record.pid) == (here.host, here.pid):  # only this process saw its end
        facts = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        for name, told in environment.state().items():
            facts[name]["end"] = told
        write_json(folder / "environment.json", facts)
    write_json(folder / "timings.json", result.timings)
    files = result.files | ({"error.txt": result.error} if result.error else {})
    for name, text in files.items():
        assert name in FILES, (
            f"{name}: unknown to FILES, so that a cell could not be measured again"
        )
        (folder / name).write_bytes(text.encode())
    with (folder / "generations.jsonl").open("w", encoding="utf-8") as lines:
        for row in result.generations:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
    replace(
        record,
        outcome=result.outcome,
        reason=result.reason,
        headline=result.headline,
        metrics=result.metrics,
        tags=result.tags,
        notes=result.notes,
        ended=time.time(),
    ).save(folder)


def read_rows(text: str) -> list[dict[str, Any]]:
    """Parse the text of a generations.jsonl. Only a line feed ends a line there; ``splitlines``
    would also split in the middle of some texts.
    """
    return [json.loads(line) for line in text.split("\n") if line]
