"""Parses words that are not composed by Hydra, and composes the commands of older runs again."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from runners.harness.config import grammar
from runners.harness.config.conversion import CONFIG_ERRORS, one_line
from runners.harness.errors import UsageError


class Word(NamedTuple):
    """KEY=VALUE with its value parsed."""

    key: str
    value: Any


def parse_words(words: Sequence[str]) -> list[Word]:
    """Parse words that set one value each. Raises UsageError for lists, ``+KEY`` and ``~KEY``."""
    grammar.install()
    try:
        parsed = OverridesParser.create().parse_overrides(list(words))
    except CONFIG_ERRORS as error:
        raise UsageError(one_line(error)) from None
    for override in parsed:
        if override.is_sweep_override() and override.key_or_group in grammar.FREE_KEYS:
            raise UsageError(
                f"{override.input_line}: commas make it a list of values; "
                f"{grammar.hint(override.key_or_group)}"
            )
        if override.is_sweep_override() or override.is_add() or override.is_delete():
            raise UsageError(
                f"{override.input_line}: a rerun takes one value a key, KEY=VALUE; for a sweep "
                "use runners.bench -m"
            )
    return [Word(override.key_or_group, override.value()) for override in parsed]


def composed_today(name: str, words: Sequence[str]) -> DictConfig:
    """The config that today's conf/ gives for the words of a command of entry point ``name``.

    Raises CONFIG_ERRORS.
    """
    loader = GlobalHydra.instance().config_loader()
    return loader.load_configuration(name, list(words), run_mode=RunMode.RUN)
