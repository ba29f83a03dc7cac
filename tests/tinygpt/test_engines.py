"""An engine is one class and one line of the list; everything else is asked of the class."""

from dataclasses import replace

import pytest

from runners.harness.config.schema import BenchConfig
from runners.harness.measure import memory
from runners.harness.measure.cell import run_cell
from tests.measure.test_cell import config
from tests.small_model import FP32, NANO, engine_for
from tinygpt.checkpoint import random_model
from tinygpt.config import ENGINE_KINDS, ENGINES, CacheConfig, EngineConfig, ModelConfig
from tinygpt.engines import Engine, EnginePlan, engine_class, unsupported
from tinygpt.engines.eager import EagerEngine

STATIC = CacheConfig(kind="static")


class Fourth(EagerEngine):
    """An engine that a user adds: it needs room, and refuses a device and a cache."""

    caches = ("static",)

    @staticmethod
    def unsupported(model: ModelConfig, device: str) -> str:
        return "" if device == "cpu" else f"engine=fourth: not on {device}; choose device=cpu"

    @staticmethod
    def cache_positions(plan: EnginePlan) -> int:
        return max(plan.max_positions, plan.model.context_length)

    @staticmethod
    def copied_weights_bytes(plan: EnginePlan) -> int:
        return 1000

    @staticmethod
    def products_bytes(plan: EnginePlan) -> int:
        return 10**9


@pytest.fixture
def fourth(monkeypatch: pytest.MonkeyPatch) -> BenchConfig:
    """A cell of the added engine."""
    monkeypatch.setitem(ENGINES, "fourth", f"{__name__}:Fourth")
    return config(engine=EngineConfig(kind="fourth"), cache=STATIC)


def test_the_kinds_are_those_of_the_list() -> None:
    assert tuple(ENGINES) == ENGINE_KINDS
    with pytest.raises(ValueError, match=r"^kind=fourth: must be one of eager, comp"):
        EngineConfig(kind="fourth")


@pytest.mark.parametrize("kind", ENGINE_KINDS)
def test_every_line_of_the_list_leads_to_an_engine(kind: str) -> None:
    assert issubclass(engine_class(kind), Engine)


def test_an_added_engine_is_run_like_any_other(fourth: BenchConfig) -> None:
    model = random_model(NANO, seed=1)
    engine = engine_for("static", model, batch=1, max_positions=9, engine="fourth", precision=FP32)
    assert isinstance(engine, Fourth)
    found = run_cell(fourth)
    assert (found.outcome, found.reason) == ("ok", "")
    assert found.metrics["limit_share"] > 0


def test_an_added_engine_says_what_it_cannot_do(fourth: BenchConfig) -> None:
    rolling = run_cell(replace(fourth, cache=CacheConfig(kind="rolling")))
    assert rolling.outcome == "skipped"
    assert rolling.reason.startswith("engine=fourth: does not run cache=rolling; choose cache=stat")
    assert unsupported(fourth.engine, NANO, STATIC, "mps").startswith("engine=fourth: not on mps")


def test_an_added_engine_says_what_it_needs(fourth: BenchConfig) -> None:
    eager = replace(fourth, engine=EngineConfig(kind="eager"))
    needed, plain = memory.needed_bytes(fourth), memory.needed_bytes(eager)
    assert needed.weights == plain.weights + 1000
    assert needed.cache == 2 * 2 * NANO.context_length * 4 * 16 * 4  # k and v, layers, K, D, fp32
    assert plain.cache < needed.cache
    assert plain.work >= 10**9, "the products of every engine are timed beside each cell"
