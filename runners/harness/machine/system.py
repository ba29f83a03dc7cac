"""Facts about the processor and the memory, and how much of them this process may use.

Affinity and control groups limit its share. A fact that the platform cannot tell is None: macOS and
Windows have neither /proc nor control groups.
"""

import ctypes
import gc
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import psutil

T = TypeVar("T")

SYSTEM = Path("/")
"""The folder in which proc/ and sys/ are."""
_CPU0 = "sys/devices/system/cpu/cpu0/cpufreq"
_SHORTEST_S = 0.5
"""The shortest span, in seconds, over which the cores' time is known well enough: the system counts
it in hundredths of a second.
"""
_UNLIMITED = 2**60
"""A limit of at least this many bytes means no limit in version 1 of the control groups."""


def cpu() -> dict[str, Any]:
    """The processor, and the share of it that this process may use."""
    return {
        "model": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "logical": psutil.cpu_count(),
        "usable": usable_cores(),
        "affinity": affinity(),
        "quota": cpu_quota(),
        "governor": read(f"{_CPU0}/scaling_governor"),
        "mhz_max": _mhz("cpuinfo_max_freq", "max"),
    }


def memory() -> dict[str, Any]:
    """The sizes of the memory, in bytes, that do not change, unlike ``available_bytes``."""
    return {
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": min((limit for limit, _ in _memory_limits()), default=None),
        "swap_bytes": told(lambda: psutil.swap_memory().total),
    }


def affinity() -> list[int] | None:
    """The logical CPUs that this process may run on; unknown on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return told(lambda: sorted(psutil.Process().cpu_affinity() or []) or None)


def cpu_quota() -> float | None:
    """The number of cores whose time the control groups allow: the tightest limit, or None."""
    quotas = []
    for folder in _groups("cpu"):
        words = (read(f"{folder}/cpu.max") or "").split()
        if not words:
            words = [read(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        if all(word.isdigit() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def give_back_memory() -> None:
    """Collect garbage, and return free memory to the system where the C library keeps it (glibc).

    With as many modules as a run imports, that takes 0.1 to 0.2 s.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by the control groups' quota."""
    bound, quota = affinity(), cpu_quota()
    cores = len(bound) if bound else os.cpu_count() or 1
    return cores if quota is None else min(cores, max(1, int(quota)))


def available_bytes() -> int:
    """Memory a process can still take without swapping, cut by the control groups' limits."""
    left = (max(0, limit - used) for limit, used in _memory_limits())
    return min((int(psutil.virtual_memory().available), *left))


def mhz() -> float | None:
    """The present clock rate of the first processor, in MHz."""
    return _mhz("scaling_cur_freq", "current")


def load_average() -> list[float] | None:
    """The mean number of runnable processes over the last 1, 5 and 15 minutes; None if unknown."""
    return told(lambda: list(os.getloadavg()))


class CpuTime(NamedTuple):
    """The time that the cores available to this process have worked so far, in seconds."""

    at: float
    """When it was read, by ``time.perf_counter``."""
    cores: int
    busy: float
    """Time of all processes together, including time that a hypervisor gave to other machines."""
    own: float
    """Time of this process."""


def cpu_time() -> CpuTime | None:
    """The time that the cores have worked so far; ``others_share`` compares two of these."""
    return told(_cpu_time)


def _cpu_time() -> CpuTime:
    every, bound = psutil.cpu_times(percpu=True), affinity() or []
    mine = [every[core] for core in bound if core < len(every)] or every
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    busy = sum(getattr(core, name, 0.0) for core in mine for name in names)
    return CpuTime(time.perf_counter(), len(mine), busy, time.process_time())


def others_share(start: CpuTime | None, end: CpuTime | None) -> float | None:
    """The share of the cores' time that other processes took between two moments.

    None if the platform does not tell, or if the span is too short.
    """
    if start is None or end is None or end.at - start.at < _SHORTEST_S:
        return None
    others = (end.busy - start.busy) - (end.own - start.own)
    return min(1.0, max(0.0, others / (end.cores * (end.at - start.at))))


def read(path: str) -> str | None:
    """The text of a system file, given by its path below the root; None if it cannot be read."""
    try:
        return (SYSTEM / path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def told(question: Callable[[], T]) -> T | None:
    """The answer of ``question``; None if this platform has none, which may raise any exception."""
    try:
        return question()
    except Exception:
        return None


def _groups(controller: str) -> Iterator[PurePosixPath]:
    """The folders of this process's control groups, and of all groups that contain them, in version
    1 and 2.

    In a container the names may be those of the machine; the root is then the container's group.
    """
    for line in (read("proc/self/cgroup") or "").splitlines():
        _, controllers, inside = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = PurePosixPath("sys/fs/cgroup") / (controller if controllers else "")
        below = PurePosixPath(inside.lstrip("/"))
        yield from (mount / here for here in (below, *below.parents))


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Bytes allowed and bytes in use of each control group with a limit.

    Cached pages of files that were not read lately do not count as in use, since the system drops
    them when memory is needed.
    """
    for folder in _groups("memory"):
        limit = read(f"{folder}/memory.max") or read(f"{folder}/memory.limit_in_bytes") or ""
        used = read(f"{folder}/memory.current") or read(f"{folder}/memory.usage_in_bytes") or ""
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED:
            lines = (read(f"{folder}/memory.stat") or "").splitlines()
            parts = dict(line.split(" ", 1) for line in lines if " " in line)
            old = parts.get("total_inactive_file") or parts.get("inactive_file") or "0"
            yield int(limit), int(used) - int(old)


def _mhz(name: str, field: str) -> float | None:
    khz = read(f"{_CPU0}/{name}")
    if khz and khz.isdigit():
        return int(khz) / 1000
    fields = _cpuinfo()
    if fields:  # Linux; psutil would ask every core, which takes seconds where there are many
        return told(lambda: float(fields["cpu MHz"])) if field == "current" else None
    return told(lambda: float(getattr(psutil.cpu_freq(), field)) or None)


def _cpu_model() -> str | None:
    fields = _cpuinfo()
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:  # ARM, which gives numbers
        return f"{fields.get('CPU implementer', 'ARM')} {fields['CPU part']}"
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = told(lambda: subprocess.check_output(command, text=True, timeout=5).strip())
        if name:
            return name
    return platform.processor() or None


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor only; reading those of hundreds takes long."""
    fields = {}
    try:
        with (SYSTEM / "proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                if not line.strip():
                    break
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
    except (OSError, ValueError):
        return {}
    return fields
