"""int8 weights are near the ones they stand for, and stay what they are when rounded again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.small_model import CPU, INT8, NANO, random_ids
from tinygpt import cost, quantisation
from tinygpt.checkpoint import (
    cast,
    load_model,
    random_model,
    save_model,
    to_llama,
    weights_sha256,
)
from tinygpt.config import ModelConfig
from tinygpt.quantisation import AT_ONCE, LEVELS, dequantise, quantise, round_to_int8


@given(st.integers(0, 2**31), st.floats(1e-6, 1e3))
def test_a_weight_is_off_by_half_a_step_of_its_row_at_most(seed: int, size: float) -> None:
    weight = size * torch.randn(5, 33, generator=torch.Generator().manual_seed(seed))
    weight *= torch.tensor([1.0, 10.0, 1e-3, 1.0, 100.0])[:, None]  # each row has its own scale
    values, scale = quantise(weight)
    assert (values.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float32, (5,))
    off = (dequantise(values, scale) - weight).abs()
    assert (off <= scale[:, None] * 0.501).all()
    assert (scale == weight.abs().amax(dim=1) / LEVELS).all()
    assert values.abs().amax(dim=1).eq(LEVELS).all()  # the whole range is used


@given(st.integers(0, 2**31))
def test_rounding_again_gives_the_same_integers(seed: int) -> None:
    weight = torch.randn(7, 19, generator=torch.Generator().manual_seed(seed))
    values, scale = quantise(weight)
    again, scale_again = quantise(round_to_int8(weight))
    assert torch.equal(values, again)
    torch.testing.assert_close(scale, scale_again, rtol=2e-7, atol=0)


def test_known_answers() -> None:
    values, scale = quantise(torch.tensor([[1.27, -0.635, 0.004], [0.0, 0.0, 0.0]]))
    assert values.tolist() == [[127, -64, 0], [0, 0, 0]]  # -63.5 goes to the even neighbour
    assert scale.tolist() == pytest.approx([0.01, 0.0])
    assert round_to_int8(torch.zeros(2, 3)).tolist() == torch.zeros(2, 3).tolist()


def test_a_model_in_int8_has_rounded_matrices_and_its_own_norms() -> None:
    plain, rounded = random_model(NANO, 1), cast(random_model(NANO, 1), INT8, CPU)
    norms = 0
    for (name, old), new in zip(plain.named_parameters(), rounded.parameters(), strict=True):
        wanted = round_to_int8(old) if old.dim() == 2 else old
        norms += old.dim() == 1
        assert torch.equal(new, wanted), name
        assert new.dtype == torch.float32
    assert norms == 2 * NANO.n_layers + 1
    assert rounded.head.weight is rounded.emb.weight
    assert weights_sha256(rounded) != weights_sha256(plain)


@pytest.mark.parametrize("model", [NANO, replace(NANO, tie_embeddings=False, qkv_bias=True)])
@pytest.mark.parametrize("at_once", [1, 1000, AT_ONCE])
def test_a_model_that_holds_integers_is_the_rounded_one(
    model: ModelConfig, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every digit of its weights, and with logits that differ by rounding only."""
    monkeypatch.setattr(quantisation, "AT_ONCE", at_once)
    rounded, held = cast(random_model(model, 1), INT8, CPU), random_model(model, 1, torch.int8)
    assert weights_sha256(held) == weights_sha256(rounded)
    assert {p.dtype for p in held.parameters() if p.dim() == 2} == {torch.int8}
    assert held.dtype == torch.float32
    assert sum(p.nbytes for p in held.parameters()) == cost.weights_bytes(model, INT8)
    assert (held.head.weight is held.emb.weight) == model.tie_embeddings
    ids = random_ids(held, 2, 20)
    torch.testing.assert_close(held(ids), rounded(ids), atol=1e-5, rtol=0)
    assert cast(held, INT8, CPU) is held


@pytest.mark.parametrize("model", [NANO, replace(NANO, tie_embeddings=False)])
def test_a_checkpoint_is_read_as_integers(model: ModelConfig, tmp_path: Path) -> None:
    save_model(random_model(model, 1), tmp_path)
    held = load_model(tmp_path, model, torch.int8)
    assert weights_sha256(held) == weights_sha256(cast(random_model(model, 1), INT8, CPU))
    for name, weight in to_llama(random_model(model, 1)).items():
        wanted = round_to_int8(weight) if weight.dim() == 2 else weight
        assert torch.equal(to_llama(held)[name], wanted), name
