"""The eager engine: plain PyTorch, in which Python dispatches every operation."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tinygpt import cost
from tinygpt.cache import make_cache
from tinygpt.config import PrecisionConfig
from tinygpt.engines.base import (
    Engine,
    EngineArgs,
    EnginePlan,
    Multiply,
    Report,
    step_products,
)
from tinygpt.generation import OnToken, Pick, generate
from tinygpt.model import GPT


class EagerEngine(Engine):
    """Runs ``generate`` over the model, with any cache."""

    def __init__(self, args: EngineArgs) -> None:
        self._model = args.model
        shape = args.cache_shape
        self._cache = make_cache(
            args.cache,
            shape.model,
            batch=shape.batch,
            max_positions=shape.max_positions,
            device=shape.device,
            dtype=shape.dtype,
        )

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

    @staticmethod
    def products(
        model: GPT, precision: PrecisionConfig, batch: int, *, may_compile: bool, report: Report
    ) -> Iterator[Multiply]:
        """The products of torch and, for bf16 on a CPU, those with weights packed by oneDNN."""
        pairs = step_products(model, batch)
        if not pairs:
            return
        yield lambda: [F.linear(x, weight) for x, weight in pairs]
        mkldnn = torch.ops.mkldnn
        if precision.kind != "bf16" or model.device.type != "cpu":
            return
        if hasattr(mkldnn, "_linear_pointwise") and mkldnn._is_mkldnn_bf16_supported():
            packed = [(x, mkldnn._reorder_linear_weight(weight, len(x))) for x, weight in pairs]
            yield lambda: [mkldnn._linear_pointwise(x, w, None, "none", [], "") for x, w in packed]

    @staticmethod
    def products_bytes(plan: EnginePlan) -> int:
        """Bytes of the packed weights."""
        return (
            cost.weights_bytes(plan.model, plan.precision) if plan.precision.kind == "bf16" else 0
        )
