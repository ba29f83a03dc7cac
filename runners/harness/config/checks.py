"""What a run needs from the file system, looked at before it starts: prompts, a checkpoint, and
the tokenizer that makes ids of one for the other.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from runners.harness.config.paths import find_checkpoint
from runners.harness.config.schema import (
    BenchConfig,
    PromptsConfig,
    RaceConfig,
    RunConfig,
    SampleConfig,
    TextPromptConfig,
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
    """Prompt, checkpoint and tokenizer are there and fit; UsageError otherwise."""
    with _told():
        text = read_prompt(config.prompt)
        if config.checkpoint != "none":
            check_checkpoint(config)
        if text is not None:
            prompt_ids(text, read_tokenizer(config), config.model)


def check_text(config: SampleConfig | VerifyConfig | RaceConfig) -> None:
    """Prompts, checkpoint and tokenizer are there and fit; UsageError otherwise."""
    with _told():
        if isinstance(config, SampleConfig):
            texts = read_prompts(config.prompt)
        else:
            texts = [text for text in (read_prompt(config.prompt),) if text is not None]
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
    """The checkpoint's tokenizer, where it has one; a model with more ids than that is padded, and
    the ids beyond decode to nothing.
    """
    if config.checkpoint == "none":
        return None
    path = find_checkpoint(config.checkpoint, config.tracking.dir) / "tokenizer.json"
    return Tokenizer.load(path).padded(config.model.vocab_size) if path.exists() else None


def prompt_ids(text: str, tokenizer: Tokenizer | None, model: ModelConfig) -> list[int]:
    """A text's ids, all of them the model's; ValueError otherwise.

    Without a tokenizer a text's bytes are its ids, as in every vocabulary of ours.
    """
    ids = tokenizer.encode(text) if tokenizer else list(text.encode())
    if max(ids) >= model.vocab_size:
        whose = f"the tokenizer has {tokenizer.vocab_size}" if tokenizer else "a byte is its own id"
        raise ValueError(
            f"prompt: its id {max(ids)} is outside the model's vocabulary of {model.vocab_size} "
            f"({whose}); give another prompt, or a model with a larger vocab_size"
        )
    return ids


def read_prompts(prompt: PromptsConfig) -> list[str]:
    """The prompts, one or several; ValueError, one line, for what is wrong with their file."""
    if prompt.jsonl is None:
        text = read_prompt(prompt)
        assert text is not None
        return [text]
    name = f"prompt.jsonl={prompt.jsonl}"
    prompts = []
    for number, line in enumerate(read_utf8("prompt.jsonl", prompt.jsonl).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}: line {number} is not JSON ({error.msg})") from None
        text = row.get("prompt") if isinstance(row, dict) else row
        if not isinstance(text, str) or not text:
            raise ValueError(
                f'{name}: line {number} has no prompt; a line is "TEXT" or {{"prompt": "TEXT"}}, '
                "and not empty"
            )
        if re.search("[\ud800-\udfff]", text):
            raise ValueError(
                f"{name}: line {number} has half a surrogate pair, which UTF-8 cannot hold; write "
                "the character itself"
            )
        prompts.append(text)
    if not prompts:
        raise ValueError(f"{name}: has no prompts; give one a line")
    return prompts


def prompt_files(prompt: TextPromptConfig) -> dict[str, str]:
    """The content of the file that a prompt comes from, by the name under which a run keeps it."""
    if isinstance(prompt, PromptsConfig) and prompt.jsonl is not None:
        return {"prompts.jsonl": read_utf8("prompt.jsonl", prompt.jsonl)}
    text = None if prompt.file is None else read_prompt(prompt)
    return {} if text is None else {"prompt.txt": text}


def read_prompt(prompt: TextPromptConfig) -> str | None:
    """The prompt's text, exact to the byte of its file; None where none is given."""
    if prompt.file is None:
        return prompt.text
    text = read_utf8("prompt.file", prompt.file)
    if not text:
        raise ValueError(
            f"prompt.file={prompt.file}: is empty; the model needs at least 1 token to start from"
        )
    return text


def check_checkpoint(config: RunConfig) -> Path:
    """The folder of the checkpoint, whose weights are those of ``config.model``."""
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
