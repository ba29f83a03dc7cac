"""The gate tells a right path from a wrong one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from runners.harness.measure import gate
from runners.harness.measure.gate import GateResult
from tests.small_model import BF16, CPU, EXACT, FP32, INT8, NANO, engine_for, greedy, random_ids
from tinygpt.cache import CACHES, CacheShape, RollingCache, StaticCache, Step
from tinygpt.checkpoint import cast, random_model
from tinygpt.config import CACHE_KINDS, CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.generation import OnToken, Pick
from tinygpt.model import GPT


def gated(
    kind: str,
    *,
    batch: int,
    config: ModelConfig = NANO,
    precision: PrecisionConfig = FP32,
    seed: int = 1,
) -> GateResult:
    model = cast(random_model(config, seed), precision, CPU)
    engine = engine_for(kind, model, batch=batch, max_positions=60, precision=precision)
    return gate.check(
        engine, model, random_ids(model, batch, 8), 50, precision, CacheConfig(kind=kind)
    )


@pytest.mark.parametrize("kind", CACHE_KINDS)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=["fp32", "bf16", "int8"])
@pytest.mark.parametrize("config", [NANO, ModelConfig()], ids=["nano", "tiny"])
def test_the_gate_passes_what_is_right(
    kind: str, batch: int, precision: PrecisionConfig, config: ModelConfig
) -> None:
    result = gated(kind, batch=batch, config=config, precision=precision)
    assert result.reason == ""
    assert result.max_difference < (0.05 if precision is BF16 else 1e-5)


def rows_from_zero(cache: Any, n_new: int) -> Step:
    step = RIGHT_STEP(cache, n_new)
    return step._replace(cos=cache._cos[:n_new], sin=cache._sin[:n_new])


def one_row_ahead(cache: Any, n_new: int) -> Step:
    if cache.position == 0:
        return RIGHT_STEP(cache, n_new)
    rows = slice(cache.position + 1, cache.position + 1 + n_new)
    return RIGHT_STEP(cache, n_new)._replace(cos=cache._cos[rows], sin=cache._sin[rows])


def top_left_mask(cache: Any, n_new: int) -> Step:
    return RIGHT_STEP(cache, n_new)._replace(mask=None, is_causal=True)


def blind_to_the_prompt(cache: Any, n_new: int) -> Step:
    step = RIGHT_STEP(cache, n_new)
    mask = torch.ones(n_new, cache.length + n_new, dtype=torch.bool)
    mask[:, :4] = cache.position == 0
    return step if cache.position == 0 else step._replace(mask=mask)


def narrow_window(cache: Any, shape: CacheShape) -> None:
    base = StaticCache if isinstance(cache, StaticCache) else RollingCache
    base.__init__(cache, replace(shape, model=replace(shape.model, context_length=16)))


RIGHT_STEP: Callable[[Any, int], Step] = RollingCache.step
WRONG = {
    "rows from zero": {"step": rows_from_zero},
    "one row ahead": {"step": one_row_ahead},
    "top-left mask": {"step": top_left_mask},
    "blind to the prompt": {"step": blind_to_the_prompt},
    "narrow window": {"__init__": narrow_window},
}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("base", [RollingCache, StaticCache])
@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("fault", WRONG)
def test_the_gate_catches(
    fault: str,
    precision: PrecisionConfig,
    base: type,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CACHES, "rolling", type("Wrong", (base,), WRONG[fault]))
    result = gated("rolling", batch=batch, precision=precision)
    assert "the cache, mask or positions are wrong" in result.reason


class Stub:
    """An engine that is right, except for what it shows and what it picks."""

    kv_cache_bytes = 0

    def __init__(
        self, model: GPT, show: Callable[[Tensor], Tensor], take: Pick | None = None
    ) -> None:
        self.model, self.show, self.take = model, show, take

    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        ids = prompt
        for _ in range(new_tokens):
            logits = self.model(ids)[:, -1]
            picked = pick(self.show(logits))
            if self.take is not None:
                picked = self.take(logits)
            ids = torch.cat([ids, picked[:, None]], dim=1)
        return ids


def judge(model: GPT, batch: int, show: Callable[[Tensor], Tensor], **how: Any) -> GateResult:
    engine = Stub(model, show, **how)
    return gate.check(engine, model, random_ids(model, batch, 8), 5, FP32, EXACT)


def test_the_gate_counts_ties_within_rounding() -> None:
    model = random_model(NANO, seed=1)
    with torch.no_grad():  # tokens come in pairs that differ by rounding only
        model.emb.weight[1::2] = model.emb.weight[0::2] * (1 + 1e-6)

    def swap_pairs(logits: Tensor) -> Tensor:
        return logits.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

    result = judge(model, 4, swap_pairs)
    assert result.reason == ""
    assert 0 < result.max_difference < 1e-4
    assert 10 <= result.ties <= 20


def test_the_gate_reports_ids_that_the_logits_do_not_explain() -> None:
    result = judge(
        random_model(NANO, seed=1), 2, lambda x: x, take=lambda x: x.topk(2).indices[:, 1]
    )
    assert result.reason.startswith("10 greedy ids are not the reference's choice")


@pytest.mark.parametrize(("batch", "row"), [(1, 0), (4, 3), (16, 0), (16, 15)])
def test_the_gate_reports_nan(batch: int, row: int) -> None:
    def one_nan(logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[row, 0] = float("nan")
        return logits

    result = judge(random_model(NANO, seed=1), batch, one_nan, take=greedy)
    assert result.reason.startswith("logits differ by nan")


@pytest.mark.parametrize("wrong", [None, 0, 1, 3, 4])
def test_with_a_large_vocabulary_fewer_positions_are_compared(
    wrong: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LOGITS_BYTES", 1)  # four of the five: steps 0, 1, 3 and 4
    shown: list[Tensor] = []

    def show(logits: Tensor) -> Tensor:
        shown.append(logits)
        return logits + 1.0 if len(shown) - 1 == wrong else logits

    result = judge(random_model(NANO, seed=1), 2, show, take=greedy)
    assert (result.reason == "") == (wrong is None)
    assert gate._spread([*range(32)], 4) == [0, 10, 21, 31]


def test_the_gate_reports_weights_of_nan() -> None:
    model = random_model(NANO, seed=1)
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    assert "logits differ by nan" in judge(model, 2, lambda x: x).reason


def test_the_gate_stays_inside_the_window() -> None:
    model = random_model(NANO, seed=1)
    for tokens, steps in ((8, 32), (60, 5), (64, 1)):
        engine, passes = engine_for("rolling", model, batch=1, max_positions=100), []
        hook = model.head.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        assert gate.check(engine, model, random_ids(model, 1, tokens), 50, FP32, EXACT).reason == ""
        hook.remove()
        assert len(passes) == steps + 1  # and the reference's one
