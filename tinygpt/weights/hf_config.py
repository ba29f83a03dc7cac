"""The config.json of a Hugging Face checkpoint, read into a ``ModelConfig`` and written from one.

A setting that changes what transformers computes, and that is not supported here, is refused by
name. Settings that transformers ignores for an architecture are ignored here, too.
"""

from dataclasses import fields
from typing import Any, NamedTuple

from tinygpt.config import ModelConfig, RopeScalingConfig, require


class Architecture(NamedTuple):
    """What a ``model_type`` is, beside the sizes that its config.json gives."""

    name: str
    """The class of transformers, as in ``architectures``."""
    fixed: tuple[tuple[str, Any, Any], ...] = ()
    """Keys of which one value only is supported: key, that value, default."""
    defaults: tuple[tuple[str, Any], ...] = ()
    """What transformers takes for sizes that config.json leaves out."""
    rope_base: float = 10_000.0
    qkv_bias: bool = False
    qk_norm: bool = False
    has_windows: bool = False
    """Whether layers may look back on a part of the text only (``sliding_window``)."""


_COMMON = (
    ("hidden_act", "silu", "silu"),
    ("is_causal", True, True),
    ("per_layer_config", None, None),
    ("quantization_config", None, None),
)
_NO_BIAS = (("attention_bias", False, False), ("mlp_bias", False, False))
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", _NO_BIAS),
    "mistral": Architecture(
        "MistralForCausalLM", defaults=(("sliding_window", 4096),), has_windows=True
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", qkv_bias=True, has_windows=True),
    "qwen3": Architecture(
        "Qwen3ForCausalLM",
        (("attention_bias", False, False),),
        defaults=(("head_dim", 128),),
        qk_norm=True,
        has_windows=True,
    ),
    "smollm3": Architecture(
        "SmolLM3ForCausalLM",
        _NO_BIAS,
        defaults=(("tie_word_embeddings", True),),
        rope_base=2_000_000.0,
        has_windows=True,
    ),
}
"""The architectures that are supported, by ``model_type``."""
_NAMES = {
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
_DEFAULTS = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}
"""What transformers takes for keys that config.json leaves out, whatever the architecture."""


def read(config: dict[str, Any]) -> ModelConfig:
    """The model that a config.json describes.

    Raises ValueError, with a message of one line, for an architecture or a setting that is not
    supported, and for a size that is missing or no number.
    """
    require(isinstance(config, dict), f"{config!r:.60}: must be an object of keys and values")
    kind = config.get("model_type")
    known = ", ".join(ARCHITECTURES)
    require(
        isinstance(kind, str) and kind in ARCHITECTURES,
        f"model_type={kind}: is not supported; supported are {known}",
    )
    architecture = ARCHITECTURES[str(kind)]
    for key, wanted, default in (*_COMMON, *architecture.fixed):
        value = config.get(key, default)
        require(value == wanted, f"{key}={value}: only {key}={wanted} is supported")
    given = _DEFAULTS | dict(architecture.defaults)
    given |= {key: value for key, value in config.items() if value is not None}
    values: dict[str, Any] = {ours: given.get(theirs) for ours, theirs in _NAMES.items()}
    kinds = {field.name: field.type for field in fields(ModelConfig)}
    for ours, theirs in _NAMES.items():
        if values[ours] is None:
            optional = ours in ("n_kv_heads", "head_dim")
            require(optional, f"{theirs}: missing from config.json")
        else:
            _require_kind(theirs, values[ours], kinds[ours])
    values["n_kv_heads"] = values["n_kv_heads"] or values["n_heads"]
    values["head_dim"] = values["head_dim"] or values["d_model"] // values["n_heads"]
    if architecture.has_windows:
        _require_full_attention(config, given, values["context_length"])
    values |= _rope(config, architecture.rope_base, values["context_length"])
    values |= {"qkv_bias": architecture.qkv_bias, "qk_norm": architecture.qk_norm}
    if kind == "smollm3":
        values["no_rope_every"] = _no_rope_every(config, values["n_layers"])
    return ModelConfig(**values)


