"""Compiles in a process of its own, so that the memory that compiling takes is given back.

torch keeps copies of the weights and hundreds of megabytes of graphs after it has compiled a
module. In this process that would count as what the model needs. The other process is told the
tensors' shapes and not their values, since code does not depend on them.
"""

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from warnings import simplefilter

import torch
from torch import Tensor, nn

from tinygpt.engines import toolchain

_REFUSED, _NO_MEMORY = 3, 4
"""Exit statuses of the other process: its last line is the message of a ValueError, or of a
MemoryError. Any other one than 0 is an error that was not expected."""


class Job(NamedTuple):
    """What is to be compiled."""

    module: nn.Module
    example: tuple[Tensor, ...]
    """Inputs of the module."""
    dynamic: tuple[Any, ...]
    """The dimensions of ``example`` that may vary, as torch.export takes it; () for none."""
    options: dict[str, Any]
    """Options for Inductor."""


def compile_package(job: Job, path: Path) -> int:
    """Write a package of ``job`` to ``path``; returns the most bytes that the process took.

    Raises ValueError, one line, if the module or the machine is the reason that it fails.
    """
    told = io.BytesIO()
    _Pickler(told).dump((job, path, torch.get_num_threads()))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=told.getvalue(),
        capture_output=True,
        check=False,
        env=environment,
    )
    if done.returncode == 0:
        return int(done.stdout.split()[-1])
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    message = lines[-1] if lines else f"the compiling process ended with {done.returncode}"
    if done.returncode == _REFUSED:
        raise ValueError(message)
    if done.returncode in (_NO_MEMORY, -9):  # -9: the system ended it for want of memory
        raise MemoryError(message)
    raise RuntimeError(f"{message}\n" + "\n".join(lines[-30:]))


def _main() -> int:
    """Compile the job that is on standard input."""
    simplefilter("ignore")  # torch warns about its own code
    job, path, threads = _Unpickler(io.BytesIO(sys.stdin.buffer.read())).load()
    torch.set_num_threads(threads)
    toolchain.has_tiles()  # asks the system for them, as each process has to
    try:
        with torch.no_grad(), toolchain.readable_errors("engine=compiled"):
            _compile(job, path)
        print(_peak_bytes())
    except (ValueError, MemoryError, torch.OutOfMemoryError) as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return _REFUSED if isinstance(error, ValueError) else _NO_MEMORY
    return 0


def _peak_bytes() -> int:
    """The most memory that this process has taken; 0 on Windows, where it cannot be asked so."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _compile(job: Job, path: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    program = torch.export.export(job.module, job.example, dynamic_shapes=job.dynamic or None)
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=job.options)


class _Pickler(pickle.Pickler):
    """Writes a tensor as its shape; the same tensor twice stays the same tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        number = self._numbers.setdefault(id(obj), len(self._numbers))
        is_parameter = isinstance(obj, nn.Parameter)
        return number, is_parameter, obj.shape, obj.stride(), obj.dtype, obj.device


class _Unpickler(pickle.Unpickler):
    """Makes tensors of the shapes that ``_Pickler`` wrote, with whatever values are in memory."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        number, is_parameter, shape, stride, dtype, device = pid
        if number not in self._tensors:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
            self._tensors[number] = nn.Parameter(tensor, False) if is_parameter else tensor
        return self._tensors[number]


if __name__ == "__main__":
    sys.exit(_main())
