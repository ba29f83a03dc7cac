"""Nested values with dotted keys, as a command line names them."""

from dataclasses import asdict
from functools import cache
from typing import Any

from runners.harness.config.schema import ADDED_TO_PROMPT
from tinygpt.config import ADDED_TO_MODEL, ModelConfig


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def without_added(model: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a model, nested or flat, without added fields that have their default.

    Older results lack the fields in ``ADDED_TO_MODEL``, whose defaults say what was done without
    them. Leaving these out lets old and new results of one model compare as equal. ``prefix`` is
    what flat keys begin with.
    """
    added = {key: str(value) for key, value in _added().items()}
    changed = {
        key.removeprefix(prefix).partition(".")[0]
        for key, value in flatten(model).items()
        if added.get(key.removeprefix(prefix), str(value)) != str(value)
    }
    return {
        key: value
        for key, value in model.items()
        if (field := key.removeprefix(prefix).partition(".")[0]) not in ADDED_TO_MODEL
        or field in changed
    }


def as_before(asked: dict[str, Any]) -> dict[str, Any]:
    """The parts of a config without added fields that have their default, as in older results."""
    found = dict(asked)
    if "model" in found:
        found["model"] = without_added(found["model"])
    if "prompt" in found:
        prompt = found["prompt"].items()
        found["prompt"] = {key: v for key, v in prompt if key not in ADDED_TO_PROMPT or v}
    return found


@cache
def _added() -> dict[str, Any]:
    values = asdict(ModelConfig())
    return flatten({key: values[key] for key in ADDED_TO_MODEL})
