"""What rounding costs the model that ships, on the text it has not seen."""

import os

import pytest

from runners.harness.config.paths import results_dir
from runners.harness.train.corpus import read_text, split
from scripts.precision_loss import ALLOWED, losses

TAIL = 12_000
"""Characters: a few windows in each of a batch's rows, and seconds instead of minutes."""


@pytest.mark.slow
@pytest.mark.skipif("TINYGPT_CORPUS" not in os.environ, reason="TINYGPT_CORPUS: the Holmes canon")
def test_bf16_and_int8_lose_no_more_than_is_allowed() -> None:
    tail = split(read_text(os.environ["TINYGPT_CORPUS"]), 0.05)[1][:TAIL]
    found = losses(results_dir() / "checkpoints" / "holmes", tail)
    assert set(found) == set(ALLOWED)
    for kind, loss in found.items():
        assert loss - found["fp32"] <= ALLOWED[kind], kind
