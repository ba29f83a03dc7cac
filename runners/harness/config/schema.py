"""The dataclasses behind conf/, with checks of their values; ``SCHEMAS`` has one per entry point.

The library owns the config of its own parts. This module combines them and adds what belongs to an
run. The name of a field is its key on the command line. Neither torch nor MLflow is imported here.
"""

import platform
import re
from dataclasses import dataclass, field
from functools import cached_property

from runners.harness.config import prompts
from runners.harness.config.prompts import Prompts
from tinygpt.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PrecisionConfig,
    SamplerConfig,
    require,
)
from tinygpt.tokenizer import EOT

PATH = {"path": ""}
"""Metadata of a field that is a path. A config stores it absolute; ``~`` is the home folder."""
CHECKPOINT = {"path": "config.json", "hub": "org/name"}
"""Metadata of a field that is a name, a path or a Hugging Face id. A folder that has this file
counts as a path; a config stores an id with its commit."""


@dataclass(kw_only=True)
class DeviceConfig:
    """The device that the cell runs on."""

    kind: str = "cpu"
    """``cpu``, ``cuda`` or ``mps``."""
    threads: int | None = None
    """CPU threads of torch; null takes the cores that this process may use."""
    on_missing: str = "skip"
    """What happens to a cell whose device does not exist here: ``skip`` or ``fail``."""

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
    """Rows that are generated side by side."""

    size: int = 1
    """The number of rows."""

    def __post_init__(self) -> None:
        require(1 <= self.size < 2**31, f"size={self.size}: must be from 1 to 2**31 - 1")


@dataclass(kw_only=True)
class LengthConfig:
    """How much is generated."""

    new_tokens: int = 256
    """New tokens per row; 0 returns the prompt and measures nothing."""

    def __post_init__(self) -> None:
        require(
            0 <= self.new_tokens < 2**31,
            f"new_tokens={self.new_tokens}: must be from 0 to 2**31 - 1",
        )


@dataclass(kw_only=True)
class TimingConfig:
    """How long a cell is measured. The budget takes precedence over the number of repeats."""

    min_repeats: int = 5
    """The fewest repeats, however small their spread."""
    max_repeats: int = 200
    """The most repeats."""
    interval: float = 0.05
    """Measuring ends when half the median's 95 % interval is at most this share of the median."""
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
    """A UTF-8 file with the prompt, exact to the byte; for texts no command line can carry."""
    special: bool = False
    """Whether special tokens that are spelt out in the prompt, such as ``<|im_start|>``, are taken
    as such. Otherwise they are text like any other."""
    chat: bool = False
    """Whether the prompt is put into the checkpoint's chat template, as a user's message. The text
    then also ends at the template's end of a turn."""

    def __post_init__(self) -> None:
        require(
            self.text is None or self.file is None,
            f"file={self.file}: prompt.text is given as well; give one of them",
        )
        require(self.text != "", "text= is empty: the model needs at least 1 token to start from")

    @cached_property
    def content(self) -> Prompts:
        """The texts. Their file is read only once, so the copy that is kept has the measured text.

        Raises ValueError, one line, for a file that cannot be read.
        """
        return prompts.typed(self.text) if self.file is None else prompts.from_file(self.file)


@dataclass(kw_only=True)
class PromptConfig(TextPromptConfig):
    """What every row starts from: a text, the text of a file, or random ids if neither is given."""

    tokens: int = 8
    """The number of random ids per row, if neither text nor file is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("special", "chat"):
            require(
                not getattr(self, name) or self.text is not None or self.file is not None,
                f"{name}=true: is for a text, and the prompt is random ids; give prompt.text or "
                "prompt.file",
            )
        require(
            1 <= self.tokens < 2**31,
            f"tokens={self.tokens}: must be at least 1, since the model needs a token to start, "
            "and below 2**31",
        )


@dataclass(kw_only=True)
class TrackingConfig:
    """Where results go."""

    dir: str = field(default="???", metadata=PATH)
    """Folder of the sqlite store, the artifacts and the files of all cells. A config stores it
    absolute.
    """
    uri: str | None = None
    """An MLflow server; null uses MLFLOW_TRACKING_URI, otherwise the sqlite store in ``dir``."""


@dataclass(kw_only=True)
class RunConfig:
    """What every run of a model has: the weights, where they run, where results go."""

    model: ModelConfig = field(default_factory=ModelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    seed: int = 1
    """Seed of random weights, random prompts and sampling."""
    checkpoint: str = field(default="none", metadata=CHECKPOINT)
    """``none`` for seeded random weights; or a name (holmes), a training run's id, a folder, a
    .gguf file, or a Hugging Face id (org/name, org/name@REVISION), which is stored with its commit.
    Such a checkpoint decides the model."""

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
    """The number of this repetition of the sweep. It is always the slowest axis; tables pool
    rounds.
    """
    resume: bool = False
    """Go on with the newest sweep of the same cells; cells that are ``ok`` in it do not run again.
    """
    plan: bool = False
    """Show what would run, how long it may take and how much memory it needs, and run nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.round >= 1, f"round={self.round}: must be at least 1")


