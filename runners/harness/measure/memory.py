"""Predicts a run's memory, since a run that exhausts the CPU's is killed without an exception."""

from dataclasses import dataclass

import torch

from runners.harness.config.schema import BenchConfig, RunConfig, SampleConfig
from runners.harness.machine import system
from runners.harness.measure import gate
from tinygpt import cost
from tinygpt.config import ENGINES
from tinygpt.engines import EnginePlan, engine_class, unsupported

_BYTES_OF_AN_ID = 80
"""Bytes for each id of prompt and text: in two tensors, as a Python integer in a list, in JSON."""


@dataclass(frozen=True)
class Needed:
    """Bytes that a cell takes at its peak, to within small factors."""

    weights: int
    cache: int
    work: int
    """Activations, logits, scores and angles, including those of the gate's reference."""
    ids: int
    """Prompts as they are drawn or encoded, before they are cut to the window, and all texts."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.work + self.ids


def engine_plan(config: BenchConfig | SampleConfig, prompt_tokens: int | None = None) -> EnginePlan:
    """The plan of ``config``'s engine for a prompt of so many tokens, by default a full window."""
    if prompt_tokens is None:
        prompt_tokens = config.model.context_length
    return EnginePlan(
        model=config.model,
        cache=config.cache,
        batch=config.batch.size if isinstance(config, BenchConfig) else 1,
        max_positions=prompt_tokens + config.length.new_tokens,
        precision=config.precision,
        device=config.device.kind,
        threads=config.device.threads or system.usable_cores(),
    )


def needed_bytes(config: BenchConfig | SampleConfig) -> Needed:
    """The memory that a benchmark cell or a sample run needs, computed without running it."""
    model, engine = config.model, engine_class(config.engine.kind)
    longest, prompts = _prompt_bytes(config)
    prompt = min(longest, model.context_length)
    plan = engine_plan(config, prompt)
    cached, values = config.cache.kind != "none", config.precision.bytes_per_value
    cache = cost.kv_cache_bytes(model, plan.batch, engine.cache_positions(plan), values)
    weights = _held_weights_bytes(config) + engine.copied_weights_bytes(plan)
    made = made_weights_bytes(config)
    return Needed(
        weights=weights,
        cache=cache if cached else 0,
        work=max(_work_bytes(config, plan, prompt), made - weights),
        ids=prompts + plan.batch * plan.max_positions * _BYTES_OF_AN_ID,
    )


def _prompt_bytes(config: BenchConfig | SampleConfig) -> tuple[int, int]:
    """The most tokens that the longest prompt can have, and the bytes of all ids before cutting."""
    texts = config.prompt.content.texts
    if isinstance(config, BenchConfig) and not texts:  # each row, and the stack of them
        return config.prompt.tokens, 2 * 8 * config.batch.size * config.prompt.tokens
    sizes = [len(text.encode()) for text in texts]  # at most one token per byte
    return max(sizes), _BYTES_OF_AN_ID * sum(sizes)


def _held_weights_bytes(config: BenchConfig | SampleConfig) -> int:
    integers = engine_class(config.engine.kind).holds_integers(config.cache)
    return cost.held_weights_bytes(config.model, config.precision, integers=integers)


def made_weights_bytes(config: BenchConfig | SampleConfig) -> int:
    """Host bytes while weights are made: all of them, and draws for or copies of the largest."""
    widest = max(outputs * inputs for outputs, inputs in config.model.matrices)
    return _held_weights_bytes(config) + 4 * widest * (3 if config.checkpoint == "none" else 2)


def _work_bytes(config: BenchConfig | SampleConfig, plan: EnginePlan, prompt: int) -> int:
    """Bytes of the widest step, angles and the sampler's history; for a cell also gate or limit."""
    model, batch, values = config.model, plan.batch, config.precision.bytes_per_value
    positions = engine_class(config.engine.kind).cache_positions(plan)
    new_tokens, cached = config.length.new_tokens, config.cache.kind != "none"
    longest = min(model.context_length, plan.max_positions)  # without a cache, all of it at once
    at_once = prompt if cached else longest
    work = cost.activation_bytes(model, batch, at_once, values)
    angles = positions if cached else longest
    work += 4 * 4 * angles * model.head_dim  # cosines and sines, while they are made
    if config.sampler.repetition_penalty != 1.0:
        work += batch * model.vocab_size
    if not isinstance(config, BenchConfig):
        return work
    work += gate.needed_bytes(model, config.cache, batch, prompt, new_tokens, values)
    limit = sum(engine_class(kind).products_bytes(plan) for kind in ENGINES)
    return max(work, limit) if cached and new_tokens > 1 else work


def obstacle(config: BenchConfig | SampleConfig, device: torch.device) -> tuple[str, str]:
    """The outcome and reason of a cell that cannot run on ``device``; ("ok", "") if it can."""
    reason = unsupported(config.engine, config.model, config.cache, config.device.kind)
    if reason:
        return "skipped", reason
    reason = memory_shortage(config, device)
    return ("oom", reason) if reason else ("ok", "")


def memory_shortage(config: BenchConfig | SampleConfig, device: torch.device) -> str:
    """Why the run will not fit into the memory of ``device``; empty if it will, or on mps."""
    needed = needed_bytes(config)
    parts = {
        "weights": needed.weights,
        "cache": needed.cache,
        "activations": needed.work,
        "ids": needed.ids,
    }
    if device.type == "cuda":  # weights and prompts are made on the host
        on_host = {"weights": made_weights_bytes(config), "ids": needed.ids}
        return _shortage(config, on_host, system.available_bytes()) or _shortage(
            config, parts, torch.cuda.mem_get_info()[0]
        )
    return _shortage(config, parts, system.available_bytes()) if device.type == "cpu" else ""


def _shortage(config: RunConfig, parts: dict[str, int], free: int) -> str:
    needed = sum(parts.values())
    if needed <= free:
        return ""
    keys = "length.new_tokens"
    if isinstance(config, BenchConfig):
        keys = "batch.size, length.new_tokens or prompt.tokens"
    listed = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts.items())
    return (
        f"needs about {needed / 1e9:.1f} GB ({listed}) and {free / 1e9:.1f} GB are free; lower "
        f"{keys}, or choose a smaller model"
    )
