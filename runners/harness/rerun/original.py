"""The run that is to be run again: its stored config, and its result."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from runners.harness.config.commands import command
from runners.harness.config.conversion import from_dict, to_dict
from runners.harness.config.nested import flatten
from runners.harness.config.older import ADDED_KEYS
from runners.harness.config.paths import absolute, config_groups, group_options
from runners.harness.config.presets import option_values
from runners.harness.config.schema import TrackingConfig
from runners.harness.config.text_files import read_utf8
from runners.harness.config.words import Word, parse_words
from runners.harness.errors import UsageError, first_line
from runners.harness.store.disk import read_rows
from runners.harness.store.find import StoredCell
from runners.harness.store.records import CELL, CellRecord, UnreadableRecordError, read_json
from runners.harness.store.tracking import TrackingError

_TELLING = {"bench": "timing", "sample": "stop", "verify": "fault"}
"""For each kind, a part of the config that only runs of this kind have."""
_ABOUT_A_COMMAND = ("tracking", "hydra", "resume", "plan")
"""Parts of a config that belong to the command and not to the run."""


@dataclass(frozen=True)
class Original:
    """A finished run, or a config.yaml alone."""

    cell: str
    """The cell's id, or the path of the config if there is no result beside it."""
    kind: str
    config: dict[str, Any]
    """The resolved config, as it was stored."""
    path: Callable[[str], Path] = field(repr=False)
    """Gives the path from which a file of the run can be read. Raises OSError or TrackingError."""
    record: CellRecord | None
    """The record with its result; None if there is none."""

    @property
    def tags(self) -> dict[str, str]:
        """Facts about the run that are not figures."""
        return self.record.tags if self.record else {}

    @property
    def metrics(self) -> dict[str, float]:
        """Its figures."""
        return self.record.metrics if self.record else {}

    @property
    def overrides(self) -> list[str] | None:
        """The words of the command that made it; None if they cannot be read."""
        try:
            found = yaml.safe_load(self._text("overrides.yaml", "null"))
        except yaml.YAMLError:
            return None
        return found if isinstance(found, list) else None

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and the code of the run; empty if never written, or if it cannot be read."""
        try:
            return read_json(self.path("environment.json"))
        except TrackingError:
            return {}

    @property
    def generations(self) -> list[dict[str, Any]]:
        """Its rows, each with ``new_ids``; empty if they cannot be read."""
        try:
            return read_rows(self._text("generations.jsonl", ""))
        except ValueError:
            return []

    def _text(self, name: str, otherwise: str) -> str:
        try:
            return self.path(name).read_text(encoding="utf-8")
        except (OSError, TrackingError):
            return otherwise


def from_store(stored: StoredCell) -> Original:
    """The run of a stored cell. Raises TrackingError, with the cure, if it cannot be read."""
    try:
        config = yaml.safe_load(stored.path("config.yaml").read_text(encoding="utf-8"))
        record = CellRecord.load(stored.path(CELL).parent)
    except (OSError, ValueError, yaml.YAMLError) as error:
        where = command("doctor", folder=stored.store.dir, uri=stored.store.server)
        raise TrackingError(
            f"{stored.cell}: cannot be run again ({first_line(error)}); what is wrong in "
            f"{stored.folder}: {where}"
        ) from None
    return Original(stored.cell, stored.kind, config, stored.path, record)


def from_file(name: str) -> Original:
    """The run of a config.yaml anywhere on disk, with the result beside it if there is one."""
    path = absolute(name)
    try:
        config = yaml.safe_load(read_utf8("config", name, "give a run's config.yaml"))
    except yaml.YAMLError as error:
        line = str(error).splitlines()[0]
        raise UsageError(
            f"config={name}: cannot be read ({line}); give a run's config.yaml"
        ) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    kinds = [kind for kind, part in _TELLING.items() if isinstance(config, dict) and part in config]
    if len(kinds) != 1:
        raise UsageError(
            f"config={name}: is not the config.yaml of a run of kind {', '.join(_TELLING)}; every "
            "run of theirs has one in its folder and among its artifacts"
        )
    beside = path.parent
    try:
        record = CellRecord.load(beside)
    except UnreadableRecordError:
        record = None
    cell = record.cell if record else str(path)
    return Original(cell, kinds[0], config, lambda other: beside / other, record)


@dataclass(frozen=True)
class ChangedConfig:
    """The config to run: the stored one, changed by the words of the rerun command."""

    config: Any
    """The typed config."""
    changed: dict[str, tuple[Any, Any]]
    """Old and new value of each key that the words changed, by its dotted name."""
    filled: dict[str, Any]
    """Today's default of each key that an older stored config lacks, by its dotted name."""
    choices: dict[str, str]


