"""What verify says of right caches and of broken ones."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from runners.harness.config.schema import (
    DeviceConfig,
    LengthConfig,
    TextPromptConfig,
    TrackingConfig,
    VerifyConfig,
)
from runners.harness.machine import system
from runners.harness.measure import fingerprint, subject
from runners.harness.measure.result import CellResult
from runners.harness.verify import faults
from runners.harness.verify import run as verify_run
from runners.harness.verify.caches import (
    Closeness,
    check_same,
    check_window,
    closeness,
    first_difference,
)
from runners.harness.verify.report import Check, TwoTexts, side_by_side, to_markdown, two_texts
from runners.harness.verify.run import verify
from runners.harness.verify.watch import WatchedText, watch
from tests import small_text
from tests.small_model import BF16, FP32
from tinygpt.cache import CACHES, CacheShape, KVCache, RollingCache, StaticCache
from tinygpt.checkpoint import random_model, save_model
from tinygpt.config import ModelConfig
from tinygpt.tokenizer import Tokenizer

MODEL = replace(small_text.MODEL, context_length=256)
SHORT = replace(MODEL, context_length=64)
SEED = 7
"""Of random weights whose greedy text is no loop, and parts soon after the window."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights with a tokenizer; the weights fit ``SHORT`` as well."""
    path = tmp_path_factory.mktemp("checkpoint")
    tokenizer = Tokenizer.train(small_text.text(), MODEL.vocab_size)
    assert tokenizer.vocab_size == MODEL.vocab_size
    save_model(random_model(MODEL, SEED), path, tokenizer=tokenizer)
    return path


def config(folder: Path, *, prompt: int = 3, new: int = 300, **changes: Any) -> VerifyConfig:
    """A run from ``prompt`` tokens; the letter Q is none of the text's, so each is a token."""
    parts: dict[str, Any] = {
        "model": MODEL,
        "device": DeviceConfig(threads=1),
        "length": LengthConfig(new_tokens=new),
        "prompt": TextPromptConfig(text="Q" * prompt),
        "tracking": TrackingConfig(dir="unused"),
        "checkpoint": str(folder),
        "check": "cache",
    }
    return VerifyConfig(**parts | changes)


def checks(result: CellResult, outcome: str) -> dict[str, str]:
    """What was seen, by the name of the check, of those with this outcome."""
    assert "checks.json" in result.files, result.error or result.reason
    rows = json.loads(result.files["checks.json"])
    return {row["name"]: row["seen"] for row in rows if row["outcome"] == outcome}


# right caches


@pytest.fixture(scope="module")
def plain(folder: Path) -> CellResult:
    """The plain run, made once."""
    return verify(config(folder, check="all"))


def test_everything_holds(plain: CellResult) -> None:
    assert (plain.outcome, plain.reason, plain.error) == ("ok", "", "")
    assert list(checks(plain, "passed")) == [
        "rolling ids",
        "rolling logits",
        "static ids",
        "static logits",
        "static = rolling",
        *(f"{name} keys seen" for name in CACHES),
        *(f"{name} token 100" for name in CACHES),
        "sampler temperature 0",
        "sampler top_k 1",
        "sampler top_p 1e-8",
        "sampler top_k 5",
        "sampler top_p 0.75",
        "sampler penalty 2",
        "sampler seed",
        "sampler row 0",
    ]
    assert checks(plain, "failed") == checks(plain, "skipped") == {}
    assert plain.headline == "19 checks passed"


def test_the_figures_are_finite_and_named_by_cache(plain: CellResult) -> None:
    figures = plain.metrics
    assert figures["must_match_tokens"] == 254
    assert figures["keys_max_difference"] < 1e-4
    for name in ("rolling", "static"):
        assert figures[f"{name}_max_logit_difference"] < 1e-4
    assert (figures["checks_passed"], figures["checks_failed"]) == (19, 0)
    assert all(map(math.isfinite, figures.values()))


