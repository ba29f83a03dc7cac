"""The dataclasses of the library: what they refuse and say, and Llama's config.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from tinygpt.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PrecisionConfig,
    SamplerConfig,
)
from tinygpt.weights import hf_config

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("cls", "field", "value", "said"),
    [
        *((ModelConfig, name, 0, "at least 1") for name in ("context_length", "n_layers", "d_ff")),
        *((ModelConfig, name, -1, "at least 1") for name in ("d_model", "n_heads", "n_kv_heads")),
        (ModelConfig, "vocab_size", 1, "at least 2"),
        (ModelConfig, "head_dim", 0, "even"),
        (ModelConfig, "head_dim", 33, "even"),
        (ModelConfig, "n_kv_heads", 3, "must divide n_heads=8"),
        (ModelConfig, "n_kv_heads", 16, "must divide n_heads=8"),
        (ModelConfig, "rope_base", 1.0, "above 1"),
        (ModelConfig, "rope_base", NAN, "above 1"),
        (ModelConfig, "norm_eps", 0.0, "above 0"),
        (CacheConfig, "kind", "ring", "none, rolling, static"),
        (EngineConfig, "kind", "vllm", "eager"),
        (PrecisionConfig, "kind", "fp16", "fp32, bf16"),
        *((SamplerConfig, "temperature", value, "at least 0") for value in (-1, -1e-9, NAN, INF)),
        (SamplerConfig, "top_k", -1, "at least 0"),
        *((SamplerConfig, "top_p", value, r"\(0, 1\]") for value in (0.0, -0.1, 1.5, NAN)),
        *((SamplerConfig, "repetition_penalty", value, "above 0") for value in (0, -1, NAN, INF)),
    ],
)
def test_a_value_out_of_range_is_named_with_its_limit(
    cls: type, field: str, value: object, said: str
) -> None:
    with pytest.raises(ValueError, match=f"^{field}={value}: .*{said}") as raised:
        cls(**{field: value})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.0},
        {"temperature": 1e-40},
        {"top_k": 0},
        {"top_k": 5000},
        {"top_p": 1e-8},
        {"top_p": 1.0},
        {"repetition_penalty": 0.5},
    ],
)
def test_the_ends_of_a_range_are_allowed(values: dict[str, Any]) -> None:
    for name, value in values.items():
        assert getattr(SamplerConfig(**values), name) == value


@pytest.mark.parametrize("cls", [ModelConfig, CacheConfig, SamplerConfig])
def test_a_key_that_does_not_exist_is_refused(cls: type) -> None:
    with pytest.raises(TypeError, match="blok_size"):
        cls(blok_size=256)


SHAPES = [
    ModelConfig(),
    ModelConfig(n_kv_heads=2, tie_embeddings=False),
    ModelConfig(vocab_size=300, context_length=64, n_layers=3, d_model=48, n_heads=6, n_kv_heads=3),
    ModelConfig(head_dim=40, d_ff=100, rope_base=500_000.0, norm_eps=1e-6),
]


@pytest.mark.parametrize("config", SHAPES)
def test_llama_and_back_is_the_same_config(config: ModelConfig) -> None:
    assert hf_config.read(json.loads(json.dumps(hf_config.write(config)))) == config


@pytest.mark.parametrize("config", SHAPES)
def test_reads_what_transformers_writes(config: ModelConfig, tmp_path: Path) -> None:
    LlamaConfig(**hf_config.write(config)).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert hf_config.read(written) == config


def test_reads_the_older_form() -> None:
    older = hf_config.write(ModelConfig(rope_base=500.0)) | {
        "rope_scaling": None,
        "rope_theta": 500.0,
    }
    for key in ("rope_parameters", "num_key_value_heads", "head_dim"):
        del older[key]
    assert hf_config.read(older) == ModelConfig(rope_base=500.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt2"}, "model_type=gpt2: is not supported"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor: missing"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "factor: missing"),
        ({"num_key_value_heads": 3}, "n_kv_heads=3"),
    ],
)
def test_a_model_of_another_shape_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        hf_config.read(hf_config.write(ModelConfig()) | change)


def test_a_config_json_without_a_size_is_refused() -> None:
    """The post's sizes are no answer to what somebody else's file leaves out."""
    config = hf_config.write(ModelConfig())
    del config["intermediate_size"]
    with pytest.raises(ValueError, match="intermediate_size"):
        hf_config.read(config)


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads"])
def test_null_means_not_given(key: str) -> None:
    config = hf_config.write(ModelConfig()) | {key: None}
    assert hf_config.read(config) == ModelConfig()


@pytest.mark.parametrize("config", SHAPES)
def test_parameters_are_counted_without_a_model(config: ModelConfig) -> None:
    from tinygpt.model import GPT

    assert config.n_parameters == sum(p.numel() for p in GPT(config).parameters())


def test_configs_are_compared_by_value() -> None:
    assert replace(ModelConfig(), n_layers=4) == ModelConfig(n_layers=4) != ModelConfig()
