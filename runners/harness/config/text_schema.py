"""The dataclasses behind conf/sample.yaml, verify.yaml and race.yaml: runs that are about text."""

from dataclasses import dataclass, field

from runners.harness.config.schema import CHECKPOINT, PATH, RunConfig, TextPromptConfig
from tinygpt.config import CacheConfig, EngineConfig, SamplerConfig, require
from tinygpt.tokenizer import EOT

CHECKS = ("all", "cache", "sampler")
FAULTS = ("none", "rope", "mask", "window")


@dataclass(kw_only=True)
class PromptsConfig(TextPromptConfig):
    """One text to start from, or several; "Holmes" where none is given."""

    jsonl: str | None = field(default=None, metadata=PATH)
    """A file of one prompt a line, each a JSON string or an object with the key ``prompt``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jsonl is not None:
            other = "text" if self.text is not None else "file"
            require(
                self.text is None and self.file is None,
                f"jsonl={self.jsonl}: prompt.{other} is given as well; give one of them",
            )


@dataclass(kw_only=True)
class SampleConfig(RunConfig):
    """Texts that a model writes with one setting of the sampler."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    prompt: PromptsConfig = field(default_factory=PromptsConfig)
    checkpoint: str = field(default="holmes", metadata=CHECKPOINT)
    """A name, a training run's id, or a folder; its tokenizer.json makes ids of texts."""
    stop: str | None = EOT
    """A text ends before this string; null lets it run to its full length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt.text is None and self.prompt.file is None and self.prompt.jsonl is None:
            self.prompt.text = (
                "Holmes"  # here: in the part it would stand beside a file that is given
            )
        require(self.stop != "", "stop= is empty: every text ends with it; give null for no stop")
        _require_tokenizer(self.checkpoint, "sample writes text")


@dataclass(kw_only=True)
class VerifyConfig(RunConfig):
    """Proof that a cache changes nothing."""

    prompt: TextPromptConfig = field(default_factory=TextPromptConfig)
    checkpoint: str = field(default="holmes", metadata=CHECKPOINT)
    """A name, a training run's id, or a folder; its tokenizer.json makes ids of texts."""
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
    """A name, a training run's id, or a folder; its tokenizer.json makes ids of texts."""

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
        "training run's id, or a folder",
    )
