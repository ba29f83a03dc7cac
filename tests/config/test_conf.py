"""Every file under conf/ composes, and does something."""

import itertools
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from runners.harness.config import conversion
from runners.harness.config.conversion import to_config, to_dict
from runners.harness.config.paths import conf_dir, config_groups
from runners.harness.config.schema import BenchConfig

OPTIONS = {
    "model": [
        "base",
        "llama-3.2-1b",
        "nano",
        "qwen3-0.6b",
        "small",
        "smollm2-135m",
        "smollm2-360m",
        "tiny",
        "tinyllama-1.1b",
    ],
    "device": ["cpu", "cuda", "mps"],
    "batch": ["1", "16", "2", "32", "4", "64", "8"],
    "length": ["1024", "256", "64"],
    "cache": ["none", "rolling", "static"],
    "sampler": [
        "greedy",
        "penalty1.3",
        "t0.5",
        "t0.7",
        "t0.8_topp0.9",
        "t1.0",
        "t1.5",
        "topk50",
        "topp0.9",
    ],
    "engine": ["compiled", "eager"],
    "precision": ["bf16", "fp32", "int8"],
    "timing": ["quick", "standard", "thorough"],
}
"""The contract's options; a group may have more."""


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


GROUPS = sorted(config_groups() - {"experiment"})


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    conversion.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


@cache  # composing takes a twentieth of a second and more
def composed(*overrides: str) -> DictConfig:
    return compose("bench", overrides=list(overrides))


@cache
def resolved(*overrides: str) -> BenchConfig:
    return to_config(composed(*overrides), BenchConfig)


