"""Extends Hydra's override parser: options may be named by digits, and text is kept as typed.

``batch=1,16`` selects files of conf/batch, but Hydra parses 1 as an integer and refuses it as the
name of an option. For a key typed ``str`` Hydra would turn ``run=83e5`` into "8300000.0", drop
spaces at the ends of a text, and refuse ``~/x`` and ``naïve``. For such keys, only quotes around
the whole text, commas, brackets and null keep their meaning in Hydra's grammar. Any other text is
taken as it is typed, and a text that the grammar would change is refused.

The extension replaces the method of Hydra's parser that reads every override: of the command line,
presets, compose() and workers. So the version of Hydra is pinned, and a test guards it.
"""

import re
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString, ValueType

from runners.harness.config.commands import GRAMMAR
from runners.harness.config.paths import config_groups, group_options
from runners.harness.config.schema import SCHEMAS
from runners.harness.errors import UsageError

LIST_KEYS = frozenset({"sweep"})
"""Keys whose value may contain commas; so they cannot be swept over."""

_BETWEEN_COMMAS = re.compile(r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|[^,])+""")
"""The values of a list; a comma that is escaped or quoted is part of a value."""
RAW_KEYS = frozenset({"where"})
"""Keys whose value is not parsed by Hydra's grammar at all, such as ``where=batch.size>=4``."""
FREE_KEYS = frozenset({"prompt.text", "stop", "train.sample_prompt"})
"""Keys whose value may be any text. A ``${`` in it is never a reference to another key."""

_NEEDS_NO_QUOTES = re.compile(r"[^\s\\:=]+")
"""Texts that Hydra's sweeper passes on to a job as they are, without escapes."""


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
def all_text_keys() -> frozenset[str]:
    """The keys that are typed ``str`` in the schema of any entry point."""
    return frozenset[str]().union(*map(text_keys, SCHEMAS.values()))


def hint(key: str, quotes: bool = True) -> str:
    """Advice on how to give a value that Hydra would change.

    ``quotes`` says whether quoting the value helps.
    """
    ways = [f"put it into quotes of its own, \"{key}='…'\""] if quotes else []
    if key == "prompt.text":
        ways.append("put it, exact to the byte, into a file: prompt.file=PATH")
    return ", or ".join(ways) or "choose another value"


def keep_text(override: Override) -> Override:
    """Restore the text that was typed as the value of a text key or a group.

    Other overrides stay as they are.
    """
    key, value = override.key_or_group, override._value
    if key not in all_text_keys() | config_groups() or override.input_line is None:
        return override
    if key in config_groups() and override.is_delete():
        options = ", ".join(group_options(key))
        raise UsageError(f"{override.input_line}: no group can be left out; {key} has {options}")
    typed = override.input_line.partition("=")[2]
    if key in config_groups() and key != "experiment":
        _require_option(key, typed, value)
    if key in FREE_KEYS and "${" in typed:
        way = hint(key, quotes=False)
        raise UsageError(f"{key}={typed}: ${{...}} is Hydra's reference to another key; {way}")
    if isinstance(value, ChoiceSweep):
        if key in LIST_KEYS:
            override.value_type, override._value = ValueType.ELEMENT, typed.strip()
            return override
        words = [word.strip() for word in _BETWEEN_COMMAS.findall(typed)]
        if override.value_type is ValueType.CHOICE_SWEEP or len(words) != len(value.list):
            words = [str(item) for item in value.list]
        value.list = [_kept(key, word, item) for word, item in zip(words, value.list, strict=True)]
    elif override.value_type is ValueType.ELEMENT:
        override._value = _kept(key, typed.strip(), value)
    return override


def _kept(key: str, word: str, value: Any) -> Any:
    """The value that Hydra parsed from ``word``, or ``word`` itself if Hydra read it as a number.

    Raises UsageError if Hydra changed the word of a text key in another way.
    """
    if isinstance(value, QuotedString):
        _require_meant(key, value.text)
        return value
    if value is None:
        if key == "prompt.text":
            raise UsageError(f"{key}={word}: means no value, not the word; {hint(key)}")
        return None
    if isinstance(value, bool | int | float):
        value = word
    if key not in all_text_keys():
        return value
    if value != word:  # an escape, a list, a function's result
        raise UsageError(f"{key}={word}: Hydra's grammar makes {value!r} of it; {hint(key)}")
    return _verbatim(word)


def _require_meant(key: str, text: str) -> None:
    """Refuse a ``stop`` of a backslash and a letter, an escape that the shell did not interpret."""
    if key == "stop" and re.fullmatch(r"(\\[nrt])+", text):
        raise UsageError(
            f"stop={text}: is a backslash and a letter here; type the character itself: "
            r"stop=$'\n' is a line feed in bash and zsh"
        )


def _verbatim(text: str) -> str | QuotedString:
    """An override's value that passes ``text`` unchanged to a sweep's jobs, quoted if need be."""
    return text if _NEEDS_NO_QUOTES.fullmatch(text) else QuotedString(text, Quote.single)


def _require_option(group: str, typed: str, value: Any) -> None:
    """Refuse a list and null as options: Hydra fails on a list, and takes null for "no group"."""
    words = value.list if isinstance(value, ChoiceSweep) else [value]
    if any(word is None or isinstance(word, list | dict) for word in words):
        raise UsageError(
            f"{group}={typed}: not an option; choose one of {', '.join(group_options(group))}"
        )


def install() -> None:
    """Make Hydra's parser keep text; safe to repeat."""
    original = OverridesParser.parse_rule
    if getattr(original, "keeps_text", False):
        return

    def parse_rule(self: OverridesParser, s: str, rule_name: str) -> Any:
        key, equals, typed = s.partition("=")
        name = key.lstrip("+")
        if equals and not name.strip():
            raise UsageError(f"{s}: has no key in front of the =; give KEY=VALUE")
        if equals and (name in RAW_KEYS or (name in all_text_keys() and not GRAMMAR.match(typed))):
            _require_meant(name, typed)
            parsed = original(self, f"{key}=x", rule_name)
            parsed.input_line, parsed._value = s, _verbatim(typed)
            return parsed
        parsed = original(self, s, rule_name)
        return keep_text(parsed) if isinstance(parsed, Override) else parsed

    parse_rule.keeps_text = True  # type: ignore[attr-defined]
    OverridesParser.parse_rule = parse_rule  # type: ignore[method-assign]
