"""Rotary position embedding (RoPE; Su et al., 2021) at absolute positions.

Element i of a head is paired with element i + head_dim / 2, as in Llama's Hugging Face weights.
Angles are computed in fp32 in every precision, since bf16 would round position 257 to 256.
"""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=16)
def rope_table(n_positions: int, head_dim: int, base: float, device: str) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, each (n_positions, head_dim) in fp32, computed once per shape.

    The sines of the first half are negated, so that a rotation is ``x * cos + swap(x) * sin``,
    where ``swap`` exchanges the two halves of a head.
    """
    with torch.inference_mode(False):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        positions = torch.arange(n_positions, dtype=torch.float32)
        angles = positions[:, None] * (1.0 / base**exponents)
        sin = angles.sin()
        table = angles.cos().repeat(1, 2), torch.cat([-sin, sin], dim=-1)
        return table[0].to(device), table[1].to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` (..., T, D) by rows of the table, ``cos`` and ``sin``, each (T, D)."""
    swapped = torch.roll(x, x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)
