"""The config of a model, its cache, engine, precision and sampler, as dataclasses with checks.

This module imports no torch, so that a wrong value is reported before anything slow is loaded. An
error message begins with the field's name; the caller puts the name of the config group before it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

CACHE_KINDS = ("none", "rolling", "static")
ENGINES = {
    "eager": "tinygpt.engines.eager:EagerEngine",
    "compiled": "tinygpt.engines.compiled.engine:CompiledEngine",
    "cudagraph": "tinygpt.engines.cudagraph:CudaGraphEngine",
}
"""The kinds of engine, each with the ``module:class`` that is imported when it is asked for."""
ENGINE_KINDS = tuple(ENGINES)
PRECISION_KINDS = ("fp32", "bf16", "int8")
ROPE_KINDS = ("default", "linear", "llama3")


def require(ok: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``ok``: for mistakes that a user can make."""
    if not ok:
        raise ValueError(message)


class Rope(NamedTuple):
    """What decides the angles of rotary position embedding; tables are shared by models alike."""

    head_dim: int
    base: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(kw_only=True)
class RopeScalingConfig:
    """How RoPE's frequencies are lowered to stretch a window beyond the one first trained."""

    kind: str = "default"
    """``default`` leaves them as they are, ``linear`` divides all of them by ``factor``, ``llama3``
    divides the low ones, leaves the high ones, and blends those in between (Llama 3.1)."""
    factor: float = 1.0
    """Divides frequencies."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original_context / low_freq_factor are low frequencies."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original_context / high_freq_factor are high frequencies."""
    original_context: int = 8192
    """llama3: the window that was trained first, in tokens."""

    def __post_init__(self) -> None:
        require(
            self.kind in ROPE_KINDS,
            f"rope_scaling.kind={self.kind}: must be one of {', '.join(ROPE_KINDS)}",
        )
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            value = getattr(self, name)
            require(
                0.0 < value < float("inf"), f"rope_scaling.{name}={value}: must be finite, above 0"
            )
        require(
            self.original_context >= 1,
            f"rope_scaling.original_context={self.original_context}: must be at least 1",
        )
        require(
            self.kind != "llama3" or self.low_freq_factor < self.high_freq_factor,
            f"rope_scaling.low_freq_factor={self.low_freq_factor}: must be below "
            f"rope_scaling.high_freq_factor={self.high_freq_factor}",
        )


