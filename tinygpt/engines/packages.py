"""Compiled code that is kept: made once for a shape, then loaded in milliseconds.

A package holds code only. It is named by everything that the code depends on, so nothing stale is
ever found, and may be deleted at any time. It comes into its place whole: two processes that make
the same one do twice the work, and no harm.
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
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn

from tinygpt.engines import compile_times, tiles, toolchain

OPTIONS = {
    "aot_inductor.package_constants_in_so": False,  # code only: weights are lent when loaded
    "cpp.enable_floating_point_contract_flag": "fast",  # fused multiply-add
    "cpp.max_horizontal_fusion_size": 16,  # all rows of a batch in one pass over the weights
}

Report = Callable[[str], None]
Run = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Loaded:
    """Compiled code over the tensors of a module."""

    run: Run
    """The module's inputs to its outputs. The code knows no strides: inputs are contiguous."""
    compile_s: float
    """Seconds spent on compiling; 0 where the package was there."""
    tensors: dict[str, Tensor]
    """What the code reads and writes where it lies, so that it has to live as long."""


def load(
    module: nn.Module,
    example: Sequence[Tensor],
    dynamic: Sequence[dict[int, Any]] = (),
    report: Report = lambda phase: None,
    tiled: Sequence[Tensor] = (),
) -> Loaded:
    """``module`` as compiled code; ``report("compile")`` where that is not kept from before.

    ``dynamic`` names the dimensions of ``example`` that may vary, if there are any; ``tiled`` are
    the matrices that are multiplied by tiles, in the order of their products.
    """
    from torch._inductor import aoti_load_package

    path, seconds = path_of(module, example), 0.0
    if not kept(path):
        report("compile")
        start = perf_counter()
        options = OPTIONS | (tiles.OPTIONS if tiled else {}) | toolchain.options()
        _compile(module, tuple(example), tuple(dynamic), options, path)
        seconds = perf_counter() - start
        compile_times.add(_part(module, example, path), seconds)
    try:
        package = aoti_load_package(str(path), run_single_threaded=True)
    except RuntimeError:  # damaged: a disk that was full, a copy that was cut
        if seconds:
            raise
        path.unlink()
        return load(module, example, dynamic, report, tiled)
    tensors = module.state_dict() | (tiles.laid_out(tiled, path) if tiled else {})
    used = {name: tensors[name] for name in package.get_constant_fqns()}  # a tied one only once
    package.load_constants(used, check_full_update=True, user_managed=True)
    return Loaded(package.loader.run, seconds, used)


def _compile(
    module: nn.Module,
    example: tuple[Tensor, ...],
    dynamic: tuple[dict[int, Any], ...],
    options: dict[str, Any],
    path: Path,
) -> None:
    from torch._inductor import aoti_compile_and_package

    if reason := toolchain.unwritable(path.parent):
        raise ValueError(
            f"{path.parent}: compiled code cannot be kept there ({reason}); set TINYGPT_CACHE to a "
            "folder that can be written"
        )
    if reason := toolchain.choose_folder():
        raise ValueError(reason)
    with torch.no_grad(), TemporaryDirectory(dir=path.parent) as folder, catch_warnings():
        simplefilter("ignore")  # torch's, about torch
        program = torch.export.export(module, example, dynamic_shapes=dynamic or None)
        new = Path(folder) / path.name
        with toolchain.told("engine=compiled"):
            aoti_compile_and_package(program, package_path=str(new), inductor_configs=options)
        new.replace(path)


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
        shape=compile_times.shape(model, tensors[0].device.type, torch.get_num_threads()),
    )


def kept(path: Path) -> bool:
    """Whether there is such a package; none where its folder cannot be read."""
    try:
        return path.is_file()
    except OSError:
        return False


def path_of(module: nn.Module, example: Sequence[Tensor]) -> Path:
    """Where the code of ``module`` lies: named by everything that it depends on."""
    tensors = [*module.state_dict().items(), *enumerate(example)]
    facts = (
        torch.__version__,
        toolchain.machine(tensors[0][1].device),
        toolchain.compiler(),
        toolchain.has_tiles(),
        torch.get_num_threads(),  # is written into the code
        _sources(module),
        type(module).__name__,
        getattr(module, "config", None),
        [(name, tuple(t.shape), str(t.dtype), str(t.device)) for name, t in tensors],
        sorted((OPTIONS | tiles.OPTIONS).items()),
    )
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return toolchain.cache_folder() / f"{type(module).__name__.lower()}-{digest}.pt2"


def _sources(module: nn.Module) -> str:
    """The text of our modules that are traced, so that no edit meets code from before it."""
    names = {type(part).__module__ for part in module.modules()}
    if "tinygpt.model" in names:
        names.add("tinygpt.rope")  # its functions are no modules
    ours = sorted(name for name in names if name.startswith("tinygpt."))
    return "".join(inspect.getsource(sys.modules[name]) for name in ours)
