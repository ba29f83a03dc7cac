"""The CUDA graph engine: a decode step is recorded once, then replayed with one launch per token.

A step of a small model is a hundred or more kernels of a few microseconds each, and Python takes
longer to launch them than the GPU takes to run them. A graph launches all of them at once. In
exchange, memory addresses, shapes and values of the host stay as they were in the recording. So the
position is counted on the device, the ring is written by index, and attention runs over all slots
under a mask.

Everything except the recording itself also runs on a CPU, where the tests run it.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tinygpt.cache import CacheShape, KVCache, StaticCache, Step
from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.engines.base import Engine, EngineArgs, Multiply, Report, step_products
from tinygpt.generation import OnToken, Pick, generate
from tinygpt.model import GPT

WARM_UPS = 3
"""Passes before the recording, in which libraries choose kernels and allocate workspace."""

Body = Callable[[], object]
Record = Callable[[Body], Callable[[], None]]


def record(body: Body) -> Callable[[], None]:
    """Record the kernels of ``body``; the result runs them again on the same addresses."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph.replay


class RecordedCache(StaticCache):
    """A ring whose single-token steps look the same to the host: the device counts the position."""

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self._at = torch.zeros(1, dtype=torch.long, device=shape.device)
        self._index = torch.arange(self.slots, device=shape.device)

    def step(self, n_new: int) -> Step:
        if n_new > 1:
            return super().step(n_new)
        seen = (self._index <= self._at)[None]  # once the ring is full, all slots are seen
        return Step(self._cos[self._at], self._sin[self._at], seen, False)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if k.shape[2] > 1:
            return super().update(layer, k, v)
        slot = self._at % self.slots
        self.k[layer].index_copy_(2, slot, k)
        self.v[layer].index_copy_(2, slot, v)
        return self.k[layer], self.v[layer]

    def advance(self, n_new: int) -> None:
        super().advance(n_new)
        self._at += n_new

    def reset(self) -> None:
        super().reset()
        self._at.zero_()


class CudaGraphEngine(Engine):
    """Eager prefill, then one replay per token. ``compile_s`` is warm-up and recording together."""

    caches: ClassVar[tuple[str, ...] | None] = ("static",)  # the shapes of the others change

    def __init__(self, args: EngineArgs, record: Record = record) -> None:
        args.report("compile")
        start = perf_counter()
        self._model = args.model
        self._cache = RecordedCache(args.cache_shape)
        self._ids = torch.zeros(args.batch, 1, dtype=torch.long, device=args.model.device)
        self._logits = torch.empty(0)
        for _ in range(WARM_UPS):
            self._cache.reset()
            self._body()
        self._cache.reset()
        self._replay = record(self._body)
        self.compile_s = perf_counter() - start

    @staticmethod
    def unsupported(model: ModelConfig, device: str) -> str:
        if device != "cuda":
            return (
                f"engine=cudagraph: device={device} has no CUDA graphs; choose device=cuda or "
                "engine=compiled"
            )
        return ""

    @property
    def kv_cache_bytes(self) -> int:
        return self._cache.nbytes

    @property
    def weights_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self._model.parameters())

    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        return generate(self, prompt, new_tokens, cache=self._cache, pick=pick, on_token=on_token)

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Logits (B, V) of the last of ``ids`` (B, T), valid until the next step."""
        assert cache is self._cache, "a graph writes to the cache that it was recorded over"
        position = cache.position
        if position == 0:
            return self._model.step(ids, cache)
        self._cache.require_room(1)
        self._ids.copy_(ids)
        self._replay()
        cache.position = position + 1  # a replay runs no Python
        return self._logits

    def _body(self) -> None:
        self._logits = self._model.step(self._ids, self._cache)

    @staticmethod
    def products(
        model: GPT, precision: PrecisionConfig, batch: int, *, may_compile: bool, report: Report
    ) -> Iterator[Multiply]:
        """On a GPU, torch's products in one recorded launch."""
        pairs = step_products(model, batch) if model.device.type == "cuda" else []
        if not pairs:
            return

        def linear() -> list[Tensor]:
            return [F.linear(x, weight) for x, weight in pairs]

        linear()  # libraries choose kernels and workspace before a recording
        replay = record(linear)

        def multiply() -> object:
            replay()
            return pairs  # kept alive, since the recording reads their memory

        yield multiply