@dataclass(kw_only=True)
class ModelConfig:
    """A Llama-shaped decoder. The defaults are the 5.8 M parameter model of the post."""

    vocab_size: int = 4096
    """Entries of the vocabulary."""
    context_length: int = 256
    """Trained window, in tokens."""
    n_layers: int = 6
    """Number of blocks."""
    d_model: int = 256
    """Width of the residual stream."""
    n_heads: int = 8
    """Query heads."""
    n_kv_heads: int = 8
    """Key/value heads; fewer than ``n_heads`` is grouped-query attention."""
    head_dim: int = 32
    """Width of one head; even, since RoPE rotates pairs."""
    d_ff: int = 688
    """Inner width of the SwiGLU layer."""
    rope_base: float = 10_000.0
    """Base of the geometric series of RoPE's frequencies."""
    rope_scaling: RopeScalingConfig = field(default_factory=RopeScalingConfig)
    no_rope_every: int = 0
    """Every so many-th layer rotates nothing (4 in SmolLM3); 0: all layers rotate."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias (Qwen2)."""
    qk_norm: bool = False
    """Whether each head of queries and keys is normalised before it is rotated (Qwen3)."""
    norm_eps: float = 1e-5
    """RMSNorm's epsilon."""
    tie_embeddings: bool = True
    """Whether the output head is the embedding matrix."""

    def __post_init__(self) -> None:
        for name in ("context_length", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff"):
            value = getattr(self, name)
            require(value >= 1, f"{name}={value}: must be at least 1")
        require(self.vocab_size >= 2, f"vocab_size={self.vocab_size}: must be at least 2")
        require(
            self.head_dim >= 2 and self.head_dim % 2 == 0,
            f"head_dim={self.head_dim}: must be even and at least 2, since RoPE rotates pairs",
        )
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"n_kv_heads={self.n_kv_heads}: must divide n_heads={self.n_heads}",
        )
        require(
            self.no_rope_every >= 0,
            f"no_rope_every={self.no_rope_every}: must be at least 0 (none)",
        )
        for name, least in (("rope_base", 1.0), ("norm_eps", 0.0)):
            value = getattr(self, name)
            require(least < value < float("inf"), f"{name}={value}: must be finite, above {least}")

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Shape (outputs, inputs) of each matrix; a tied output head is counted once."""
        heads = self.n_heads + 2 * self.n_kv_heads
        block = [
            (heads * self.head_dim, self.d_model),
            (self.d_model, self.n_heads * self.head_dim),
            (2 * self.d_ff, self.d_model),
            (self.d_model, self.d_ff),
        ]
        embeddings = [(self.vocab_size, self.d_model)] * (1 if self.tie_embeddings else 2)
        return embeddings + block * self.n_layers

    @property
    def n_parameters(self) -> int:
        """Number of parameters; a tied output head is counted once."""
        vectors = self.d_model * (2 * self.n_layers + 1)
        if self.qkv_bias:
            vectors += self.n_layers * (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
        if self.qk_norm:
            vectors += self.n_layers * 2 * self.head_dim
        return sum(outputs * inputs for outputs, inputs in self.matrices) + vectors

    @property
    def rope(self) -> Rope:
        """What decides the rotation angles."""
        scaling = self.rope_scaling
        return Rope(
            self.head_dim,
            self.rope_base,
            scaling.kind,
            scaling.factor,
            scaling.low_freq_factor,
            scaling.high_freq_factor,
            scaling.original_context,
        )

    def rotates(self, layer: int) -> bool:
        """Whether ``layer``, counted from 0, rotates its queries and keys."""
        return self.no_rope_every == 0 or (layer + 1) % self.no_rope_every != 0


ADDED_TO_MODEL = ("rope_scaling", "no_rope_every", "qkv_bias", "qk_norm")
"""Fields that configs of older results lack; their defaults say what was done without them."""


@dataclass(kw_only=True)
class CacheConfig:
    """How the keys and values of earlier tokens are kept."""

    kind: str = "rolling"
    """``none`` computes the window anew, ``rolling`` appends and keeps the last
    ``context_length`` entries, ``static`` writes into a preallocated ring buffer."""

    def __post_init__(self) -> None:
        require(
            self.kind in CACHE_KINDS,
            f"kind={self.kind}: must be one of {', '.join(CACHE_KINDS)}",
        )


@dataclass(kw_only=True)
class EngineConfig:
    """How the weights are run."""

    kind: str = "eager"
    """``eager`` is the plain PyTorch loop, ``compiled`` runs one C++ function per step,
    ``cudagraph`` one recorded launch per step."""

    def __post_init__(self) -> None:
        require(
            self.kind in ENGINES,
            f"kind={self.kind}: must be one of {', '.join(ENGINES)}",
        )


@dataclass(kw_only=True)
class PrecisionConfig:
    """The number format of weights, activations and cache."""

    kind: str = "fp32"
    """``fp32``, ``bf16``, or ``int8``: matrices rounded to int8 with one scale per row, and
    everything else in fp32. Rotation angles and sampling are always fp32."""

    def __post_init__(self) -> None:
        require(
            self.kind in PRECISION_KINDS,
            f"kind={self.kind}: must be one of {', '.join(PRECISION_KINDS)}",
        )

    @property
    def bytes_per_value(self) -> int:
        """Bytes of one activation, or of one element of a cached key or value."""
        return {"fp32": 4, "bf16": 2, "int8": 4}[self.kind]

    @property
    def bytes_per_weight(self) -> int:
        """Bytes of one weight of a matrix; int8 needs 4 more per row, for the scale."""
        return {"fp32": 4, "bf16": 2, "int8": 1}[self.kind]


@dataclass(kw_only=True)
class SamplerConfig:
    """The four sampling parameters, applied in the order penalty, temperature, top-k, top-p."""

    temperature: float = 0.0
    """Divides the logits; 0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; among equally likely ones the lowest ids. 0 is off; a k
    above the vocabulary size keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities add up to p; 1.0 is off."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens that occur in the prompt
    or the output, once per distinct token. 1.0 is off; values in (0, 1) encourage repetition."""

    def __post_init__(self) -> None:
        require(
            0.0 <= self.temperature < float("inf"),
            f"temperature={self.temperature}: must be finite and at least 0 (0 is greedy)",
        )
        require(self.top_k >= 0, f"top_k={self.top_k}: must be at least 0 (0 is off)")
        require(
            0.0 < self.top_p <= 1.0,
            f"top_p={self.top_p}: must be in (0, 1] (1.0 is off; for the likeliest token alone "
            "use temperature=0)",
        )
        require(
            0.0 < self.repetition_penalty < float("inf"),
            f"repetition_penalty={self.repetition_penalty}: must be finite and above 0 "
            "(1.0 is off)",
        )
