"""What the estimate adds up: products, repeats, all parts of a cell, compiling once a shape."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.harness.config.schema import (
    BatchConfig,
    BenchConfig,
    DeviceConfig,
    LengthConfig,
    TimingConfig,
)
from runners.harness.sweep import compiling, plan
from runners.harness.sweep.plan import Estimate, Machine, Total, estimate, estimate_s, repeats
from tests.small_model import NANO
from tinygpt.config import CacheConfig, EngineConfig
from tinygpt.engines import compile_times
from tinygpt.engines.compile_times import Part

MACHINE = Machine(1e-4, 1e10, {"fp32": {1: 1e-10, 4: 4e-10, 16: 4e-10, 64: 8e-10}})
QUICK = TimingConfig(min_repeats=1, max_repeats=3, interval=0.05, budget_s=5.0)
STANDARD = TimingConfig()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINYGPT_CACHE", str(tmp_path))
    monkeypatch.setattr(plan, "calibrate", lambda *_: MACHINE)
    return tmp_path


def config(**keys: Any) -> BenchConfig:
    base = BenchConfig(
        model=NANO,
        device=DeviceConfig(threads=1),
        length=LengthConfig(new_tokens=20),
        cache=CacheConfig(kind="static"),
    )
    return replace(base, **keys)


def compiled(batch: int = 1, **keys: Any) -> BenchConfig:
    return config(engine=EngineConfig(kind="compiled"), batch=BatchConfig(size=batch), **keys)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(1, 1e-10), (2, 2e-10), (4, 4e-10), (8, 4e-10), (32, 4e-10 * math.sqrt(2)), (128, 1.6e-9)],
)
def test_a_product_costs_what_lies_between_the_rows_that_were_measured(
    rows: int, seconds: float
) -> None:
    assert MACHINE.product_s("fp32", rows) == pytest.approx(seconds)
    assert MACHINE.product_s("bf16", rows) == 2 * rows / 1e10  # not measured


@pytest.mark.parametrize(
    ("timing", "once_s", "n"),
    [
        (QUICK, 0.1, 3),
        (QUICK, 2.0, 3),
        (QUICK, 3.0, 2),
        (QUICK, 6.0, 1),  # the first one is made whatever it takes
        (STANDARD, 0.1, 7),
        (STANDARD, 8.0, 4),
        (STANDARD, 100.0, 1),
    ],
)
def test_as_many_repeats_as_the_budget_and_an_interval_allow(
    timing: TimingConfig, once_s: float, n: int
) -> None:
    assert repeats(timing, once_s) == n


def test_every_part_of_a_cell_is_in_it() -> None:
    cell = config(timing=QUICK, length=LengthConfig(new_tokens=32))
    once = plan.generation_s(cell, MACHINE, 32)
    assert estimate_s(cell, MACHINE) > once * (1 + 1 + 3 + 1)  # gate, warm-up, repeats, trace
    nothing = replace(cell, length=LengthConfig(new_tokens=0))
    assert estimate_s(nothing, MACHINE) > plan._KEEP_S * MACHINE.slowness


def test_without_a_cache_a_step_costs_a_pass() -> None:
    none = config(cache=CacheConfig(kind="none"), batch=BatchConfig(size=16))
    ring = config(batch=BatchConfig(size=16))
    long = replace(MACHINE, layer_s=1e-7)
    assert plan.generation_s(none, long, 20) > 5 * plan.generation_s(ring, long, 20)


def test_compiling_is_told_and_counted_once_a_shape() -> None:
    cells = [compiled(), compiled(seed=2), compiled(batch=8), config()]
    total = estimate(cells)
    assert [cell.shapes for cell in total.cells] == [2, 0, 2, 0]
    assert "compiling 4 shapes, once" in str(total)
    assert "compiling" not in str(estimate([config()]))
    assert estimate(cells, {0, 1, 2}).cells[:3] == [Estimate(0.1)] * 3


def test_what_is_kept_costs_nothing_and_what_is_gone_what_it_took(cache: Path) -> None:
    for n, part in enumerate(compiling.parts(compiled())):
        compile_times.add(replace(part, key=f"{n}.pt2"), 100.0 * (n + 1))
        (cache / f"{n}.pt2").touch()
    (known,) = estimate([compiled()]).cells
    assert (known.shapes, known.compile_s) == (0, 0.0)
    (cache / "1.pt2").unlink()
    (known,) = estimate([compiled()]).cells
    assert (known.shapes, known.compile_s) == (1, 200.0)
    (other,) = estimate([compiled(batch=2)]).cells  # the most alike that is known
    assert (other.shapes, other.compile_s) == (2, 300.0)


def test_another_number_of_layers_is_priced_by_it() -> None:
    part = Part("a", "decodestep", 2, 1, "fp32", "small")
    compile_times.add(part, 10.0)
    times = compile_times.read()
    assert times.expected_s(replace(part, key="b", layers=14, shape="large")) == 40.0
    unknown = replace(part, key="b", kind="products")  # of which nothing is known
    assert times.expected_s(unknown, 3.0) == 3 * times.expected_s(unknown) > 0.0


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 1}', '{"format": 9, "parts": []}', '{"format": 1, "parts": [3]}'],
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(text: str, cache: Path) -> None:
    compile_times.path().write_text(text)
    part = Part("a", "products", 2, 1, "fp32", "small")
    fresh = compile_times.Times({}).expected_s(part)
    assert compile_times.read().expected_s(part) == fresh
    compile_times.add(part, fresh + 1)
    assert compile_times.read().expected_s(part) == fresh + 1
    assert [path.name for path in cache.iterdir()] == ["compile_times.json"]


def test_a_folder_that_cannot_be_written_is_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYGPT_CACHE", str(cache / "file" / "x"))
    (cache / "file").touch()
    compile_times.add(Part("a", "products", 2, 1, "fp32", "small"), 1.0)
    assert (cache / "file").read_bytes() == b""


def test_the_total_says_what_comes_before_and_after_the_cells() -> None:
    assert Total([Estimate(10.0)], 5.0).seconds == 15.0
    assert str(Total([Estimate(200.0, 180.0, 1)], 40.0)) == (
        "about 4 min, of which 3 min compiling 1 shape, once"
    )


def test_calibrating_measures_every_rate_and_leaves_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.undo()
    before = torch.get_num_threads()
    machine = plan.calibrate(1, {"bf16"})
    assert torch.get_num_threads() == before
    assert set(machine.products) == {"fp32", "bf16"}
    assert all(value > 0 for rates in machine.products.values() for value in rates.values())
    assert min(machine.layer_s, machine.flops_per_s, machine.bytes_per_s, machine.draw_s) > 0
