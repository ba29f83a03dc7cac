"""Before a sweep: its cells, and how long they may take.

The estimate prices forward passes by two numbers measured on this machine in a fraction of a
second, what a layer costs to dispatch and how fast it multiplies. It leaves out what lies between
the two, and is low by two to three times on the machine it was tried on. While the sweep runs, the
time left is corrected by how the finished cells compared.
"""

from dataclasses import dataclass
from time import perf_counter

from runners.harness.config.schema import BenchConfig
from tinygpt import cost
from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig

_OVERHEAD_S = 0.5
"""Loading, identifying, writing and tracking a small cell."""


@dataclass(frozen=True)
class Machine:
    """Two rates that price a forward pass."""

    layer_s: float
    """Seconds to dispatch one layer from Python."""
    flops_per_s: float
    """Operations per second of a window-long matrix product."""


def calibrate() -> Machine:
    """Measure both rates on the CPU, in about 0.1 seconds once torch has started."""
    import torch

    from tinygpt.checkpoint import random_model
    from tinygpt.engines import make_engine
    from tinygpt.generation import never_stop

    config = ModelConfig(d_model=32, head_dim=8, n_heads=4, n_kv_heads=4, d_ff=64, n_layers=4)
    engine = make_engine(
        EngineConfig(),
        random_model(config, seed=0),
        CacheConfig(kind="static"),
        batch=1,
        max_positions=40,
        precision=PrecisionConfig(),
    )
    prompt = torch.zeros(1, 8, dtype=torch.int64)
    steps = 32
    elapsed = 0.0
    for _ in range(2):  # the first pass pays for first use
        start = perf_counter()
        engine.generate(prompt, steps, lambda logits: logits.argmax(dim=-1), never_stop)
        elapsed = perf_counter() - start
    x, weight = torch.ones(256, 256), torch.ones(688, 256)
    torch.nn.functional.linear(x, weight)
    start = perf_counter()
    for _ in range(20):
        torch.nn.functional.linear(x, weight)
    product_s = (perf_counter() - start) / 20
    return Machine(elapsed / steps / config.n_layers, 2 * 256 * 256 * 688 / product_s)


def estimate_s(config: BenchConfig, machine: Machine) -> float:
    """Seconds that a cell may take: load, gate, warm-up, repeats within the budget, trace."""
    new = config.length.new_tokens
    if new == 0:
        return _OVERHEAD_S
    cached = config.cache.kind != "none"
    flops = cost.generation_flops(
        config.model, config.batch.size, config.prompt.tokens, new, cached=cached
    )
    once = new * config.model.n_layers * machine.layer_s + flops / machine.flops_per_s
    timing = config.timing
    # Spread decides whether more than min_repeats are needed; twice as many is usual.
    repeats = min(2 * timing.min_repeats, timing.max_repeats) - 1
    beyond = min(repeats * once, timing.budget_s)
    passes = 1.0 + cached + (once <= timing.budget_s / 2)
    return _OVERHEAD_S + passes * once + (beyond if once <= timing.budget_s else 0.0)
