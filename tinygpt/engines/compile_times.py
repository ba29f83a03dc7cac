"""How long compiling took on this machine, by shape, to predict how long it will take next.

The times are in one small file beside the compiled code. It can be deleted at any time; a damaged
one counts as empty. Two processes that write at once may lose one entry, never the file.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from tinygpt.engines import toolchain

FORMAT = 1
_TYPICAL_S = {"decodestep": 4.5, "windowpass": 4.5, "products": 2.0}
"""Seconds per layer, assumed if nothing was compiled before."""
_FIXED_LAYERS = 2
"""The part of the time that does not depend on the model, counted in layers."""


@dataclass(frozen=True)
class Part:
    """One piece of compiled code, described by what its compile time depends on."""

    key: str
    """Two parts with the same key are the same code on this machine."""
    kind: str
    """The module that is compiled: decodestep, windowpass or products."""
    layers: int
    batch: int
    precision: str
    shape: str
    """All else that the code is compiled for: model, kind of device, threads."""


def shape(model: object, device: str, threads: int) -> str:
    """``Part.shape`` of code for a model's config, a kind of device, and torch's threads."""
    return f"{model} {device} {threads} threads"


class Times:
    """How long past compiles took: parts and their seconds."""

    def __init__(self, known: Mapping[str, tuple[Part, float]]) -> None:
        self._known = known

    def kept(self, part: Part) -> bool:
        """Whether code that equals ``part`` in all but the key was compiled and is still kept."""
        folder = path().parent
        return any(
            replace(other, key=part.key) == part and (folder / other.key).is_file()
            for other, _ in self._known.values()
        )

    def expected_s(self, part: Part, slowness: float = 1.0) -> float:
        """Seconds that compiling ``part`` will take: as long as it took before, if it is known.

        Otherwise the median of the known parts of its kind that are most like it, scaled by the
        number of layers. If there are none, the typical time multiplied by ``slowness``.
        """
        if part.key in self._known:
            return self._known[part.key][1]
        alike: dict[int, list[float]] = {}
        for other, seconds in self._known.values():
            if other.kind == part.kind:
                likeness = (
                    8 * (other.shape == part.shape)
                    + 4 * (other.layers == part.layers)
                    + 2 * (other.precision == part.precision)
                    + (other.batch == part.batch)
                )
                alike.setdefault(likeness, []).append(seconds * _size(part) / _size(other))
        if alike:  # take those with the highest likeness
            return median(alike[max(alike)])
        return slowness * _TYPICAL_S.get(part.kind, _TYPICAL_S["decodestep"]) * _size(part)


def _size(part: Part) -> int:
    return part.layers + _FIXED_LAYERS


def path() -> Path:
    """The path of the file."""
    return toolchain.cache_folder() / "compile_times.json"


def read() -> Times:
    """The times in the file; none if it is missing, damaged or of another format."""
    known = {}
    try:
        content = json.loads(path().read_text(encoding="utf-8"))
        if content["format"] == FORMAT:
            for entry in content["parts"]:
                seconds = float(entry.pop("seconds"))
                part = Part(**entry)
                if part.layers >= 1 and 0.0 < seconds < float("inf"):
                    known[part.key] = (part, seconds)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Times({})
    return Times(known)


def add(part: Part, seconds: float) -> None:
    """Store how long ``part`` took. The file is replaced as a whole; if that fails, it stays."""
    known = {**read()._known, part.key: (part, seconds)}
    entries = [asdict(one) | {"seconds": round(took, 3)} for one, took in known.values()]
    text = json.dumps({"format": FORMAT, "parts": entries}, indent=1)
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path().parent, prefix="compile_times-", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        Path(file.name).replace(path())
    except OSError:
        pass
