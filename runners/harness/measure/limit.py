"""The limit: what the weight products of one decode step take, and nothing else.

No engine can be faster at the same batch, precision and threads, unless it multiplies faster; so a
cell's share of it says how much its engine loses beside the arithmetic. It is the fastest of what
there is to multiply with: torch's own products (on a GPU launched at once, too) and, where compiled
code is at hand, the products of the compiled engine. Attention is not in it, so its share falls
with batch and length.
"""

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from runners.harness.config.schema import BenchConfig
from runners.harness.measure import timing
from runners.harness.measure.result import CellResult
from tinygpt.config import PrecisionConfig
from tinygpt.engines import cudagraph, packages, toolchain
from tinygpt.engines.packages import Report
from tinygpt.engines.step import Products
from tinygpt.model import GPT

_SECONDS = 0.05
"""Spent on each way to multiply; dozens of steps of a small model."""

Multiply = Callable[[], object]


@torch.inference_mode()
def figures(
    config: BenchConfig, model: GPT, result: CellResult, report: Report
) -> dict[str, float]:
    """``limit_ms`` and ``limit_share`` of a cell whose decode steps were timed.

    Measured anew for each cell, since a busy machine slows the products as it slows the steps.
    Generated products are compiled for a compiled cell only; an eager one takes them where they are
    kept from before, since nobody waits a minute for the limit of a cell of seconds.
    """
    tpot_ms = result.metrics.get("tpot_ms")
    if tpot_ms is None or config.cache.kind == "none":
        return {}
    batch = config.batch.size
    module = Products(model, config.precision, batch).eval()
    widths = [module.shapes[name][1] for name in module.matrices()]
    rows = [torch.randn(batch, width, device=model.device) for width in widths]
    kept = toolchain.compiler() != "" and packages.kept(packages.path_of(module, rows))
    generated = kept or config.engine.kind == "compiled"
    report("limit")
    ways = [*_eager(model, module, rows, config.precision)]
    if generated:
        loaded = packages.load(module, rows, report=report, tiled=module.tiled())
        ways.append(lambda: loaded.run(list(rows)))
    limit_ms = min(_seconds(way, model.device) for way in ways) * 1e3
    return {"limit_ms": limit_ms, "limit_share": limit_ms / tpot_ms}


def _eager(
    model: GPT, module: Products, rows: list[Tensor], precision: PrecisionConfig
) -> Iterator[Multiply]:
    """The products of torch: those of the eager engine and, in bf16, those with packed weights."""
    by_name = {name.replace(".", "_"): weight for name, weight in model.named_parameters()}
    pairs = [(x.to(model.dtype), by_name[n]) for x, n in zip(rows, module.matrices(), strict=True)]

    def linear() -> list[Tensor]:
        return [F.linear(x, weight) for x, weight in pairs]

    yield linear
    if model.device.type == "cuda":
        linear()  # libraries choose kernels and workspace before a recording
        yield cudagraph.record(linear)
    mkldnn = torch.ops.mkldnn
    if precision.kind != "bf16" or model.device.type != "cpu":
        return
    if hasattr(mkldnn, "_linear_pointwise") and mkldnn._is_mkldnn_bf16_supported():
        packed = [(x, mkldnn._reorder_linear_weight(weight, len(x))) for x, weight in pairs]
        yield lambda: [mkldnn._linear_pointwise(x, w, None, "none", [], "") for x, w in packed]


def _seconds(multiply: Multiply, device: torch.device) -> float:
    """The median of as many passes as there is time for, after some to warm up."""
    synchronize = timing.synchronizer(device)
    for _ in range(3):
        multiply()
    taken: list[float] = []
    end = perf_counter() + _SECONDS
    while len(taken) < 5 or perf_counter() < end:
        synchronize()
        start = perf_counter()
        multiply()
        synchronize()
        taken.append(perf_counter() - start)
    return median(taken)