def targets(values: Any, path: str = "") -> list[str]:
    """The dotted keys that would have Hydra call something."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return []
    found = [f"{path}{key}" for key in values if key == "_target_"]
    return found + [
        target for key, value in values.items() for target in targets(value, f"{path}{key}.")
    ]


def test_the_groups_are_the_contracts() -> None:
    assert set(OPTIONS) <= set(GROUPS)
    for group, wanted in OPTIONS.items():
        assert set(wanted) <= set(options(group)), group


def test_the_default_cell_is_the_contracts() -> None:
    config = resolved()
    assert to_dict(config) == to_dict(
        resolved(
            "model=tiny",
            "device=cpu",
            "batch=1",
            "length=256",
            "cache=rolling",
            "sampler=greedy",
            "engine=eager",
            "precision=fp32",
            "timing=standard",
        )
    )
    assert (config.device.kind, config.device.threads, config.device.on_missing) == (
        "cpu",
        None,
        "skip",
    )
    assert (config.batch.size, config.length.new_tokens, config.cache.kind) == (1, 256, "rolling")
    assert (config.engine.kind, config.precision.kind) == ("eager", "fp32")
    assert (config.seed, config.round, config.checkpoint) == (1, 1, "none")
    assert (config.prompt.tokens, config.prompt.text, config.prompt.file) == (8, None, None)
    assert to_dict(config.sampler) == {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
    }


@pytest.mark.parametrize("group", GROUPS)
def test_h6_every_option_composes_and_differs_from_the_others(group: str) -> None:
    found = {
        option: json.dumps(to_dict(resolved(f"{group}={option}")), sort_keys=True)
        for option in options(group)
    }
    assert found
    for one, other in itertools.combinations(found, 2):
        assert found[one] != found[other], f"{group}={one} is {group}={other}"


@pytest.mark.parametrize("group", GROUPS)
def test_an_option_touches_its_own_group_only(group: str) -> None:
    default = to_dict(resolved())
    for option in options(group):
        config = to_dict(resolved(f"{group}={option}"))
        assert {key for key in config if config[key] != default[key]} <= {group}


@pytest.mark.parametrize("number", [*OPTIONS["batch"], *OPTIONS["length"]])
def test_an_option_named_by_a_number_is_that_number(number: str) -> None:
    if number in OPTIONS["batch"]:
        assert resolved(f"batch={number}").batch.size == int(number)
    if number in OPTIONS["length"]:
        assert resolved(f"length={number}").length.new_tokens == int(number)


@pytest.mark.parametrize(
    ("option", "knobs"),
    [
        ("greedy", (0.0, 0, 1.0, 1.0)),
        ("t0.5", (0.5, 0, 1.0, 1.0)),
        ("t0.7", (0.7, 0, 1.0, 1.0)),
        ("t1.0", (1.0, 0, 1.0, 1.0)),
        ("t1.5", (1.5, 0, 1.0, 1.0)),
        ("topk50", (1.0, 50, 1.0, 1.0)),
        ("topp0.9", (1.0, 0, 0.9, 1.0)),
        ("t0.8_topp0.9", (0.8, 0, 0.9, 1.0)),
        ("penalty1.3", (0.0, 0, 1.0, 1.3)),
    ],
)
def test_a_sampler_preset_is_what_its_name_says(option: str, knobs: tuple[float, ...]) -> None:
    sampler = resolved(f"sampler={option}").sampler
    assert knobs == (
        sampler.temperature,
        sampler.top_k,
        sampler.top_p,
        sampler.repetition_penalty,
    )


@pytest.mark.parametrize(
    ("option", "n_parameters"),
    [
        ("nano", 362_816),
        ("tiny", 5_795_072),
        ("small", 24_239_616),
        ("base", 109_337_856),
        ("smollm2-135m", 134_515_008),  # these as published
        ("smollm2-360m", 361_821_120),
        ("qwen3-0.6b", 596_049_920),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-3.2-1b", 1_235_814_400),
    ],
)
def test_a_models_parameters(option: str, n_parameters: int) -> None:
    assert resolved(f"model={option}").model.n_parameters == n_parameters


@pytest.mark.parametrize(
    ("option", "rules"),
    [
        ("quick", (1, 3, 0.05, 5.0)),
        ("standard", (5, 200, 0.05, 30.0)),
        ("thorough", (10, 200, 0.02, 120.0)),
    ],
)
def test_a_timing_preset_is_the_procedures(option: str, rules: tuple[float, ...]) -> None:
    timing = resolved(f"timing={option}").timing
    assert rules == (timing.min_repeats, timing.max_repeats, timing.interval, timing.budget_s)


def is_of_bench(preset: str) -> bool:
    """Whether an experiment is one of bench; the others set keys that bench has not."""
    keys = yaml.safe_load((conf_dir() / "experiment" / f"{preset}.yaml").read_text())
    return set(keys) <= {"defaults", "hydra", *BenchConfig.__dataclass_fields__}


@pytest.mark.parametrize("preset", list(filter(is_of_bench, options("experiment"))))
def test_every_experiment_composes_and_is_a_sweep(preset: str) -> None:
    cfg = compose("bench", overrides=[f"experiment={preset}"], return_hydra_config=True)
    to_config(cfg, BenchConfig)
    assert cfg.hydra.sweeper.params
    for name, values in cfg.hydra.sweeper.params.items():
        for value in str(values).split(","):
            resolved(f"{name}={value.strip()}")


def test_the_posts_tables_are_24_cells() -> None:
    cfg = compose("bench", overrides=["experiment=post"], return_hydra_config=True)
    axes = {name: str(values).split(",") for name, values in cfg.hydra.sweeper.params.items()}
    assert is_of_bench("post")
    assert axes == {
        "device": ["cpu", "cuda"],
        "batch": ["1", "16"],
        "length": ["64", "256", "1024"],
        "cache": ["none", "rolling"],
    }


def test_a_number_without_a_file_is_set_by_value() -> None:
    config = resolved("batch.size=12", "length.new_tokens=100", "device.threads=3", "seed=7")
    assert (config.batch.size, config.length.new_tokens) == (12, 100)
    assert (config.device.threads, config.seed) == (3, 7)


def test_nothing_outside_hydras_own_node_can_run_code() -> None:
    for group in GROUPS:
        for option in options(group):
            cfg = OmegaConf.to_container(composed(f"{group}={option}"))
            assert targets(cfg) == []
    for path in conf_dir().rglob("*.yaml"):
        for target in targets(OmegaConf.to_container(OmegaConf.load(path))):
            assert target.startswith("hydra."), f"{path.name}: {target}"


def test_no_option_is_named_like_a_yaml_boolean() -> None:
    words = {"on", "off", "yes", "no", "true", "false", "null", "y", "n"}
    for group in [*GROUPS, "experiment"]:
        assert not words & {option.lower() for option in options(group)}
