"""The limit: the time of the weight products of one decode step, and of nothing else.

No engine can be faster at the same batch, precision and threads unless it multiplies faster. So
``limit_share``, the limit over a cell's time per token, says how much time its engine spends on
other things. The limit is the fastest of the ways to multiply that the engines offer
(``Engine.products``). It leaves out attention, so the share falls as batch and length grow.
"""

from statistics import median
from time import perf_counter

import torch

from runners.harness.config.schema import BenchConfig
from runners.harness.measure import timing
from runners.harness.measure.result import CellResult
from tinygpt.config import ENGINES
from tinygpt.engines import Report, engine_class
from tinygpt.engines.base import Multiply
from tinygpt.model import GPT

_SECONDS = 0.05
"""Seconds spent on each way to multiply, enough for dozens of steps of a small model."""


@torch.inference_mode()
def figures(
    config: BenchConfig, model: GPT, result: CellResult, report: Report
) -> dict[str, float]:
    """``limit_ms`` and ``limit_share`` of a cell with timed decode steps and a cache; else {}.

    The limit is measured for each cell, since a busy machine slows down the products as much as the
    steps. Only the cell's own engine may compile code for it. Other engines' products are used if
    they were compiled before, since a minute of compiling is too long for a cell of seconds.
    """
    tpot_ms = result.metrics.get("tpot_ms")
    if tpot_ms is None or config.cache.kind == "none":
        return {}
    report("limit")
    ways = [
        way
        for kind in ENGINES
        for way in engine_class(kind).products(
            model,
            config.precision,
            config.batch.size,
            may_compile=kind == config.engine.kind,
            report=report,
        )
    ]
    limit_ms = min(_seconds(way, model.device) for way in ways) * 1e3
    return {"limit_ms": limit_ms, "limit_share": limit_ms / tpot_ms}


def _seconds(multiply: Multiply, device: torch.device) -> float:
    """Median seconds of a pass: after 3 to warm up, as many as ``_SECONDS`` allows, at least 5."""
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
