"""A model small enough to run in a test's blink, and ways to run it."""

import torch
from torch import Tensor

from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig
from tinygpt.engines import Engine, make_engine
from tinygpt.model import GPT

NANO = ModelConfig(
    vocab_size=512,
    context_length=64,
    n_layers=2,
    d_model=64,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    d_ff=176,
)
FP32, BF16, INT8 = (PrecisionConfig(kind=kind) for kind in ("fp32", "bf16", "int8"))
CPU = torch.device("cpu")
EXACT = CacheConfig()
"""Any exact cache is gated like any other."""


def greedy(logits: Tensor) -> Tensor:
    return logits.argmax(dim=-1)


def random_ids(model: GPT, batch: int, tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.config.vocab_size, (batch, tokens), generator=generator)


def engine_for(
    kind: str,
    model: GPT,
    *,
    batch: int,
    max_positions: int,
    engine: str = "eager",
    precision: PrecisionConfig = FP32,
) -> Engine:
    return make_engine(
        EngineConfig(kind=engine),
        model,
        CacheConfig(kind=kind),
        batch=batch,
        max_positions=max_positions,
        precision=precision,
    )
