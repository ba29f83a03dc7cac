"""Caches that approximate: stated by their class, gated by it, marked wherever they are shown.

``Half`` is what a user would add: half a window. ``Sinks`` and ``Rounded`` are the two other kinds
that a statement has to be able to describe.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from runners.harness.config.schema import (
    BenchConfig,
    DeviceConfig,
    LengthConfig,
    PromptConfig,
    PromptsConfig,
    RaceConfig,
    SampleConfig,
    TextPromptConfig,
    TimingConfig,
    VerifyConfig,
)
from runners.harness.measure import gate
from runners.harness.measure.cell import run_cell
from runners.harness.measure.result import CellResult
from runners.harness.report import render
from runners.harness.store.tracking import Store
from runners.harness.tables import engines as engine_table
from runners.harness.tables import frames
from runners.harness.tables.bench import bench_tables
from runners.harness.text.race import race
from runners.harness.text.race_screen import same_text
from runners.harness.text.sample import sample
from runners.harness.verify.run import verify
from tests import text_checkpoint
from tests.small_model import BF16, CPU, FP32, NANO, engine_for, random_ids
from tests.small_text import MODEL
from tinygpt import config as library_config
from tinygpt import reference
from tinygpt.cache import CACHES, CacheShape, RollingCache, Seen, Step
from tinygpt.checkpoint import cast, random_model, save_model
from tinygpt.config import ENGINES, CacheConfig, EngineConfig, ModelConfig, PrecisionConfig
from tinygpt.engines import unsupported
from tinygpt.rope import rotate


def windowed(shape: CacheShape, window: int) -> CacheShape:
    """The same shape for a model with another window."""
    return replace(shape, model=replace(shape.model, context_length=window))


class Half(RollingCache):
    """A rolling cache of half a window."""

    exact = False

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(windowed(shape, shape.model.context_length // 2))

    @staticmethod
    def seen(model: ModelConfig, prompt_tokens: int, tokens: int) -> Seen:
        half = replace(model, context_length=model.context_length // 2)
        return RollingCache.seen(half, prompt_tokens, tokens)


class HalfTooShort(Half):
    """Half a window less one, which shows past the first wrap only."""

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(windowed(shape, shape.model.context_length - 2))


class HalfFromZero(Half):
    """Each new token is rotated as if it stood at position 0."""

    def step(self, n_new: int) -> Step:
        return super().step(n_new)._replace(cos=self._cos[:n_new], sin=self._sin[:n_new])


class Sinks(RollingCache):
    """The first four tokens and the last twelve, with positions counted inside the cache.

    Keys are held as they were before their rotation, and rotated by their place when looked at.
    """

    exact = False
    FIRST, LAST = 4, 12

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(windowed(shape, self.FIRST + self.LAST))

    def step(self, n_new: int) -> Step:
        step, n = super().step(n_new), min(self.position + n_new, self.window)
        self._rows = slice(n - n_new, n)
        return step._replace(cos=self._cos[self._rows], sin=self._sin[self._rows])

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k = rotate(k, self._cos[self._rows], -self._sin[self._rows])
        held = [torch.cat(pair, dim=2) for pair in ((self.k[layer], k), (self.v[layer], v))]
        if held[0].shape[2] > self.window:
            held = [torch.cat([h[:, :, : self.FIRST], h[:, :, -self.LAST :]], 2) for h in held]
        self.k[layer], self.v[layer] = held
        n = held[0].shape[2]
        return rotate(held[0], self._cos[:n], self._sin[:n]), held[1]

    @staticmethod
    def seen(model: ModelConfig, prompt_tokens: int, tokens: int) -> Seen:
        at = torch.arange(tokens)
        back = at[:, None] - at
        cut = max(0, prompt_tokens - Sinks.FIRST - Sinks.LAST)
        sink = (at >= cut) & (at < cut + Sinks.FIRST)
        mask = (back >= 0) & (at >= cut) & (sink | (back < Sinks.LAST))
        place = (at - cut).clamp(max=Sinks.FIRST + Sinks.LAST - 1)[:, None]
        return Seen(mask, torch.where(sink, place - (at - cut), back))


def coarse(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded to sixteenths."""
    return (k * 16).round() / 16, (v * 16).round() / 16


