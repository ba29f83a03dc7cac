"""What machine and which code: recorded with every cell, collected once a process.

What a platform cannot tell is left empty. Nothing here is called inside timed code.
"""

import hashlib
import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from tinygpt import __version__

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the folder that the installed packages are in."""
_PACKAGES = (
    "torch",
    "mlflow",
    "hydra-core",
    "omegaconf",
    "pandas",
    "numpy",
    "scipy",
    "regex",
    "safetensors",
)


@lru_cache(maxsize=1)
def collect() -> dict[str, Any]:
    """The machine and its software, as a JSON-like dict."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu": {
            "model": _cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "logical": psutil.cpu_count(),
            "usable": usable_cores(),
            "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "code": {key: value for key, value in code().items() if key != "diff"},
    }


def load_average() -> list[float] | None:
    """Runnable processes over the last 1, 5 and 15 minutes, where the platform counts them."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by the cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = (_read("/sys/fs/cgroup/cpu.max") or "").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def available_bytes() -> int:
    """Memory a process can still take without swapping, cut by the cgroup's limit."""
    available = int(psutil.virtual_memory().available)
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit and used and limit.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available


@lru_cache(maxsize=1)
def code() -> dict[str, Any]:
    """Version, git commit, branch, dirty flag and diff of our own code, and a digest of it all.

    Outside a checkout, and without git, the digest is that of the installed sources.
    """
    found: dict[str, Any] = {"version": __version__}
    commit = _git("rev-parse", "HEAD") if (ROOT / ".git").exists() else None
    if commit:
        diff = _git("diff", "HEAD", "--", "tinygpt", "runners") or ""
        found |= {"commit": commit, "branch": _git("rev-parse", "--abbrev-ref", "HEAD")}
        found |= {"dirty": bool(diff), "diff": diff}
    sources = hashlib.sha256()
    for folder in ("tinygpt", "runners"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            sources.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found | {"sha256": sources.hexdigest()}


def reset_peak_memory(device: str) -> None:
    """Let the peak that ``peak_memory_bytes`` tells start again from here, where that can be."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_memory_bytes(device: str) -> int | None:
    """The most held since ``reset_peak_memory``: on a GPU by torch, else by the process (Linux)."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    for line in (_read("/proc/self/status") or "").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
