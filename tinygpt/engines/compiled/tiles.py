"""bf16 products on a processor's tile units (Intel's AMX), by Inductor's own matrix product.

Inductor rearranges such a matrix into blocks of outputs with pairs of inputs side by side, and
makes the result a constant of the package. The constants are numbered in the order of the products.
Our packages hold code only, so the matrices are rearranged here whenever a package is loaded.
Inductor chooses the sizes of the blocks; they are read from the source text in the package.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import torch
import torch.nn.functional as F
from torch import Tensor

OPTIONS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
"""Make Inductor generate the product itself. CPP is the only backend, so it tries no others."""

Shape = tuple[int, int, int]
"""The shape of a rearranged matrix: blocks, inputs M, outputs per block."""


def laid_out(matrices: Sequence[Tensor], package: Path) -> dict[str, Tensor]:
    """Rearranged copies of ``matrices``, given in the order of their products, by constants' names.

    Raises RuntimeError if the package's constants do not fit, as with an unknown version of torch.
    """
    constants = _constants(package)
    known = len(constants) == len(matrices) and all(
        inputs == matrix.shape[1] and blocks * outputs >= len(matrix)
        for (blocks, inputs, outputs), matrix in zip(constants.values(), matrices, strict=True)
    )
    if not known:
        raise RuntimeError(
            f"{len(matrices)} matrices, {len(constants)} constants in {package}: torch "
            f"{torch.__version__} lays bf16 matrices out in an unknown way; choose precision=fp32 "
            "or engine=eager"
        )
    pairs = zip(constants.items(), matrices, strict=True)
    return {name: lay_out(matrix, shape) for (name, shape), matrix in pairs}


def lay_out(matrix: Tensor, shape: Shape) -> Tensor:
    """``matrix`` (N, M) as a tensor of ``shape``, with the last block padded with zeros.

    In a block, inputs 2i and 2i + 1 of one output lie side by side, followed by those of the next
    output.
    """
    blocks, inputs, outputs = shape
    full = F.pad(matrix, (0, 0, 0, blocks * outputs - len(matrix)))
    return full.view(blocks, outputs, inputs // 2, 2).transpose(1, 2).reshape(shape)


def _constants(package: Path) -> dict[str, Shape]:
    """Inductor's own constants of three dimensions, in the order of their numbers."""
    with ZipFile(package) as files:
        (source,) = [name for name in files.namelist() if name.endswith(".wrapper.cpp")]
        text = files.read(source).decode()
    found = re.findall(r'\.name = "(constant\d+)";.*?\.shape = \{(.*?)\}', text, re.DOTALL)
    sizes = {name: [int(size) for size in re.findall(r"\d+", shape)] for name, shape in found}
    return {name: (of[0], of[1], of[2]) for name, of in sizes.items() if len(of) == 3}