def write(model: ModelConfig) -> dict[str, Any]:
    """The config.json of the model, for the first architecture that computes the same.

    Raises ValueError for a model that none of them is.
    """
    for kind, architecture in ARCHITECTURES.items():
        if (
            (architecture.qkv_bias, architecture.qk_norm) == (model.qkv_bias, model.qk_norm)
            and (kind == "smollm3") == (model.no_rope_every > 0)
            and kind != "mistral"  # a llama computes the same
        ):
            break
    else:
        raise ValueError(
            f"model.qkv_bias={model.qkv_bias}, model.qk_norm={model.qk_norm}, "
            f"model.no_rope_every={model.no_rope_every}: no architecture of transformers has all "
            "of these; change one"
        )
    scaling = model.rope_scaling
    rope: dict[str, Any] = {"rope_type": scaling.kind, "rope_theta": model.rope_base}
    if scaling.kind != "default":
        rope["factor"] = scaling.factor
    if scaling.kind == "llama3":
        rope |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    found = {
        "architectures": [architecture.name],
        "model_type": kind,
        **{theirs: getattr(model, ours) for ours, theirs in _NAMES.items()},
        "rope_theta": model.rope_base,
        "rope_parameters": rope,
        **{key: wanted for key, wanted, _ in (_COMMON[0], *architecture.fixed)},
    }
    if kind == "smollm3":
        found["no_rope_layers"] = [int(model.rotates(n)) for n in range(model.n_layers)]
        found["no_rope_layer_interval"] = model.no_rope_every
        # Without these, transformers takes the ids of SmolLM3's own, larger vocabulary.
        found |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return found


def _require_kind(key: str, value: Any, kind: Any) -> None:
    """Raise ValueError for a value of config.json with a wrong type or range; True is not 1."""
    ok, wanted = {
        int: (type(value) is int and 1 <= value < 2**31, "a whole number from 1 to 2**31 - 1"),
        float: (type(value) in (int, float) and 0 < value < 1e308, "a number above 0"),
        bool: (type(value) is bool, "true or false"),
    }[kind]
    require(ok, f"{key}={value!r:.60}: must be {wanted}")


def _require_full_attention(config: dict[str, Any], given: dict[str, Any], context: int) -> None:
    """Raise ValueError for layers that do not look back on the whole text."""
    kinds = set(config.get("layer_types") or ["full_attention"])
    for kind in sorted(kinds - {"full_attention"}):
        require(False, f"layer_types: {kind} is not supported; only full_attention is")
    if config.get("model_type") != "mistral":
        value = config.get("use_sliding_window", False)
        require(value is False, f"use_sliding_window={value}: only false is supported")
        return
    window = (
        given.get("sliding_window") if "sliding_window" not in config else config["sliding_window"]
    )
    require(
        window is None or (type(window) is int and window >= context),
        f"sliding_window={window}: is below max_position_embeddings={context} and not supported; "
        "only full attention is",
    )


def _rope(config: dict[str, Any], base: float, context: int) -> dict[str, Any]:
    """RoPE's base and scaling in a config.json, looked up in the same order as transformers does.

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
    keys = {
        "default": {},
        "linear": {"factor": "factor"},
        "llama3": {
            "factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
        },
    }
    require(
        kind in keys,
        f"{name}: rope_type={kind}: is not supported; supported are {', '.join(keys)}",
    )
    scaling: dict[str, Any] = {"kind": kind}
    for ours, theirs in keys[kind].items():
        require(theirs in rope, f"{name}.{theirs}: missing from config.json")
        _require_kind(f"{name}.{theirs}", rope[theirs], float)
        scaling[ours] = float(rope[theirs])
    if kind == "llama3":
        trained = rope.get("original_max_position_embeddings", context)
        _require_kind(f"{name}.original_max_position_embeddings", trained, int)
        scaling["original_context"] = trained
    theta = rope.get("rope_theta", config.get("rope_theta", base))
    _require_kind("rope_theta", theta, float)
    return {"rope_base": float(theta), "rope_scaling": RopeScalingConfig(**scaling)}


def _no_rope_every(config: dict[str, Any], layers: int) -> int:
    """SmolLM3's interval of layers that rotate nothing; ValueError for layers without one."""
    interval = config.get("no_rope_layer_interval", 4)
    _require_kind("no_rope_layer_interval", interval, int)
    told = config.get("no_rope_layers") or [int((n + 1) % interval != 0) for n in range(layers)]
    for every in (0, interval):
        if told[:layers] == [int(every == 0 or (n + 1) % every != 0) for n in range(layers)]:
            return every
    raise ValueError(
        f"no_rope_layers={told}: only every {interval}-th layer (no_rope_layer_interval) without "
        "rotation is supported"
    )