class Rounded(RollingCache):
    """A rolling cache of coarse numbers."""

    exact = False

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().update(layer, *coarse(k, v))

    @staticmethod
    def seen(model: ModelConfig, prompt_tokens: int, tokens: int) -> Seen:
        return RollingCache.seen(model, prompt_tokens, tokens)._replace(kept=coarse)


class RoundedFromZero(Rounded):
    """Each new token is rotated as if it stood at position 0."""

    def step(self, n_new: int) -> Step:
        return super().step(n_new)._replace(cos=self._cos[:n_new], sin=self._sin[:n_new])


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth kind of cache, as README's "Adding to it" says."""
    add(monkeypatch, Half)


def add(monkeypatch: pytest.MonkeyPatch, cache: Any) -> None:
    monkeypatch.setitem(CACHES, "fourth", cache)
    monkeypatch.setattr(library_config, "CACHE_KINDS", (*("none", "rolling", "static"), "fourth"))


def config(**changes: Any) -> BenchConfig:
    parts: dict[str, Any] = {
        "model": NANO,
        "device": DeviceConfig(threads=1),
        "length": LengthConfig(new_tokens=60),
        "timing": TimingConfig(min_repeats=1, max_repeats=1),
        "cache": CacheConfig(kind="fourth"),
        "prompt": PromptConfig(tokens=8),
    }
    return BenchConfig(**parts | changes)


# the reference


def test_where_all_is_seen_the_reference_is_the_plain_pass() -> None:
    for changes in ({}, {"n_kv_heads": 2, "head_dim": 24, "tie_embeddings": False}):
        model = random_model(replace(NANO, **changes), seed=1)
        ids, at = random_ids(model, 3, 64), torch.arange(64)
        seen = RollingCache.seen(model.config, 8, 64)
        with torch.inference_mode():
            plain = model(ids)
        torch.testing.assert_close(
            reference.forward(model, ids, seen, at), plain, atol=1e-5, rtol=0
        )


def test_the_reference_in_parts_is_that_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(NANO, seed=1)
    ids, at = random_ids(model, 2, 50), torch.tensor([3, 49])
    seen = Sinks.seen(NANO, 8, 50)
    whole = reference.forward(model, ids, seen, at)
    monkeypatch.setattr(reference, "QUERIES_AT_ONCE", 7)
    torch.testing.assert_close(reference.forward(model, ids, seen, at), whole, atol=1e-5, rtol=0)


def test_exact_caches_are_what_they_state_past_the_window_too() -> None:
    model = random_model(NANO, seed=1)
    for name in ("rolling", "static"):
        cache = CACHES[name](model.cache_shape(2, 100))
        ids, steps = random_ids(model, 2, 100), []
        steps.append(model.step(ids[:, :8], cache))
        steps += [model.step(ids[:, n : n + 1], cache) for n in range(8, 100)]
        seen = CACHES[name].seen(NANO, 8, 100)
        stated = reference.forward(model, ids, seen, torch.arange(7, 100))
        torch.testing.assert_close(torch.stack(steps, dim=1), stated, atol=1e-4, rtol=0)


# the gate


def gated(prompt: int, new: int = 100, precision: PrecisionConfig = FP32, batch: int = 2) -> Any:
    model = cast(random_model(NANO, seed=1), precision, CPU)
    engine = engine_for("fourth", model, batch=batch, max_positions=200, precision=precision)
    fourth = CacheConfig(kind="fourth")
    return gate.check(engine, model, random_ids(model, batch, prompt), new, precision, fourth)


@pytest.mark.parametrize("cache", [Half, Sinks, Rounded])
@pytest.mark.parametrize("prompt", [3, 16, 40, 64])
@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_the_gate_passes_an_approximation_that_does_what_it_states(
    cache: Any, prompt: int, precision: PrecisionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, cache)
    found = gated(prompt, precision=precision, batch=9)
    assert found.reason == ""


