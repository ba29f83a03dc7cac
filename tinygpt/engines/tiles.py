"""Products in bf16 on a processor's tile units (Intel's AMX), by Inductor's own matrix product.

Inductor lays such a matrix out anew, in blocks of outputs with pairs of inputs side by side, and
keeps that as a constant of its own. The constants are numbered in the order of the products. Our
packages hold code only, so the same is done here whenever one is loaded; the sizes of the blocks,
which are Inductor's choice, stand in the source that the package has with it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import torch
import torch.nn.functional as F
from torch import Tensor

OPTIONS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
"""What makes Inductor write the product itself; there is one way, so nothing is tried out."""

Shape = tuple[int, int, int]
"""Of a matrix laid out anew: blocks, inputs M, outputs a block."""


def laid_out(matrices: Sequence[Tensor], package: Path) -> dict[str, Tensor]:
    """Copies of ``matrices``, in the order of their products, by the names of the constants.

    Raises RuntimeError where those of the package are others: a torch unlike those we know.
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
    """``matrix`` (N, M) as a tensor of ``shape``, the last block filled up with zeros.

    In a block, inputs 2i and 2i + 1 of an output are neighbours; then come those of the next one.
    """
    blocks, inputs, outputs = shape
    full = F.pad(matrix, (0, 0, 0, blocks * outputs - len(matrix)))
    return full.view(blocks, outputs, inputs // 2, 2).transpose(1, 2).reshape(shape)


def _constants(package: Path) -> dict[str, Shape]:
    """The constants that are Inductor's own and have three dimensions, in their order."""
    with ZipFile(package) as files:
        (source,) = [name for name in files.namelist() if name.endswith(".wrapper.cpp")]
        text = files.read(source).decode()
    found = re.findall(r'\.name = "(constant\d+)";.*?\.shape = \{(.*?)\}', text, re.DOTALL)
    sizes = {name: [int(size) for size in re.findall(r"\d+", shape)] for name, shape in found}
    return {name: (of[0], of[1], of[2]) for name, of in sizes.items() if len(of) == 3}
