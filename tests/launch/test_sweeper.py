"""What a preset leaves out is not run, and what a user typed in full is."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from runners.harness.config.conversion import digest
from runners.harness.errors import UsageError
from runners.harness.launch.sweeper import meant

Bench = Callable[..., tuple[int, str, str]]
SHORT = ("-m", "experiment=engines", "model=nano", "precision=fp32", "batch=1", "round=1")


def jobs(**axes: str) -> list[list[str]]:
    words = [[f"{key}={value}" for value in values.split(",")] for key, values in axes.items()]
    return [list(job) for job in product(*words)]


ALL = jobs(engine="eager,compiled", cache="rolling,static")


def test_a_combination_is_left_out_where_all_conditions_of_a_text_fit() -> None:
    kept = meant(ALL, ["engine!=eager and cache=rolling"], set())
    assert kept == [
        ["engine=eager", "cache=rolling"],
        ["engine=eager", "cache=static"],
        ["engine=compiled", "cache=static"],
    ]


def test_several_texts_leave_out_what_any_of_them_fits_and_numbers_compare_as_such() -> None:
    swept = jobs(engine="eager,compiled", batch="1,8,16")
    kept = meant(swept, ["engine=compiled and batch>=8", "engine=eager and batch=16"], set())
    assert kept == [
        ["engine=eager", "batch=1"],
        ["engine=eager", "batch=8"],
        ["engine=compiled", "batch=1"],
    ]


@pytest.mark.parametrize(
    ("typed", "n"), [({"engine"}, 3), ({"cache", "batch"}, 3), ({"engine", "cache"}, 4)]
)
def test_what_was_typed_in_full_stays(typed: set[str], n: int) -> None:
    assert len(meant(ALL, ["engine=compiled and cache=rolling"], typed)) == n


def test_a_condition_on_what_is_no_axis_leaves_nothing_out() -> None:
    assert meant(ALL, ["device!=cpu", "batch=1 and engine=eager"], set()) == ALL


def test_a_command_of_which_nothing_is_left_is_told_why() -> None:
    with pytest.raises(UsageError, match=r"leaves out every cell .*cache=rolling"):
        meant(jobs(engine="compiled", cache="rolling"), ["cache=rolling"], {"engine"})


def pairs(ran: list[Any]) -> list[tuple[str, str]]:
    return [(config.engine.kind, config.cache.kind) for config in ran]


def test_the_engines_preset_runs_what_its_engines_can(bench: Bench, instant: list[Any]) -> None:
    assert bench(*SHORT)[0] == 0
    assert pairs(instant) == [("eager", "rolling"), ("eager", "static"), ("compiled", "static")]
    left_out = [digest(config) for config in instant]
    instant.clear()
    assert bench(*SHORT, "cache=rolling,static", "engine=eager,compiled")[0] == 0
    assert pairs(instant).count(("compiled", "rolling")) == 1
    assert set(left_out) < {digest(config) for config in instant}


def test_on_a_gpu_as_the_readme_has_it(bench: Bench, instant: list[Any]) -> None:
    words = (*SHORT, "device=cuda", "cache=static", "engine=eager,cudagraph")
    assert bench(*words)[0] == 0
    assert pairs(instant) == [("eager", "static"), ("cudagraph", "static")]


def test_a_plan_and_a_resumed_sweep_have_the_same_cells(bench: Bench, instant: list[Any]) -> None:
    status, out, err = bench(*SHORT, "plan=true")
    assert status == 0, err
    assert "of 3 cells to run" in out
    assert bench(*SHORT)[0] == 0
    _, _, err = bench(*SHORT, "resume=true")
    assert "of its 3 cells are done" in err
