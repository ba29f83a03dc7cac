"""Estimates how long the cells of a sweep will take, before the first one runs.

The estimate adds up what a cell does: load, reference work, gate, warm-up, timed repeats, traced
pass, limit, and keeping the result. Forward passes are priced with a few rates that are measured on
this machine in well under a second. The products of a small batch are measured at several numbers
of rows, since their speed lies between that of one row and that of many in a way that differs from
processor to processor. Compiling is priced by how long it took on this machine before.

While the sweep runs, the time left is corrected by how long the finished cells took.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from runners.harness.config.schema import BenchConfig, TimingConfig
from runners.harness.sweep import compiling
from runners.harness.terminal import duration
from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig

if TYPE_CHECKING:
    import torch

_QUIET_LAYER_S = 1.5e-4
"""``Machine.layer_s`` of the machine on which the constants below were measured."""
_KEEP_S = 0.3
"""Seconds to compose a cell, identify its weights, collect garbage, write and track it."""
_AROUND_S = 3.0
"""Seconds to open the store before the first cell, and to make tables and end after the last."""
_GATE_TOKENS = 32
_LIMIT_S = 0.05
"""Seconds that the limit spends on each way to multiply."""
_REFERENCE_FLOPS = 25 * 2 * 512**3
_FEWEST = 5
"""Repeats below which there is no interval, so that only the maximum or the budget ends a cell."""
_USUAL = 1.4
"""Repeats that a cell usually makes, as a multiple of the fewest that its timing allows."""
_MEASURING_S = 0.05
"""Seconds spent on measuring each rate; work that takes longer is run once."""
_ROWS = (1, 4, 16, 64, 256)
_GPU_FLOPS_PER_S = 2e13
"""Assumed for a GPU, where dispatch takes most of a small model's time."""


@dataclass(frozen=True)
class Machine:
    """Rates that price a forward pass."""

    layer_s: float
    """Seconds to dispatch one layer from Python."""
    flops_per_s: float
    """Operations per second of a large fp32 product."""
    products: dict[str, dict[int, float]] = field(default_factory=dict)
    """Seconds per weight of a product, by precision and number of rows. For a precision that is
    missing, ``flops_per_s`` is used."""
    bytes_per_s: float = math.inf
    """Bytes read and written per second when copying."""
    draw_s: float = 0.0
    """Seconds to draw and hash one random weight."""

    def product_s(self, precision: str, rows: int) -> float:
        """Seconds per weight of a product with ``rows`` rows, interpolated from those measured."""
        known = sorted(self.products.get(precision, {}).items())
        if not known:
            return 2 * rows / self.flops_per_s
        last_rows, last_s = known[-1]
        if rows >= last_rows:
            return last_s * rows / last_rows
        for (low, low_s), (high, high_s) in pairwise(known):
            if low <= rows <= high:
                share = math.log(rows / low) / math.log(high / low)
                return math.exp((1 - share) * math.log(low_s) + share * math.log(high_s))
        return known[0][1]

    @property
    def slowness(self) -> float:
        """How many times slower Python is here than where the constants were measured. It is kept
        in [0.5, 4], since a short disturbance changes ``layer_s`` more than work of seconds.
        """
        return min(max(self.layer_s / _QUIET_LAYER_S, 0.5), 4.0)


@dataclass(frozen=True)
class Estimate:
    """How long one cell will take."""

    seconds: float
    """Seconds in all, including compiling."""
    compile_s: float = 0.0
    shapes: int = 0
    """How many pieces of code it has to compile."""


@dataclass(frozen=True)
class Total:
    """How long a whole sweep will take, from now until its command ends."""

    cells: Sequence[Estimate]
    around_s: float

    @property
    def seconds(self) -> float:
        """All cells, what comes before the first one, and what comes after the last one."""
        return self.around_s + sum(cell.seconds for cell in self.cells)

    def __str__(self) -> str:
        told = f"about {duration(self.seconds)}"
        shapes = sum(cell.shapes for cell in self.cells)
        if not shapes:
            return told
        compiling_s = duration(sum(cell.compile_s for cell in self.cells))
        pieces = "1 shape" if shapes == 1 else f"{shapes} shapes"
        return f"{told}, of which {compiling_s} compiling {pieces}, once"


