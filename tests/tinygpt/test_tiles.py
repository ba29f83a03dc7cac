"""bf16 by tiles: the layout is Inductor's, and a torch with another one is told apart."""

from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from runners.harness.measure import memory
from tests.measure.test_cell import config
from tests.small_model import BF16, FP32, NANO
from tests.tinygpt.test_compiled import COMPILED, STATIC, UNTIED, compiled, differences
from tinygpt.cache import StaticCache
from tinygpt.checkpoint import random_model
from tinygpt.config import ModelConfig
from tinygpt.engines import toolchain
from tinygpt.engines.compiled import tiles
from tinygpt.engines.compiled.step import DecodeStep, form

SOURCE = """
    constants_info_[0].name = "emb_weight";
    constants_info_[0].shape = {40, 6};
    constants_info_[1].name = "constant9";
    constants_info_[1].offset = 0;
    constants_info_[1].shape = {2, 6, 32};
    constants_info_[2].name = "constant10";
    constants_info_[2].shape = {};
    constants_info_[3].name = "constant11";
    constants_info_[3].shape = {1L, 4L, 16L};
"""
WIDE, SMALL = torch.arange(240.0).view(40, 6), torch.arange(64.0).view(16, 4)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    with ZipFile(tmp_path / "step.pt2", "w") as files:
        files.writestr("step/data/model/abc.wrapper.cpp", SOURCE)
        files.writestr("step/data/model/abc.kernel.cpp", "")
    return tmp_path / "step.pt2"


def test_constants_are_lent_in_the_order_of_the_products(package: Path) -> None:
    lent = tiles.laid_out([WIDE, SMALL], package)
    assert {name: tuple(of.shape) for name, of in lent.items()} == {
        "constant9": (2, 6, 32),
        "constant11": (1, 4, 16),
    }
    assert all(of.is_contiguous() for of in lent.values())


@pytest.mark.parametrize("model", [NANO, UNTIED], ids=["tied", "untied"])
def test_matrices_are_named_in_the_order_of_their_products(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = random_model(model, seed=1)
    cache = StaticCache(held.cache_shape(1, model.context_length))
    module, used = DecodeStep(held, FP32, 1, "cpu"), list[str]()
    linear = module.linear
    monkeypatch.setattr(module, "linear", lambda name, x: (used.append(name), linear(name, x))[1])
    slots, angles = torch.arange(3), cache.step(1)
    ids, ring = torch.zeros(1, dtype=torch.long), (*cache.k, *cache.v)
    module(ids, angles.cos[0], angles.sin[0], slots[:1], slots, *ring)
    assert used == module.matrices()


def test_pairs_of_inputs_lie_side_by_side() -> None:
    there = tiles.lay_out(WIDE, (2, 6, 32)).view(2, 3, 32, 2)  # blocks, pairs, outputs, of a pair
    for output, input_ in [(0, 0), (0, 1), (1, 5), (31, 2), (32, 3), (39, 5)]:
        held = there[output // 32, input_ // 2, output % 32, input_ % 2]
        assert held == WIDE[output, input_]
    assert there[1, :, 8:].count_nonzero() == 0


@pytest.mark.parametrize("matrices", [[WIDE], [SMALL, WIDE], [torch.ones(65, 6), SMALL]])
def test_constants_that_do_not_fit_are_an_error(
    matrices: list[torch.Tensor], package: Path
) -> None:
    with pytest.raises(RuntimeError, match=f"{len(matrices)} matrices, 2 constants .* choose"):
        tiles.laid_out(matrices, package)


def test_tiles_are_for_pairs_of_bf16_on_a_processor_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toolchain, "has_tiles", lambda: True)
    assert form(1, torch.bfloat16, "cpu", NANO) == "tiles"
    assert form(64, torch.bfloat16, "cpu", NANO) == "tiles"
    assert form(1, torch.float32, "cpu", NANO) == "rows"
    monkeypatch.setattr(toolchain, "is_avx2", lambda: False)
    assert form(8, torch.int8, "cpu", NANO) == "packed"
    assert form(1, torch.int8, "cpu", NANO) == "rows"
    monkeypatch.setattr(toolchain, "is_avx2", lambda: True)
    assert form(8, torch.int8, "cpu", NANO) == "words"
    assert form(1, torch.int8, "cpu", replace(NANO, d_ff=NANO.d_ff + 2)) == "rows"
    assert form(8, torch.float32, "cpu", NANO) == "packed"
    assert form(1, torch.bfloat16, "cuda", NANO) == "rows"
    assert form(1, torch.bfloat16, "cpu", replace(NANO, d_ff=NANO.d_ff + 1)) == "rows"
    monkeypatch.setattr(toolchain, "has_tiles", lambda: False)
    assert form(1, torch.bfloat16, "cpu", NANO) == "rows"


@pytest.mark.parametrize("command", ["", "no such compiler", "false"])
def test_a_compiler_without_tiles_makes_none(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_command", lambda: command)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: True)
    assert not toolchain.has_tiles.__wrapped__()


def test_bf16_writes_what_the_eager_engine_writes() -> None:
    """By tiles where this processor has some; an output more than whole blocks."""
    model = replace(UNTIED, vocab_size=509)
    engine, eager = compiled(model, batch=3, precision=BF16)
    off, largest = differences(engine, eager, batch=3)
    assert off < 0.02 * largest
    if not toolchain.has_tiles():
        return
    cell = config(model=model, engine=COMPILED, cache=STATIC, precision=BF16)
    assert engine.weights_bytes == pytest.approx(memory.needed_bytes(cell).weights, rel=0.1)
