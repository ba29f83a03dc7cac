"""Every column of every table, declared once: its source, its purpose and how it is shown.

A new axis or figure of a cell is one line of ``CELLS``. The csv, the keys by which cells are paired
and matched, the cells table and all headings are derived from these declarations.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from runners.harness.config.older import without_added
from runners.harness.terminal import three_digits

APPROXIMATE = " (approximate)"
"""Follows the kind of an approximate cache, which is no pure speed-up, in every table."""

Source = Callable[[Any], Any]
"""Reads a value from the data of an MLflow run, its ``params``, ``tags`` and ``metrics``."""


@dataclass(frozen=True)
class Column:
    """A column of a table, by its name in csv and json."""

    name: str
    source: Source | None = None
    """How a cell's value is read from its run; None if the tables compute it."""
    type: Literal["text", "whole", "real"] = "text"
    heading: str = ""
    """What people are shown instead of the name."""
    unit: Literal["", "MiB"] = ""
    """``MiB`` where the values are bytes and are shown in MiB."""
    role: Literal["", "key", "place"] = ""
    """``key``: cells are paired or matched only if they agree in it. ``place``: where a cell was
    measured, which is part of the key unless two places are compared."""
    label: str = ""
    """The short column that people are shown instead of this one, which holds JSON objects."""
    ordered: bool = False
    """Whether rows are sorted by it, in the order of the columns."""
    leads: bool = False
    """Whether it comes before all other columns in csv and json."""
    shown: bool = False
    """Whether it is in the cells table."""
    always: bool = False
    """Whether it stays a column even if all rows have the same value."""
    dropped: int = 0
    """The order in which a narrow terminal leaves columns out, from 1 up; 0 always stays."""

    @property
    def title(self) -> str:
        """Its heading for people."""
        return self.heading or self.name


def _param(key: str) -> Source:
    return lambda data: data.params.get(key)


def _tag(key: str, otherwise: str | None = None) -> Source:
    return lambda data: data.tags.get(f"tinygpt.{key}", otherwise)


def _metric(key: str) -> Source:
    return lambda data: data.metrics.get(key)


def _cache(data: Any) -> str:
    return str(data.params["cache.kind"]) + (
        APPROXIMATE if "tinygpt.approximate" in data.tags else ""
    )


def _part(group: str) -> Source:
    """All params of a group, as a JSON object."""

    def read(data: Any) -> str:
        own = {key: value for key, value in data.params.items() if key.startswith(f"{group}.")}
        return json.dumps(without_added(own, "model."), sort_keys=True)

    return read


def _axis(
    name: str, source: Source, type: Literal["text", "whole"] = "text", heading: str = ""
) -> Column:
    return Column(name, source, type, heading, role="key", ordered=True, shown=True)


def _figure(name: str, type: Literal["whole", "real"] = "real", **how: Any) -> Column:
    """A metric of a cell."""
    return Column(name, _metric(name), type, **how)


# In the order of reading. A range or interval is shown after the column that it is about.
CELLS = (
    Column("cell", _tag("cell"), leads=True, shown=True, always=True, dropped=7),
    Column("sweep", _tag("sweep"), leads=True),
    Column("model", _param("choice.model"), ordered=True, shown=True),
    _axis("device", _param("device.kind")),
    Column("threads", _tag("threads"), "whole", role="place", shown=True),
    _axis("batch", _param("batch.size"), "whole"),
    Column("prompt_tokens", _tag("prompt_tokens"), "whole", "prompt", role="key", shown=True),
    _axis("new_tokens", _param("length.new_tokens"), "whole", heading="new"),
    _axis("cache", _cache),
    Column("sampler", _param("choice.sampler"), ordered=True, shown=True),
    _axis("engine", _param("engine.kind")),
    _axis("precision", _param("precision.kind")),
    Column("round", _param("round"), "whole", shown=True),
    Column("seed", _param("seed"), "whole", role="key"),
    Column("outcome", _tag("outcome"), leads=True, shown=True, always=True),
    _figure("output_tok_per_s", heading="tok/s", shown=True, always=True),
    Column("low", _metric("output_tok_per_s_low"), "real", shown=True),
    Column("high", _metric("output_tok_per_s_high"), "real", shown=True),
    _figure("repeats", "whole", heading="n", shown=True, always=True),
    _figure("ttft_ms", heading="TTFT ms", shown=True, always=True, dropped=4),
    _figure("tpot_ms", heading="TPOT ms", shown=True, always=True, dropped=6),
    _figure("itl_ms_p50"),
    _figure("reference_ms"),
    _figure("compile_s"),
    _figure("limit_ms", heading="limit ms", dropped=2),
    _figure("limit_share", heading="of limit", always=True),
    _figure("others_cpu_share"),
    Column("reference_drift", type="real"),
    _figure(
        "kv_cache_bytes",
        "whole",
        heading="cache MiB",
        unit="MiB",
        shown=True,
        always=True,
        dropped=5,
    ),
    _figure(
        "peak_memory_bytes",
        "whole",
        heading="peak MiB",
        unit="MiB",
        shown=True,
        always=True,
        dropped=1,
    ),
    _figure("mapped_bytes", "whole"),
    _figure("compile_peak_bytes", "whole"),
    Column("stable", _tag("stable"), shown=True, dropped=3),
    Column("rates", _tag("rates", "[]")),
    Column("weights", _tag("weights_sha256"), role="key"),
    Column("prompt", _tag("prompt_sha256"), heading="prompt ids", role="key"),
    Column("machine", _tag("machine"), role="place"),
    Column("torch", _tag("torch"), role="place"),
    Column("sampling", _part("sampler"), role="key", label="sampler"),
    Column("shape", _part("model"), role="key", label="model"),
    Column("overrides", always=True),
    Column("noise", shown=True, always=True, dropped=19),
    Column("reason", _tag("reason", ""), leads=True, shown=True),
)
"""The columns of a cell."""


