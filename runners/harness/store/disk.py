"""A cell's result on disk: complete there before MLflow hears of it, so that nothing is lost.

A cell's folder holds cell.json (``running`` with host, pid and start time, then the outcome,
replaced atomically and last), config.yaml, overrides.yaml, environment.json, code.diff,
timings.json with every raw second, and generations.jsonl.
"""

import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from runners.harness.machine import environment
from runners.harness.measure.result import CellResult


@dataclass
class Place:
    """Where a job stands: its ids, its folder, its sweep, and how it was asked for."""

    folder: Path
    cell: str
    """The cell's id."""
    sweep: str | None
    """The id of the sweep that it is part of."""
    number: int
    """Its number in the sweep."""
    choices: dict[str, str]
    """Option by group, followed by what was overridden in it by value."""
    overrides: list[str]
    rerun_of: str | None = None
    """The id of the cell that this one runs again."""


def owner() -> dict[str, Any]:
    """By what a process is known after it is gone, on this host and on others."""
    started = psutil.Process().create_time()
    return {"host": platform.node(), "pid": os.getpid(), "process_started": started}


def begin(place: Place, kind: str, config: dict[str, Any]) -> None:
    """Put down what is about to run, and by whom; called under the threads that it will have."""
    place.folder.mkdir(parents=True, exist_ok=True)
    for old in place.folder.iterdir():  # a cell of a resumed sweep that is measured again
        if old.is_file():
            old.unlink()
    for name, content in (("config", config), ("overrides", place.overrides)):
        with (place.folder / f"{name}.yaml").open("w", encoding="utf-8") as file:
            yaml.safe_dump(content, file, sort_keys=False, allow_unicode=True)
    now = environment.state()
    cell = {
        "kind": kind,
        "cell": place.cell,
        "sweep": place.sweep,
        "choices": place.choices,
        "outcome": "running",
        "rerun_of": place.rerun_of,
        **owner(),
        "load_average": now["load_average"],
        "started": time.time(),
    }
    write_json(place.folder / "cell.json", cell)
    noise = {name: {"start": told, "end": None} for name, told in now.items()}
    facts = {**environment.collect(), "threads": environment.threads(), **noise}
    write_json(place.folder / "environment.json", facts)
    diff = environment.code().get("diff")
    if diff:
        (place.folder / "code.diff").write_bytes(diff.encode())


def discard(place: Place) -> None:
    """Take back what ``begin`` put down, and nothing else."""
    for name in ("cell.json", "config.yaml", "overrides.yaml", "environment.json", "code.diff"):
        (place.folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # somebody else's file is in it
        place.folder.rmdir()


def finish(place: Place, result: CellResult) -> None:
    """Put down the result; cell.json, which makes it count, comes last."""
    folder = place.folder
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    if (cell["host"], cell["pid"]) == (platform.node(), os.getpid()):  # else nobody saw its end
        facts = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        for name, told in environment.state().items():
            facts[name]["end"] = told
        write_json(folder / "environment.json", facts)
    write_json(folder / "timings.json", result.timings)
    files = result.files | ({"error.txt": result.error} if result.error else {})
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    with (folder / "generations.jsonl").open("w", encoding="utf-8") as lines:
        for row in result.generations:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
    written = asdict(result)
    for name in ("timings", "generations", "files", "error"):
        del written[name]
    write_json(folder / "cell.json", {**cell, **written, "ended": time.time()})


def read_rows(text: str) -> list[dict[str, Any]]:
    """The rows of a generations.jsonl, whose texts may hold what ``splitlines`` splits at."""
    return [json.loads(line) for line in text.split("\n") if line]


def write_json(path: Path, content: Any) -> None:
    """Write a file that is either the old one or the new one, never half of either."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
