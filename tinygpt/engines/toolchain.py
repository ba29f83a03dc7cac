"""The C++ compiler, the machine that code is generated for, and the folders for generated files.

Inductor, torch's code generator, is used by compiled engines and by training. This module also
turns its errors into messages of one line.
"""

import getpass
import logging
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch


def _is_news(record: logging.LogRecord) -> bool:
    """False for torch's warning that a CUDA toolkit is installed without a GPU. Torch logs it
    whenever it looks for a compiler, even one for the CPU, and it would disrupt a progress bar.
    """
    return not str(record.msg).startswith("No CUDA runtime is found")


logging.getLogger("torch.utils.cpp_extension").addFilter(_is_news)

_WHOLE_COPIES = "-mmove-max=256"
TILE_FLAGS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
"""The compiler's options that Inductor uses on a processor with tile units."""


@lru_cache
def compiler() -> str:
    """The C++ compiler that Inductor uses, with its version; empty if there is none."""
    command = _command()
    done = _run(command, "--version")
    return "" if done is None else f"{command} {(done.stdout or done.stderr).partition(chr(10))[0]}"


@lru_cache
def has_tiles() -> bool:
    """Whether processor, system and compiler support tile units for bf16 (Intel's AMX).

    This also asks the system for permission to use them, which each process needs.
    """
    if not torch.cpu.get_capabilities().get("amx_bf16") or not torch.cpu._init_amx():
        return False
    return _accepts(_command(), *TILE_FLAGS)


def is_avx2() -> bool:
    """Whether Inductor's vectors are AVX2's, which load eight bytes by way of memory."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


@lru_cache
def machine(device: torch.device) -> str:
    """Describes what code is generated for: the processor's instruction sets, or the GPU."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {torch.version.cuda}"
    flags = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    isa = torch.backends.cpu.get_cpu_capability()
    return f"{platform.system()} {platform.machine()} {platform.processor()} {isa} {flags}"


def cannot_compile() -> str:
    """Why nothing can be compiled for a CPU here, and the cure; empty if it can."""
    if reason := choose_folder():
        return reason
    if compiler():
        return ""
    given = os.environ.get("CXX")
    what = f"CXX={given} is not a working C++ compiler" if given else "there is no C++ compiler"
    return (
        f"{what} here; install g++ (Debian, Ubuntu: apt install g++; macOS: xcode-select "
        "--install) or set CXX to one"
    )


def choose_folder() -> str:
    """Set ``TORCHINDUCTOR_CACHE_DIR`` to a folder that Inductor can work in.

    The present value, or else Inductor's default, is kept unless the folder cannot be written or
    has a space in its path, which breaks Inductor's command lines. Its files can be made again, so
    another folder will do. Returns why there is no such folder, and the cure; empty if there is
    one. Call this before torch first uses the folder, which it does when weights are made.
    """
    name = f"torchinductor_{_user()}"
    own = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), name))
    for path in (own, cache_folder() / "inductor", Path("/tmp", name), Path("/var/tmp", name)):
        if not _has_space(path) and not unwritable(path):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path.absolute())
            return ""
    return (
        f"{own}: compilers need a folder that can be written and has no space in its path; set "
        "TORCHINDUCTOR_CACHE_DIR to one"
    )


def options() -> dict[str, Any]:
    """Options for Inductor that the machine needs.

    Precompiled headers are always put into the system's temporary folder, so they are turned off if
    its path has a space in it. On AVX2, Inductor's code copies a vector of integers before it loads
    it. GCC copies in two halves, and the load then has to wait until both have reached the cache,
    unless it is told to copy 32 bytes at once. results/compiled_engine.md says what that gains.
    """
    from torch._inductor import config

    found: dict[str, Any] = {}
    if _has_space(Path(tempfile.gettempdir())):
        found |= {"aot_inductor.precompile_headers": False, "cpp_cache_precompile_headers": False}
    if is_avx2() and hasattr(config.cpp, "march") and _accepts(_command(), _WHOLE_COPIES):
        found["cpp.march"] = f"native {_WHOLE_COPIES}"  # the one option that reaches the compiler
    return found


def cache_folder() -> Path:
    """``$TINYGPT_CACHE``, or else ``tinygpt`` in the user's cache folder."""
    if ours := os.environ.get("TINYGPT_CACHE"):
        return Path(ours).absolute()
    users = os.environ.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path.home() / ".cache") / "tinygpt"


def unwritable(folder: Path) -> str:
    """Why ``folder`` cannot be written to, after making it if need be; empty if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


@contextmanager
def readable_errors(what: str) -> Iterator[None]:
    """Turn errors of Inductor or the compiler into a ValueError of one line that names ``what``."""
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.exc import CppCompileError

    try:
        yield
    except (BackendCompilerFailed, CppCompileError) as error:
        cause: BaseException = error
        while isinstance(cause, BackendCompilerFailed):
            cause = cause.inner_exception
        if isinstance(cause, torch.OutOfMemoryError | MemoryError):
            raise cause from None
        output = cause.output if isinstance(cause, CppCompileError) else str(cause)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        said = next((line for line in lines if "error" in line.lower()), *lines[:1] or [""])
        raise ValueError(
            f"{what}: {_command() or 'the compiler'} failed ({type(cause).__name__}: {said}); "
            "set CXX to another compiler, or do without compiling"
        ) from error


def _has_space(path: Path) -> bool:
    return any(map(str.isspace, str(path)))


def _user() -> str:
    """The user's name in the form in which Inductor puts it into the name of its folder."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, ModuleNotFoundError, OSError):
        return "user"


def _command() -> str:
    """The compiler's name or path; empty if Inductor finds none, or has no folder to work in."""
    if choose_folder():
        return ""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return get_cpp_compiler()
    except InvalidCxxCompiler:
        return ""


def _accepts(command: str, *flags: str) -> bool:
    """Whether the compiler knows all ``flags``."""
    done = _run(command, *flags, "-E", "-x", "c++", "-")
    return done is not None and done.returncode == 0


def _run(command: str, *options: str) -> subprocess.CompletedProcess[str] | None:
    """Run the compiler with ``options`` on an empty file; None if there is no such command."""
    try:
        return subprocess.run(
            [command, *options], input="", capture_output=True, text=True, check=False
        )
    except OSError:
        return None
