"""Makes the data of an MLflow run from the folder of a cell or the record of a sweep."""

import hashlib
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import yaml

from runners.harness.config.nested import flatten
from runners.harness.machine import environment
from runners.harness.machine.processes import Owner
from runners.harness.store.records import CellRecord, SweepRecord, read_json

_TITLE = ("device", "batch", "length", "cache")
"""The groups whose options are part of a run's name."""


@dataclass(frozen=True)
class RunData:
    """The data of one MLflow run."""

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

    @classmethod
    def of_cell(cls, folder: Path) -> Self:
        """The run of the cell in ``folder``, whether it still runs or has ended."""
        cell = CellRecord.load(folder)
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        overrides = yaml.safe_load((folder / "overrides.yaml").read_text(encoding="utf-8"))
        tags = {
            "tinygpt.kind": "rerun" if cell.rerun_of else cell.kind,
            "tinygpt.cell": cell.cell,
            "tinygpt.outcome": cell.outcome,
            "tinygpt.overrides": shlex.join(overrides),
            **cell.tags,
            **code_tags(environment.code()),
        }
        if cell.sweep:
            parent = SweepRecord.load(folder.parent).run_id
            tags |= {"tinygpt.sweep": cell.sweep, "mlflow.parentRunId": parent}
        else:  # a lone cell has no parent, and is found as a sweep of one
            tags |= {"tinygpt.sweep": cell.cell, "tinygpt.top": "true"}
        if cell.running:
            tags |= owner_tags(cell)
        nonfinite = sorted(n for n, value in cell.metrics.items() if not math.isfinite(value))
        told = {
            "tinygpt.rerun_of": cell.rerun_of or "",
            "tinygpt.reason": cell.reason,
            "tinygpt.notes": "; ".join(cell.notes),
            "tinygpt.nonfinite": ", ".join(nonfinite),  # MLflow would store NaN as 0
        }
        chosen = {f"choice.{group}": option for group, option in cell.choices.items()}
        title = " ".join(cell.choices[group] for group in _TITLE if group in cell.choices)
        return cls(
            kind=cell.kind,
            name=f"{cell.cell} {title}",
            outcome=cell.outcome,
            started=cell.started,
            ended=cell.ended,
            tags=tags | {name: text for name, text in told.items() if text},
            params=flatten(config) | chosen,
            metrics={n: value for n, value in cell.metrics.items() if n not in nonfinite},
        )

    @classmethod
    def of_sweep(cls, sweep: SweepRecord) -> Self:
        """The run of a sweep, as it begins."""
        overrides = shlex.join(sweep.overrides)
        tags = {
            "tinygpt.kind": "rerun" if sweep.rerun_of else "sweep",
            "tinygpt.sweep": sweep.sweep,
            "tinygpt.top": "true",
            "tinygpt.overrides": overrides,
            "tinygpt.cells_sha256": cells_sha256(sweep.digests),
            "mlflow.note.content": f"{sweep.cells} cells: {overrides}",
            **owner_tags(sweep),
            **code_tags(environment.code()),
        }
        if sweep.rerun_of:
            tags["tinygpt.rerun_of"] = sweep.rerun_of
        name, params = f"sweep {sweep.sweep}", {"cells": sweep.cells}
        return cls(sweep.kind, name, "running", sweep.started, 0.0, tags, params, {})

    def with_code_of(self, folders: Iterable[Path]) -> Self:
        """The same data, with the code tags of the first of ``folders`` that recorded its code."""
        own = {k: v for k, v in self.tags.items() if k not in code_tags(environment.code())}
        told = (read_json(folder / "environment.json").get("code") for folder in folders)
        return replace(self, tags=own | code_tags(next(filter(None, told), {})))


def owner_tags(owner: Owner) -> dict[str, str]:
    """The tags from which the doctor later finds out whether the run's process is gone."""
    return {f"tinygpt.{part.name}": str(getattr(owner, part.name)) for part in fields(Owner)}


def cells_sha256(digests: Iterable[str]) -> str:
    """A digest of a set of cells, whatever their order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def code_tags(code: Mapping[str, Any]) -> dict[str, str]:
    """Tags that identify the code, from what environment.json says about it."""
    tags: dict[str, str] = {}
    if code:
        tags |= {"tinygpt.version": str(code["version"]), "tinygpt.code_sha256": code["sha256"]}
    if "commit" in code:
        tags |= {"mlflow.source.git.commit": code["commit"], "tinygpt.git_sha": code["commit"]}
        tags["tinygpt.git_dirty"] = str(code["dirty"]).lower()
    return tags