@pytest.mark.parametrize("cache", [HalfTooShort, HalfFromZero, RoundedFromZero])
def test_the_gate_catches_an_approximation_that_does_not(
    cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, cache)
    assert "a forward pass over what cache=fourth states that it sees" in gated(8).reason


def test_a_fault_past_the_first_wrap_is_no_matter_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(monkeypatch, HalfTooShort)
    assert gated(8, new=20).reason == ""


def test_the_gate_ends_soon_after_the_first_wrap() -> None:
    model = random_model(NANO, seed=1)
    assert gate.first_wrap(Half, model, 8, 1000) == 32
    assert gate.first_wrap(Half, model, 8, 20) == 20
    assert gate.first_wrap(Half, model, 50, 1000) == 50
    passes: list[int] = []
    engine = engine_for("fourth", model, batch=1, max_positions=600)
    hook = model.head.register_forward_hook(lambda *_: passes.append(1))
    fourth = CacheConfig(kind="fourth")
    assert gate.check(engine, model, random_ids(model, 1, 8), 500, FP32, fourth).reason == ""
    hook.remove()
    assert len(passes) == (32 - 8) + 1 + 32 + 1  # to the wrap, past it, and the reference's


# a cell


def test_an_approximation_is_timed_and_tagged() -> None:
    found = run_cell(config())
    assert (found.outcome, found.reason) == ("ok", "")
    assert found.tags["tinygpt.approximate"] == "true"
    assert found.metrics["output_tok_per_s"] > 0
    assert "tinygpt.approximate" not in run_cell(config(cache=CacheConfig())).tags


def test_a_wrong_approximation_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch, HalfTooShort)
    found = run_cell(config())
    assert found.outcome == "mismatch"
    assert "what cache=fourth states" in found.reason


def test_a_class_that_calls_itself_exact_is_judged_so(monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch, type("Boast", (Half,), {"exact": True}))
    assert "from a forward pass without cache" in run_cell(config()).reason


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_engine_runs_a_fourth_cache_or_says_that_it_does_not(engine: str) -> None:
    found = run_cell(config(engine=EngineConfig(kind=engine)))
    if engine == "eager":
        assert found.outcome == "ok"
    else:
        assert found.outcome == "skipped"
        assert f"engine={engine}: does not run cache=fourth; choose cache=static" in found.reason


@pytest.mark.parametrize(
    ("engine", "runs"),
    [
        ("eager", {"none", "rolling", "static"}),
        ("compiled", {"none", "static"}),
        ("cudagraph", {"static"}),
    ],
)
def test_an_engine_states_its_caches(engine: str, runs: set[str]) -> None:
    kinds = ("none", "rolling", "static")
    said = {
        k: unsupported(EngineConfig(kind=engine), NANO, CacheConfig(kind=k), "cuda") for k in kinds
    }
    assert {k for k in kinds if "does not run" not in said[k]} == runs


# tables


def test_every_table_marks_an_approximation(
    bench: Callable[..., tuple[int, str, str]], results: Path
) -> None:
    words = ("model=nano", "timing=quick", "length.new_tokens=40", "cache.kind=none,fourth,rolling")
    status, out, _ = bench("-m", *words)
    assert status == 0
    mark = "fourth (approximate)"
    store = Store(results)
    frame = frames.cells("latest", store)
    assert list(frame["cache"]) == ["none", "rolling", mark]
    assert list(frames.cells("latest", store, where="cache=fourth")["cache"]) == [mark]
    against_none = frames.cache_speedup(frame)
    assert list(against_none["cache"]) == ["rolling", mark]
    assert out.count(mark) == 2  # among the cells, and against none
    elsewhere = frame.assign(device="cuda", machine="m + GPU")
    devices = frames.device_comparison(pd.concat([frame, elsewhere]))
    assert list(devices["cache"]) == ["none", "rolling", mark]
    other = frame[frame["cache"].ne(mark)].assign(engine="compiled")
    engines = engine_table.engines(pd.concat([frame, other]))
    assert list(engines["cache"]).count(mark) == 1
    for table in bench_tables(pd.concat([frame, elsewhere, other])):
        assert mark in render.to_csv(table.frame), table.name