def test_a_row_for_each_cache_and_a_digest_of_all(plain: CellResult) -> None:
    rows = plain.generations
    assert [row["cache"] for row in rows] == ["none", "rolling", "static"]
    assert [len(row["new_ids"]) for row in rows] == [300] * 3
    assert {row["prompt"] for row in rows} == {"QQQ"}
    assert len(set(rows[0]["new_ids"][:254])) > 20  # a text that could differ
    digest = fingerprint.sha256([row["new_ids"] for row in rows])
    assert plain.tags["tinygpt.tokens_sha256"] == digest
    assert "tinygpt.cell_hash" in plain.tags


def test_where_the_texts_part_is_counted_both_ways(plain: CellResult) -> None:
    """Past the window, where it is told: with random weights they part soon after."""
    none, rolling, _ = (row["new_ids"] for row in plain.generations)
    parted = first_difference(none, rolling)
    assert parted is not None
    assert parted >= 254
    assert plain.metrics["rolling_first_difference"] == parted
    assert plain.metrics["rolling_first_difference_with_prompt"] == parted + 3
    told = checks(plain, "seen")["rolling against none"]
    assert told.startswith(
        f"first difference after {parted} of 300 new tokens, {parted + 3} of 303 with the prompt: "
        "no rounding tie"
    )
    assert told.endswith("the window has moved on")


def test_the_page_has_all_checks_and_both_texts(plain: CellResult) -> None:
    page = plain.files["verify.md"]
    assert page.startswith("# verify: checkpoint=")
    assert page.count("| passed |") == 19
    assert "## none and rolling" in page


def test_the_same_run_again_is_the_same(folder: Path) -> None:
    once, again = (verify(config(folder, new=10)) for _ in range(2))
    for tag in ("tinygpt.tokens_sha256", "tinygpt.cell_hash"):
        assert again.tags[tag] == once.tags[tag]
    other = verify(config(folder, new=10, fault="rope"))
    assert other.tags["tinygpt.cell_hash"] != once.tags["tinygpt.cell_hash"]


@pytest.mark.parametrize(("prompt", "new", "same"), [(3, 256, 254), (256, 3, 1), (300, 3, 1)])
def test_k2_as_many_ids_must_match_as_fit_the_window(
    folder: Path, prompt: int, new: int, same: int
) -> None:
    result = verify(config(folder, prompt=prompt, new=new))
    assert result.outcome == "ok", result.reason
    assert result.metrics["must_match_tokens"] == same
    assert checks(result, "passed")["rolling ids"].startswith(f"the first {same} of {same} are")
    cut = ["prompt of 300 tokens cut to its last 256"] if prompt == 300 else []
    assert result.notes == cut
    assert len(result.generations[0]["prompt_ids"]) == min(prompt, 256)


def test_k7_no_new_tokens_are_nothing_to_compare(folder: Path) -> None:
    result = verify(config(folder, new=0))
    assert (result.outcome, result.reason) == ("ok", "")
    assert checks(result, "skipped") == {
        "caches": "length.new_tokens=0: no token to compare; give at least 1"
    }
    assert [row["new_ids"] for row in result.generations] == [[], [], []]
    assert all(map(math.isfinite, result.metrics.values()))
    assert verify(config(folder, new=0, fault="rope")).outcome == "ok"


@pytest.mark.parametrize("new", [1, 2])
def test_few_tokens_never_differ(folder: Path, new: int) -> None:
    result = verify(config(folder, new=new))
    assert result.outcome == "ok"
    assert result.metrics["must_match_tokens"] == new
    assert "rolling_first_difference" not in result.metrics
    told = checks(result, "seen")
    assert told["static against none"] == f"no difference in {new} new tokens"


@pytest.mark.parametrize(
    ("prompt", "new", "window", "why"),
    [
        (3, 198, 256, "198 new tokens end before; give length.new_tokens=199"),
        (201, 20, 256, "the prompt has 201; give a shorter one"),
        (3, 210, 200, "the window is 200; take a model with a larger context_length"),
    ],
)
def test_token_100_is_skipped_where_the_text_is_not_long_enough(
    folder: Path, prompt: int, new: int, window: int, why: str
) -> None:
    model = replace(MODEL, context_length=window)
    result = verify(config(folder, prompt=prompt, new=new, model=model))
    assert result.outcome == "ok", result.reason
    skipped = checks(result, "skipped")
    assert list(skipped) == ["none token 100", "rolling token 100", "static token 100"]
    assert all(seen.endswith(why) for seen in skipped.values()), skipped
    assert "keys_max_difference" not in result.metrics
    assert result.metrics["checks_skipped"] == 3