@dataclass(frozen=True)
class Span:
    """Two columns that are shown as one, ``90–110``, after the column that they are about."""

    low: str
    high: str
    name: str
    after: tuple[str, ...]


def _side(prefix: str, range_dropped: int) -> tuple[Column, ...]:
    """The columns of a side's rate and of the range of its repeats."""
    words = prefix.replace("_", " ")
    return (
        Column(f"{prefix}tok_per_s", heading=f"{words}tok/s", always=True),
        Column(f"{prefix}range", heading=f"{words}range", always=True, dropped=range_dropped),
    )


_SIDES = ("", "none_", "cpu_", "a_", "b_")
_OTHERS = (
    *(column for n, prefix in enumerate(_SIDES) for column in _side(prefix, 14 + n)),
    Column("speedup", always=True),
    Column("ratio", always=True),
    Column("interval", always=True),
    Column("verdict", always=True),
    Column("wins", always=True),
    Column("n", always=True),
    Column("n_none", heading="n none", always=True, dropped=8),
    Column("n_cpu", heading="n cpu", always=True, dropped=9),
    Column("n_a", heading="n a", dropped=12),
    Column("n_b", heading="n b", dropped=13),
    Column("rounds_a", heading="rounds a", dropped=10),
    Column("rounds_b", heading="rounds b", dropped=11),
    # table=runs, the plan of a sweep, the texts of a sweep
    Column("id", always=True),
    Column("kind", always=True),
    Column("when", always=True),
    Column("cells", always=True),
    Column("ok", always=True),
    Column("needed_bytes", heading="needs MiB", unit="MiB"),
    Column("seconds", heading="about s"),
    Column("setting", always=True),
    Column("distinct_2", heading="distinct-2"),
    Column("longest_repeat_tokens", heading="longest repeat"),
    Column("mean_logprob_nats", heading="log-probability"),
)
"""The columns that the other tables compute, except those shown plainly under their names."""

INTERVAL = Span("low", "high", "interval", ("output_tok_per_s", "speedup"))
RANGES = tuple(
    Span(f"{side}lowest", f"{side}highest", f"{side}range", (f"{side}tok_per_s",))
    for side in _SIDES
)

_TYPES = ("text", "whole", "real")
CSV = tuple(sorted(CELLS, key=lambda c: (not c.leads, _TYPES.index(c.type))))
"""The columns of a cell in the order of csv and json, which old files and notebooks rely on."""
ORDERED = tuple(column.name for column in CELLS if column.ordered)
"""The columns that sort the rows of every table and name a pair."""
KEY = tuple(column.name for column in CELLS if column.role == "key")
"""Cells that agree in these columns measure the same thing."""
PLACE = tuple(sorted(column.name for column in CELLS if column.role == "place"))
"""Where a cell was measured: machine, threads, torch."""
LABELS = {column.name: column.label for column in CELLS if column.label}
"""The key columns that hold JSON objects, each with the column that people see instead."""
SHOWN = tuple(column.name for column in CELLS if column.shown)
"""The columns of the cells table."""
HASHES = tuple(c.name for c in CELLS if c.role == "key" and not c.shown and not c.label)
"""Key columns that tell people little: shown only if nothing else tells cells apart."""
NAMES = (
    *(c.name for c in CELLS if c.shown and (c.role == "key" or c.name in LABELS.values())),
    *HASHES,
)
"""Columns by which people tell a matched cell from the others."""

_BY_NAME: Mapping[str, Column] = {column.name: column for column in (*CELLS, *_OTHERS)}
DROPPED = tuple(
    column.name for column in sorted(_BY_NAME.values(), key=lambda c: c.dropped) if column.dropped
)
"""The columns that a narrow terminal leaves out, in this order."""


def column(name: str) -> Column:
    """The declaration of the column ``name``; a plain one if there is none."""
    return _BY_NAME.get(name) or Column(name)


def texts(name: str, values: "pd.Series[Any]") -> list[str]:
    """A column's values as people are shown them; ``-`` for a missing one."""
    form: Callable[[Any], str] = str
    if column(name).unit == "MiB":
        form = _mebibytes
    elif pd.api.types.is_float_dtype(values):
        form = three_digits
    return ["-" if pd.isna(value) or value == "" else form(value) for value in values]


def numeric(values: "pd.Series[Any]") -> bool:
    """Whether all of these texts are figures, which are aligned to the right."""
    return bool(values.str.fullmatch(r"[-–\d,.]*").all())


def folded(columns: dict[str, list[str]], span: Span) -> dict[str, list[str]]:
    """``columns`` with the two of ``span`` joined into one; unchanged if either is missing."""
    ends = [columns.get(span.low), columns.get(span.high)]
    if ends[0] is None or ends[1] is None:
        return columns
    joined = [f"{a}–{b}" if "-" not in (a, b) else "-" for a, b in zip(*ends, strict=True)]
    out = {}
    for name, values in columns.items():
        if name not in (span.low, span.high):
            out[name] = values
        if name in span.after:
            out[span.name] = joined
    return out


def _mebibytes(value: int) -> str:
    return f"{value / 2**20:,.2f}"