# other commands


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer; weights of its size round as little as learnt ones."""
    saved = tmp_path / "ck"
    save_model(random_model(MODEL, 1), saved, tokenizer=text_checkpoint.tokenizer())
    return saved


def test_an_engine_that_does_not_run_it_skips_the_text(folder: Path) -> None:
    parts: dict[str, Any] = {
        "model": MODEL,
        "checkpoint": str(folder),
        "length": LengthConfig(new_tokens=5),
        "prompt": PromptsConfig(text="It"),
        "cache": CacheConfig(kind="fourth"),
        "device": DeviceConfig(threads=1),
    }
    text = sample(SampleConfig(**parts), lambda prompt, piece: None)
    assert (text.outcome, text.tags["tinygpt.approximate"]) == ("ok", "true")
    other = sample(
        SampleConfig(**parts, engine=EngineConfig(kind="compiled")), lambda prompt, piece: None
    )
    assert (other.outcome, "does not run cache=fourth" in other.reason) == ("skipped", True)


def checks(found: CellResult) -> dict[str, tuple[str, str]]:
    rows = json.loads(found.files["checks.json"])
    return {row["name"]: (row["outcome"], row["seen"]) for row in rows}


def verified(folder: Path, new: int = 150, **changes: Any) -> CellResult:
    return verify(
        VerifyConfig(
            model=MODEL,
            checkpoint=str(folder),
            length=LengthConfig(new_tokens=new),
            prompt=TextPromptConfig(text="It was"),
            device=DeviceConfig(threads=1),
            check="cache",
            **changes,
        )
    )


def test_verify_holds_an_approximation_to_what_it_states(folder: Path) -> None:
    found = verified(folder)
    assert (found.outcome, found.reason) == ("ok", "")
    seen = checks(found)
    assert seen["fourth logits"][0] == seen["fourth keys seen"][0] == "passed"
    assert "of a pass over what its class states" in seen["fourth logits"][1]
    assert seen["fourth against none"][1].endswith("an approximation promises none of them")
    assert seen["static = rolling"][0] == "passed"
    assert not {"fourth ids", "fourth = rolling", "fourth token 100"} & set(seen)
    assert [row["cache"] for row in found.generations] == ["none", "rolling", "static", "fourth"]


def test_verify_finds_an_approximation_that_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, HalfTooShort)
    found = verified(folder)
    assert found.outcome == "mismatch"
    assert found.reason.endswith("2 of 13 checks failed: fourth logits; fourth keys seen")


def test_verify_judges_a_fourth_exact_cache_like_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, type("Again", (RollingCache,), {}))
    found = verified(folder)
    assert (found.outcome, found.reason) == ("ok", "")
    passed = {name for name, (outcome, _) in checks(found).items() if outcome == "passed"}
    assert {"fourth ids", "fourth logits", "fourth = rolling", "fourth keys seen"} <= passed


def test_a_fault_is_shown_whatever_else_there_is(folder: Path) -> None:
    found = verified(folder, fault="rope")
    assert [row["cache"] for row in found.generations] == ["none", "rolling", "broken"]
    assert found.outcome == "mismatch"


def test_a_race_with_an_approximation_expects_no_equal_texts(folder: Path) -> None:
    found = race(
        RaceConfig(
            model=MODEL,
            checkpoint=str(folder),
            length=LengthConfig(new_tokens=100),
            cache=CacheConfig(kind="fourth"),
            device=DeviceConfig(threads=1),
        )
    )
    assert not found.exact
    apart = replace(found, cached=replace(found.cached, ids=[-1] * 100))
    assert same_text(apart) == (
        "The texts part at new token 1 of 100: the fourth cache is an approximation, and its text "
        "another."
    )
