"""The dataclasses behind conf/train.yaml, with their range checks. Imports no torch, no mlflow."""

import re
from dataclasses import dataclass, field

from runners.harness.config.schema import PATH, DeviceConfig, TrackingConfig
from tinygpt.config import ModelConfig, SamplerConfig, require

AUTOCASTS = ("none", "bf16")


@dataclass(kw_only=True)
class CorpusConfig:
    """The text that is learnt from."""

    path: str | None = field(default=None, metadata=PATH)
    """A UTF-8 file."""
    held_out: float = 0.05
    """Share of the text, at its end, that neither model nor tokenizer learns from."""

    def __post_init__(self) -> None:
        require(
            0.0 < self.held_out <= 0.5,
            f"held_out={self.held_out}: must be above 0 and at most 0.5, the share of the text to "
            "judge by",
        )


@dataclass(kw_only=True)
class LearningConfig:
    """How the weights are learnt: AdamW, warm-up and cosine, on windows of context_length."""

    steps: int = 1500
    """Updates of the weights."""
    batch: int = 16
    """Windows an update."""
    lr: float = 2e-3
    """Learning rate at the end of the warm-up."""
    min_lr: float = 2e-4
    """Learning rate of the last step, which the cosine falls to."""
    warmup_steps: int = 100
    """Steps over which the learning rate rises from 0."""
    weight_decay: float = 0.1
    """AdamW's decay of matrices; vectors do not decay."""
    beta1: float = 0.9
    """AdamW's memory of gradients."""
    beta2: float = 0.95
    """AdamW's memory of their squares."""
    grad_clip: float = 1.0
    """Longest gradient, as the norm over all weights; 0 is off."""
    dropout: float = 0.0
    """Share of activations zeroed in training, after the embedding and every branch."""
    eval_every: int = 100
    """Steps between two looks at the held-out text; the state to resume from is saved as well."""
    sample_every: int = 500
    """Steps between two samples of text; 0 is none."""
    sample_prompt: str = "Holmes"
    """What a sample starts from."""
    sample_tokens: int = 60
    """New tokens of a sample."""
    autocast: str = "none"
    """``bf16`` computes matrix products in it; weights and their updates stay fp32."""
    compile: bool = False
    """Whether torch.compile makes one kernel of many; wants a C++ compiler, and a minute."""
    stop_after: int | None = None
    """Stop after this step though more are planned; ``resume`` goes on from there."""

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
    """Seed of first weights, order of windows, dropout and samples."""
    out: str | None = None
    """Name under which the best weights are put into checkpoints/ once all steps are done; an
    older checkpoint of that name is replaced. They are found by the run's id in any case."""
    resume: str | None = field(default=None, metadata={"path": "last/state.safetensors"})
    """Id of a run to go on from, with everything else as in its command; or its folder."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, f"seed={self.seed}: must be from 0 to 2**63 - 1")
        require(
            self.out is None or re.fullmatch(r"\w[\w.-]*", self.out) is not None,
            f"out={self.out}: must be a name of letters, digits, '_', '-' and '.', since it "
            "becomes a folder of checkpoints/",
        )
        require(self.out != "none", "out=none: checkpoint=none means random weights; choose a name")
