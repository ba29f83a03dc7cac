"""Rotation: known angles, complex multiplication, and what attention relies on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygpt.cache import make_cache
from tinygpt.checkpoint import random_model
from tinygpt.config import CacheConfig, ModelConfig, Rope
from tinygpt.rope import rope_table, rotate


def test_angles_of_position_one() -> None:
    cos, sin = rope_table(2, Rope(4, 10_000.0), "cpu")
    assert cos[0].tolist() == [1, 1, 1, 1]
    assert sin[0].tolist() == [0, 0, 0, 0]
    pair = [math.cos(1), math.cos(0.01)]
    assert cos[1].tolist() == pytest.approx(pair + pair)
    assert sin[1].tolist() == pytest.approx(
        [-math.sin(1), -math.sin(0.01), math.sin(1), math.sin(0.01)]
    )


def test_a_quarter_turn_pairs_the_halves() -> None:
    # (x0, x2) and (x1, x3) are the pairs: by 90 degrees (a, b) becomes (-b, a)
    cos, sin = torch.zeros(1, 4), torch.tensor([[-1.0, -1.0, 1.0, 1.0]])
    assert rotate(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), cos, sin).tolist() == [[-3, -4, 1, 2]]


def test_position_zero_changes_nothing() -> None:
    x = torch.randn(2, 3, 1, 32)
    cos, sin = rope_table(8, Rope(32, 10_000.0), "cpu")
    assert torch.equal(rotate(x, cos[:1], sin[:1]), x)


@pytest.mark.parametrize(("head_dim", "base"), [(2, 100.0), (32, 10_000.0), (64, 500_000.0)])
def test_it_is_a_complex_multiplication(head_dim: int, base: float) -> None:
    positions, half = 1280, head_dim // 2
    x = torch.randn(positions, head_dim, generator=torch.Generator().manual_seed(1))
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * torch.tensor(
        [base ** (-2 * i / head_dim) for i in range(half)], dtype=torch.float64
    )
    pairs = torch.complex(x[:, :half].double(), x[:, half:].double())
    wanted = pairs * torch.polar(torch.ones_like(angles), angles)
    got = rotate(x, *rope_table(positions, Rope(head_dim, base), "cpu"))
    # 1,279 radians in fp32 are exact to 6e-5
    torch.testing.assert_close(
        got.double(), torch.cat([wanted.real, wanted.imag], dim=-1), atol=5e-4, rtol=0
    )


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_scores_depend_on_the_distance_only(q_at: int, k_at: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(q_at)
    q, k = torch.randn(2, 1, 32, generator=generator)
    cos, sin = rope_table(1001, Rope(32, 10_000.0), "cpu")

    def score(q_at: int, k_at: int) -> float:
        q_row, k_row = slice(q_at, q_at + 1), slice(k_at, k_at + 1)
        return float((rotate(q, cos[q_row], sin[q_row]) * rotate(k, cos[k_row], sin[k_row])).sum())

    assert score(q_at, k_at) == pytest.approx(score(q_at + shift, k_at + shift), abs=5e-3)


@pytest.mark.parametrize("kind", ["rolling", "static"])
def test_k3_bf16_tells_position_256_from_257(kind: str) -> None:
    assert torch.tensor(257.0).bfloat16() == 256
    cache = make_cache(
        CacheConfig(kind=kind),
        ModelConfig(),
        batch=1,
        max_positions=300,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
    )
    cache.advance(256)
    first = cache.step(1)
    cache.advance(1)
    second = cache.step(1)
    assert first.cos.dtype == first.sin.dtype == torch.float32
    assert second.cos[0, 0].item() == pytest.approx(math.cos(257), abs=1e-6)
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    turned = [rotate(x, step.cos, step.sin) for step in (first, second)]
    assert turned[0].dtype == torch.bfloat16
    assert (turned[0] - turned[1]).abs().max() > 0.1


def test_the_table_is_built_once() -> None:
    assert rope_table(77, Rope(8, 123.0), "cpu")[0] is rope_table(77, Rope(8, 123.0), "cpu")[0]


def test_a_table_first_needed_for_inference_serves_training_too() -> None:
    config = ModelConfig(
        vocab_size=16, context_length=7, n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, head_dim=6
    )
    model, ids = random_model(config, seed=1), torch.arange(7)[None]
    with torch.inference_mode():
        model(ids)
    model(ids).square().mean().backward()
    assert model.blocks[0].attn.qkv.weight.grad.abs().sum() > 0
