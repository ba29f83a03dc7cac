"""The teaching loop: plain PyTorch, every operation dispatched from Python."""

from typing import ClassVar

from torch import Tensor

from tinygpt.cache import make_cache
from tinygpt.config import CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.engines.packages import Report
from tinygpt.generation import OnToken, Pick, generate
from tinygpt.model import GPT


class EagerEngine:
    """Runs ``generate`` over the model with any cache."""

    caches: ClassVar[tuple[str, ...] | None] = None
    compile_s = 0.0

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
        self._model = model
        self._cache = make_cache(
            cache,
            model.config,
            batch=batch,
            max_positions=max_positions,
            device=model.device,
            dtype=model.dtype,
        )

    @staticmethod
    def unsupported(model: ModelConfig, device: str) -> str:
        """Nothing is."""
        return ""

    @property
    def kv_cache_bytes(self) -> int:
        return self._cache.nbytes

    @property
    def weights_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self._model.parameters())

    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        return generate(
            self._model, prompt, new_tokens, cache=self._cache, pick=pick, on_token=on_token
        )
