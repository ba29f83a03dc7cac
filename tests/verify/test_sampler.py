"""The sampler's checks: they pass on the real one, and each finds what it is about."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runners.harness.verify.sampler import check_sampler
from tests.small_model import CPU
from tinygpt import sampling
from tinygpt.sampling import Sampler


def failed(seed: int = 1) -> dict[str, str]:
    """What was seen, by the name of each check that failed."""
    return {c.name: c.seen for c in check_sampler(seed, CPU) if c.outcome == "failed"}


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_real_sampler_passes_in_under_a_second(seed: int) -> None:
    start = time.process_time()
    checks = check_sampler(seed, CPU)
    assert time.process_time() - start < 1.0
    assert [check.outcome for check in checks] == ["passed"] * 8


def keep_all(scores: Tensor, *_: object) -> Tensor:
    return scores


def keep_ties(scores: Tensor, k: int) -> Tensor:
    return scores.masked_fill(scores < scores.topk(k).values[:, -1:], float("-inf"))


def keep_one_more(scores: Tensor, k: int) -> Tensor:
    return scores.masked_fill(scores < scores.topk(k + 1).values[:, -1:], float("-inf"))


def keep_the_first(scores: Tensor, p: float) -> Tensor:
    return scores.masked_fill(scores < scores.amax(dim=-1, keepdim=True), float("-inf"))


def keep_what_crosses(scores: Tensor, p: float) -> Tensor:
    """A token too many: dropped only once those above it and itself are past p by far."""
    ranked, order = scores.sort(dim=-1, descending=True)
    above = ranked.softmax(dim=-1).cumsum(dim=-1) - ranked.softmax(dim=-1)
    return torch.empty_like(scores).scatter_(
        -1, order, ranked.masked_fill(above >= p + 0.1, float("-inf"))
    )


def divide_all(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """The classic mistake: a negative score is divided as well, which lifts it."""
    return torch.where(seen, scores / penalty, scores)


def second_best(self: Sampler, scores: Tensor) -> Tensor:
    return scores.topk(2, dim=-1).indices[:, 1]


REAL_SEED: Callable[[str, int, int], int] = sampling.row_seed


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "found"),
    [
        (Sampler, "_argmax", second_best, {"sampler temperature 0", "sampler penalty 2"}),
        (sampling, "keep_top_k", keep_all, {"sampler top_k 1", "sampler top_k 5"}),
        (sampling, "keep_top_k", keep_one_more, {"sampler top_k 1", "sampler top_k 5"}),
        (sampling, "keep_top_k", keep_ties, {"sampler top_k 1", "sampler top_k 5"}),
        (sampling, "keep_top_p", keep_all, {"sampler top_p 1e-8", "sampler top_p 0.75"}),
        (sampling, "keep_top_p", keep_the_first, {"sampler top_p 0.75"}),
        (sampling, "keep_top_p", keep_what_crosses, {"sampler top_p 1e-8", "sampler top_p 0.75"}),
        (sampling, "penalise", keep_all, {"sampler penalty 2"}),
        (sampling, "penalise", divide_all, {"sampler penalty 2"}),
        (sampling, "row_seed", lambda p, seed, row: REAL_SEED(p, 1, row), {"sampler seed"}),
        (sampling, "row_seed", lambda p, seed, row: REAL_SEED(p, seed, 0), {"sampler row 0"}),
    ],
)
def test_a_wrong_sampler_is_found_by_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any, found: set[str]
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    assert set(failed()) == found


def test_draws_that_depend_on_the_batch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sampler.__init__

    def by_batch(self: Sampler, config: Any, batch: int, seed: int, device: torch.device) -> None:
        real(self, config, batch, seed + batch, device)

    monkeypatch.setattr(Sampler, "__init__", by_batch)
    assert set(failed()) == {"sampler row 0"}


def test_draws_that_no_seed_decides_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sampler.reset

    def unseeded(self: Sampler, prompt: Tensor, vocab_size: int) -> None:
        real(self, prompt, vocab_size)
        for generator in self._generators:
            generator.seed()

    monkeypatch.setattr(Sampler, "reset", unseeded)
    assert set(failed()) == {"sampler seed", "sampler row 0"}


def test_a_failure_says_what_was_seen_and_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "keep_top_k", keep_all)
    monkeypatch.setattr(sampling, "keep_top_p", keep_the_first)
    monkeypatch.setattr(sampling, "penalise", keep_all)
    seen = failed()
    assert seen["sampler top_k 5"].endswith("of 1,024 draws are not among the 5 likeliest tokens")
    assert seen["sampler top_p 0.75"] == (
        "1,024 draws from 0.5, 0.3, 0.15, 0.05 picked 0; right is 0 and 1, both"
    )
    assert (
        "picked 0, 0, then 0, 0; with 0 in the prompt 0, 0; right is" in seen["sampler penalty 2"]
    )
