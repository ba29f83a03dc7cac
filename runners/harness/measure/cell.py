"""Measures one benchmark cell, from its config to its result, without MLflow or Hydra.

Load, gate, warm-up, timed repeats, traced pass and limit are the same code for every device, batch,
cache and engine. An error becomes the outcome of its cell, and the other cells still run.
"""

from collections.abc import Callable
from time import perf_counter

import torch

from runners.harness.config.schema import BenchConfig
from runners.harness.machine import environment, system
from runners.harness.measure import fingerprint, gate, limit, memory, timing
from runners.harness.measure.guard import guarded
from runners.harness.measure.metrics import summarise
from runners.harness.measure.result import CellResult
from runners.harness.measure.subject import Generation, Subject
from tinygpt import cost
from tinygpt.generation import never_stop

Report = Callable[[str], None]
"""Called with the name of each phase that a cell enters; never called inside timed code."""


def run_cell(config: BenchConfig, report: Report = lambda phase: None) -> CellResult:
    """Measure one cell. Its errors become its outcome and are not raised; Ctrl-C is passed on."""
    return guarded(config.device, lambda result: _run(config, result, report))


def _run(config: BenchConfig, result: CellResult, report: Report) -> None:
    device = torch.device(config.device.kind)
    result.outcome, result.reason = memory.obstacle(config, device)
    if result.reason:
        return

    report("load")
    start = perf_counter()
    subject = Subject(config, result.notes)
    engine = subject.engine(config.engine, config.cache, report)
    prompt, model, tokenizer = subject.prompt, subject.model, subject.tokenizer
    result.metrics["load_s"] = perf_counter() - start - engine.compile_s
    result.metrics["compile_s"] = engine.compile_s
    result.metrics["compile_peak_bytes"] = engine.compile_peak_bytes
    result.tags |= subject.tags() | fingerprint.approximate(config.cache)
    at_start = system.cpu_time()
    result.metrics["reference_ms"] = timing.reference_ms(device, subject.synchronize)

    ids = prompt
    if config.length.new_tokens > 0:
        report("gate")
        gated = gate.check(
            engine, model, prompt, config.length.new_tokens, config.precision, config.cache
        )
        result.metrics |= {"gate_max_difference": gated.max_difference, "gate_ties": gated.ties}
        if gated.reason:
            result.outcome, result.reason = "mismatch", gated.reason
            return
        generation = Generation(subject, engine, subject.sampler(config.sampler))
        _measure(config, generation, result, report)
        ids = generation.ids
        others = system.others_share(at_start, system.cpu_time())
        if others is not None:
            result.metrics["others_cpu_share"] = others

    prompt_tokens = prompt.shape[1]
    values = config.precision.bytes_per_value
    # The last new token is never fed back (a preallocated cache has a slot for it anyway).
    fed = prompt_tokens + config.length.new_tokens - 1
    held = 0 if config.cache.kind == "none" else fed
    result.metrics |= {
        "weights_bytes": engine.weights_bytes,
        "weights_bytes_formula": cost.weights_bytes(config.model, config.precision),
        "kv_cache_bytes": engine.kv_cache_bytes,
        "kv_cache_bytes_formula": cost.kv_cache_bytes(
            config.model, config.batch.size, held, values
        ),
    }
    result.headline = "0 new tokens, nothing to measure"
    summarise(config, result, prompt_tokens=prompt_tokens)
    result.metrics |= limit.figures(config, model, result, report)
    before, new = ids[:, :prompt_tokens].tolist(), ids[:, prompt_tokens:].tolist()
    result.tags["tinygpt.tokens_sha256"] = fingerprint.sha256(new)
    result.generations = [
        {"prompt_ids": b, "new_ids": n, "text": tokenizer.decode(n) if tokenizer else None}
        for b, n in zip(before, new, strict=True)
    ]


def _measure(
    config: BenchConfig, generation: Generation, result: CellResult, report: Report
) -> None:
    """Warm up, time the repeats, and trace one pass if the budget allows."""
    device = generation.prompt.device
    synchronize = timing.synchronizer(device)
    report("warm-up")
    system.give_back_memory()  # what loading and the gate used; later it would be in the repeats
    environment.reset_peak_memory(device.type)
    start = perf_counter()
    if config.cache.kind == "none":
        _warm_up_window(config, generation)
    else:
        generation(never_stop)
    synchronize()
    result.metrics["warmup_s"] = perf_counter() - start

    repeats = timing.measure(
        generation, synchronize, config.timing, lambda n: report(f"repeat {n}")
    )
    result.timings |= {"ttft_s": repeats.ttft_s, "e2e_s": repeats.e2e_s}
    generation.sampler.check()
    peak = environment.peak_memory_bytes(device.type)
    if peak is not None:
        result.metrics["peak_memory_bytes"] = peak
    mapped = environment.mapped_bytes()
    if mapped is not None and device.type == "cpu":
        result.metrics["mapped_bytes"] = mapped
    if max(repeats.e2e_s) <= config.timing.budget_s / 2:  # else another whole pass costs too much
        report("traced pass")
        result.timings["itl_s"] = timing.traced_gaps(generation, synchronize)


def _warm_up_window(config: BenchConfig, generation: Generation) -> None:
    """Warm up a cell without a cache: at most 3 steps after the prompt, then the longest ones.

    A whole generation would cost as much as a repeat. These steps cover what differs from the
    others: the first step, a step over the whole text or a full window, and first use.
    """
    generation.reset()
    prompt, steps = generation.prompt, min(3, config.length.new_tokens)
    text = prompt.shape[1] + config.length.new_tokens
    most = min(config.model.context_length, text - steps)
    longest = prompt.repeat(1, -(-most // prompt.shape[1]))[:, :most]
    for ids in (prompt, longest):
        generation.engine.generate(ids, steps, generation.sampler, never_stop)
