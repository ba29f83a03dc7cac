"""The compiled engine: each decode step is one call of a C++ function that was compiled beforehand.

The step is plain PyTorch (step.py). ``torch.export`` and AOTInductor make a package of it, which is
kept on disk (packages.py). A call then needs no dispatch of single operations, no guards, and no
argument per weight. Prefill, loop, samplers and cache are those of the eager engine.

step.py and tiles.py explain what each part of the step is for. What each part gains, and what was
tried and left out, is in results/compiled_engine.md.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinygpt import cost
from tinygpt.cache import KVCache, NoCache, StaticCache
from tinygpt.checkpoint import DTYPES
from tinygpt.config import CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.engines import toolchain
from tinygpt.engines.base import Code, Engine, EngineArgs, EnginePlan, Multiply, Report
from tinygpt.engines.compiled import packages
from tinygpt.engines.compiled.step import DecodeStep, Products, WindowPass, form
from tinygpt.generation import OnToken, Pick, generate
from tinygpt.model import GPT

MIN_WINDOW = 4
"""The smallest window for which the tracer can tell a varying number of tokens from a fixed one."""
TYPICAL_SLOTS = 256
"""The number of slots, or of tokens of a window, that code is optimised for. It runs with any."""


class CompiledEngine(Engine):
    """Eager prefill, then compiled steps over a ring buffer; without a cache, compiled windows.

    The number of slots varies in the code, so that one package serves texts of any length.
    """

    caches: ClassVar[tuple[str, ...] | None] = ("static", "none")

    def __init__(self, args: EngineArgs) -> None:
        self._threads = torch.get_num_threads()
        self._steps = _Decode(args) if args.cache.kind == "static" else _Window(args)
        self.compile_s = self._steps.loaded.compile_s
        self.compile_peak_bytes = self._steps.loaded.compile_peak_bytes

    @staticmethod
    def unsupported(model: ModelConfig, device: str) -> str:
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
        return sum(by_place.values())

    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        """As in ``Engine``. Raises ValueError on a CPU if torch's number of threads has changed."""
        threads = torch.get_num_threads()
        if threads != self._threads and prompt.device.type == "cpu":
            raise ValueError(
                f"{threads} threads: this engine's code is for {self._threads}; make the engine "
                "again, or call torch.set_num_threads before it is made"
            )
        steps = self._steps
        return generate(steps, prompt, new_tokens, cache=steps.cache, pick=pick, on_token=on_token)

    @staticmethod
    def holds_integers(cache: CacheConfig) -> bool:
        """Whether there are decode steps, which read the integers; a whole window is bound by
        arithmetic, which is faster in floats.
        """
        return cache.kind == "static"

    @staticmethod
    def copied_weights_bytes(plan: EnginePlan) -> int:
        """Bytes of the matrices that a decode step reads in another form than the prefill does."""
        copied = plan.cache.kind != "none" and _form(plan) in ("packed", "tiles")
        return cost.weights_bytes(plan.model, plan.precision) if copied else 0

    @staticmethod
    def code(plan: EnginePlan) -> tuple[Code, ...]:
        """The decode step and the products for the limit; without a cache, the window pass."""
        with torch.device("meta"):  # the names depend on shapes, not on weights
            integers = plan.precision.kind == "int8" and CompiledEngine.holds_integers(plan.cache)
            model = GPT(plan.model, integers=integers).to(DTYPES[plan.precision.kind])
        parts: list[tuple[torch.nn.Module, tuple[Tensor, ...]]]
        if plan.cache.kind == "none":
            parts = [_window_pass(model, plan.batch)]
        else:
            parts = [
                _decode_step(model, plan.precision, plan.batch, plan.device),
                _products(model, plan.precision, plan.batch, plan.device),
            ]
        device = torch.device(plan.device)
        paths = [packages.path_of(*part, device=device, threads=plan.threads) for part in parts]
        return tuple(Code(path.name, packages.kept(path)) for path in paths)

    @staticmethod
    def products(
        model: GPT, precision: PrecisionConfig, batch: int, *, may_compile: bool, report: Report
    ) -> Iterator[Multiply]:
        """The compiled products of a step."""
        module, rows = _products(model, precision, batch, model.device.type)
        kept = toolchain.compiler() != "" and packages.kept(packages.path_of(module, rows))
        if kept or may_compile:
            loaded = packages.load(module, rows, report=report, tiled=module.tiled())
            yield lambda: loaded.run(list(rows))

    @staticmethod
    def products_bytes(plan: EnginePlan) -> int:
        """Bytes of the matrices that are packed, laid out for tiles, or made int8 for this."""
        copied = plan.precision.kind == "int8" or _form(plan) in ("packed", "tiles")
        return cost.weights_bytes(plan.model, plan.precision) if copied else 0


