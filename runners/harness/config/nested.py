"""Nested values with dotted keys, as a command line names them."""

from typing import Any


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
