"""What a cell needs before it starts: a device, memory, weights and a prompt."""

import torch
from torch import Tensor

from runners.harness import environment, gate
from runners.harness.config import read_prompt
from runners.harness.paths import find_checkpoint
from runners.harness.schema import BenchConfig
from tinygpt import cost
from tinygpt.checkpoint import cast, load_model, random_model
from tinygpt.model import GPT
from tinygpt.sampling import row_seed


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


def memory_shortage(config: BenchConfig, device: torch.device) -> str:
    """Why the cell cannot fit, foreseen: a CPU out of memory is a kill and not an exception."""
    values, batch = config.precision.bytes_per_value, config.batch.size
    tokens = config.prompt.tokens + config.length.new_tokens
    weights = cost.weights_bytes(config.model, values)
    cache = cost.kv_cache_bytes(config.model, batch, tokens, values)
    if config.cache.kind == "none":
        cache = 0
    work = cost.activation_bytes(
        config.model, batch, tokens if config.cache.kind == "none" else 32, values
    )
    work += batch * gate.NEW_TOKENS * config.model.vocab_size * 4 + batch * tokens * 8
    if device.type == "cpu":
        free = environment.available_bytes()
    elif device.type == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        return ""
    needed = weights + cache + work
    if needed <= free:
        return ""
    return (
        f"needs about {needed / 1e9:.1f} GB (weights {weights / 1e9:.1f}, cache {cache / 1e9:.1f}, "
        f"activations {work / 1e9:.1f}) and {free / 1e9:.1f} GB are free; lower batch.size or "
        "length.new_tokens"
    )


def make_model(config: BenchConfig, device: torch.device) -> GPT:
    if config.checkpoint == "none":
        model = random_model(config.model, config.seed)
    else:
        model = load_model(find_checkpoint(config.checkpoint), config.model)
    return cast(model, config.precision, device)


def make_prompt(config: BenchConfig, notes: list[str]) -> Tensor:
    """Prompt ids (B, P), cut to the window.

    Random ids are drawn row by row, so that row 0 is the same at any batch size. A text's bytes
    are its ids: the first 256 entries of every vocabulary here are the bytes.
    """
    vocab, batch = config.model.vocab_size, config.batch.size
    text = read_prompt(config)
    if text is None:
        rows = []
        for row in range(batch):
            generator = torch.Generator().manual_seed(row_seed("prompt", config.seed, row))
            rows.append(torch.randint(vocab, (config.prompt.tokens,), generator=generator))
        prompt = torch.stack(rows)
    else:
        prompt = torch.tensor([list(text.encode())] * batch)
        if int(prompt.max()) >= vocab:
            raise ValueError(
                f"prompt: byte {int(prompt.max())} has no entry in a vocabulary of {vocab}; "
                "choose a model with vocab_size of at least 256"
            )
    window = config.model.context_length
    if prompt.shape[1] > window:
        notes.append(f"prompt of {prompt.shape[1]} tokens cut to its last {window}")
    return prompt[:, -window:]