def changed_config(
    original: Original, words: Sequence[str], tracking: TrackingConfig, schema: type
) -> ChangedConfig:
    """Change the stored config by ``words``, and send the new results to ``tracking``.

    A prompt that came from a file is read from the run's own copy of that file.
    """
    _require_parts(original.config, schema)
    values = to_dict(from_dict(original.config, schema))
    before = flatten(values)
    choices = dict(original.record.choices) if original.record else {}
    groups = config_groups()
    parsed_words = parse_words(words)
    texts = [key for key in ("text", "file", "jsonl") if key in values.get("prompt", {})]
    sources = {f"prompt.{key}": key for key in texts}
    if any(word.key in sources and word.value is not None for word in parsed_words):
        values["prompt"] |= dict.fromkeys(sources.values())  # the new prompt replaces the old one
    # Options of groups come first, whatever the order of the words, as in any command.
    for parsed in sorted(parsed_words, key=lambda word: word.key not in groups):
        _apply(values, parsed, choices)
    _require_parts(values, schema)
    after = flatten(to_dict(from_dict(values, schema)))
    changed = {
        key: (before.get(key), value)
        for key, value in after.items()
        if value != before.get(key) and not key.startswith("tracking.")
    }
    stored = flatten(original.config)
    filled = {
        key: value
        for key, value in before.items()
        if key not in stored
        and key not in changed
        and not key.startswith(ADDED_KEYS)
        and key.split(".")[0] not in _ABOUT_A_COMMAND
    }
    values["tracking"] = to_dict(tracking)
    values |= {key: False for key in ("resume", "plan") if key in values}
    _use_own_prompt(original, values, changed)
    return ChangedConfig(from_dict(values, schema), changed, filled, choices)


def _require_parts(values: dict[str, Any], schema: type) -> None:
    """Raise UsageError if a part of the config that has keys of its own is a plain value."""
    for part in fields(schema):
        found = values.get(part.name, {})
        if part.default_factory is not MISSING and not isinstance(found, dict):
            key = f"{part.name}.{fields(part.default_factory)[0].name}"  # type: ignore[arg-type]
            raise UsageError(f"{part.name}={found}: {part.name} has keys of its own, such as {key}")


def _apply(values: dict[str, Any], word: Word, choices: dict[str, str]) -> None:
    key, value = word
    if key in config_groups() and key in values:
        if str(value) not in group_options(key):
            raise UsageError(
                f"{key}={value}: no such option; choose one of {', '.join(group_options(key))}"
            )
        values[key] = option_values(
            key, str(value)
        )  # keys that it leaves out get the schema's defaults, as in any command
        choices[key] = str(value)
        return
    *parts, last = key.split(".")
    part: Any = values
    for name in parts:
        part = part.get(name) if isinstance(part, dict) else None
    foreign = key.split(".")[0] in _ABOUT_A_COMMAND
    if not isinstance(part, dict) or last not in part or foreign:
        keys = [k for k in flatten(values) if k.split(".")[0] not in _ABOUT_A_COMMAND]
        near = [k for k in keys if k.split(".")[0] == parts[0]] if parts else []
        known = ", ".join(near or dict.fromkeys(k.split(".")[0] for k in keys))
        raise UsageError(f"{key}: no such key in the stored config, which has {known}")
    part[last] = value
    group = parts[0] if parts else ""
    if group in choices:
        choices[group] += f" {last}={value}"


def _use_own_prompt(
    original: Original, values: dict[str, Any], changed: dict[str, tuple[Any, Any]]
) -> None:
    for key, name in (("file", "prompt.txt"), ("jsonl", "prompts.jsonl")):
        if values.get("prompt", {}).get(key) is None or f"prompt.{key}" in changed:
            continue
        try:
            copy = original.path(name)
        except TrackingError:
            continue
        if copy.is_file():
            values["prompt"][key] = str(copy)
