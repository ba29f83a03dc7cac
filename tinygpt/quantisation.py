"""Weights in int8 with one scale per row: a quarter of the bytes of fp32 to read for each token.

A row holds the weights of one output of a layer, or of one token of the embedding, so a product
applies the scale once, after the sum. The largest weight of a row becomes exactly 127. Therefore
weights that were rounded once give the same integers again, and it is enough to pass on the rounded
weights.
"""

import torch
from torch import Tensor

LEVELS = 127
"""Integers on either side of zero; -128 is not used, so that they are symmetric."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round ``weight`` (N, M) to int8 (N, M) with fp32 scales (N,).

    ``int8 * scale[:, None]`` differs from ``weight`` by at most half a scale, which is 1/254 of the
    row's largest weight.
    """
    if weight.is_meta:  # has a shape and no values; torch would derive the results' shapes slowly
        return weight.to(torch.int8), weight.new_empty(len(weight), dtype=torch.float32)
    scale = weight.float().abs().amax(dim=1) / LEVELS
    divisor = torch.where(scale > 0, scale, 1.0)  # a row of zeros stays zero
    return (weight.float() / divisor[:, None]).round().to(torch.int8), scale


def dequantise(values: Tensor, scale: Tensor) -> Tensor:
    """The fp32 weights (N, M) of int8 ``values`` (N, M) and their ``scale`` (N,)."""
    return values.float() * scale[:, None]


def round_to_int8(weight: Tensor) -> Tensor:
    """``weight`` (N, M) rounded to the values that int8 can represent, in fp32."""
    return dequantise(*quantise(weight))
