"""The decode step as a CUDA graph: recorded once, then replayed with one launch a token.

A step of a small model is a hundred and more kernels of a few microseconds each, and Python takes
longer to launch them than the GPU to run them. A graph launches them all at once. In exchange its
addresses, shapes and host values are those of the recording, so the position is counted on the
device, the ring is written by index, and attention runs over all slots under a mask.

Everything but the recording itself runs on a CPU as well, where the tests are.
"""

from collections.abc import Callable
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from tinygpt.cache import KVCache, StaticCache, Step
from tinygpt.config import CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.engines.packages import Report
from tinygpt.generation import OnToken, Pick, generate
from tinygpt.model import GPT

WARM_UPS = 3
"""Runs before the recording, in which libraries choose their kernels and get their workspace."""

Body = Callable[[], object]
Record = Callable[[Body], Callable[[], None]]


def record(body: Body) -> Callable[[], None]:
    """What runs the kernels of ``body`` again, on the same addresses; CUDA only."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph.replay


class RecordedCache(StaticCache):
    """A ring whose single steps are alike for the host: where it stands is known to the device."""

    def __init__(
        self,
        model: ModelConfig,
        batch: int,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(model, batch, max_positions, device, dtype)
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self._index = torch.arange(self.slots, device=device)

    def step(self, n_new: int) -> Step:
        if n_new > 1:
            return super().step(n_new)
        seen = (self._index <= self._at)[None]  # all of them, once the ring is full
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


class CudaGraphEngine:
    """Eager prefill, then one replay a token. ``compile_s`` is the recording, warm-ups included."""

    caches: ClassVar[tuple[str, ...] | None] = ("static",)  # the others change shape at every step

    def __init__(
        self,
        model: GPT,
        cache: CacheConfig,
        *,
        batch: int,
        max_positions: int,
        precision: PrecisionConfig,
        report: Report,
        record: Record = record,
    ) -> None:
        report("compile")
        start = perf_counter()
        self._model = model
        self._cache = RecordedCache(
            model.config, batch, max_positions, device=model.device, dtype=model.dtype
        )
        self._ids = torch.zeros(batch, 1, dtype=torch.long, device=model.device)
        self._logits = torch.empty(0)
        for _ in range(WARM_UPS):
            self._cache.reset()
            self._body()
        self._cache.reset()
        self._replay = record(self._body)
        self.compile_s = perf_counter() - start

    @staticmethod
    def unsupported(model: ModelConfig, device: str) -> str:
        """Why there is no such engine, and the cure; empty where there is one."""
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
        """Logits (B, V) of the last of ``ids`` (B, T), until the next step."""
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
