"""What code is generated with, the C++ compiler, and what for: the processor or the GPU."""

import platform
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

TILE_FLAGS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
"""What Inductor compiles with where it finds tiles."""
NO_COMPILER = (
    "there is no C++ compiler here; install g++ (Debian, Ubuntu: apt install g++; macOS: "
    "xcode-select --install) or set CXX"
)


@lru_cache
def compiler() -> str:
    """The C++ compiler that Inductor takes, with its version; empty where there is none."""
    command = _command()
    told = _run(command, "--version")
    return "" if told is None else f"{command} {(told.stdout or told.stderr).partition(chr(10))[0]}"


@lru_cache
def has_tiles() -> bool:
    """Whether processor, system and compiler have tile units for bf16 (Intel's AMX).

    The system is asked for them: a process that did not ask may not use them.
    """
    if not torch.cpu.get_capabilities().get("amx_bf16") or not torch.cpu._init_amx():
        return False
    told = _run(_command(), *TILE_FLAGS, "-E", "-x", "c++", "-")
    return told is not None and told.returncode == 0


@lru_cache
def machine(device: torch.device) -> str:
    """What code is generated for: the processor's instruction sets, or the GPU."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {torch.version.cuda}"
    flags = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    isa = torch.backends.cpu.get_cpu_capability()
    return f"{platform.system()} {platform.machine()} {platform.processor()} {isa} {flags}"


def _command() -> str:
    """The compiler's name or path; empty where Inductor finds none."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return get_cpp_compiler()
    except InvalidCxxCompiler:
        return ""


def _run(command: str, *options: str) -> subprocess.CompletedProcess[str] | None:
    """What the compiler says to ``options`` and an empty file; None where there is none."""
    try:
        return subprocess.run(
            [command, *options], input="", capture_output=True, text=True, check=False
        )
    except OSError:
        return None