def estimate(configs: Sequence[BenchConfig], left_out: Collection[int] = ()) -> Total:
    """Estimate the time of a sweep; cells numbered in ``left_out`` are not run, or end at once."""
    running = [n for n in range(len(configs)) if n not in left_out]
    precisions = {configs[n].precision.kind for n in running}
    machines = {
        threads: calibrate(threads, precisions)
        for threads in {configs[n].device.threads for n in running} or {None}
    }
    slowness = median(machine.slowness for machine in machines.values())
    times, code = compiling.past(), set[str]()
    cells = []
    for n, config in enumerate(configs):
        if n in left_out:
            cells.append(Estimate(0.1))
            continue
        missing = [part for part in compiling.missing(config, times) if part.key not in code]
        code |= {part.key for part in missing}
        compile_s = sum(times.expected_s(part, slowness) for part in missing)
        seconds = estimate_s(config, machines[config.device.threads])
        cells.append(Estimate(seconds + compile_s, compile_s, len(missing)))
    return Total(cells, _AROUND_S * slowness)


def calibrate(threads: int | None, precisions: Collection[str]) -> Machine:
    """Measure the rates on the CPU with ``threads`` threads (None: all usable cores). It takes
    about 0.3 seconds once torch has been imported.
    """
    import torch

    from runners.harness.config.schema import DeviceConfig
    from runners.harness.measure import subject

    with subject.threads(DeviceConfig(threads=threads), []), torch.inference_mode():
        products = {"fp32": _products(torch.float32)}
        if "bf16" in precisions:
            products["bf16"] = _products(torch.bfloat16)
        most, seconds = max(products["fp32"].items())
        source = torch.ones(1 << 21)
        copy_s = _seconds(lambda: torch.cat([source, source]))
        drawn = torch.empty(1 << 18)
        draw_s = _seconds(lambda: drawn.normal_()) / drawn.numel()
        return Machine(
            layer_s=_layer_s(),
            flops_per_s=2 * most / seconds,
            products=products,
            bytes_per_s=2 * 2 * source.nbytes / copy_s,
            draw_s=draw_s + 4e-9,  # hashing takes 1 ns a byte, so 4 ns a weight
        )


def _layer_s() -> float:
    """Seconds per layer of a decode step of a model so narrow that its products hardly count."""
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
        max_positions=24,
        precision=PrecisionConfig(),
    )
    prompt, steps = torch.zeros(1, 8, dtype=torch.int64), 16

    def generate() -> object:
        return engine.generate(prompt, steps, lambda logits: logits.argmax(dim=-1), never_stop)

    return _seconds(generate) / steps / config.n_layers


def _products(dtype: "torch.dtype") -> dict[int, float]:
    """Seconds per weight by number of rows, with more weights than fit into a core's own caches."""
    import torch
    import torch.nn.functional as F

    weights = [torch.full((688, 256), 0.01, dtype=dtype) for _ in range(8)]
    found = {}
    for rows in _ROWS:
        x = torch.ones(rows, 256, dtype=dtype)
        used = weights[: 8 if rows <= 16 else 2]

        def multiply(x: torch.Tensor = x, used: list[torch.Tensor] = used) -> object:
            return [F.linear(x, weight) for weight in used]

        found[rows] = _seconds(multiply) / (len(used) * used[0].numel())
    return found


def _seconds(work: Callable[[], object]) -> float:
    """Median seconds of three calls after a first one to warm up; of fewer calls on a machine so
    slow or busy that measuring would take long.
    """
    taken: list[float] = []
    began = perf_counter()
    while len(taken) < 4 and perf_counter() - began < _MEASURING_S:
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return median(taken[1:] or taken)


