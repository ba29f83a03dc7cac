"""Turns what Hydra composed into typed, checked config, and its errors into one line each."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from runners.harness.config import checkpoints, grammar, hub, paths
from runners.harness.config.grammar import hint
from runners.harness.config.nested import flatten
from runners.harness.config.older import as_before
from runners.harness.config.paths import (
    absolute,
    conf_dir,
    config_groups,
    group_options,
    results_dir,
    settled,
)
from runners.harness.config.schema import SCHEMAS
from runners.harness.errors import UsageError, first_line, require_utf8

C = TypeVar("C")

CONFIG_ERRORS = (HydraException, OmegaConfBaseException)
CHANGES_NOTHING = ("timing", "tracking", "resume", "plan")
"""Parts of a config that affect neither tokens nor their time."""
_TYPES = {"Float": "a number", "Integer": "a whole number", "Boolean": "true or false"}


def register() -> None:
    """Register our schemas, resolvers and parser with Hydra; safe to repeat."""
    import secrets

    grammar.install()
    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(name=f"{name}_schema", node=schema)
    OmegaConf.register_new_resolver("results_dir", lambda: str(results_dir()), replace=True)
    OmegaConf.register_new_resolver("absolute", lambda path: str(absolute(path)), replace=True)
    OmegaConf.register_new_resolver(
        "new_id", lambda: secrets.token_hex(4), use_cache=True, replace=True
    )


def to_config(cfg: DictConfig, schema: type[C]) -> C:
    """The typed config of ``cfg``. Raises UsageError for the first value that is wrong."""
    try:
        own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        values = OmegaConf.to_container(own, resolve=True)
        assert isinstance(values, dict)
        plain = {str(key): value for key, value in values.items()}
        if plain.get("checkpoint", "none") != "none" and "model" in plain:
            plain["model"] = checkpoints.decided(plain, _typed(cfg))
        return from_dict(plain, schema)
    except CONFIG_ERRORS as error:
        raise UsageError(one_line(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _typed(cfg: DictConfig) -> list[str]:
    """The words of the command that ``cfg`` was composed from; empty if they are not known."""
    if "hydra" in cfg:
        return list(cfg.hydra.overrides.task)
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def from_dict(values: dict[Any, Any], schema: type[C]) -> C:
    """Build ``schema`` from plain values, part by part, so that an error names the whole key."""
    try:
        made = _structured(schema)  # type: ignore[arg-type]
        merged = OmegaConf.merge(made, _exact(values, schema))
        assert isinstance(merged, DictConfig)
    except CONFIG_ERRORS as error:
        raise UsageError(one_line(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    parts = {}
    for field in fields(schema):  # type: ignore[arg-type]
        try:
            part = merged[field.name]
            parts[field.name] = OmegaConf.to_object(part) if OmegaConf.is_config(part) else part
        except ValueError as error:
            raise UsageError(f"{field.name}.{error}") from None
    try:
        return schema(**parts)
    except ValueError as error:
        raise UsageError(str(error)) from None


@cache
def _structured(schema: Any) -> DictConfig:
    """``schema`` as OmegaConf has it, made once, since that takes as long as merging into it.

    ``OmegaConf.merge`` copies what it merges into.
    """
    made = OmegaConf.structured(schema)
    assert isinstance(made, DictConfig)
    return made


def _exact(values: dict[Any, Any], schema: Any, prefix: str = "") -> dict[Any, Any]:
    """The values as a config of ``schema`` stores them: paths are absolute, Hugging Face ids have
    their commit, and ``${`` in a text is escaped for OmegaConf. Raises ValueError for a text that
    no config can hold.
    """
    known = {field.name: field for field in fields(schema)} if is_dataclass(schema) else {}
    hints = get_type_hints(schema) if known else {}
    exact: dict[Any, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            exact[name] = _exact(value, hints.get(name), f"{key}.")
        elif isinstance(value, str):
            exact[name] = _exact_text(key, value, known[name].metadata if name in known else {})
        else:
            exact[name] = value
    return exact


def _exact_text(key: str, text: str, metadata: Mapping[str, str]) -> str:
    if text == "???":
        raise ValueError(
            f"{key}=???: is Hydra's sign for a missing value; {hint(key, quotes=False)}"
        )
    if "path" in metadata:
        try:
            on_hub = "hub" in metadata and paths.on_hub(text)
            text = hub.pinned(text) if on_hub else settled(text, metadata["path"])
        except ValueError as error:
            raise ValueError(f"{key}={text}: {error}") from None
    require_utf8(f"{key}={text}")
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)


@contextmanager
def before_anything_runs() -> Iterator[None]:
    """Turn every error in the block into a UsageError, even an unexpected one.

    Hydra would only print a warning for an error in a callback, and the run would go on unchecked.
    """
    try:
        yield
    except CONFIG_ERRORS as error:
        raise UsageError(one_line(error)) from error
    except Exception as error:
        raise UsageError(
            f"internal error in a check: {first_line(error)}; nothing was run; "
            "TINYGPT_DEBUG=1 shows where"
        ) from error


def one_line(error: Exception) -> str:
    """An error of Hydra as one line: the wrong value, what is allowed, and what to do."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(error)
    if isinstance(error, MissingConfigException) and error.options:
        options = ", ".join(sorted(error.options, key=lambda o: (len(o) if o.isdigit() else 0, o)))
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        return f"{group}={option}: no such option; choose one of {options}" + _by_value(
            group, option
        )
    swept = re.search(r"(?:argument|parameters) '(.*?)'(?:\n| requires --multirun)", text, re.S)
    if swept:
        word = " ".join(swept[1].split())
        key = word.partition("=")[0].lstrip("+")
        if key in grammar.FREE_KEYS:
            return f"{word}: commas make it a list of values, which is a sweep; {hint(key)}"
        return f"{word}: a list of values is a sweep; add -m"
    if isinstance(error, OverrideParseException):
        word = " ".join(error.override.split())
        key = word.partition("=")[0].lstrip("+")
        if key in grammar.all_text_keys() or key.startswith("hydra."):
            return f"{word}: is not a value in Hydra's grammar; {hint(key)}"
        if "=" not in word:
            return f"{word}: has no value; give {key}=VALUE"
        return (
            f"{word}: the value cannot be read; brackets and quotes come in pairs, and a text with "
            f"one of ,;()[]{{}} in it stands in quotes of its own, \"{key}='…'\""
        )
    if isinstance(cause, InterpolationResolutionError):
        reason = str(cause).splitlines()[0]
        return f"{cause.full_key}: ${{...}} refers to another key, and here: {reason}; take it out"
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return _unknown_key(cause)
    if isinstance(cause, ValidationError) and cause.full_key:
        part = re.search(r"is not a subclass of \w+\. value: (.*)", cause.msg or "")
        if part:
            return _part_as_value(cause, part[1])
    if isinstance(cause, OmegaConfBaseException):
        message = (cause.msg or str(cause)).splitlines()[0]
        if "Cannot merge DictConfig with ListConfig" in message:
            message = "takes no value, it has keys of its own"
        for name, meaning in _TYPES.items():
            message = re.sub(
                rf"Value '(.*)' of type '\w+' could not be converted to {name}",
                rf"'\1' is not {meaning}",
                message,
            )
        return f"{cause.full_key}: {message}" if cause.full_key else message
    return " ".join(text.split())


def _by_value(group: str, option: str) -> str:
    """How to give a number for which there is no option; empty if options are not numbers."""
    options = group_options(group) if group in config_groups() else []
    if not (option.isdigit() and options and all(name.isdigit() for name in options)):
        return ""
    keys = [str(key) for key in OmegaConf.load(conf_dir() / group / f"{options[0]}.yaml")]
    return f", or give it by value: {group}.{keys[0]}={option}"


def _part_as_value(error: OmegaConfBaseException, value: str) -> str:
    """The message for a plain value given to a part of the config that has keys of its own."""
    key, parent = str(error.full_key), error.parent_node
    part = parent._get_node(key.rpartition(".")[2]) if isinstance(parent, DictConfig) else None
    keys = [str(name) for name in part] if isinstance(part, DictConfig) else []
    way = f"; give {key}.{keys[0]}={value} (it has {', '.join(keys)})" if keys else ""
    return f"{key}={value}: {key} takes no value, it has keys{way}"


def _unknown_key(error: OmegaConfBaseException) -> str:
    full_key = str(error.full_key or error.key)
    parent = error.parent_node
    keys = sorted(str(key) for key in parent) if isinstance(parent, DictConfig) else []
    keys = [key for key in keys if key != "hydra" and key != error.key]
    group = full_key.rpartition(".")[0]
    close = difflib.get_close_matches(str(error.key), keys, n=1)
    near = [f"{group}.{close[0]}" if group else close[0]] if close else []
    if isinstance(parent, DictConfig) and not group:
        plain: Any = OmegaConf.to_container(parent, resolve=False)
        below = [key for key in flatten(plain) if not key.startswith("hydra.")]
        near = [key for key in below if key.endswith(f".{full_key}")] or near
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{full_key}: no such key; {hint}{group or 'the config'} has {', '.join(keys)}"


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass config as plain nested values, for YAML and JSON."""
    assert is_dataclass(config)
    assert not isinstance(config, type)
    return asdict(config)


def digest(config: Any) -> str:
    """A digest of what a config asks for; it leaves out where and how often it is run."""
    asked = {key: value for key, value in to_dict(config).items() if key not in CHANGES_NOTHING}
    return hashlib.sha256(json.dumps(as_before(asked), sort_keys=True).encode()).hexdigest()
