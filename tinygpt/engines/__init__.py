"""Engines: ways to run the same weights. One class a file, one line in ``ENGINES`` each.

An engine is made for one batch size and text length, and generates as often as it is asked to.
The measured path of a cell is the same for all of them.
"""

from typing import Protocol

from torch import Tensor

from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig
from tinygpt.engines.compiled import CompiledEngine
from tinygpt.engines.cudagraph import CudaGraphEngine
from tinygpt.engines.eager import EagerEngine
from tinygpt.engines.packages import Report
from tinygpt.generation import OnToken, Pick
from tinygpt.model import GPT


class Engine(Protocol):
    """What a cell measures."""

    compile_s: float
    """Seconds of making the engine that went into compiling; 0 where nothing had to be."""

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of keys and values held now."""
        ...

    @property
    def weights_bytes(self) -> int:
        """Bytes of distinct weights held, for prefill and decode."""
        ...

    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        """Prompt (B, P) to prompt and new tokens (B, P + N); fewer where ``on_token`` ends it."""
        ...


class EngineClass(Protocol):
    """A class of engines, as ``ENGINES`` lists them: what it states, and how it is made."""

    caches: tuple[str, ...] | None
    """Kinds of cache that it runs; None for all of them."""

    def unsupported(self, model: ModelConfig, device: str) -> str:
        """Why it cannot run ``model`` on a ``device`` here, and the cure; empty where it can."""
        ...

    def __call__(
        self,
        model: GPT,
        cache: CacheConfig,
        *,
        batch: int,
        max_positions: int,
        precision: PrecisionConfig,
        report: Report,
    ) -> Engine: ...


ENGINES: dict[str, EngineClass] = {
    "eager": EagerEngine,
    "compiled": CompiledEngine,
    "cudagraph": CudaGraphEngine,
}


def unsupported(engine: EngineConfig, model: ModelConfig, cache: CacheConfig, device: str) -> str:
    """Why ``engine`` cannot run this here, and the cure; empty where it can."""
    of = ENGINES[engine.kind]
    if of.caches is not None and cache.kind not in of.caches:
        runs = " or ".join(f"cache={kind}" for kind in of.caches)
        return (
            f"engine={engine.kind}: does not run cache={cache.kind}; choose {runs}, or engine=eager"
        )
    return of.unsupported(model, device)


def make_engine(
    config: EngineConfig,
    model: GPT,
    cache: CacheConfig,
    *,
    batch: int,
    max_positions: int,
    precision: PrecisionConfig,
    report: Report = lambda phase: None,
) -> Engine:
    """The engine that ``config`` names, for ``batch`` rows of up to ``max_positions`` tokens.

    ``model`` has its weights rounded to ``precision``; ``report`` is told "compile" before that is
    done. Raises ValueError for what is ``unsupported``.
    """
    reason = unsupported(config, model.config, cache, model.device.type)
    if reason:
        raise ValueError(reason)
    return ENGINES[config.kind](
        model,
        cache,
        batch=batch,
        max_positions=max_positions,
        precision=precision,
        report=report,
    )
