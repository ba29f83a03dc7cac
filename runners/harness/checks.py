"""What a run needs from the file system, looked at before it starts: prompts, a checkpoint."""

import json
import re
from dataclasses import asdict
from pathlib import Path

from runners.harness.errors import UsageError
from runners.harness.paths import absolute, find_checkpoint
from runners.harness.schema import BenchConfig, RunConfig, TextPromptConfig
from runners.harness.text_schema import PromptsConfig, RaceConfig, SampleConfig, VerifyConfig
from tinygpt.config import ModelConfig


def check_bench(config: BenchConfig) -> None:
    """Prompt and checkpoint are there and fit; UsageError otherwise."""
    try:
        read_prompt(config.prompt)
        if config.checkpoint != "none":
            check_checkpoint(config)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_text(config: SampleConfig | VerifyConfig | RaceConfig) -> None:
    """Prompts, checkpoint and tokenizer are there and fit; UsageError otherwise."""
    try:
        if isinstance(config, SampleConfig):
            read_prompts(config.prompt)
        else:
            read_prompt(config.prompt)
        folder = check_checkpoint(config)
        if not (folder / "tokenizer.json").is_file():
            raise ValueError(
                f"checkpoint={config.checkpoint}: {folder} has no tokenizer.json, which makes ids "
                "of a text; put the model's own beside its weights"
            )
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_prompts(prompt: PromptsConfig) -> list[str]:
    """The prompts, one or several; ValueError, one line, for what is wrong with their file."""
    if prompt.jsonl is None:
        text = read_prompt(prompt)
        assert text is not None
        return [text]
    name = f"prompt.jsonl={prompt.jsonl}"
    prompts = []
    for number, line in enumerate(_read(name, prompt.jsonl).split("\n"), 1):
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
        return {"prompts.jsonl": _read(f"prompt.jsonl={prompt.jsonl}", prompt.jsonl)}
    text = None if prompt.file is None else read_prompt(prompt)
    return {} if text is None else {"prompt.txt": text}


def read_prompt(prompt: TextPromptConfig) -> str | None:
    """The prompt's text, exact to the byte of its file; None where none is given."""
    if prompt.file is None:
        return prompt.text
    name = f"prompt.file={prompt.file}"
    text = _read(name, prompt.file)
    if not text:
        raise ValueError(f"{name}: is empty; the model needs at least 1 token to start from")
    return text


def _read(name: str, path: str) -> str:
    try:
        return absolute(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(
            f"{name}: cannot be read ({error.strerror}); give the path of a UTF-8 file"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None


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
        found = ModelConfig.from_llama(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, OSError) as error:
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
    return folder
