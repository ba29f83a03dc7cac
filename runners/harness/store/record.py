"""What MLflow is told of a cell, read from the cell's folder: running, or done."""

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runners.harness.config.conversion import flatten
from runners.harness.machine import environment


@dataclass(frozen=True)
class Record:
    """A cell as MLflow has it."""

    kind: str
    name: str
    outcome: str
    """``running`` while it runs."""
    started: float
    """Seconds since 1970."""
    ended: float
    """Seconds since 1970; 0 while it runs."""
    tags: dict[str, str]
    params: dict[str, Any]
    metrics: dict[str, float]


def read(folder: Path) -> Record:
    """The record of the cell in ``folder``."""
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    overrides = yaml.safe_load((folder / "overrides.yaml").read_text(encoding="utf-8"))
    tags = {
        "tinygpt.kind": "rerun" if cell.get("rerun_of") else cell["kind"],
        "tinygpt.cell": cell["cell"],
        "tinygpt.outcome": cell["outcome"],
        "tinygpt.overrides": shlex.join(overrides),
        **cell.get("tags", {}),
        **code_tags(),
    }
    if cell["sweep"]:
        sweep = json.loads((folder.parent / "sweep.json").read_text(encoding="utf-8"))
        tags |= {"tinygpt.sweep": cell["sweep"], "mlflow.parentRunId": sweep["run_id"]}
    else:  # a lone cell has no parent, and is found as a sweep of one
        tags |= {"tinygpt.sweep": cell["cell"], "tinygpt.top": "true"}
    if cell.get("rerun_of"):
        tags["tinygpt.rerun_of"] = cell["rerun_of"]
    if cell["outcome"] == "running":
        tags |= owner_tags(cell)
    if cell.get("reason"):
        tags["tinygpt.reason"] = cell["reason"]
    if cell.get("notes"):
        tags["tinygpt.notes"] = "; ".join(cell["notes"])
    metrics = cell.get("metrics", {})
    odd = sorted(name for name, value in metrics.items() if not math.isfinite(value))
    if odd:  # MLflow would store NaN as 0 and inf as 1.8e308
        tags["tinygpt.nonfinite"] = ", ".join(odd)
    params = flatten(config)
    params |= {f"choice.{group}": option for group, option in cell["choices"].items()}
    return Record(
        kind=cell["kind"],
        name=f"{cell['cell']} {_title(cell['choices'])}",
        outcome=cell["outcome"],
        started=cell["started"],
        ended=cell.get("ended", 0.0),
        tags=tags,
        params=params,
        metrics={name: value for name, value in metrics.items() if name not in odd},
    )


def sweep_tags(facts: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a sweep's run, from its sweep.json."""
    overrides = shlex.join(facts["overrides"])
    tags = {
        "tinygpt.kind": "rerun" if facts.get("rerun_of") else "sweep",
        "tinygpt.sweep": facts["sweep"],
        "tinygpt.top": "true",
        "tinygpt.overrides": overrides,
        "tinygpt.cells_sha256": cells_sha256(facts["digests"]),
        "mlflow.note.content": f"{facts['cells']} cells: {overrides}",
        **owner_tags(facts),
        **code_tags(),
    }
    if facts.get("rerun_of"):
        tags["tinygpt.rerun_of"] = facts["rerun_of"]
    return tags


def owner_tags(facts: Mapping[str, Any]) -> dict[str, str]:
    """By these a run is known whose process is gone."""
    return {f"tinygpt.{key}": str(facts[key]) for key in ("host", "pid", "process_started")}


def cells_sha256(digests: Iterable[str]) -> str:
    """A digest of a set of cells, whatever their order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def code_tags() -> dict[str, str]:
    """Which code this is, as tags."""
    code = environment.code()
    tags = {"tinygpt.version": str(code["version"]), "tinygpt.code_sha256": code["sha256"]}
    if "commit" in code:
        tags |= {"mlflow.source.git.commit": code["commit"], "tinygpt.git_sha": code["commit"]}
        tags["tinygpt.git_dirty"] = str(code["dirty"]).lower()
    return tags


def _title(choices: dict[str, str]) -> str:
    return " ".join(choices[g] for g in ("device", "batch", "length", "cache") if g in choices)