def estimate_s(config: BenchConfig, machine: Machine) -> float:
    """Seconds that a cell will take, without compiling."""
    overhead = _KEEP_S * machine.slowness + config.model.n_parameters * machine.draw_s
    overhead += _REFERENCE_FLOPS / machine.flops_per_s
    new, prompt, timing = config.length.new_tokens, config.prompt.tokens, config.timing
    if new == 0:
        return overhead
    once = generation_s(config, machine, new)
    gated = min(new, _GATE_TOKENS)
    gate = generation_s(config, machine, gated) + pass_s(config, machine, prompt + gated)
    if config.cache.kind == "none":
        window = min(config.model.context_length, prompt + new)
        steps = min(3, new)
        warm_up = steps * (pass_s(config, machine, prompt) + pass_s(config, machine, window))
        limit = 0.0
    else:
        warm_up = once
        ways = 1 + (config.precision.kind == "bf16") + (config.engine.kind == "compiled")
        step = machine.product_s(_multiplied(config), config.batch.size)
        limit = ways * (_LIMIT_S + 4 * step * config.model.n_parameters)
    traced = once if once <= timing.budget_s / 2 else 0.0
    return overhead + gate + warm_up + repeats(timing, once) * once + traced + limit


def repeats(timing: TimingConfig, once_s: float) -> int:
    """How many timed repeats a cell usually makes when one takes ``once_s`` seconds."""
    wanted = round(_USUAL * max(timing.min_repeats, _FEWEST))
    within = 1 + math.floor(timing.budget_s / once_s) if once_s > 0 else wanted
    return max(1, min(wanted, timing.max_repeats, within))


def generation_s(config: BenchConfig, machine: Machine, new_tokens: int) -> float:
    """Seconds of one generation of ``new_tokens`` by all rows."""
    window = config.model.context_length
    prompt = min(config.prompt.tokens, window)
    if config.cache.kind == "none":
        growing = min(new_tokens, max(window - prompt, 0))
        total = sum(pass_s(config, machine, prompt + n) for n in range(growing))
        return total + (new_tokens - growing) * pass_s(config, machine, window)
    steps = new_tokens - 1
    held = min(prompt + steps / 2, window)
    return pass_s(config, machine, prompt) + steps * step_s(config, machine, held)


def step_s(config: BenchConfig, machine: Machine, held: float) -> float:
    """Seconds of one decode step of all rows, with ``held`` tokens a row in the cache."""
    model, batch = config.model, config.batch.size
    cached = 2 * model.n_kv_heads * model.head_dim * held * config.precision.bytes_per_value
    # Attention reads the cache; a rolling cache is copied first, which reads and writes all of it.
    passes = 3 if config.cache.kind == "rolling" else 1
    dispatched = {"eager": 1.0, "cudagraph": 0.1, "compiled": 0.02}.get(config.engine.kind, 1.0)
    if config.device.kind != "cpu":
        products = 2 * model.n_parameters * batch / _GPU_FLOPS_PER_S
        return model.n_layers * machine.layer_s * dispatched + products
    moved = passes * cached * batch * model.n_layers / machine.bytes_per_s
    products = model.n_parameters * machine.product_s(_multiplied(config), batch)
    if config.engine.kind == "compiled":  # reads weights of fewer bytes, or multiplies on tiles
        products *= {"fp32": 1.0, "bf16": 0.6, "int8": 0.5}[config.precision.kind]
    return model.n_layers * machine.layer_s * dispatched + products + moved


def pass_s(config: BenchConfig, machine: Machine, tokens: int) -> float:
    """Seconds of one forward pass over ``tokens`` tokens of all rows, logits at the last one."""
    model, batch = config.model, config.batch.size
    tokens = min(tokens, model.context_length)
    rows = tokens * batch
    head = model.vocab_size * model.d_model
    matrices = model.n_parameters - head * (1 if model.tie_embeddings else 2)
    attention = 2 * model.n_layers * model.n_heads * model.head_dim * tokens * rows
    dispatch = model.n_layers * machine.layer_s
    if config.device.kind != "cpu":
        return dispatch + (2 * matrices * rows + attention) / _GPU_FLOPS_PER_S
    products = matrices * machine.product_s(_multiplied(config), rows)
    products += head * machine.product_s(_multiplied(config), batch)
    # Norms, angles, the MLP's gate: each reads and writes what a layer passes on.
    values = (16 * model.d_model + 8 * model.d_ff) * model.n_layers * rows
    moved = values * config.precision.bytes_per_value / machine.bytes_per_s
    return dispatch + products + attention / machine.flops_per_s + moved


def _multiplied(config: BenchConfig) -> str:
    """The precision whose measured products price the cell; eager int8 multiplies in fp32."""
    in_bf16 = config.precision.kind == "bf16" and config.engine.kind != "compiled"
    return "bf16" if in_bf16 else "fp32"
