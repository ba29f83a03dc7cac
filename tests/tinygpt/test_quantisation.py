"""int8 weights are near the ones they stand for, and stay what they are when rounded again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.small_model import CPU, INT8, NANO
from tinygpt.checkpoint import cast, random_model, weights_sha256
from tinygpt.quantisation import LEVELS, dequantise, quantise, round_to_int8


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
