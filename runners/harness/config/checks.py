"""Checks what a run needs from the file system before it starts: prompts, checkpoint, tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.harness.config import checkpoints
from runners.harness.config.schema import (
    BenchConfig,
    PromptedConfig,
    RaceConfig,
    RunConfig,
    SampleConfig,
    VerifyConfig,
)
from runners.harness.errors import UsageError
from tinygpt.config import require
from tinygpt.hf_tokenizer import AnyTokenizer, HFTokenizer


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
            prompt_ids(text, read_tokenizer(config), config)


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
            prompt_ids(text, tokenizer, config)


def read_tokenizer(config: RunConfig) -> AnyTokenizer | None:
    """The tokenizer of the checkpoint; None if it has none.

    If the model has more ids than the tokenizer, the further ids decode to nothing.
    """
    if config.checkpoint == "none":
        return None
    found = checkpoints.tokenizer_of(checkpoints.opened(config.checkpoint, config.tracking.dir))
    size = config.model.vocab_size
    if found and isinstance(found, HFTokenizer) and found.vocab_size > size:
        raise ValueError(
            f"checkpoint={config.checkpoint}: its tokenizer has {found.vocab_size} entries and the "
            f"model {size}; put the model's own tokenizer beside it"
        )
    return found.padded(size) if found else None


def prompt_ids(text: str, tokenizer: AnyTokenizer | None, config: PromptedConfig) -> list[int]:
    """The ids of a text. Raises ValueError if one is outside the model's vocabulary, and if there
    is no chat template although one is asked for.

    Without a tokenizer the ids are the bytes of the text, as in all vocabularies of tinygpt.
    """
    model, prompt = config.model, config.prompt
    if tokenizer is None:
        require(not prompt.chat, "prompt.chat=true: needs a checkpoint with a chat template")
        ids = list(text.encode())
    elif prompt.chat:
        ids = tokenizer.encode_chat(text, allow_special=prompt.special)
    else:
        ids = tokenizer.encode(text, allow_special=prompt.special)
    if max(ids) >= model.vocab_size:
        whose = f"the tokenizer has {tokenizer.vocab_size}" if tokenizer else "a byte is its own id"
        raise ValueError(
            f"prompt: its id {max(ids)} is outside the model's vocabulary of {model.vocab_size} "
            f"({whose}); give another prompt, or a model with a larger vocab_size"
        )
    return ids


def check_checkpoint(config: RunConfig) -> Path:
    """The path of the checkpoint. Raises ValueError if its weights do not fit ``config.model``."""
    checkpoint = checkpoints.opened(config.checkpoint, config.tracking.dir)
    checkpoints.require_same(config.checkpoint, checkpoint, config.model)
    checkpoint.check()
    return checkpoint.path
