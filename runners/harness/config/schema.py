"""The dataclasses behind conf/, with their range checks. Imports no torch and no mlflow.

The library owns the config of its parts; this module only composes them and adds what belongs to
an experiment. A field's name is its key on the command line.
"""

from dataclasses import dataclass, field

from tinygpt.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PrecisionConfig,
    SamplerConfig,
    require,
)

PATH = {"path": ""}
"""Metadata of a field that is a path: a config holds it absolute, ``~`` being the home folder."""
CHECKPOINT = {"path": "config.json"}
"""Metadata of a field that is a name or a path: a path where a folder with this file is there."""


@dataclass(kw_only=True)
class DeviceConfig:
    """Where the cell runs."""

    kind: str = "cpu"
    """``cpu``, ``cuda`` or ``mps``."""
    threads: int | None = None
    """CPU threads of torch; null takes the cores that this process may use."""
    on_missing: str = "skip"
    """What a device that is not there makes of its cells: ``skip`` or ``fail``."""

    def __post_init__(self) -> None:
        kinds = ("cpu", "cuda", "mps")
        require(self.kind in kinds, f"kind={self.kind}: must be one of {', '.join(kinds)}")
        require(
            self.threads is None or 1 <= self.threads <= 4096,
            f"threads={self.threads}: must be from 1 to 4096, or null for the cores at hand",
        )
        require(
            self.on_missing in ("skip", "fail"),
            f"on_missing={self.on_missing}: must be one of skip, fail",
        )


@dataclass(kw_only=True)
class BatchConfig:
    """Rows generated side by side."""

    size: int = 1
    """Rows."""

    def __post_init__(self) -> None:
        require(1 <= self.size < 2**31, f"size={self.size}: must be from 1 to 2**31 - 1")


@dataclass(kw_only=True)
class LengthConfig:
    """How much is generated."""

    new_tokens: int = 256
    """New tokens a row; 0 gives the prompt back and measures nothing."""

    def __post_init__(self) -> None:
        require(
            0 <= self.new_tokens < 2**31,
            f"new_tokens={self.new_tokens}: must be from 0 to 2**31 - 1",
        )


@dataclass(kw_only=True)
class TimingConfig:
    """How long a cell is measured. The budget wins over the count."""

    min_repeats: int = 5
    """Repeats wanted whatever the spread."""
    max_repeats: int = 200
    """Repeats after which measuring ends."""
    interval: float = 0.05
    """Half-width of the median's 95 % interval, as a share of the median, that is enough."""
    budget_s: float = 30.0
    """Seconds for the repeats beyond the first one."""

    def __post_init__(self) -> None:
        require(self.min_repeats >= 1, f"min_repeats={self.min_repeats}: must be at least 1")
        require(
            self.min_repeats <= self.max_repeats <= 500,
            f"max_repeats={self.max_repeats}: must be from min_repeats={self.min_repeats} to 500",
        )
        require(0.0 < self.interval < 1.0, f"interval={self.interval}: must be in (0, 1)")
        require(self.budget_s >= 0.0, f"budget_s={self.budget_s}: must be at least 0 seconds")


@dataclass(kw_only=True)
class TextPromptConfig:
    """A text to start from."""

    text: str | None = None
    """The prompt as typed."""
    file: str | None = field(default=None, metadata=PATH)
    """A UTF-8 file that is the prompt, to the byte; for what the command line cannot carry."""

    def __post_init__(self) -> None:
        require(
            self.text is None or self.file is None,
            f"file={self.file}: prompt.text is given as well; give one of them",
        )
        require(self.text != "", "text= is empty: the model needs at least 1 token to start from")


@dataclass(kw_only=True)
class PromptConfig(TextPromptConfig):
    """What every row starts from: random ids, a text, or a file's text, in this order of need."""

    tokens: int = 8
    """Random ids a row, where neither text nor file is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            1 <= self.tokens < 2**31,
            f"tokens={self.tokens}: must be at least 1, since the model needs a token to start, "
            "and below 2**31",
        )


@dataclass(kw_only=True)
class TrackingConfig:
    """Where results go."""

    dir: str = field(default="???", metadata=PATH)
    """Folder of the sqlite store, the artefacts and every cell's files; made absolute."""
    uri: str | None = None
    """An MLflow server; null takes MLFLOW_TRACKING_URI, then the sqlite store in ``dir``."""


@dataclass(kw_only=True)
class RunConfig:
    """What every run of a model has: the weights, where they run, where results go."""

    model: ModelConfig = field(default_factory=ModelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    seed: int = 1
    """Seed of random weights, random prompts and draws."""
    checkpoint: str = field(default="none", metadata=CHECKPOINT)
    """``none`` for seeded random weights; a name (holmes), a training run's id, or a folder."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, f"seed={self.seed}: must be from 0 to 2**63 - 1")


@dataclass(kw_only=True)
class BenchConfig(RunConfig):
    """One benchmark cell."""

    batch: BatchConfig = field(default_factory=BatchConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    round: int = 1
    """Number of this repetition of the sweep; always the slowest axis, pooled by the tables."""
    resume: bool = False
    """Go on with the newest sweep of the same cells: those that are ``ok`` in it are done."""
    plan: bool = False
    """Say what would run, how long it may take and what it needs; run nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.round >= 1, f"round={self.round}: must be at least 1")