# texts: sample, verify, race

CHECKS = ("all", "cache", "sampler")
FAULTS = ("none", "rope", "mask", "window")


@dataclass(kw_only=True)
class PromptsConfig(TextPromptConfig):
    """One text to start from, or several; "Holmes" if none is given."""

    jsonl: str | None = field(default=None, metadata=PATH)
    """A file with one prompt per line, each a JSON string or an object with the key ``prompt``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jsonl is not None:
            other = "text" if self.text is not None else "file"
            require(
                self.text is None and self.file is None,
                f"jsonl={self.jsonl}: prompt.{other} is given as well; give one of them",
            )

    @cached_property
    def content(self) -> Prompts:
        """The texts, one or several; see ``TextPromptConfig``."""
        return super().content if self.jsonl is None else prompts.from_jsonl(self.jsonl)


@dataclass(kw_only=True)
class SampleConfig(RunConfig):
    """Texts that a model writes with one setting of the sampler."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    prompt: PromptsConfig = field(default_factory=PromptsConfig)
    checkpoint: str = field(default="holmes", metadata=CHECKPOINT)
    """A name, a training run's id, a folder, a .gguf file or a Hugging Face id, with a tokenizer
    for the texts."""
    stop: str | None = EOT
    """The text ends before this string. By default it also ends at each end token of the
    checkpoint; null never ends it early."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt.text is None and self.prompt.file is None and self.prompt.jsonl is None:
            self.prompt.text = (
                "Holmes"  # not a default of the part, where it would clash with a given file
            )
        require(self.stop != "", "stop= is empty: every text ends with it; give null for no stop")
        _require_tokenizer(self.checkpoint, "sample writes text")


@dataclass(kw_only=True)
class VerifyConfig(RunConfig):
    """Which checks show that a cache changes nothing."""

    prompt: TextPromptConfig = field(default_factory=TextPromptConfig)
    checkpoint: str = field(default="holmes", metadata=CHECKPOINT)
    """A name, a training run's id, a folder, a .gguf file or a Hugging Face id, with a tokenizer
    for the texts."""
    check: str = "all"
    """``cache``, ``sampler``, or ``all`` for both."""
    fault: str = "none"
    """Breaks the rolling cache on purpose: ``rope``, ``mask`` or ``window``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.check in CHECKS, f"check={self.check}: must be one of {', '.join(CHECKS)}")
        require(self.fault in FAULTS, f"fault={self.fault}: must be one of {', '.join(FAULTS)}")
        require(
            self.fault == "none" or self.check != "sampler",
            f"fault={self.fault}: breaks the cache, and check=sampler does not look at it; "
            "give check=cache",
        )
        _require_tokenizer(self.checkpoint, "verify shows texts")
        if self.prompt.text is None and self.prompt.file is None:
            self.prompt.text = "It was a"


@dataclass(kw_only=True)
class RaceConfig(RunConfig):
    """The same text with and without a cache, side by side."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    prompt: TextPromptConfig = field(default_factory=TextPromptConfig)
    checkpoint: str = field(default="holmes", metadata=CHECKPOINT)
    """A name, a training run's id, a folder, a .gguf file or a Hugging Face id, with a tokenizer
    for the texts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.cache.kind != "none",
            "cache.kind=none: races against itself; choose cache=rolling or cache=static",
        )
        require(
            self.length.new_tokens >= 2,
            f"length.new_tokens={self.length.new_tokens}: nothing to race, since the first token "
            "costs the same either way; give at least 2",
        )
        _require_tokenizer(self.checkpoint, "race shows texts")
        if self.prompt.text is None and self.prompt.file is None:
            self.prompt.text = "It was a"


