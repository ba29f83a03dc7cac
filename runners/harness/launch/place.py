"""Finds the place of the job that Hydra is running."""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from runners.harness.config import hub
from runners.harness.store.disk import Place


def of_job(config: Any = None) -> Place:
    """The place of the job that Hydra is running; ``config`` is the job's typed config."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    overrides = list(hydra.overrides.task)
    swept = hydra.mode == RunMode.MULTIRUN
    return Place(
        folder=folder,
        cell=f"{folder.parent.name}-{folder.name}" if swept else folder.name,
        sweep=folder.parent.name if swept else None,
        number=int(hydra.job.num) if swept else 0,
        choices=_choices(hydra.runtime.choices, overrides) | _model(config),
        overrides=overrides,
    )


def _model(config: Any) -> dict[str, str]:
    """The checkpoint's name as the choice of the group ``model``; empty without a checkpoint."""
    name = getattr(config, "checkpoint", "none")
    return {} if name == "none" else {"model": hub.shown(name)}


def _choices(options: Any, overrides: list[str]) -> dict[str, str]:
    """The chosen option of each group, followed by the values overridden in it: ``batch=1
    batch.size=12`` gives ``{"batch": "1 size=12"}``.
    """
    choices = {}
    for group, option in options.items():
        if group.startswith("hydra/") or option is None:
            continue
        by_value = [
            override.partition(".")[2]
            for override in (word.lstrip("+") for word in overrides)
            if override.startswith(f"{group}.") and not override.startswith("device.on_missing")
        ]
        choices[group] = " ".join([str(option), *by_value])
    return choices
