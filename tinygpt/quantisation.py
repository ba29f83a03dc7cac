"""Weights in int8 with one scale per row: a quarter of the bytes of fp32 to read for each token.

A row holds the weights of one output of a layer, or of one token of the embedding, so a product
applies the scale once, after the sum. The largest weight of a row becomes exactly 127. Therefore
weights that were rounded once give the same integers again, and it is enough to pass on the rounded
weights.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AT_ONCE = 2**18
"""Integers that are made floats at a time: as many as stay in a core's cache."""
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


class Int8Linear(nn.Module):
    """A linear layer that holds its matrix as integers and multiplies by a block of rows at a time.

    It takes a quarter of the memory of an ``nn.Linear``, and is slower for few inputs.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight, self.weight_scale = _empty(outputs, inputs)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (..., M) times the matrix, (..., N)."""
        outputs, inputs = self.weight.shape
        step = min(outputs, max(1, AT_ONCE // inputs))
        y, floats = x.new_empty(*x.shape[:-1], outputs), x.new_empty(step, inputs)
        for start in range(0, outputs, step):
            block = self.weight[start : start + step]
            y[..., start : start + step] = F.linear(x, floats[: len(block)].copy_(block))
        y *= self.weight_scale
        return y if self.bias is None else y + self.bias


class Int8Embedding(nn.Module):
    """An embedding that holds its vectors as integers."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.weight, self.weight_scale = _empty(entries, width)

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors (..., width) of ``ids`` (...)."""
        return self.weight[ids].float() * self.weight_scale[ids][..., None]


def _empty(outputs: int, inputs: int) -> tuple[nn.Parameter, nn.Parameter]:
    weight = torch.empty(outputs, inputs, dtype=torch.int8)
    return nn.Parameter(weight, requires_grad=False), nn.Parameter(
        torch.empty(outputs), requires_grad=False
    )
