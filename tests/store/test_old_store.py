"""A results folder written by version 0.1, before results had a format number, is still read.

tests/data/store_0.1.tar.xz comes from a machine named ``host`` and from another folder. It has a
sweep of four cells, a lone cell, two texts, a verify and a training run, and a sweep that was
killed in its second cell.
"""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train_command import Ended

Entry = Callable[..., Ended]
SWEEP, LONE, TEXTS, VERIFIED, KILLED = "b9dab9d5", "a9ca33e3", "615d67d8", "e6621dde", "e5cc3f8d"
COMMAND = (
    *("model=nano", "timing=quick", "timing.budget_s=0.2", "length.new_tokens=8"),
    *("device.threads=1", "batch=1,2,4", "seed=3", "timing.min_repeats=400"),
    *("timing.max_repeats=400", "timing.budget_s=60"),
)


@pytest.fixture(scope="module")
def mended(entry: Entry, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The folder after ``doctor fix=true``, since it was moved here from another place."""
    folder = tmp_path_factory.mktemp("old") / "results"
    with tarfile.open(Path(__file__).parents[1] / "data" / "store_0.1.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder, entry("doctor", folder, "fix=true", "gone=host")


@pytest.fixture
def old(mended: tuple[Path, Ended], tmp_path: Path, entry: Entry) -> Path:
    """A copy of it, of the test's own."""
    folder = shutil.copytree(mended[0], tmp_path / "results")
    assert entry("doctor", folder, "fix=true").status == 0
    return folder


def test_the_doctor_says_what_is_wrong_and_mends_it(
    mended: tuple[Path, Ended], entry: Entry
) -> None:
    folder, ended = mended
    assert ended.status == 0, ended.err
    assert "are said to be in /srv/tinygpt/results/artifacts" in ended.out
    assert f"cell {KILLED}-1: the process that ran it" in ended.out
    assert f"sweep {KILLED}: left open in MLflow" in ended.out
    assert entry("doctor", folder, "fix=true").out.startswith("nothing to mend")


def test_tables_show_its_sweeps_and_lone_cells(old: Path, entry: Entry) -> None:
    ended = entry("tables", old, f"sweep={SWEEP}", "table=cache", "format=json")
    assert ended.status == 0, ended.err
    rows = json.loads(ended.out)
    assert [(row["batch"], row["cache"], row["n"]) for row in rows] == [
        (1, "rolling", 3),
        (2, "rolling", 3),
    ]
    ended = entry("tables", old, f"sweep={LONE[:3]}", "table=cells", "format=json")
    assert [row["sampler"] for row in json.loads(ended.out)] == ["t0.7"]
    ended = entry("tables", old, "table=runs", "format=json")
    kinds = [row["kind"] for row in json.loads(ended.out)]
    assert sorted(kinds) == ["bench", *["bench sweep"] * 2, "sample sweep", "train", "verify"]


def test_compare_matches_its_cells(old: Path, entry: Entry) -> None:
    ended = entry("compare", old, f"a={SWEEP}", f"b={SWEEP}", "format=json")
    assert ended.status == 0, ended.err
    assert [cell["ratio"] for cell in json.loads(ended.out)["cells"]] == [1.0] * 4


@pytest.mark.parametrize("run", [f"{SWEEP}-3", LONE, VERIFIED])
def test_rerun_gets_the_same_tokens(run: str, old: Path, entry: Entry) -> None:
    ended = entry("rerun", old, f"run={run}")
    assert ended.status == 0, ended.err + ended.out
    assert f"{run}, now " in ended.out
    assert "tokens identical" in ended.out or "may bring about by rounding" in ended.out


def test_resume_goes_on_with_the_sweep_that_was_killed(
    old: Path, instant: list[object], entry: Entry
) -> None:
    ended = entry("bench", old, "-m", *COMMAND, "resume=true")
    assert ended.status == 0, ended.err
    assert f"resuming sweep {KILLED}" in ended.err
    assert len(instant) == 3  # another version of the code: what it measured counts no more
    assert f"{KILLED}-2" in ended.out