def _require_tokenizer(checkpoint: str, why: str) -> None:
    require(
        checkpoint != "none",
        f"checkpoint=none: {why}, and random weights have no tokenizer; give a name (holmes), a "
        "training run's id, a folder or a Hugging Face id (org/name)",
    )


PromptedConfig = BenchConfig | SampleConfig | VerifyConfig | RaceConfig
"""A config of a run that starts from prompts."""

# training

AUTOCASTS = ("none", "bf16")


@dataclass(kw_only=True)
class CorpusConfig:
    """The text that the model learns from."""

    path: str | None = field(default=None, metadata=PATH)
    """A UTF-8 file."""
    held_out: float = 0.05
    """The share of the text, at its end, that neither the model nor the tokenizer learns from."""

    def __post_init__(self) -> None:
        require(
            0.0 < self.held_out <= 0.5,
            f"held_out={self.held_out}: must be above 0 and at most 0.5, the share of the text to "
            "judge by",
        )


@dataclass(kw_only=True)
class LearningConfig:
    """How the weights are learnt: AdamW with warm-up and cosine, on windows of context_length
    tokens.
    """

    steps: int = 1500
    """Number of updates of the weights."""
    batch: int = 16
    """Windows per update."""
    lr: float = 2e-3
    """Learning rate at the end of the warm-up."""
    min_lr: float = 2e-4
    """Learning rate of the last step, at the end of the cosine."""
    warmup_steps: int = 100
    """Steps over which the learning rate rises from 0."""
    weight_decay: float = 0.1
    """AdamW's weight decay, for matrices only."""
    beta1: float = 0.9
    """AdamW's decay rate for the mean of the gradients."""
    beta2: float = 0.95
    """AdamW's decay rate for the mean of the squared gradients."""
    grad_clip: float = 1.0
    """Largest norm of the gradient over all weights; 0 turns clipping off."""
    dropout: float = 0.0
    """Share of activations set to zero in training, after the embedding and every branch."""
    eval_every: int = 100
    """Steps between two evaluations on the held-out text; after each the state is saved."""
    sample_every: int = 500
    """Steps between two samples of text; 0 writes none."""
    sample_prompt: str = "Holmes"
    """The prompt of a sample."""
    sample_tokens: int = 60
    """New tokens per sample."""
    autocast: str = "none"
    """``bf16`` computes matrix products in bf16; weights and their updates stay fp32."""
    compile: bool = False
    """Whether to use torch.compile, which needs a C++ compiler and about a minute at the start."""
    stop_after: int | None = None
    """Stop after this step although more are planned; ``resume`` goes on from there."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "eval_every", "sample_tokens"):
            value = getattr(self, name)
            require(value >= 1, f"{name}={value}: must be at least 1")
        for name in ("weight_decay", "grad_clip"):
            value = getattr(self, name)
            require(0.0 <= value < float("inf"), f"{name}={value}: must be finite and at least 0")
        for name in ("beta1", "beta2", "dropout"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, f"{name}={value}: must be at least 0 and below 1")
        require(0.0 < self.lr < float("inf"), f"lr={self.lr}: must be finite and above 0")
        require(
            0.0 <= self.min_lr <= self.lr,
            f"min_lr={self.min_lr}: must be from 0 to train.lr={self.lr}",
        )
        require(
            0 <= self.warmup_steps <= self.steps,
            f"warmup_steps={self.warmup_steps}: must be from 0 to train.steps={self.steps}",
        )
        require(
            self.sample_every >= 0, f"sample_every={self.sample_every}: must be at least 0 (none)"
        )
        require(
            self.sample_every == 0 or bool(self.sample_prompt),
            "sample_prompt= is empty: the model needs at least 1 token to start from",
        )
        require(
            self.autocast in AUTOCASTS,
            f"autocast={self.autocast}: must be one of {', '.join(AUTOCASTS)}",
        )
        require(
            self.stop_after is None or self.stop_after >= 1,
            f"stop_after={self.stop_after}: must be at least 1, or null to go on to the end",
        )


@dataclass(kw_only=True)
class TrainConfig:
    """One training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    train: LearningConfig = field(default_factory=LearningConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    seed: int = 1
    """Seed of the first weights, the order of windows, dropout and samples."""
    out: str | None = None
    """The name under which the best weights are put into checkpoints/ once all steps are done. An
    older checkpoint of that name is replaced. The weights are found by the run's id in any case.
    """
    resume: str | None = field(default=None, metadata={"path": "last/state.safetensors"})
    """The id or the folder of a run to go on from; everything else must be as in its command."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, f"seed={self.seed}: must be from 0 to 2**63 - 1")
        require(
            self.out is None or re.fullmatch(r"\w[\w.-]*", self.out) is not None,
            f"out={self.out}: must be a name of letters, digits, '_', '-' and '.', since it "
            "becomes a folder of checkpoints/",
        )
        require(self.out != "none", "out=none: checkpoint=none means random weights; choose a name")


# what looks at finished runs: tables, rerun, compare, doctor

FORMATS = ("rich", "md", "csv", "json")


def _ids(tracking: TrackingConfig) -> str:
    """The part of a message that names the command that lists the ids."""
    from runners.harness.config.commands import command  # loads Hydra, which a schema must not

    shown = command("tables", "table=runs", folder=tracking.dir, uri=tracking.uri or "")
    return f"`{shown}` lists the ids"


@dataclass(kw_only=True)
class TablesConfig:
    """Which table of which sweep is shown, and how."""

    sweep: str = "latest"
    """The id of a sweep or lone cell (a prefix is enough), ``ID-NUMBER`` for one cell of a sweep,
    several separated by commas, or ``latest``.
    """
    table: str = "all"
    """``cells``, ``cache``, ``device``, ``engine`` or ``all``; ``runs`` lists what is in the store.
    """
    where: str = ""
    """Conditions on the rows, joined by "and": ``batch.size>=4 and device=cpu``."""
    limit: int = 50
    """The number of rows of ``table=runs``, newest first."""
    format: str = "rich"
    """``rich`` for a terminal, ``md``, ``csv`` or ``json``."""
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
    """The id of a cell or sweep (a prefix is enough), or ``latest``."""
    config: str | None = field(default=None, metadata=PATH)
    """A config.yaml anywhere on disk, instead of a run."""
    strict: bool = False
    """Refuse to run if anything has changed since: presets, code, versions, hardware, weights."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        require(
            (self.run is None) != (self.config is None),
            f"run=ID or config=FILE: give one of them; {_ids(self.tracking)}",
        )
        require(self.run != "", "run= is empty: give an id, or latest")