def _form(plan: EnginePlan) -> str:
    """How the matrices of ``plan`` are multiplied, see ``step.form``."""
    dtype = torch.int8 if plan.precision.kind == "int8" else DTYPES[plan.precision.kind]
    return form(plan.batch, dtype, plan.device, plan.model)


def _decode_step(
    model: GPT, precision: PrecisionConfig, batch: int, device: str
) -> tuple[DecodeStep, tuple[Tensor, ...]]:
    """The module of a decode step and an example of its inputs, for texts of any length."""
    config = model.config
    slots = min(config.context_length, TYPICAL_SLOTS)
    step = NoCache(model.cache_shape(batch, 1)).step(1)
    size = (batch, config.n_kv_heads, slots, config.head_dim)
    empty = partial(torch.empty, size, device=model.device, dtype=model.dtype)  # memory untouched
    example = (
        torch.zeros(batch, dtype=torch.long, device=model.device),
        step.cos[0],
        step.sin[0],
        torch.zeros(1, dtype=torch.long, device=model.device),
        torch.arange(slots // 2, device=model.device),
        *(empty() for _ in range(2 * config.n_layers)),
    )
    return DecodeStep(model, precision, batch, device).eval(), example


def _window_pass(model: GPT, batch: int) -> tuple[WindowPass, tuple[Tensor, Tensor, Tensor]]:
    """The module of a whole window without a cache and an example of its inputs."""
    tokens = min(model.config.context_length, TYPICAL_SLOTS) // 2
    ids = torch.zeros(batch, tokens, dtype=torch.long, device=model.device)
    rows = NoCache(model.cache_shape(batch, tokens)).step(tokens)
    return WindowPass(model).eval(), (ids, rows.cos, rows.sin)


def _products(
    model: GPT, precision: PrecisionConfig, batch: int, device: str
) -> tuple[Products, tuple[Tensor, ...]]:
    """The module of a step's products and random inputs for it."""
    module = Products(model, precision, batch, device).eval()
    widths = [module.shapes[name][1] for name in module.matrices()]
    return module, tuple(torch.randn(batch, width, device=model.device) for width in widths)


class _Decode:
    """A ``generation.Model``: the eager model runs the prompt, compiled code each later token."""

    def __init__(self, args: EngineArgs) -> None:
        model = self.model = args.model
        self.cache = StaticCache(args.cache_shape)
        self._ring = [*self.cache.k, *self.cache.v]
        self._slots = torch.arange(self.cache.slots, device=model.device)
        module, example = _decode_step(model, args.precision, args.batch, model.device.type)
        n, slots = torch.export.Dim("n", min=1), torch.export.Dim("slots", min=2)
        dynamic: tuple[Any, ...] = ({}, {}, {}, {}, {0: n}, tuple({2: slots} for _ in self._ring))
        self.loaded = packages.load(module, example, dynamic, args.report, module.tiled())
        self._run = self.loaded.run

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Logits (B, V) of the last of ``ids`` (B, T)."""
        assert cache is self.cache, "compiled code writes to the cache that it was made over"
        if ids.shape[1] > 1:
            return self.model.step(ids, cache)
        cos, sin, _, _ = cache.step(1)
        at = cache.position % len(self._slots)
        slot, filled = self._slots[at : at + 1], self._slots[: cache.position + 1]
        row = ids[:, 0].contiguous()
        (logits,) = self._run([row, cos[0], sin[0], slot, filled, *self._ring])
        cache.advance(1)
        return logits


class _Window:
    """A ``generation.Model`` without a cache: compiled code runs windows of two tokens or more."""

    def __init__(self, args: EngineArgs) -> None:
        self.model = args.model
        self.cache = NoCache(args.cache_shape)
        module, example = _window_pass(args.model, args.batch)
        T = torch.export.Dim("T", min=2, max=args.model.config.context_length)
        self.loaded = packages.load(module, example, ({1: T}, {0: T}, {0: T}), args.report)

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Logits (B, V) of the last of ``ids`` (B, T)."""
        if ids.shape[1] == 1:
            return self.model.step(ids, cache)
        cos, sin, _, _ = cache.step(ids.shape[1])
        (logits,) = self.loaded.run([ids.contiguous(), cos, sin])
        return logits
