"""Compiled code on disk: compiled once per shape, then loaded in milliseconds.

A package holds code and no weights. Its name is a digest of everything that the code depends on, so
a package that is found is never out of date. Packages may be deleted at any time. A new one is
moved into place when it is complete, so two processes may compile the same one at the same time.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from tinygpt.engines import compile_times, toolchain
from tinygpt.engines.base import Report, quiet
from tinygpt.engines.compiled import apart, tiles

OPTIONS = {
    "aot_inductor.package_constants_in_so": False,  # code only; weights are handed over on loading
    "cpp.enable_floating_point_contract_flag": "fast",  # fused multiply-add
    "cpp.max_horizontal_fusion_size": 16,  # all rows of a batch in one pass over the weights
}

Run = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Loaded:
    """Compiled code that is bound to the tensors of a module."""

    run: Run
    """Turns the module's inputs into its outputs. The inputs must be contiguous."""
    compile_s: float
    """Seconds spent on compiling; 0 if the package was on disk."""
    compile_peak_bytes: int
    """The most memory that the compiling process took; 0 if the package was on disk."""
    tensors: dict[str, Tensor]
    """The tensors that the code reads and writes in place; they must live as long as it runs."""


def load(
    module: nn.Module,
    example: Sequence[Tensor],
    dynamic: Sequence[Any] = (),
    report: Report = quiet,
    tiled: Sequence[Tensor] = (),
) -> Loaded:
    """Load ``module`` as compiled code; compile it first, after ``report("compile")``, if need be.

    ``dynamic`` names the dimensions of ``example`` that may vary, as torch.export takes it.
    ``tiled`` are the matrices that are multiplied on tile units, in the order of their products.
    """
    from torch._inductor import aoti_load_package

    path, seconds, peak = path_of(module, example), 0.0, 0
    if not kept(path):
        report("compile")
        start = perf_counter()
        options = OPTIONS | (tiles.OPTIONS if tiled else {}) | toolchain.options()
        peak = _compile(apart.Job(module, tuple(example), tuple(dynamic), options), path)
        seconds = perf_counter() - start
        compile_times.add(_part(module, example, path), seconds)
    try:
        package = aoti_load_package(str(path), run_single_threaded=True)
    except RuntimeError:  # the package is damaged, for example by a full disk
        if seconds:
            raise
        path.unlink()
        return load(module, example, dynamic, report, tiled)
    tensors = module.state_dict() | (tiles.laid_out(tiled, path) if tiled else {})
    used = {name: tensors[name] for name in package.get_constant_fqns()}  # tied ones only once
    lent = {name: _lent(tensor) for name, tensor in used.items()}
    package.load_constants(lent, check_full_update=True, user_managed=True)
    return Loaded(package.loader.run, seconds, peak, used)


def _lent(tensor: Tensor) -> Tensor:
    """The same memory under a tensor that does not own it.

    torch never lets go of tensors that it was lent, and so would keep the weights of every engine
    that was ever made.
    """
    nbytes = tensor.untyped_storage().nbytes()
    start = tensor.untyped_storage().data_ptr()
    storage = torch._C._construct_storage_from_data_pointer(start, tensor.device, nbytes)
    view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _compile(job: apart.Job, path: Path) -> int:
    if reason := toolchain.unwritable(path.parent):
        raise ValueError(
            f"{path.parent}: compiled code cannot be kept there ({reason}); set TINYGPT_CACHE to a "
            "folder that can be written"
        )
    if reason := toolchain.choose_folder():
        raise ValueError(reason)
    with TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        peak = apart.compile_package(job, new)
        new.replace(path)
    return peak


def _part(module: nn.Module, example: Sequence[Tensor], path: Path) -> compile_times.Part:
    """What the time to compile ``module`` depends on."""
    tensors = list(module.state_dict().values())
    dtypes = {tensor.dtype for tensor in tensors}
    precision = "int8" if torch.int8 in dtypes else "bf16" if torch.bfloat16 in dtypes else "fp32"
    model = getattr(module, "config", None)
    return compile_times.Part(
        key=path.name,
        kind=type(module).__name__.lower(),
        layers=getattr(model, "n_layers", 1),
        batch=len(example[0]),
        precision=precision,
        shape=compile_times.shape(model, example[0].device.type, torch.get_num_threads()),
    )


def kept(path: Path) -> bool:
    """Whether there is such a package; false also if its folder cannot be read."""
    try:
        return path.is_file()
    except OSError:
        return False


def path_of(
    module: nn.Module,
    example: Sequence[Tensor],
    *,
    device: torch.device | None = None,
    threads: int | None = None,
) -> Path:
    """Where the package of ``module`` is kept, under a name made of all that the code depends on.

    ``device`` and ``threads`` are what the code will run with; the defaults are the tensors' device
    and torch's present number of threads. The tensors may be on "meta" if both are given.
    """
    tensors = [*sorted(module.state_dict().items()), *enumerate(example)]
    device = device or tensors[0][1].device
    facts = (
        torch.__version__,
        device.type,
        toolchain.machine(device),
        toolchain.compiler(),
        toolchain.has_tiles(),
        threads or torch.get_num_threads(),  # the number is written into the code
        _sources(module),
        type(module).__name__,
        getattr(module, "config", None),
        [(name, tuple(t.shape), str(t.dtype)) for name, t in tensors],
        sorted((OPTIONS | tiles.OPTIONS).items()),
    )
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return toolchain.cache_folder() / f"{type(module).__name__.lower()}-{digest}.pt2"


def _sources(module: nn.Module) -> str:
    """The source text of our modules that are traced, so that an edit leads to a new package."""
    names = {type(part).__module__ for part in module.modules()}
    if "tinygpt.model" in names:
        names.add("tinygpt.rope")  # has functions only, which modules() does not list
    ours = sorted(name for name in names if name.startswith("tinygpt."))
    return "".join(inspect.getsource(sys.modules[name]) for name in ours)
