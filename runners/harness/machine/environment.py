"""Collects the facts about the machine and the code that are recorded with every cell.

A fact that the platform does not tell is left empty. Nothing here is called inside timed code.
"""

import hashlib
import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from runners.harness.machine import gpu, system
from tinygpt import __version__

ROOT = Path(__file__).resolve().parents[3]
"""The checkout, or the folder that the installed packages are in."""
PACKAGES = (
    *("torch", "mlflow", "regex", "hydra-core", "omegaconf", "pandas", "numpy", "scipy"),
    *("safetensors", "psutil", "rich", "filelock", "matplotlib", "pyyaml", "nvidia-ml-py"),
    *("pydantic", "jinja2", "tokenizers"),
)
_SOURCES = ("tinygpt", "runners")
_PLAIN = ("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
"""Options that make a diff applicable, whatever the user's own settings are."""
_SETTINGS = ("OMP_", "KMP_", "MKL_", "GOMP_", "ATEN_CPU_", "CUDA_VISIBLE_", "PYTORCH_")
"""Prefixes of the environment variables that affect torch's speed."""


@lru_cache(maxsize=1)
def collect() -> dict[str, Any]:
    """The machine and its software as a JSON-like dict: facts that do not change in a process."""
    import torch

    names = sorted(name for name in os.environ if name.startswith(_SETTINGS))
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu": system.cpu() | {"capability": torch.backends.cpu.get_cpu_capability()},
        "settings": {name: os.environ[name] for name in names},
        **system.memory(),
        "gpu": gpu.facts(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "packages": {name: _version(name) for name in PACKAGES},
        "code": {key: value for key, value in code().items() if key != "diff"},
    }


def threads() -> dict[str, Any]:
    """The numbers of threads that torch uses now; they are set for each cell."""
    import torch

    return {"torch": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}


def state() -> dict[str, Any]:
    """Facts that change from moment to moment and disturb a measurement. They are recorded at the
    start and the end of a cell.
    """
    return {
        "load_average": system.load_average(),
        "memory_available_bytes": system.available_bytes(),
        "cpu_mhz": system.mhz(),
        "gpu_state": gpu.state(),
    }


@lru_cache(maxsize=1)
def code() -> dict[str, Any]:
    """Version, git commit, branch, dirty flag and diff of tinygpt's code, and a digest of its
    sources.

    Outside a checkout, or without git, there are only the version and the digest.
    """
    found: dict[str, Any] = {"version": __version__} | _git_facts()
    sources = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            sources.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found | {"sha256": sources.hexdigest()}


def reset_peak_memory(device: str) -> None:
    """Start anew the peak that ``peak_memory_bytes`` reports, where the platform can."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_memory_bytes(device: str) -> int | None:
    """The most memory held since ``reset_peak_memory``: by torch on a GPU, otherwise by the process
    (Linux; None elsewhere).
    """
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    return _of_process("VmHWM")


def mapped_bytes() -> int | None:
    """Bytes of files that are mapped into the process, such as libraries; they are part of its
    peak, and the system can drop them (Linux; None elsewhere).
    """
    return _of_process("RssFile")


def _of_process(name: str) -> int | None:
    for line in (system.read("proc/self/status") or "").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _version(package: str) -> str | None:
    """The installed version of a package. For torch it includes the build (2.14.1+cu130), which the
    package's metadata may leave out.
    """
    if package == "torch":
        import torch

        return str(torch.__version__)
    try:
        text = metadata.distribution(package).read_text("METADATA") or ""
    except metadata.PackageNotFoundError:
        return None
    # metadata.version parses whole READMEs, which takes 40 ms for all packages; this takes 5 ms.
    return next((line[9:] for line in text.splitlines() if line.startswith("Version: ")), None)


def _git_facts() -> dict[str, Any]:
    """Commit, branch, dirty flag and diff, from one or two calls of git, since each is slow.

    A file that git does not track makes the checkout dirty as well; it is named, but not part of
    the diff. Without git or a commit the result is empty.
    """
    status = (ROOT / ".git").exists() and _git(
        *("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all"), "--", *_SOURCES
    )
    if not status:
        return {}
    lines = status.split("\0")
    told = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    commit, branch = told.get("branch.oid"), told.get("branch.head")
    if not commit or commit == "(initial)":
        return {}
    untracked = [line[2:] for line in lines if line.startswith("? ")]
    changed = any(line.startswith(("1 ", "2 ", "u ")) for line in lines)
    diff = _git("diff", *_PLAIN, "HEAD", "--", *_SOURCES) if changed else None
    return {
        "commit": commit,
        "branch": None if branch == "(detached)" else branch,
        "dirty": changed or bool(untracked),
        "untracked": untracked,
        "diff": diff or "",
    }


def _git(*arguments: str) -> str | None:
    # In a git hook GIT_DIR may name another repository. Without locks git leaves the index alone.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=10, check=True, env=own)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
