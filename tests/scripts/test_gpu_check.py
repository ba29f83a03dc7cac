"""The parts of scripts/gpu_check.py that need no GPU; the rest is tried by its ``--device cpu``."""

import sys

import pytest
import torch

from scripts import gpu_check


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(5.0, 6.0), (0.0, 1.0)], 2.0),
        ([(0.0, 4.0), (1.0, 2.0), (3.0, 5.0)], 5.0),
        ([(0.0, 1.0), (1.0, 2.0)], 2.0),
    ],
    ids=["none", "one", "apart", "over each other", "side by side"],
)
def test_time_that_is_covered_twice_counts_once(
    spans: list[tuple[float, float]], length: float
) -> None:
    assert gpu_check.covered(spans) == length


def test_only_cells_that_were_measured_are_looked_at() -> None:
    cell = {"outcome": "ok", "choices": {"engine": "eager", "batch": "1"}}
    assert gpu_check.chosen(cell, {"engine": "eager"})
    assert not gpu_check.chosen(cell, {"engine": "cudagraph"})
    assert not gpu_check.chosen(cell | {"outcome": "skipped"}, {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert gpu_check.main() == 2
    assert capsys.readouterr().err == "no CUDA device: nothing to check here\n"
