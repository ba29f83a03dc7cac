"""The dataclasses behind what looks at finished runs: tables, rerun, compare, doctor."""

import re
from dataclasses import dataclass, field

from runners.harness.config.commands import command
from runners.harness.config.schema import PATH, TrackingConfig
from tinygpt.config import require

FORMATS = ("rich", "md", "csv", "json")


def _ids(tracking: TrackingConfig) -> str:
    shown = command("tables", "table=runs", folder=tracking.dir, uri=tracking.uri or "")
    return f"`{shown}` lists the ids"


@dataclass(kw_only=True)
class TablesConfig:
    """Which table of which sweep, and how it is printed."""

    sweep: str = "latest"
    """A sweep's or lone cell's id (a prefix is enough), ``ID-NUMBER`` for one cell of a sweep,
    several with commas, or ``latest``."""
    table: str = "all"
    """``cells``, ``cache``, ``device``, ``engine``, or ``all``; ``runs`` for the store's."""
    where: str = ""
    """Conditions on the rows, joined by and: ``batch.size>=4 and device=cpu``."""
    limit: int = 50
    """Rows of ``table=runs``, the newest first."""
    format: str = "rich"
    """``rich`` for the terminal, ``md``, ``csv`` or ``json``."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        tables = ("all", "cells", "cache", "device", "engine", "runs")
        require(self.table in tables, f"table={self.table}: must be one of {', '.join(tables)}")
        require(
            self.format in FORMATS, f"format={self.format}: must be one of {', '.join(FORMATS)}"
        )
        require(
            self.table != "all" or self.format in ("rich", "md"),
            f"table=all: {self.format} holds one table; choose one of {', '.join(tables[1:])}",
        )
        require(
            self.table != "runs" or self.sweep == "latest",
            f"sweep={self.sweep}: table=runs lists all that is in the store; leave sweep out, or "
            f"choose another table",
        )
        require(
            self.table == "runs" or self.limit == 50,
            f"limit={self.limit}: is for table=runs; the other tables show every cell",
        )
        require(self.limit >= 1, f"limit={self.limit}: must be at least 1")


@dataclass(kw_only=True)
class RerunConfig:
    """Which run is run again. Further KEY=VALUE words change its stored config."""

    run: str | None = None
    """Id of a cell or sweep (a prefix is enough), or ``latest``."""
    config: str | None = field(default=None, metadata=PATH)
    """A config.yaml from anywhere, in place of a run."""
    strict: bool = False
    """Refuse where anything has changed since: presets, code, versions, hardware, weights."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        require(
            (self.run is None) != (self.config is None),
            f"run=ID or config=FILE: give one of them; {_ids(self.tracking)}",
        )
        require(self.run != "", "run= is empty: give an id, or latest")


@dataclass(kw_only=True)
class CompareConfig:
    """Two runs or sweeps, ``b`` against ``a``."""

    a: str = ""
    """Id of the run or sweep to compare with (a prefix is enough), or ``latest``."""
    b: str = ""
    """Id of the run or sweep that is judged."""
    format: str = "rich"
    """``rich`` for the terminal, ``md``, ``csv`` or ``json``."""
    fail_if_slower: str | None = None
    """A share such as ``5%`` or ``0.05``: exit 1 where ``b`` is slower by more, beyond doubt, and 3
    where that cannot be judged."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        missing = [f"{key}=ID" for key in ("a", "b") if not getattr(self, key)]
        require(
            not missing,
            f"{' '.join(missing)}: give the id of the run or sweep, its beginning, or latest; "
            + _ids(self.tracking),
        )
        require(
            self.format in FORMATS, f"format={self.format}: must be one of {', '.join(FORMATS)}"
        )
        if self.fail_if_slower is not None:
            require(
                0.0 < self.allowed < 1.0,
                f"fail_if_slower={self.fail_if_slower}: must be a share of above 0 and below 1, "
                "such as 0.05, or with its sign, 5%",
            )

    @property
    def allowed(self) -> float:
        """``fail_if_slower`` as a share; 0 where it is off or not a number."""
        found = re.fullmatch(r"\s*(\d*\.?\d+)\s*(%?)\s*", self.fail_if_slower or "")
        return float(found[1]) / (100.0 if found[2] else 1.0) if found else 0.0


@dataclass(kw_only=True)
class DoctorConfig:
    """What is looked for, and whether it is mended."""

    fix: bool = False
    """Mend what is found; otherwise it is only told."""
    prune: str | None = None
    """An age such as ``30d`` or ``12h``: older sweeps and lone cells are removed."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        require(
            self.prune is None or self.prune_s > 0.0,
            f"prune={self.prune}: must be an age in days or hours, such as 30d or 12h",
        )

    @property
    def prune_s(self) -> float:
        """``prune`` in seconds; 0 where it is off or not an age."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([dh])", self.prune or "")
        return float(found[1]) * {"d": 86400.0, "h": 3600.0}[found[2]] if found else 0.0
