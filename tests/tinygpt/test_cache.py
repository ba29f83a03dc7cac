"""The caches: what they hold, what attention sees of it, and where they refuse."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tinygpt.cache import KVCache, RollingCache, StaticCache, make_cache
from tinygpt.checkpoint import cast, random_model
from tinygpt.config import CACHE_KINDS, CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.generation import decode_step, generate, prefill
from tinygpt.model import GPT

SMALL = ModelConfig(
    vocab_size=512,
    n_layers=2,
    d_model=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    d_ff=96,
    tie_embeddings=False,  # with a tied head this small, 600 greedy tokens end in one word
)
HOLDING = ("rolling", "static")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small() -> GPT:
    return random_model(SMALL, seed=1)


def cache_for(kind: str, model: GPT, *, batch: int = 1, max_positions: int) -> KVCache:
    return make_cache(
        CacheConfig(kind=kind),
        model.config,
        batch=batch,
        max_positions=max_positions,
        device=model.device,
        dtype=model.dtype,
    )


def random_ids(model: GPT, batch: int, tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(model.config.vocab_size, (batch, tokens), generator=generator)


def greedy(model: GPT, prompt: Tensor, new: int, cache: KVCache) -> tuple[Tensor, Tensor]:
    """New ids (B, N) and the logits (B, N, V) they were picked from."""
    steps: list[Tensor] = []

    def pick(logits: Tensor) -> Tensor:
        steps.append(logits)
        return logits.argmax(dim=-1)

    ids = generate(model, prompt, new, cache=cache, pick=pick)
    return ids[:, prompt.shape[1] :], torch.stack(steps, dim=1)


@pytest.fixture
def key_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of keys at every attention."""
    seen: list[int] = []
    attention: Callable[..., Tensor] = F.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, **how: object) -> Tensor:
        seen.append(k.shape[2])
        return attention(q, k, v, **how)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return seen


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_k1_attention_never_sees_more_than_the_window(
    kind: str, small: GPT, key_lengths: list[int]
) -> None:
    prompt = random_ids(small, 1, 8)
    generate(
        small,
        prompt,
        300,
        cache=cache_for(kind, small, max_positions=308),
        pick=lambda logits: logits.argmax(dim=-1),
    )
    assert key_lengths[:: SMALL.n_layers] == [min(8 + n, 256) for n in range(300)]


def test_k4_the_ring_gives_the_rolling_cache_s_600_tokens(small: GPT) -> None:
    prompt = random_ids(small, 1, 8)
    ring = cache_for("static", small, max_positions=608)
    assert isinstance(ring, StaticCache)
    assert ring.slots == 256
    ids, logits = greedy(small, prompt, 600, ring)
    rolling = cache_for("rolling", small, max_positions=608)
    assert isinstance(rolling, RollingCache)
    wanted_ids, wanted = greedy(small, prompt, 600, rolling)
    assert ids.tolist() == wanted_ids.tolist()
    assert len(ids.unique()) > 20, "a constant text would prove nothing"
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    # 607 tokens are in: the oldest kept one, 351, lies in slot 351 % 256
    assert ring.position == rolling.position == 607
    torch.testing.assert_close(ring.k[0].roll(-(607 % 256), dims=2), rolling.k[0])


@pytest.mark.parametrize("kind", HOLDING)
def test_k5_two_queries_over_four_entries(kind: str, small: GPT) -> None:
    ids = random_ids(small, 2, 6)
    cache = cache_for(kind, small, batch=2, max_positions=8)
    prefill(small, ids[:, :4], cache)
    step = cache.step(2)
    assert step.mask is not None
    assert step.mask.int().tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
    assert not step.is_causal
    torch.testing.assert_close(small.step(ids[:, 4:], cache), small(ids)[:, -1])


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_a_lone_query_sees_all_and_a_prompt_is_causal(kind: str, small: GPT) -> None:
    cache = cache_for(kind, small, max_positions=8)
    assert (cache.step(1).mask, cache.step(1).is_causal) == (None, False)
    assert (cache.step(4).mask, cache.step(4).is_causal) == (None, True)


