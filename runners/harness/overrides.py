"""Two things that Hydra's override parser lacks: options named by digits, and text kept as typed.

``batch=1,16`` selects files of conf/batch, yet Hydra parses 1 as an integer and refuses it as a
group's option. And a key typed ``str`` would turn ``run=83e5`` into "8300000.0" and ``true`` into
"True". Both are mended where every override passes: command line, preset, compose() and workers.
Hydra is pinned for it and a test guards it.
"""

import re
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, ValueType

from runners.harness.errors import UsageError
from runners.harness.paths import config_groups, group_options
from runners.harness.schemas import SCHEMAS

LIST_KEYS = frozenset({"sweep"})
"""Keys of which a comma is part: they are never swept over."""

_BETWEEN_COMMAS = re.compile(r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|[^,])+""")
"""The values of a list; a comma that is escaped or in quotes is part of one."""
RAW_KEYS = frozenset({"where"})
"""Keys whose value is no word of Hydra's grammar at all: ``where=batch.size>=4``."""


def text_keys(config: type, prefix: str = "") -> set[str]:
    """The dotted keys of a schema that are typed ``str``."""
    keys: set[str] = set()
    hints = get_type_hints(config)
    for field in fields(config):
        hint, key = hints[field.name], f"{prefix}{field.name}"
        if is_dataclass(hint):
            keys |= text_keys(hint, f"{key}.")  # type: ignore[arg-type]
        elif hint is str or str in get_args(hint):
            keys.add(key)
    return keys


@lru_cache(maxsize=1)
def _kept_as_typed() -> frozenset[str]:
    return frozenset(config_groups().union(*map(text_keys, SCHEMAS.values())))


def keep_text(override: Override) -> Override:
    """Give the value of a text key or group back its text; others pass unchanged."""
    key = override.key_or_group
    if key not in _kept_as_typed() or override.input_line is None:
        return override
    typed = override.input_line.partition("=")[2]
    value: Any = override._value
    if key in config_groups() and key != "experiment":
        _require_option(key, typed, value)
    if override.value_type is ValueType.ELEMENT and isinstance(value, bool | int | float):
        override._value = typed.strip()
    elif override.value_type is ValueType.SIMPLE_CHOICE_SWEEP and isinstance(value, ChoiceSweep):
        if key in LIST_KEYS:
            override.value_type, override._value = ValueType.ELEMENT, typed.strip()
        else:
            words = _BETWEEN_COMMAS.findall(typed)
            if len(words) == len(value.list):
                value.list = [
                    word.strip() if isinstance(item, bool | int | float) else item
                    for word, item in zip(words, value.list, strict=True)
                ]
    return override


def _require_option(group: str, typed: str, value: Any) -> None:
    """Hydra stumbles over a list in the place of an option, and takes null for no group at all."""
    words = value.list if isinstance(value, ChoiceSweep) else [value]
    if any(word is None or isinstance(word, list | dict) for word in words):
        raise UsageError(
            f"{group}={typed}: not an option; choose one of {', '.join(group_options(group))}"
        )


def install() -> None:
    """Make Hydra's parser keep text. Doing it twice is doing it once."""
    original = OverridesParser.parse_rule
    if getattr(original, "keeps_text", False):
        return

    def parse_rule(self: OverridesParser, s: str, rule_name: str) -> Any:
        key, _, typed = s.partition("=")
        if key in RAW_KEYS:
            parsed = original(self, f"{key}=x", rule_name)
            parsed.input_line, parsed._value = s, typed
            return parsed
        parsed = original(self, s, rule_name)
        return keep_text(parsed) if isinstance(parsed, Override) else parsed

    parse_rule.keeps_text = True  # type: ignore[attr-defined]
    OverridesParser.parse_rule = parse_rule  # type: ignore[method-assign]
