"""Takes the model's config from the checkpoint, and refuses typed words that disagree with it."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from runners.harness.config.nested import flatten
from runners.harness.config.paths import find_checkpoint
from runners.harness.config.presets import option_values
from tinygpt.config import ModelConfig
from tinygpt.hf_tokenizer import HFTokenizer
from tinygpt.tokenizer import Tokenizer
from tinygpt.weights import Checkpoint, open_checkpoint

WINDOW = "context_length"
"""The one key of the model config that may have a lower value than the checkpoint's."""


def opened(name: str, tracking_dir: str) -> Checkpoint:
    """The checkpoint ``name``, a path or a name. Raises ValueError, one line, if it cannot be used.

    It is read again only if its file has changed, since a GGUF file's metadata takes seconds to
    read.
    """
    path = find_checkpoint(name, tracking_dir)
    file = path if path.is_file() else path / "config.json"
    return _opened(path, file.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(path: Path, changed_ns: int) -> Checkpoint:
    return open_checkpoint(path)


def decided(values: dict[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    """The ``model`` part of the config ``values``, with the values of its checkpoint.

    ``typed`` are the words of the command. Raises ValueError, one line, if one of them asks for
    another model.
    """
    name, asked = values["checkpoint"], flatten(values["model"])
    model = asdict(opened(name, values["tracking"]["dir"]).model)
    found = flatten(model)
    for word in typed:
        key, _, value = word.lstrip("+").partition("=")
        if key == "model":
            option = flatten(asdict(ModelConfig())) | flatten(option_values("model", value))
            wrong = [key for key in option if found[key] != option[key]]
            if wrong:
                told = ", ".join(f"{key} {found[key]}, not {option[key]}" for key in wrong[:3])
                raise ValueError(
                    f"model={value}: checkpoint={name} is another model ({told}); leave model out, "
                    "the checkpoint decides it"
                )
        part, _, field = key.partition(".")
        if part != "model" or field not in found:
            continue
        if field == WINDOW and asked[field] <= found[field]:
            model[field] = asked[field]
        elif asked[field] != found[field]:
            at_most = "at most " if field == WINDOW else ""
            raise ValueError(
                f"model.{field}={asked[field]}: checkpoint={name} has {found[field]}; leave "
                f"model.{field} out, or give {at_most}that"
            )
    return model


def require_same(name: str, checkpoint: Checkpoint, model: Any) -> None:
    """Raise ValueError, one line, unless ``model`` is the checkpoint's or has a shorter window."""
    ours, theirs = flatten(asdict(model)), flatten(asdict(checkpoint.model))
    differences = [
        f"model.{key} is {theirs[key]} in it and {ours[key]} here"
        for key in ours
        if (ours[key] > theirs[key] if key == WINDOW else ours[key] != theirs[key])
    ]
    if differences:
        raise ValueError(f"checkpoint={name}: {'; '.join(differences)}; leave model.KEY=VALUE out")


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | HFTokenizer | None:
    """The checkpoint's tokenizer, tinygpt's own or one of the library; None if it has none.

    Raises ValueError, one line, if it cannot be read or is not supported.
    """
    metadata = checkpoint.tokenizer_metadata()
    path = checkpoint.path / "tokenizer.json"
    if metadata is not None:
        found = HFTokenizer.from_gguf(metadata, checkpoint.path)
    elif not path.exists():
        return None
    elif Tokenizer.wrote(path):
        return Tokenizer.load(path)
    else:
        found = HFTokenizer.load(path)
    return found.of_checkpoint(checkpoint.end_ids, checkpoint.chat_template())