@pytest.mark.parametrize("kind", HOLDING)
def test_several_tokens_may_not_push_out_what_the_first_still_sees(kind: str, small: GPT) -> None:
    cache = cache_for(kind, small, max_positions=300)
    cache.advance(255)
    cache.step(1)
    with pytest.raises(ValueError, match=r"2 tokens at once over 255 entries.*holds 256"):
        cache.step(2)


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_more_tokens_than_the_window_at_once_are_refused(kind: str, small: GPT) -> None:
    with pytest.raises(ValueError, match="257 tokens"):
        cache_for(kind, small, max_positions=300).step(257)


@pytest.mark.parametrize("kind", HOLDING)
def test_a_position_past_the_table_is_refused(kind: str, small: GPT) -> None:
    cache = cache_for(kind, small, max_positions=10)
    prefill(small, random_ids(small, 1, 8), cache)
    cache.step(2)
    with pytest.raises(ValueError, match=r"position 8 \+ 3 tokens.*made for 10.*max_positions"):
        cache.step(3)


def tensors(cache: KVCache) -> list[Tensor]:
    assert isinstance(cache, RollingCache | StaticCache)
    return cache.k + cache.v


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize(
    ("batch", "precision", "nbytes"),
    [(1, "fp32", 3_145_728), (16, "fp32", 48 * 2**20), (1, "bf16", 1_572_864)],
)
def test_k6_bytes_of_a_full_window(kind: str, batch: int, precision: str, nbytes: int) -> None:
    model = cast(random_model(ModelConfig(), seed=1), PrecisionConfig(kind=precision), CPU)
    cache = cache_for(kind, model, batch=batch, max_positions=260)
    prefill(model, random_ids(model, batch, 256), cache)
    assert cache.nbytes == nbytes
    assert sum(t.untyped_storage().nbytes() for t in tensors(cache)) == nbytes


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("prompt_tokens", [1, 255, 256])
def test_k6_entries_pin_nothing_else(kind: str, prompt_tokens: int, small: GPT) -> None:
    ids = random_ids(small, 1, prompt_tokens)
    cache = cache_for(kind, small, max_positions=prompt_tokens + 4)
    prefill(small, ids, cache)
    for _ in range(4):
        for entries in tensors(cache):
            assert not entries.requires_grad
            assert entries.grad_fn is None
            assert entries.untyped_storage().nbytes() == entries.numel() * 4
        assert cache.nbytes == sum(entries.numel() * 4 for entries in tensors(cache))
        decode_step(small, ids[:, -1:], cache)


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_length_and_position_count_what_was_fed(kind: str, small: GPT) -> None:
    cache = cache_for(kind, small, max_positions=300)
    generate(
        small,
        random_ids(small, 1, 250),
        20,
        cache=cache,
        pick=lambda logits: logits.argmax(dim=-1),
    )
    # the last of 270 tokens is never fed
    assert (cache.position, cache.length) == ((0, 0) if kind == "none" else (269, 256))


def test_the_ring_is_allocated_once(small: GPT) -> None:
    cache = cache_for("static", small, max_positions=20)
    before = [entries.data_ptr() for entries in tensors(cache)]
    greedy(small, random_ids(small, 1, 8), 12, cache)
    assert [entries.data_ptr() for entries in tensors(cache)] == before
    assert {entries.shape[2] for entries in tensors(cache)} == {20}


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_a_second_text_knows_nothing_of_the_first(kind: str, small: GPT) -> None:
    used, fresh = (cache_for(kind, small, max_positions=300) for _ in range(2))
    greedy(small, random_ids(small, 1, 30), 250, used)
    prompt = random_ids(small, 1, 5)
    assert torch.equal(greedy(small, prompt, 9, used)[1], greedy(small, prompt, 9, fresh)[1])


@pytest.mark.parametrize("kind", HOLDING)
def test_rows_do_not_mix(kind: str, small: GPT) -> None:
    prompts = random_ids(small, 3, 8)
    together, _ = greedy(small, prompts, 20, cache_for(kind, small, batch=3, max_positions=28))
    for row in range(3):
        alone, _ = greedy(
            small, prompts[row : row + 1], 20, cache_for(kind, small, max_positions=28)
        )
        assert together[row].tolist() == alone[0].tolist()
