"""Every range of the config: the message names the field, the value and the limit."""

import math
from dataclasses import fields
from typing import Any

import pytest

from runners.harness.config.conversion import from_dict
from runners.harness.config.schema import BenchConfig, TablesConfig
from runners.harness.errors import UsageError

TRACKED: dict[str, Any] = {"tracking": {"dir": "results"}}
INF, NAN = math.inf, math.nan

REFUSED = [
    ("model.vocab_size", 1, "at least 2"),
    ("model.context_length", 0, "at least 1"),
    ("model.n_layers", 0, "at least 1"),
    ("model.d_model", 0, "at least 1"),
    ("model.n_heads", 0, "at least 1"),
    ("model.n_kv_heads", 0, "at least 1"),
    ("model.n_kv_heads", 3, "must divide n_heads=8"),
    ("model.head_dim", 33, "even"),
    ("model.head_dim", 0, "at least 2"),
    ("model.d_ff", 0, "at least 1"),
    ("model.rope_base", 1.0, "above 1"),
    ("model.no_rope_every", -1, "at least 0"),
    ("model.norm_eps", 0.0, "above 0"),
    ("model.norm_eps", NAN, "above 0"),
    ("device.kind", "tpu", "cpu, cuda, mps"),
    ("device.threads", 0, "from 1 to 4096"),
    ("device.threads", 4097, "from 1 to 4096"),
    ("device.on_missing", "stop", "skip, fail"),
    ("batch.size", 0, "from 1 to 2**31 - 1"),
    ("batch.size", -3, "from 1 to 2**31 - 1"),
    ("batch.size", 2**31, "from 1 to 2**31 - 1"),
    ("length.new_tokens", -1, "from 0 to 2**31 - 1"),
    ("length.new_tokens", 2**31, "from 0 to 2**31 - 1"),
    ("cache.kind", "ring", "none, rolling, static"),
    ("sampler.temperature", -1.0, "at least 0"),
    ("sampler.temperature", INF, "finite"),
    ("sampler.temperature", NAN, "finite"),
    ("sampler.top_k", -1, "at least 0"),
    ("sampler.top_p", 0.0, "(0, 1]"),
    ("sampler.top_p", 2.0, "(0, 1]"),
    ("sampler.top_p", NAN, "(0, 1]"),
    ("sampler.repetition_penalty", 0.0, "above 0"),
    ("sampler.repetition_penalty", -1.0, "above 0"),
    ("sampler.repetition_penalty", INF, "finite"),
    ("engine.kind", "warp", "eager"),
    ("precision.kind", "fp64", "fp32, bf16"),
    ("timing.min_repeats", 0, "at least 1"),
    ("timing.max_repeats", 4, "min_repeats=5 to 500"),
    ("timing.max_repeats", 501, "min_repeats=5 to 500"),
    ("timing.interval", 0.0, "(0, 1)"),
    ("timing.interval", 1.0, "(0, 1)"),
    ("timing.budget_s", -1.0, "at least 0"),
    ("timing.budget_s", NAN, "at least 0"),
    ("prompt.tokens", 0, "at least 1"),
    ("seed", -1, "from 0 to 2**63 - 1"),
    ("seed", 2**63, "from 0 to 2**63 - 1"),
    ("round", 0, "at least 1"),
]


def with_value(key: str, value: Any) -> dict[str, Any]:
    """What a composed config has of ``key``."""
    group, _, field = key.rpartition(".")
    return TRACKED | ({group: {field: value}} if group else {field: value})


@pytest.mark.parametrize(("key", "value", "limit"), REFUSED)
def test_a_value_out_of_range_is_named_with_its_limit(key: str, value: Any, limit: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_dict(with_value(key, value), BenchConfig)
    message = str(refused.value)
    assert message.startswith(f"{key}={value}: ")
    assert limit in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device.threads", 1),
        ("device.threads", None),
        ("batch.size", 1),
        ("length.new_tokens", 0),
        ("sampler.temperature", 0.0),
        ("sampler.temperature", 1e-40),
        ("sampler.top_k", 5000),
        ("sampler.top_p", 1e-8),
        ("sampler.top_p", 1.0),
        ("sampler.repetition_penalty", 0.5),
        ("timing.min_repeats", 200),
        ("timing.max_repeats", 500),
        ("timing.budget_s", 0.0),
        ("seed", 0),
        ("seed", 2**63 - 1),
    ],
)
def test_the_ends_of_a_range_are_in_it(key: str, value: Any) -> None:
    config: Any = from_dict(with_value(key, value), BenchConfig)
    for name in key.split("."):
        config = getattr(config, name)
    assert config == value


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("sampler.temperature", "hot", "'hot' is not a number"),
        ("batch.size", "many", "'many' is not a whole number"),
        ("batch.size", 1.5, "'1.5' is not a whole number"),
        ("model.tie_embeddings", "maybe", "not a valid bool"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_key(key: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_dict(with_value(key, value), BenchConfig)
    message = str(refused.value)
    assert message.startswith(f"{key}: ")
    assert said in message
    assert "\n" not in message


def test_an_unknown_key_is_named_with_what_its_group_has() -> None:
    with pytest.raises(UsageError) as refused:
        from_dict(with_value("batch.sise", 4), BenchConfig)
    message = str(refused.value)
    assert message.startswith("batch.sise: no such key")
    assert "batch.size" in message


def test_one_prompt_only() -> None:
    with pytest.raises(UsageError, match=r"prompt\.file=/a\.txt: .*prompt\.text is given as well"):
        from_dict(TRACKED | {"prompt": {"text": "a", "file": "/a.txt"}}, BenchConfig)
    with pytest.raises(UsageError, match=r"prompt\.text= is empty"):
        from_dict(with_value("prompt.text", ""), BenchConfig)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"table": "cash"}, "table=cash: must be one of all, cells, cache, device"),
        ({"format": "xls"}, "format=xls: must be one of rich, md, csv, json"),
        ({"format": "csv"}, "table=all: csv holds one table"),
        ({"format": "json"}, "table=all: json holds one table"),
    ],
)
def test_what_the_tables_refuse(values: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_dict(TRACKED | values, TablesConfig)
    assert message in str(refused.value)


def test_a_usage_error_exits_with_2() -> None:
    assert UsageError("two\n lines").code == 2
    assert str(UsageError("two\n lines")) == "two lines"


def test_every_group_and_number_of_the_config_is_checked() -> None:
    checked = {key for key, _, _ in REFUSED}
    unchecked = {
        "model.rope_scaling",  # a part, which has checks of its own
        "model.tie_embeddings",  # booleans
        "model.qkv_bias",
        "model.qk_norm",
        "resume",
        "plan",
        "prompt.text",
        "prompt.file",
        "prompt.chat",  # booleans, checked with the text: test_checkpoints.py
        "prompt.special",
        "tracking.dir",
        "tracking.uri",
        "checkpoint",
    }
    config: Any = from_dict(TRACKED, BenchConfig)
    keys: set[str] = set()
    for field in fields(BenchConfig):
        part = getattr(config, field.name)
        inner = getattr(type(part), "__dataclass_fields__", None)
        keys |= {f"{field.name}.{name}" for name in inner} if inner else {field.name}
    assert keys - unchecked == checked