@pytest.mark.parametrize(("prompt", "new"), [(3, 199), (200, 2)])
def test_token_100_is_looked_at_as_soon_as_it_can_be(folder: Path, prompt: int, new: int) -> None:
    assert "none token 100" in checks(verify(config(folder, prompt=prompt, new=new)), "passed")


def test_bf16_holds_up_to_rounding(folder: Path) -> None:
    result = verify(config(folder, precision=BF16, model=SHORT, new=80))
    assert result.outcome == "ok", result.reason
    assert "bf16 allows" in checks(result, "passed")["rolling logits"]


# caches that are wrong


BROKEN = ["broken ids", "broken logits", "broken = rolling"]
FOUND = {
    "rope": BROKEN,
    "mask": [*BROKEN, "broken keys seen"],
    "window": ["broken = rolling", "broken keys seen"],
}


@pytest.fixture(scope="module", params=FOUND)
def faulty(folder: Path, request: pytest.FixtureRequest) -> tuple[str, CellResult]:
    """Each fault, and what came of it."""
    return request.param, verify(config(folder, fault=request.param))


def test_every_fault_is_found(faulty: tuple[str, CellResult]) -> None:
    fault, result = faulty
    found = FOUND[fault]
    assert result.outcome == "mismatch"
    assert list(checks(result, "failed")) == found
    assert result.reason == (
        f"{len(found)} of 11 checks failed with fault={fault}: {'; '.join(found)}"
    )
    assert all(map(math.isfinite, result.metrics.values()))


def test_it_is_told_how_soon_a_fault_shows(faulty: tuple[str, CellResult]) -> None:
    fault, result = faulty
    rows = {row["cache"]: row["new_ids"] for row in result.generations}
    assert list(rows) == ["none", "rolling", "broken"]
    ids = first_difference(rows["rolling"], rows["broken"])
    told = checks(result, "seen")[f"fault={fault}"]
    logits = 254 if fault == "window" else 1
    assert f"the logits are off after {logits}, the ids part after {ids};" in told
    assert told.endswith(f"found by {'; '.join(FOUND[fault])}")
    assert "## correct and broken" in result.files["verify.md"]


def test_k1_no_query_sees_too_many_keys_or_too_few(faulty: tuple[str, CellResult]) -> None:
    fault, result = faulty
    seen = {
        "mask": "1 with 4 tokens so far; right is min(4, 256) = 4",
        "window": "257 with 257 tokens so far; right is min(257, 256) = 256",
    }
    assert checks(result, "failed").get("broken keys seen") == seen.get(fault)


def test_a_fault_that_has_no_time_to_show_is_said_to_be_unseen(folder: Path) -> None:
    result = verify(config(folder, fault="window", new=20))
    assert result.outcome == "ok"
    told = checks(result, "seen")["fault=window"]
    assert "never off in 20, the ids never do; found by nothing here: give more tokens" in told


class Forgetful(RollingCache):
    """Keys fade while they are stored."""

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k[layer] = self.k[layer] * (1 - 1e-7)
        return super().update(layer, k, v)


class OneSlotOff(StaticCache):
    """Past the window the newest token takes the slot after the oldest one's."""

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        held, at = super().update(layer, k, v), self.position
        if at >= self.slots and k.shape[2] == 1:
            wrong = (at + 1) % self.slots
            self.v[layer][:, :, wrong] = v[:, :, 0]
        return held


class ShortSighted(RollingCache):
    """The window is one entry too short."""

    def __init__(self, shape: CacheShape) -> None:
        shorter = replace(shape.model, context_length=shape.model.context_length - 1)
        super().__init__(replace(shape, model=shorter))


