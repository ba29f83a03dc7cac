"""Timing: repeats within a budget, a traced pass, and the fixed reference work.

A timed repeat waits for the device only at its start, at the first token and at its end, so that
waiting does not slow down the generation that it measures.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from runners.harness.config.schema import TimingConfig
from runners.harness.stats import spread
from tinygpt.generation import OnToken

_PRODUCTS = 24
"""Number of matrix products in the reference work."""

Generate = Callable[[OnToken], object]
"""Runs one whole generation, calling back after each token."""


@dataclass
class Repeats:
    """The raw seconds of a cell's timed repeats, one value per repeat."""

    ttft_s: list[float] = field(default_factory=list)
    """Start to first new token."""
    e2e_s: list[float] = field(default_factory=list)
    """Start to last new token."""


class Synchronize(Protocol):
    """Waits until the device has done what was asked of it."""

    def __call__(self) -> None: ...


def synchronizer(device: torch.device) -> Synchronize:
    """The function that waits for ``device``; on a CPU it does nothing."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def timed_repeat(generate: Generate, synchronize: Synchronize) -> tuple[float, float]:
    """Seconds to the first and to the last token of one generation."""
    first = 0.0

    def on_token(ids: Tensor) -> bool:
        nonlocal first
        if not first:
            synchronize()
            first = perf_counter()
        return False

    with _no_garbage_collection():
        synchronize()
        start = perf_counter()
        generate(on_token)
        synchronize()
        end = perf_counter()
    return first - start, end - start


def measure(
    generate: Generate,
    synchronize: Synchronize,
    config: TimingConfig,
    on_repeat: Callable[[int], None],
) -> Repeats:
    """Repeat until the median is known well enough, or ``max_repeats`` or the budget is reached.

    The first repeat does not count towards the budget. No repeat is begun that would exceed the
    budget if it took as long as the slowest one so far.
    """
    repeats = Repeats()
    spent = 0.0
    while True:
        on_repeat(len(repeats.e2e_s) + 1)
        ttft, e2e = timed_repeat(generate, synchronize)
        repeats.ttft_s.append(ttft)
        repeats.e2e_s.append(e2e)
        n = len(repeats.e2e_s)
        spent += e2e if n > 1 else 0.0
        if n >= config.max_repeats or spent + max(repeats.e2e_s) > config.budget_s:
            return repeats
        if n >= config.min_repeats:
            half_width = spread(repeats.e2e_s).half_width
            if half_width is not None and half_width <= config.interval:
                return repeats


def traced_gaps(generate: Generate, synchronize: Synchronize) -> list[float]:
    """Seconds between consecutive steps of one generation, waiting for the device at each."""
    at: list[float] = []

    def on_token(ids: Tensor) -> bool:
        synchronize()
        at.append(perf_counter())
        return False

    with _no_garbage_collection():
        generate(on_token)
    return [later - earlier for earlier, later in pairwise(at)]


def reference_ms(device: torch.device, synchronize: Synchronize) -> float:
    """Milliseconds of a fixed piece of work, which shows how the machine's own speed drifts.

    The work is 24 products of square fp32 matrices, wide enough to take tens of milliseconds: 512
    on a CPU (6.4 GFLOP, about 30 ms on two cores with AVX-512), 2048 on a GPU (0.4 TFLOP). The
    result is 24 times their median, so that a short disturbance does not count as drift.
    """
    width = 512 if device.type == "cpu" else 2048
    a = torch.full((width, width), 0.5, device=device)
    b = torch.full((width, width), 0.25, device=device)
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    synchronize()
    seconds = []
    for _ in range(_PRODUCTS):
        start = perf_counter()
        torch.mm(a, b, out=out)
        synchronize()
        seconds.append(perf_counter() - start)
    return median(seconds) * _PRODUCTS * 1e3
