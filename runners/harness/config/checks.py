"""Checks what a run needs from the file system before it starts: prompts, checkpoint, tokenizer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from runners.harness.config.paths import find_checkpoint
from runners.harness.config.schema import (
    BenchConfig,
    RaceConfig,
    RunConfig,
    SampleConfig,
    VerifyConfig,
)
from runners.harness.config.text_files import read_utf8
from runners.harness.errors import UsageError
from tinygpt.config import ModelConfig
from tinygpt.tokenizer import Tokenizer
from tinygpt.weights import check_file


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_bench(config: BenchConfig) -> None:
    """Check that prompt, checkpoint and tokenizer exist and fit together; raises UsageError."""
    with _told():
        texts = config.prompt.content.texts
        if config.checkpoint != "none":
            check_checkpoint(config)
        for text in texts:
            prompt_ids(text, read_tokenizer(config), config.model)


def check_text(config: SampleConfig | VerifyConfig | RaceConfig) -> None:
    """Check that prompts, checkpoint and tokenizer exist and fit together; raises UsageError."""
    with _told():
        texts = config.prompt.content.texts
        folder = check_checkpoint(config)
        tokenizer = read_tokenizer(config)
        if tokenizer is None:
            raise ValueError(
                f"checkpoint={config.checkpoint}: {folder} has no tokenizer.json, which makes ids "
                "of a text; put the model's own beside its weights"
            )
        for text in texts:
            prompt_ids(text, tokenizer, config.model)


def read_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The tokenizer of the checkpoint; None if it has none.

    If the model has more ids than the tokenizer, these ids decode to nothing.
    """
    if config.checkpoint == "none":
        return None
    path = find_checkpoint(config.checkpoint, config.tracking.dir) / "tokenizer.json"
    return Tokenizer.load(path).padded(config.model.vocab_size) if path.exists() else None


def prompt_ids(text: str, tokenizer: Tokenizer | None, model: ModelConfig) -> list[int]:
    """The ids of a text. Raises ValueError if one is outside the model's vocabulary.

    Without a tokenizer the ids are the bytes of the text, as in all vocabularies of tinygpt.
    """
    ids = tokenizer.encode(text) if tokenizer else list(text.encode())
    if max(ids) >= model.vocab_size:
        whose = f"the tokenizer has {tokenizer.vocab_size}" if tokenizer else "a byte is its own id"
        raise ValueError(
            f"prompt: its id {max(ids)} is outside the model's vocabulary of {model.vocab_size} "
            f"({whose}); give another prompt, or a model with a larger vocab_size"
        )
    return ids


def check_checkpoint(config: RunConfig) -> Path:
    """The folder of the checkpoint. Raises ValueError if its weights are not those of
    ``config.model``.
    """
    folder = find_checkpoint(config.checkpoint, config.tracking.dir)
    path = folder / "config.json"
    if not (folder / "model.safetensors").is_file():
        raise ValueError(
            f"checkpoint={config.checkpoint}: {folder} has no model.safetensors; a checkpoint is a "
            "folder with config.json and model.safetensors"
        )
    try:
        found = ModelConfig.from_llama(json.loads(read_utf8("config.json", str(path))))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not the config of a Llama-shaped model ({error})") from None
    ours, theirs = asdict(config.model), asdict(found)
    differences = [
        f"model.{key} is {theirs[key]} in it and {ours[key]} here"
        for key in ours
        if ours[key] != theirs[key]
    ]
    if differences:
        raise ValueError(
            f"checkpoint={config.checkpoint}: {'; '.join(differences)}; choose the model it was "
            "made with (model=NAME or model.KEY=VALUE)"
        )
    check_file(folder / "model.safetensors", config.model)
    return folder
