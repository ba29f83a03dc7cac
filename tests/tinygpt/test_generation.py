"""Generation is exactly N forward passes, whatever the cache."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.small_model import CPU, NANO, engine_for, greedy, random_ids
from tinygpt.cache import make_cache
from tinygpt.checkpoint import random_model
from tinygpt.config import CACHE_KINDS, CacheConfig
from tinygpt.generation import generate, never_stop
from tinygpt.model import GPT


def text(kind: str, model: GPT, prompt: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """Greedy ids (B, P + N) and the logits (B, N, V) of each step."""
    steps: list[Tensor] = []

    def pick(logits: Tensor) -> Tensor:
        steps.append(logits)
        return greedy(logits)

    batch, tokens = prompt.shape
    engine = engine_for(kind, model, batch=batch, max_positions=tokens + new)
    return engine.generate(prompt, new, pick, never_stop), torch.stack(steps, dim=1)


@pytest.mark.parametrize("kind", ["rolling", "static"])
@pytest.mark.parametrize(("prompt_tokens", "equal"), [(3, 254), (256, 1), (300, 1)])
def test_k2_a_cache_is_exact_up_to_the_window(kind: str, prompt_tokens: int, equal: int) -> None:
    """257 - P steps: then the window moves, and old entries know what a rerun has forgotten."""
    model = random_model(replace(NANO, context_length=256), seed=1)
    prompt = random_ids(model, 1, prompt_tokens)
    slow_ids, slow = text("none", model, prompt, equal + 3)
    fast_ids, fast = text(kind, model, prompt, equal + 3)
    same = (slow_ids == fast_ids)[0, prompt_tokens:].long().cumprod(0).sum()
    assert same >= equal
    close = ((slow - fast).abs().amax(dim=-1) < 1e-4)[0]
    assert close.tolist() == [True] * equal + [False] * 3


@pytest.mark.parametrize("kind", CACHE_KINDS)
@pytest.mark.parametrize("new", [0, 1, 5, 70])
def test_n_tokens_take_n_passes_and_the_head_sees_one_position(kind: str, new: int) -> None:
    model, fed, headed = random_model(NANO, seed=1), [], []
    model.emb.register_forward_hook(lambda module, args, out: fed.append(args[0].shape[1]))
    model.head.register_forward_hook(lambda module, args, out: headed.append(args[0].shape))
    engine, told = engine_for(kind, model, batch=2, max_positions=80), []

    def note(ids: Tensor) -> bool:
        told.append(len(headed))
        return False

    ids = engine.generate(random_ids(model, 2, 8), new, greedy, note)
    assert ids.shape == (2, 8 + new)
    assert headed == [(2, 64)] * new
    assert told == list(range(1, new + 1))
    window = [min(n, 64) for n in range(8, 8 + new)]
    assert fed == (window if kind == "none" else [8, *[1] * (new - 1)][:new])


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_k7_no_tokens_give_the_prompt_back(kind: str) -> None:
    model = random_model(NANO, seed=1)
    prompt = random_ids(model, 2, 8)
    ids = engine_for(kind, model, batch=2, max_positions=8).generate(prompt, 0, greedy, pytest.fail)
    assert torch.equal(ids, prompt)


def test_k7_an_empty_prompt_is_refused() -> None:
    model = random_model(NANO, seed=1)
    with pytest.raises(ValueError, match=r"prompt of 0 tokens: .* at least 1"):
        text("rolling", model, torch.empty(1, 0, dtype=torch.long), 3)


def test_a_prompt_is_kept_whole_and_left_alone() -> None:
    model = random_model(NANO, seed=1)
    prompt = random_ids(model, 1, 100)
    before = prompt.clone()
    ids, _ = text("static", model, prompt, 3)
    assert torch.equal(ids[:, :100], before)
    assert torch.equal(prompt, before)


def test_an_engine_says_what_its_cache_holds() -> None:
    model = random_model(NANO, seed=1)
    sizes = {}
    for kind in CACHE_KINDS:
        engine = engine_for(kind, model, batch=2, max_positions=20)
        engine.generate(random_ids(model, 2, 8), 12, greedy, never_stop)
        sizes[kind] = engine.kv_cache_bytes
    entry = 2 * NANO.n_layers * NANO.n_kv_heads * NANO.head_dim * 4 * 2
    assert sizes == {"none": 0, "rolling": 19 * entry, "static": 20 * entry}


def test_generate_is_what_the_engine_runs() -> None:
    model = random_model(NANO, seed=1)
    prompt = random_ids(model, 2, 8)
    cache = make_cache(
        CacheConfig(), NANO, batch=2, max_positions=30, device=CPU, dtype=torch.float32
    )
    assert torch.equal(
        generate(model, prompt, 9, cache=cache, pick=greedy), text("rolling", model, prompt, 9)[0]
    )