@pytest.mark.parametrize(
    ("name", "cache", "model", "found"),
    [
        ("rolling", Forgetful, MODEL, {"rolling token 100"}),
        ("static", OneSlotOff, SHORT, {"static = rolling"}),
        (
            "rolling",
            ShortSighted,
            SHORT,
            {"rolling ids", "rolling logits", "static = rolling", "rolling keys seen"},
        ),
    ],
)
def test_other_wrong_caches_are_found(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    cache: Any,
    model: ModelConfig,
    found: set[str],
) -> None:
    monkeypatch.setitem(CACHES, name, cache)
    new = 199 if model is MODEL else 80
    result = verify(config(folder, new=new, model=model))
    assert result.outcome == "mismatch"
    assert set(checks(result, "failed")) == found


def test_a_loop_without_a_cache_that_sees_too_little_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind(CACHES["none"]):  # type: ignore[misc]
        def pending(self, ids: Tensor) -> Tensor:
            return ids[:, -100:]

    monkeypatch.setitem(CACHES, "none", Blind)
    failed = checks(verify(config(folder, new=120)), "failed")
    assert failed["none keys seen"] == "100 with 101 tokens so far; right is min(101, 256) = 101"
    assert "rolling ids" in failed


def test_weights_of_nan_match_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(MODEL, SEED)
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    monkeypatch.setattr(subject, "make_model", lambda *_: model)
    result = verify(config(folder, new=5))
    assert result.outcome == "mismatch"
    assert {"rolling logits", "static logits", "static = rolling"} == set(checks(result, "failed"))
    assert all(map(math.isfinite, result.metrics.values()))


def test_what_the_run_runs_into_is_its_outcome(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "available_bytes", lambda: 10)
    result = verify(config(folder, new=600))
    assert result.outcome == "oom"
    assert result.reason.startswith("length.new_tokens=600: weights and the logits of every step")
    assert result.files == {}


# rounding


def written(new: list[int], logits: list[list[float]], name: str = "none") -> WatchedText:
    return WatchedText(name, torch.tensor([[1, 2]]), new, torch.tensor(logits), [], {})


def test_closeness_tells_the_first_step_beyond_the_limit() -> None:
    right = torch.tensor([[1.0, 10.0]] * 3)
    assert closeness(right, right + 1e-5, FP32).off is None
    shifted = right + torch.tensor([[0.0, 0.0], [0.0, 2e-4], [0.3, 0.0]])
    close = closeness(right, shifted, FP32)
    assert (close.off, close.worst) == (1, pytest.approx(0.3))
    assert closeness(right, shifted, BF16).off is None
    assert closeness(right, right * float("nan"), FP32).off == 0


@pytest.mark.parametrize(
    ("margin", "close", "tie"),
    [
        (1.9e-5, Closeness(1e-5, 1e-4, None), True),
        (2.1e-5, Closeness(1e-5, 1e-4, None), False),
        (0.0, Closeness(0.0, 1e-4, None), True),
        (0.1, Closeness(5.0, 1e-4, 3), False),  # what is wrong is no rounding
        (0.0, Closeness(5.0, 1e-4, 3), False),
        (float("nan"), Closeness(1e-5, 1e-4, None), False),
    ],
)
def test_a_tie_is_a_margin_within_twice_the_rounding(
    margin: float, close: Closeness, tie: bool
) -> None:
    assert close.is_tie(margin) == tie


def test_ids_may_part_at_a_rounding_tie_only() -> None:
    none = written([0, 0, 0], [[1.0, 0.0], [1.0, 1.0 - 1e-5], [1.0, 0.0]])
    tied = written([0, 1, 1], [[1.0, 0.0], [1.0 - 1e-5, 1.0], [0.0, 5.0]], "rolling")
    check, close = check_same(none, tied, FP32)
    assert check.outcome == "passed"
    assert "the first 1 of 3 ids are the same: a rounding tie" in check.seen
    assert close.worst == pytest.approx(1e-5, rel=0.1)  # what follows is another text
    apart = written([0, 1, 1], [[1.0, 0.0], [1.0, 0.99], [0.0, 5.0]], "rolling")
    none.logits[1, 1] = 0.99
    assert check_same(none, apart, FP32)[0].outcome == "failed"


