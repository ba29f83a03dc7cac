"""What a cell needs before it starts: a device, threads, memory, weights and a prompt."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from runners.harness import environment, gate
from runners.harness.checks import read_prompt
from runners.harness.paths import find_checkpoint
from runners.harness.schema import BenchConfig, DeviceConfig, RunConfig
from tinygpt import cost
from tinygpt.checkpoint import DTYPES, cast, load_model, random_model
from tinygpt.config import ModelConfig
from tinygpt.engines import unsupported
from tinygpt.engines.step import form
from tinygpt.model import GPT
from tinygpt.seeds import row_seed
from tinygpt.tokenizer import Tokenizer


def missing_device(kind: str) -> str:
    """Why torch cannot use this kind of device here, and the cure; empty if it can."""
    if kind == "cuda" and not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            return (
                f"this torch is built without CUDA: {torch.__version__}; install a CUDA build of "
                "torch (see README, Which torch)"
            )
        return "no CUDA device"
    if kind == "mps" and not torch.backends.mps.is_available():
        if not torch.backends.mps.is_built():
            return f"this torch is built without MPS: {torch.__version__}; MPS needs macOS on ARM"
        return "no MPS device"
    return ""


@contextmanager
def threads(device: DeviceConfig, notes: list[str]) -> Iterator[None]:
    """Set torch's threads for one job, and put back what it changed."""
    before, usable = torch.get_num_threads(), environment.usable_cores()
    wanted = device.threads or usable
    if wanted > usable:
        notes.append(f"device.threads={wanted}: only {usable} cores are usable here")
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if device.kind == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Needed:
    """Bytes that a cell takes at its peak, to within small factors."""

    weights: int
    cache: int
    work: int
    """Activations, logits, ids."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.work


def needed_bytes(config: BenchConfig) -> Needed:
    """What a cell takes, by arithmetic."""
    values, batch = config.precision.bytes_per_value, config.batch.size
    text = read_prompt(config.prompt)
    prompt = config.prompt.tokens if text is None else len(text.encode())  # at most a token a byte
    prompt = min(prompt, config.model.context_length)
    tokens = prompt + config.length.new_tokens
    weights = cost.held_weights_bytes(config.model, config.precision)
    compiled = config.engine.kind == "compiled"
    if compiled and config.cache.kind != "none" and _copied(config):
        weights += cost.weights_bytes(config.model, config.precision)  # beside those of the prefill
    held = config.model.context_length if compiled else tokens
    cache = cost.kv_cache_bytes(config.model, batch, held, values)
    if config.cache.kind == "none":
        cache = 0
    at_once = tokens if config.cache.kind == "none" else prompt
    work = cost.activation_bytes(config.model, batch, at_once, values)
    gated = min(gate.NEW_TOKENS, config.length.new_tokens)
    logits = batch * gated + 4 * min(batch, gate.ROWS_AT_ONCE) * (prompt + gated)
    work += logits * config.model.vocab_size * 4 + 2 * batch * tokens * 8
    return Needed(weights, cache, work)


def _copied(config: BenchConfig) -> bool:
    """Whether the compiled step reads other tensors than the model's own."""
    kind = config.precision.kind
    way = form(config.batch.size, DTYPES[kind], config.device.kind, config.model)
    return kind == "int8" or way in ("packed", "tiles")


def obstacle(config: BenchConfig, device: torch.device) -> tuple[str, str]:
    """The outcome of a cell that cannot run on ``device``, and why; ok and no reason if it can."""
    reason = unsupported(config.engine, config.model, config.cache, config.device.kind)
    if reason:
        return "skipped", reason
    reason = memory_shortage(config, device)
    return ("oom", reason) if reason else ("ok", "")


def memory_shortage(config: BenchConfig, device: torch.device) -> str:
    """Why the cell cannot fit, foreseen: a CPU out of memory is a kill and not an exception."""
    if device.type == "cpu":
        free = environment.available_bytes()
    elif device.type == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        return ""
    needed = needed_bytes(config)
    if needed.total <= free:
        return ""
    return (
        f"needs about {needed.total / 1e9:.1f} GB (weights {needed.weights / 1e9:.1f}, cache "
        f"{needed.cache / 1e9:.1f}, activations {needed.work / 1e9:.1f}) and {free / 1e9:.1f} GB "
        "are free; lower batch.size or length.new_tokens"
    )


def make_model(config: RunConfig, device: torch.device) -> GPT:
    """The run's weights, rounded to its precision, on its device."""
    if config.checkpoint == "none":
        model = random_model(config.model, config.seed)
    else:
        model = load_model(find_checkpoint(config.checkpoint, config.tracking.dir), config.model)
    return cast(model, config.precision, device)


def make_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The checkpoint's tokenizer, where it has one."""
    if config.checkpoint == "none":
        return None
    path = find_checkpoint(config.checkpoint, config.tracking.dir) / "tokenizer.json"
    return Tokenizer.load(path) if path.exists() else None


def make_prompt(config: BenchConfig, tokenizer: Tokenizer | None, notes: list[str]) -> Tensor:
    """Prompt ids (B, P), cut to the window.

    Random ids are drawn row by row, so that row 0 is the same at any batch size.
    """
    text = read_prompt(config.prompt)
    if text is not None:
        return encode(text, tokenizer, config.model, notes).repeat(config.batch.size, 1)
    rows = []
    for row in range(config.batch.size):
        generator = torch.Generator().manual_seed(row_seed("prompt", config.seed, row))
        size = (config.prompt.tokens,)
        rows.append(torch.randint(config.model.vocab_size, size, generator=generator))
    return _cut(torch.stack(rows), config.model, notes)


def encode(text: str, tokenizer: Tokenizer | None, model: ModelConfig, notes: list[str]) -> Tensor:
    """A text's ids (1, P), cut to the window.

    Without a tokenizer a text's bytes are its ids, as in every vocabulary of ours.
    """
    ids = tokenizer.encode(text) if tokenizer else list(text.encode())
    if max(ids) >= model.vocab_size:
        raise ValueError(
            f"prompt: its id {max(ids)} is outside the model's vocabulary of {model.vocab_size}; "
            "choose a model with a larger vocab_size"
        )
    return _cut(torch.tensor([ids]), model, notes)


def _cut(prompt: Tensor, model: ModelConfig, notes: list[str]) -> Tensor:
    tokens, window = prompt.shape[1], model.context_length
    if tokens > window:
        notes.append(f"prompt of {tokens} tokens cut to its last {window}")
    return prompt[:, -window:]
