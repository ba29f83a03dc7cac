"""Nested values with dotted keys, as a command line names them."""

from dataclasses import asdict
from functools import cache
from typing import Any

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


@cache
def _added() -> dict[str, Any]:
    values = asdict(ModelConfig())
    return flatten({key: values[key] for key in ADDED_TO_MODEL})
