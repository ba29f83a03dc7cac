"""Engines: ways to run the same weights. One class a file, one line in ``ENGINES`` each.

An engine is made for one batch size and text length, and generates as often as it is asked to.
The measured path of a cell is the same for all of them.
"""

from typing import Protocol

from torch import Tensor

from tinygpt.config import CacheConfig, EngineConfig
from tinygpt.engines.eager import EagerEngine
from tinygpt.generation import OnToken, Pick
from tinygpt.model import GPT


class Engine(Protocol):
    """What a cell measures."""

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of keys and values held now."""
        ...

    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        """Prompt (B, P) to prompt and new tokens (B, P + N); fewer where ``on_token`` ends it."""
        ...


ENGINES = {"eager": EagerEngine}


def make_engine(
    config: EngineConfig, model: GPT, cache: CacheConfig, *, batch: int, max_positions: int
) -> Engine:
    """The engine that ``config`` names, for ``batch`` rows of up to ``max_positions`` tokens."""
    return ENGINES[config.kind](model, cache, batch=batch, max_positions=max_positions)
