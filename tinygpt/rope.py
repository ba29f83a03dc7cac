"""Rotary position embedding (RoPE; Su et al., 2021) at absolute positions.

Element i of a head is paired with element i + head_dim / 2, as in Llama's Hugging Face weights.
Angles are computed in fp32 in every precision, since bf16 would round position 257 to 256.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from tinygpt.config import Rope


@lru_cache(maxsize=16)
def rope_table(n_positions: int, rope: Rope, device: str) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, each (n_positions, head_dim) in fp32, computed once per shape.

    The sines of the first half are negated, so that a rotation is ``x * cos + swap(x) * sin``,
    where ``swap`` exchanges the two halves of a head.
    """
    with torch.inference_mode(False):
        positions = torch.arange(n_positions, dtype=torch.float32)
        angles = positions[:, None] * frequencies(rope)
        sin = angles.sin()
        table = angles.cos().repeat(1, 2), torch.cat([-sin, sin], dim=-1)
        return table[0].to(device), table[1].to(device)


def frequencies(rope: Rope) -> Tensor:
    """Radians per position of each pair of a head's elements, (head_dim / 2) in fp32.

    The scalings are those of transformers (modeling_rope_utils): ``linear`` of position
    interpolation (Chen et al., 2023), ``llama3`` of Llama 3.1.
    """
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.float32) / rope.head_dim
    plain = 1.0 / rope.base**exponents
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "default":
        return plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    turns = rope.original_context * plain / (2 * math.pi)  # in the window that was trained first
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)  # 0: a low frequency, 1: a high one
    return (1.0 - share) * plain / rope.factor + share * plain


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` (..., T, D) by rows of the table, ``cos`` and ``sin``, each (T, D)."""
    swapped = torch.roll(x, x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)