def test_after_a_tie_in_the_window_the_logits_are_compared_on_the_runs_own_text(
    folder: Path,
) -> None:
    model, prompt = random_model(MODEL, SEED), torch.tensor([[5, 6, 7]])

    def make(kind: str) -> KVCache:
        return CACHES[kind](model.cache_shape(1, 300))

    plain = watch("none", model, prompt, 20, make("none"))
    n = 8  # where two ids are made to tie
    first, second = plain.logits[n].topk(2).indices.tolist()
    nudged = random_model(MODEL, SEED)

    class Nudge:
        steps = 0

        def __call__(self, module: object, arguments: object, logits: Tensor) -> Tensor:
            self.steps += 1
            if self.steps == n + 1:
                logits = logits.clone()
                logits[..., second] = logits[..., first] + 1e-6
            return logits

    nudged.head.register_forward_hook(Nudge())
    run = watch("rolling", nudged, prompt, 20, make("rolling"))
    assert first_difference(plain.new, run.new) == n
    assert run.new[n + 1 :] != plain.new[n + 1 :]
    # The reference's own ids tie as well, but for rounding.
    with torch.no_grad():
        run.logits[n, second] = plain.logits[n, second]
        plain.logits[n, second] = plain.logits[n, first] - 1e-7
    (ids, logits), close = check_window(model, plain, run, FP32)
    assert (ids.outcome, logits.outcome) == ("passed", "passed")
    assert f"the first {n} of 20 are those without a cache: a rounding tie" in ids.seen
    assert close.worst < 1e-4
    run.logits[15, 0] += 1.0
    (ids, logits), close = check_window(model, plain, run, FP32)
    assert (ids.outcome, logits.outcome, close.off) == ("failed", "failed", 15)


def test_first_difference_counts_what_is_shared() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], []) is None


# what is shown


def test_two_texts_stand_side_by_side_in_terminal_cells() -> None:
    texts = TwoTexts("correct", "broken", "one two\nthree", "one two\nfour 漢字 five six")
    lines = side_by_side(texts, 23)
    assert [line for line, _ in lines] == [
        "correct    | broken",
        "one two    | one two",
        "three      | four 漢字",
        "           | five six",
    ]
    assert [equal for _, equal in lines] == [False, True, False, False]


def test_control_characters_reach_no_terminal() -> None:
    lines = side_by_side(TwoTexts("a", "b", "x\x1b[31mred", "[bold]x[/]"), 43)
    assert lines[1][0] == f"{'x�[31mred':20} | [bold]x[/]"


def test_only_the_stretch_where_texts_part_is_shown() -> None:
    shared = "line\n" * 200
    texts = TwoTexts("a", "b", f"{shared}left " + "l" * 1000, f"{shared}right")
    shown = texts.where_they_part()
    assert shown.left.startswith("…line\n")
    assert len(shown.left) < 700
    assert shown.left.endswith("l…")
    assert shown.right.endswith("line\nright")
    short = TwoTexts("a", "b", "It was a lamp", "It was a river")
    assert short.where_they_part() == short


def test_a_text_cannot_break_out_of_its_page() -> None:
    page = to_markdown("t", [Check("a|b", "passed", "x|y")], TwoTexts("l", "r", "```\n# no", "x"))
    assert "| a\\|b | passed | x\\|y |" in page
    assert all(line.startswith("    ") for line in page.split("## l and r\n\n")[1].splitlines())


def test_equal_texts_are_not_put_side_by_side() -> None:
    none = {"cache": "none", "prompt": "p", "text": "t", "new_ids": [1]}
    rolling = {**none, "cache": "rolling"}
    assert two_texts([]) is None
    assert two_texts([none, rolling]) is None
    assert two_texts([none, {**rolling, "new_ids": [2]}]) == TwoTexts("none", "rolling", "pt", "pt")


def test_every_fault_of_the_schema_has_its_cache() -> None:
    from runners.harness.config.schema import FAULTS

    assert set(faults.FAULTS) | {"none"} == set(FAULTS)
    assert verify_run.FAULTS is faults.FAULTS
