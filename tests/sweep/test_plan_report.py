"""``plan=true``: what a command would run is told, and nothing is run."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from runners.harness.config.schema import BatchConfig, BenchConfig, DeviceConfig, LengthConfig
from runners.harness.launch.entry import Sweep
from runners.harness.machine import system
from runners.harness.measure import cell, fingerprint, memory, subject
from runners.harness.measure.result import CellResult
from runners.harness.store.tracking import Store
from runners.harness.sweep import plan, plan_report
from runners.harness.sweep.plan import Machine, estimate_s
from tests.small_model import NANO
from tests.train_command import Ended

Entry = Callable[..., Ended]
WORDS = ("model=nano", "length.new_tokens=2", "device.threads=1")
SLOW = Machine(1e-3, 1e9)
HUGE = 200_000_000


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[BenchConfig]:
    """A machine without a GPU whose speed is known; what was measured on it, in no time."""
    found: list[BenchConfig] = []

    def run_cell(config: BenchConfig, report: object = None) -> CellResult:
        found.append(config)
        assert config.batch.size < HUGE, "that was for planning only"
        [prompt] = subject.make_prompts(config, None, [])
        with subject.threads(config.device, []):
            tags = fingerprint.tags(
                config, subject.make_model(config, prompt.device), prompt.tolist()
            )
        return CellResult("ok", tags=tags)

    monkeypatch.setattr(cell, "run_cell", run_cell)
    monkeypatch.setattr(plan, "calibrate", lambda *_: SLOW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return found


def config(batch: int = 1, new_tokens: int = 8, device: str = "cpu", **keys: Any) -> BenchConfig:
    return BenchConfig(
        model=NANO,
        batch=BatchConfig(size=batch),
        length=LengthConfig(new_tokens=new_tokens),
        device=DeviceConfig(kind=device, threads=1),
        **keys,
    )


def planned(*cells: tuple[str, BenchConfig], done: set[int] | None = None) -> pd.DataFrame:
    jobs = [words.split() for words, _ in cells]
    configs = [one for _, one in cells]
    asked = Sweep(Path("results/sweeps/abcd1234"), [], jobs, configs, done=done or set())
    return plan_report.plan(asked, Path("results/sweeps/abcd1234") if done else None).frame


def test_a_row_a_cell_with_its_place_on_the_axes_bytes_and_seconds() -> None:
    small, large = config(), config(batch=4, new_tokens=64)
    frame = planned(("batch=1 seed=1", small), ("batch=4 seed=1", large))
    assert list(frame["cell"]) == ["0", "1"]
    assert list(frame["batch"]) == ["1", "4"]
    assert "seed" not in frame  # the same in all
    assert list(frame["state"]) == ["to run"] * 2
    assert list(frame["reason"]) == [""] * 2
    for name in ("needed_bytes", "seconds"):
        assert pd.api.types.is_numeric_dtype(frame[name])
    assert list(frame["needed_bytes"]) == [memory.needed_bytes(c).total for c in (small, large)]
    assert list(frame["seconds"]) == [estimate_s(c, SLOW) for c in (small, large)]
    assert frame["seconds"].is_monotonic_increasing


def test_what_is_impossible_has_its_reason_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "available_bytes", lambda: 2_000_000_000)
    frame = planned(
        ("device=cpu", config()), ("device=cuda", config(device="cuda")), ("device=x", config(HUGE))
    )
    assert list(frame["state"]) == ["to run", "impossible", "impossible"]
    reasons = list(frame["reason"])
    assert reasons[0] == ""
    assert "CUDA" in reasons[1]
    assert reasons[2].startswith("needs about ")
    assert "2.0 GB are free; lower batch.size" in reasons[2]
    assert list(frame["seconds"].notna()) == [True, False, False]
    assert (frame["needed_bytes"] > 0).all()
    assert frame["needed_bytes"][2] > 2_000_000_000


def test_what_is_done_is_named_with_its_sweep_and_takes_no_time() -> None:
    frame = planned(("seed=1", config(seed=1)), ("seed=2", config(seed=2)), done={1})
    assert list(frame["state"]) == ["to run", "done"]
    assert list(frame["reason"]) == ["", "done in abcd1234-1"]
    assert list(frame["seconds"].notna()) == [True, False]


# as it is typed


@pytest.fixture
def untouched(results: Path, ran: list[BenchConfig]) -> Callable[[], bool]:
    """Whether nothing was run or made since it was called last."""
    before: list[Any] = []

    def check() -> bool:
        found = {p for p in results.rglob("*") if not p.name.startswith("mlflow")}
        now = (found, len(Store(results).search("bench", "")), len(ran))
        before.append(now)
        return before[-1] == before[-2] if len(before) > 1 else True

    return check


def test_a_sweep_is_planned_and_nothing_is_made(
    entry: Entry, results: Path, untouched: Callable[[], bool]
) -> None:
    assert untouched()
    words = ("device=cpu,cuda", f"batch.size=1,{HUGE}", "-m", "plan=true", *WORDS)
    ended = entry("bench", results, *words)  # -m stands after the first words
    assert (ended.status, ended.err) == (0, "")
    assert untouched()
    assert "plan (nothing is run)" in ended.out
    assert re.search(r"1 of 4 cells to run, about \d+ s$", ended.out, re.MULTILINE)
    assert ended.out.count("impossible") == 3
    assert "CUDA" in ended.out
    assert "resume=true" not in ended.out
    assert [path.name for path in results.iterdir() if path.is_dir()] == []


def test_where_nothing_was_tracked_yet_not_even_the_store_is_made(
    entry: Entry, tmp_path: Path
) -> None:
    for words in (["-m", "resume=true"], []):
        ended = entry("bench", tmp_path / "none", *words, "plan=true", *WORDS)
        assert ended.status == 0, ended.err
        assert "cells to run" in ended.out
    assert not (tmp_path / "none").exists()


def test_one_cell_is_planned(entry: Entry, results: Path, untouched: Callable[[], bool]) -> None:
    assert untouched()
    ended = entry("bench", results, "plan=true", "batch=4", *WORDS)
    assert (ended.status, ended.err) == (0, "")
    assert untouched()
    assert "1 of 1 cells to run" in ended.out
    ended = entry("bench", results, "plan=true", "resume=true", *WORDS)
    assert (ended.status, ended.out) == (2, "")
    assert "is for sweeps" in ended.line
    assert untouched()


def test_cells_that_are_done_are_named_with_and_without_resume(
    entry: Entry, results: Path, ran: list[BenchConfig], untouched: Callable[[], bool]
) -> None:
    assert entry("bench", results, "-m", "round=1,2,3", *WORDS).status == 0
    (folder,) = (results / "sweeps").iterdir()
    (folder / "1" / "cell.json").write_text("{")
    assert untouched()
    for resume in ([], ["resume=true"]):
        words = ("-m", "round=3,2,1", "plan=true", *resume, *WORDS)
        ended = entry("bench", results, *words)
        assert (ended.status, ended.err) == (0, "")
        assert "1 of 3 cells to run" in ended.out
        for n in (0, 2):
            assert f"done in {folder.name}-{n}" in ended.out
        assert f"{folder.name}-1" not in ended.out
        assert f"resume=true goes on with sweep {folder.name}; without it all" in ended.out
        assert untouched()
