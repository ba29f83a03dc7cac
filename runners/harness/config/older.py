"""What configs of older results lack, so that an old and a new config of the same thing are equal.

Fields that were added later have defaults that say what was done without them.
"""

from dataclasses import asdict
from functools import cache
from typing import Any

from runners.harness.config.nested import flatten
from tinygpt.config import ADDED_TO_MODEL, ModelConfig

ADDED_TO_PROMPT = ("special", "chat")
"""Fields of a prompt that were added; their defaults are false."""
ADDED_KEYS = (
    *(f"model.{name}" for name in ADDED_TO_MODEL),
    *(f"prompt.{name}" for name in ADDED_TO_PROMPT),
)
"""The keys that were added. One that is a part stands for all keys of that part."""


def as_before(config: dict[str, Any]) -> dict[str, Any]:
    """The parts of a config without added fields that have their default."""
    found = dict(config)
    if "model" in found:
        found["model"] = without_added(found["model"])
    if "prompt" in found:
        prompt = found["prompt"].items()
        found["prompt"] = {key: v for key, v in prompt if key not in ADDED_TO_PROMPT or v}
    return found


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
