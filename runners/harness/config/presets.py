"""What conf/ offers to an entry point: its groups, for ``--help``, and its experiments.

A file of conf/experiment that is for another entry point is refused in one line, before Hydra would
complain about its keys.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from runners.harness.config.paths import conf_dir, group_options


def foreign_keys(preset: str, schema: type) -> list[str]:
    """The keys that conf/experiment/PRESET.yaml sets or sweeps over and that ``schema`` lacks."""
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"experiment/{preset}.yaml"))
    hydra = content.pop("hydra", {})
    axes = hydra.get("sweeper", {}).get("params", {})
    keys = {str(key).split(".")[0] for key in [*content, *axes]} - {"defaults"}
    return sorted(keys - {field.name for field in fields(schema)})


def fitting(schema: type) -> list[str]:
    """The experiments that set only keys of ``schema``."""
    return [name for name in group_options("experiment") if not foreign_keys(name, schema)]


def with_groups(usage: str, entry: str, schema: type) -> str:
    """``usage`` with the options of each group of conf/ENTRY.yaml below the line ``groups:``.

    Defaults are marked.
    """
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{entry}.yaml"))
    chosen = [item for item in content["defaults"] if isinstance(item, dict)]
    rows = []
    for group, default in (pair for item in chosen for pair in item.items()):
        options = fitting(schema) if group == "experiment" else group_options(group)
        if not options:
            continue
        marked = [f"{option}*" if option == default else option for option in options]
        by_value = [f"{group}.{key}={value}*" for key, value in content.get(group, {}).items()]
        rows.append(
            textwrap.fill(
                "  ".join([*marked, *by_value]),
                100,
                initial_indent=f"  {group:11} ",
                subsequent_indent=" " * 14,
                break_on_hyphens=False,
                break_long_words=False,
            )
        )
    return usage.replace("groups:\n", "\n".join(["groups (* the default):", *rows, ""]))


def misplaced(entry: str, schema: type, arguments: Sequence[str]) -> str:
    """Why an experiment=NAME among the arguments is not for ``entry``; empty if all are."""
    options = group_options("experiment")
    for argument in arguments:
        key, _, values = argument.partition("=")
        for preset in values.split(",") if key == "experiment" else ():
            foreign = foreign_keys(preset, schema) if preset in options else []
            if foreign:
                own = fitting(schema)
                return (
                    f"experiment={preset}: is for another command: it sets {', '.join(foreign)}, "
                    f"which {entry} does not have; {entry} takes {', '.join(own) or 'none of them'}"
                )
    return ""


def option_values(group: str, option: str) -> dict[str, Any]:
    """The values that conf/GROUP/OPTION.yaml sets."""
    values = OmegaConf.to_container(OmegaConf.load(conf_dir() / group / f"{option}.yaml"))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}
