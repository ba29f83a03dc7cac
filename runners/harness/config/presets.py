"""Files of conf/experiment that are for another entry point: said in one line, before Hydra says
that it knows no such key.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from runners.harness.config.paths import conf_dir, group_options


def foreign_keys(preset: str, schema: type) -> list[str]:
    """What conf/experiment/PRESET.yaml sets or sweeps over that ``schema`` does not have."""
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"experiment/{preset}.yaml"))
    hydra = content.pop("hydra", {})
    axes = hydra.get("sweeper", {}).get("params", {})
    keys = {str(key).split(".")[0] for key in [*content, *axes]} - {"defaults"}
    return sorted(keys - {field.name for field in fields(schema)})


def misplaced(entry: str, schema: type, arguments: Sequence[str]) -> str:
    """Why an experiment=NAME among the arguments cannot be for ``entry``; empty if it can."""
    options = group_options("experiment")
    for argument in arguments:
        key, _, values = argument.partition("=")
        for preset in values.split(",") if key == "experiment" else ():
            foreign = foreign_keys(preset, schema) if preset in options else []
            if foreign:
                own = [name for name in options if not foreign_keys(name, schema)]
                return (
                    f"experiment={preset}: is for another command: it sets {', '.join(foreign)}, "
                    f"which {entry} does not have; {entry} takes {', '.join(own) or 'none of them'}"
                )
    return ""
