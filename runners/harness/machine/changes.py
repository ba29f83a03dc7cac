"""The differences between two cells' environment.json, as lines for people.

Facts that only disturb a measurement (load, free memory, the present clock rate, other processes)
do not count as differences, and neither does the name of the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_VERSIONS = {
    "python": "python",
    "implementation": "python implementation",
    "platform": "system",
    "gpu.driver": "gpu driver",
    "gpu.cuda": "cuda of torch",
}
_HARDWARE = {
    "cpu.model": "cpu model",
    "cpu.cores": "physical cores",
    "cpu.logical": "logical cores",
    "cpu.usable": "usable cores",
    "cpu.affinity": "cpu affinity",
    "cpu.quota": "cpu quota",
    "cpu.governor": "cpu governor",
    "cpu.mhz_max": "cpu max MHz",
    "cpu.capability": "cpu capability",
    "threads.torch": "torch threads",
    "threads.interop": "torch interop threads",
    "memory_bytes": "memory",
    "memory_limit_bytes": "memory limit",
    "gpu.name": "gpu",
    "gpu.memory_bytes": "gpu memory",
    "gpu.compute_capability": "gpu compute capability",
    "gpu.sm_mhz_max": "gpu max MHz",
    "gpu.power_limit_w": "gpu power limit W",
}
"""The label of each fact, in the order in which they are listed."""


@dataclass(frozen=True)
class Difference:
    """Something that may explain why two cells differ."""

    kind: str
    """``code``, ``versions`` or ``hardware``; the last includes threads and their settings."""
    line: str
    """The difference, such as ``torch 2.13.0 -> 2.14.1``."""


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    """All differences by kind: code, versions, hardware.

    A fact that is missing in one of the two, because that one is older, is left out.
    """
    found = [
        Difference("code", f"code: {line}")
        for line in _code(old.get("code") or {}, new.get("code") or {})
    ]
    names = {name for environment in (old, new) for name in environment.get("settings", {})}
    before, after = _facts(old, names), _facts(new, names)
    for kind, label in before:
        one, other = before[kind, label], after.get((kind, label))
        if other is not None and not _same(label, one, other):
            found.append(Difference(kind, f"{label} {one} -> {other}"))
    return found


def _same(label: str, one: str, other: str) -> bool:
    """Whether two facts agree. Older records may leave out the build of torch (+cu130)."""
    if label == "torch" and ("+" in one) != ("+" in other):
        return one.partition("+")[0] == other.partition("+")[0]
    return one == other


def _facts(environment: dict[str, Any], settings: set[str]) -> dict[tuple[str, str], str]:
    """The facts of an environment, by kind and label."""
    found: dict[tuple[str, str], str] = {}
    flat = dict(_flat(environment))
    if "gpu" in environment and environment["gpu"] is None:
        flat["gpu.name"] = None
    for kind, labels in (("versions", _VERSIONS), ("hardware", _HARDWARE)):
        for key, label in labels.items():
            if key in flat:
                found[kind, label] = _shown(key, flat[key])
        if kind == "versions":
            for name, version in environment.get("packages", {}).items():
                found[kind, name] = _shown(name, version)
    if "settings" in environment:
        for name in sorted(settings):
            found["hardware", name] = environment["settings"].get(name, "unset")
    return found


def _flat(environment: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in environment.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", fact) for inner, fact in value.items())
        else:
            yield key, value


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "none"
    if key.endswith("_bytes"):
        return f"{value / 1e9:.1f} GB"
    if isinstance(value, list):
        return _ranges(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ranges(numbers: list[int]) -> str:
    """The numbers as ranges: [0, 1, 2, 5] gives ``0-2,5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _code(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield one line if the sources differ; none if all are equal, whatever the commit."""
    digests = old.get("sha256"), new.get("sha256")
    one, other = _source(old), _source(new)
    if not old or not new or (digests[0] == digests[1] and (digests[0] or one == other)):
        return
    if one == other:
        one, other = (f"{one}, sources {str(digest)[:7]}" for digest in digests)
    if one.startswith("commit "):
        other = other.removeprefix("commit ")
    yield f"{one} -> {other}"


def _source(code: dict[str, Any]) -> str:
    if code.get("commit"):
        return f"commit {code['commit'][:7]} ({'dirty' if code.get('dirty') else 'clean'})"
    return f"version {code.get('version')}"
