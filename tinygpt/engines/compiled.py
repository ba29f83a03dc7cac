"""The compiled engine: decode steps as one C++ function each, made ahead of time.

The step is plain PyTorch (step.py). ``torch.export`` and AOTInductor make a package of it, kept on
disk (packages.py); a call then costs one call: no dispatch, no guards, no argument per weight.
Prefill, loop, samplers and cache stay those of the eager engine.

What each trick buys (`tiny`, batch 1, fp32, two cores of an Intel Xeon with AVX-512, torch 2.13;
new tokens a second, the fastest of each step over 23 rounds of 64 tokens; from the third row on
the whole without the trick and with it):

=============================================  ======  ======
trick                                          before   after
=============================================  ======  ======
one function, products by MKL (from eager)        542   1,391
products as sums that fuse, in place of MKL's   1,391   1,311  (AMD, an older trial: 280, 1,050)
``stored``: no value is worked out twice        1,219   1,311
fused multiply-add                              1,271   1,311
weights in bf16                                 1,186   1,783  (240 tokens)
weights in int8                                 1,186   2,223  (240 tokens)
bf16 on tile units, in place of sums            1,643   1,989  (240 tokens)
=============================================  ======  ======

From five rows on matrices are packed, so that a vector is 16 outputs and no sum has to be added up
across it. The products of a step alone, interleaved, in ms: fp32 at 8 rows 0.93 before and 0.83
after, at 16 rows 1.37 and 1.04; bf16 1.43 and 0.64 (8; before: oneDNN), 1.52 and 0.99 (16); int8 at
16 rows 1.38 and 1.01. At one row packing loses (int8 0.26 and 0.42).

Where the processor has tile units (AMX), bf16 is multiplied on them (tiles.py). A whole step,
interleaved, in ms, without and with: 0.61 and 0.50 at one row, 0.97 and 0.72 at 4, 2.05 and 1.35 at
16, 3.74 and 2.11 at 32, 7.2 and 5.3 at 64.

Tried and left out: keys that lie slot beside slot, so that a vector is the scores of 16 slots (no
gain); int8 on tile units, its integers as bf16 and each input as three bf16 parts, which rounds
nothing (at 4 rows 0.97 and 0.92, at 16 rows 3.02 and 2.49; a second way for one precision); fp32 by
Inductor's own product (the products at 16 rows 2.1, packed 1.2).
"""

from typing import ClassVar

import torch
from torch import Tensor

from tinygpt.cache import KVCache, NoCache, StaticCache
from tinygpt.config import CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.engines import packages, toolchain
from tinygpt.engines.packages import Report
from tinygpt.engines.step import DecodeStep, WindowPass
from tinygpt.generation import OnToken, Pick, generate
from tinygpt.model import GPT

MIN_WINDOW = 4
"""Slots that a dynamic number of filled ones needs to be told from a fixed number."""


class CompiledEngine:
    """Eager prefill, then compiled steps over a ring; or, without a cache, compiled windows.

    The ring always has ``context_length`` slots, so that one package serves texts of any length.
    """

    caches: ClassVar[tuple[str, ...] | None] = ("static", "none")

    def __init__(
        self,
        model: GPT,
        cache: CacheConfig,
        *,
        batch: int,
        max_positions: int,
        precision: PrecisionConfig,
        report: Report,
    ) -> None:
        self._threads = torch.get_num_threads()
        make = _Decode if cache.kind == "static" else _Window
        self._steps: _Decode | _Window = make(model, batch, max_positions, precision, report)
        self.compile_s = self._steps.loaded.compile_s

    @staticmethod
    def unsupported(model: ModelConfig, device: str) -> str:
        """Why there is no such compiled engine, and the cure; empty where there is one."""
        if device not in ("cpu", "cuda"):
            return f"engine=compiled: makes no code for {device}; choose device=cpu or engine=eager"
        if model.context_length < MIN_WINDOW:
            return (
                f"engine=compiled: model.context_length={model.context_length} is below "
                f"{MIN_WINDOW}, too short to compile for a varying number of tokens; choose "
                "engine=eager"
            )
        reason = toolchain.cannot_compile()
        return f"engine=compiled: {reason}" if reason else ""

    @property
    def kv_cache_bytes(self) -> int:
        return self._steps.cache.nbytes

    @property
    def weights_bytes(self) -> int:
        steps = self._steps
        read = [*steps.loaded.tensors.values(), *steps.model.parameters()]
        by_place = {tensor.data_ptr(): tensor.nbytes for tensor in read}
        return sum(by_place.values()) - steps.cache.nbytes

    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        """Raises ValueError where torch's threads are others than when the engine was made."""
        threads = torch.get_num_threads()
        if threads != self._threads and prompt.device.type == "cpu":
            raise ValueError(
                f"{threads} threads: this engine's code is for {self._threads}; make the engine "
                "again, or call torch.set_num_threads before it is made"
            )
        steps = self._steps
        return generate(steps, prompt, new_tokens, cache=steps.cache, pick=pick, on_token=on_token)


class _Decode:
    """A model to ``generate``: the eager one for a prompt, compiled code for a token a row."""

    def __init__(
        self, model: GPT, batch: int, max_positions: int, precision: PrecisionConfig, report: Report
    ) -> None:
        slots = model.config.context_length
        self.model = model
        self.cache = StaticCache(
            model.config, batch, max(max_positions, slots), model.device, model.dtype
        )
        self._slots = torch.arange(slots, device=model.device)
        step = self.cache.step(1)
        ids = torch.zeros(batch, dtype=torch.long, device=model.device)
        example = (ids, step.cos[0], step.sin[0], self._slots[:1], self._slots[: slots // 2])
        # All slots would be no slice to the tracer; the code that it makes takes all as well.
        n = torch.export.Dim("n", min=1, max=slots - 1)
        module = DecodeStep(model, self.cache, precision).eval()
        self.loaded = packages.load(
            module, example, ({}, {}, {}, {}, {0: n}), report, module.tiled()
        )
        self._run = self.loaded.run

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Logits (B, V) of the last of ``ids`` (B, T)."""
        assert cache is self.cache, "compiled code writes to the cache that it was made over"
        if ids.shape[1] > 1:
            return self.model.step(ids, cache)
        cos, sin, _, _ = cache.step(1)
        at = cache.position % len(self._slots)
        slot, filled = self._slots[at : at + 1], self._slots[: cache.position + 1]
        (logits,) = self._run([ids[:, 0].contiguous(), cos[0], sin[0], slot, filled])
        cache.advance(1)
        return logits


class _Window:
    """A model to ``generate`` without a cache: compiled code for a window of two tokens or more."""

    def __init__(
        self, model: GPT, batch: int, max_positions: int, precision: PrecisionConfig, report: Report
    ) -> None:
        window = model.config.context_length
        self.model = model
        self.cache = NoCache(model.config, batch, window, model.device, model.dtype)
        ids = torch.zeros(batch, window // 2, dtype=torch.long, device=model.device)
        rows = self.cache.step(window // 2)
        T = torch.export.Dim("T", min=2, max=window)
        self.loaded = packages.load(
            WindowPass(model).eval(), (ids, rows.cos, rows.sin), ({1: T}, {0: T}, {0: T}), report
        )

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Logits (B, V) of the last of ``ids`` (B, T)."""
        if ids.shape[1] == 1:
            return self.model.step(ids, cache)
        cos, sin, _, _ = cache.step(ids.shape[1])
        (logits,) = self.loaded.run([ids.contiguous(), cos, sin])
        return logits