@dataclass(kw_only=True)
class CompareConfig:
    """Two runs or sweeps: ``b`` is compared with ``a``."""

    a: str = ""
    """The id of the run or sweep to compare with (a prefix is enough), or ``latest``."""
    b: str = ""
    """The id of the run or sweep that is judged."""
    format: str = "rich"
    """``rich`` for a terminal, ``md``, ``csv`` or ``json``."""
    fail_if_slower: str | None = None
    """A share such as ``5%`` or ``0.05``: exit with 1 if ``b`` is certainly slower by more than
    that, and with 3 if that cannot be judged.
    """
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
        """``fail_if_slower`` as a share; 0 if it is off or not a number."""
        found = re.fullmatch(r"\s*(\d*\.?\d+)\s*(%?)\s*", self.fail_if_slower or "")
        return float(found[1]) / (100.0 if found[2] else 1.0) if found else 0.0


@dataclass(kw_only=True)
class DoctorConfig:
    """What the doctor looks for, and whether it mends what it finds."""

    fix: bool = False
    """Mend what is found; otherwise it is only reported."""
    prune: str | None = None
    """An age such as ``30d`` or ``12h``: older sweeps and lone cells are removed."""
    gone: str | None = None
    """A host that will not come back: its processes count as gone."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        require(
            self.prune is None or self.prune_s > 0.0,
            f"prune={self.prune}: must be an age in days or hours, such as 30d or 12h",
        )
        require(
            self.gone != platform.node(),
            f"gone={self.gone}: is this machine, which tells itself what still runs; leave it out",
        )

    @property
    def prune_s(self) -> float:
        """``prune`` in seconds; 0 if it is off or not an age."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([dh])", self.prune or "")
        return float(found[1]) * {"d": 86400.0, "h": 3600.0}[found[2]] if found else 0.0


SCHEMAS: dict[str, type] = {
    "bench": BenchConfig,
    "sample": SampleConfig,
    "verify": VerifyConfig,
    "race": RaceConfig,
    "train": TrainConfig,
    "tables": TablesConfig,
    "rerun": RerunConfig,
    "compare": CompareConfig,
    "doctor": DoctorConfig,
}
"""The config of every entry point, by the name of its file in conf/."""
