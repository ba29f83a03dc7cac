"""The config of a model, its cache, engine, precision and sampler, as dataclasses with checks.

This module imports no torch, so that a wrong value is reported before anything slow is loaded. An
error message begins with the field's name; the caller puts the name of the config group before it.
"""

from dataclasses import dataclass, fields
from typing import Any

CACHE_KINDS = ("none", "rolling", "static")
ENGINES = {
    "eager": "tinygpt.engines.eager:EagerEngine",
    "compiled": "tinygpt.engines.compiled.engine:CompiledEngine",
    "cudagraph": "tinygpt.engines.cudagraph:CudaGraphEngine",
}
"""The kinds of engine, each with the ``module:class`` that is imported when it is asked for."""
ENGINE_KINDS = tuple(ENGINES)
PRECISION_KINDS = ("fp32", "bf16", "int8")


def require(ok: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``ok``: for mistakes that a user can make."""
    if not ok:
        raise ValueError(message)


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
        norms = self.d_model * (2 * self.n_layers + 1)
        return sum(outputs * inputs for outputs, inputs in self.matrices) + norms

    def to_llama(self) -> dict[str, Any]:
        """The same model as the config.json of a Hugging Face ``LlamaForCausalLM``."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **{theirs: getattr(self, ours) for ours, theirs in _LLAMA_NAMES.items()},
            "rope_theta": self.rope_base,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_base},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
        }

    @classmethod
    def from_llama(cls, config: dict[str, Any]) -> "ModelConfig":
        """Read the config.json of a Hugging Face ``LlamaForCausalLM``.

        Raises ValueError for a setting that changes what transformers computes and that is not
        supported here. Settings that transformers ignores in a Llama (``pretraining_tp``,
        ``sliding_window``, ``partial_rotary_factor``) are ignored.
        """
        require(isinstance(config, dict), f"{config!r:.60}: must be an object of keys and values")
        for key, wanted, default in (("model_type", "llama", None), *_LLAMA_FIXED):
            value = config.get(key, default)
            require(value == wanted, f"{key}={value}: only {key}={wanted} is supported")
        values: dict[str, Any] = {o: config.get(theirs) for o, theirs in _LLAMA_NAMES.items()}
        kinds = {field.name: field.type for field in fields(cls)}
        for ours, theirs in _LLAMA_NAMES.items():
            if values[ours] is None:
                optional = ours in ("n_kv_heads", "head_dim")
                require(optional, f"{theirs}: missing from config.json")
            else:
                _require_kind(theirs, values[ours], kinds[ours])
        if values["n_kv_heads"] is None:
            values["n_kv_heads"] = values["n_heads"]
        if values["head_dim"] is None:
            values["head_dim"] = values["d_model"] // values["n_heads"]
        values["rope_base"] = _rope_base(config)
        return cls(**values)


def _require_kind(key: str, value: Any, kind: Any) -> None:
    """Raise ValueError for a value of config.json with a wrong type or range; True is not 1."""
    ok, wanted = {
        int: (type(value) is int and 1 <= value < 2**31, "a whole number from 1 to 2**31 - 1"),
        float: (type(value) in (int, float) and 0 < value < 1e308, "a number above 0"),
        bool: (type(value) is bool, "true or false"),
    }[kind]
    require(ok, f"{key}={value!r:.60}: must be {wanted}")


def _rope_base(config: dict[str, Any]) -> float:
    """RoPE's base in a config.json, looked up in the same order as transformers does.

    ``rope_scaling``, unless empty, replaces ``rope_parameters`` entirely. A ``rope_theta`` inside
    the one that is used takes precedence over one at the top level.
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(name) or {}
    require(isinstance(rope, dict), f"{name}={rope}: must be an object with a rope_type")
    for key, value in rope.items():
        require(
            not isinstance(value, dict),
            f"{name}.{key}={value}: only one rotation for all layers is supported",
        )
    kind = rope.get("rope_type", rope.get("type", "default"))
    require(kind == "default", f"{name}: rope_type={kind}: only rope_type=default is supported")
    base = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    _require_kind("rope_theta", base, float)
    return float(base)


_LLAMA_FIXED = (
    ("hidden_act", "silu", "silu"),
    ("attention_bias", False, False),
    ("mlp_bias", False, False),
    ("is_causal", True, True),
    ("per_layer_config", None, None),
    ("quantization_config", None, None),
)
"""Keys that change what transformers computes: key, only value supported here, default."""
_LLAMA_NAMES = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "n_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "d_ff": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
}


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
