"""Weights in int8, with a scale a row: a quarter of fp32's bytes to read for every token.

A row is an output of the layer (of the embedding: a token), so that a product needs its scale only
once, after the sum. The largest weight of a row becomes 127 exactly; so weights that were rounded
once give the same integers again, and rounded weights are all that has to be handed on.
"""

import torch
from torch import Tensor

LEVELS = 127
"""Steps on either side of zero; -128 is not used, so that the grid is symmetric."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` (N, M) as int8 (N, M) and fp32 scales (N,): ``int8 * scale[:, None]`` is near it.

    Near means within half a scale, and so within 1/254 of the row's largest weight.
    """
    scale = weight.float().abs().amax(dim=1) / LEVELS
    divisor = torch.where(scale > 0, scale, 1.0)  # a row of zeros stays one
    return (weight.float() / divisor[:, None]).round().to(torch.int8), scale


def dequantise(values: Tensor, scale: Tensor) -> Tensor:
    """The weights (N, M) in fp32 that int8 ``values`` (N, M) and ``scale`` (N,) stand for."""
    return values.float() * scale[:, None]


def round_to_int8(weight: Tensor) -> Tensor:
    """``weight`` (N, M) in fp32, each value one that int8 can hold."""
    return dequantise(*quantise(weight))
