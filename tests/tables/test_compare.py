"""Comparing: cells matched by what they measure, judged, and told what else differs."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from runners.harness.store.find import StoredCell, SweepRef
from runners.harness.store.tracking import Store
from runners.harness.tables import frames
from runners.harness.tables.comparison import KEY, PLACE, Comparison, Side, Unmatched, compare
from tests.tables.rows import ok_row

GREEDY = {"sampler.temperature": "0.0", "sampler.top_p": "1.0"}
TINY = {"model.n_layers": "6", "model.context_length": "256"}


def row(cell: str, rate: float = 100.0, n: int = 10, **changes: Any) -> dict[str, Any]:
    """An ok cell, all of whose ``n`` repeats have the same rate (tokens/s)."""
    facts = {"cell": cell, "shape": json.dumps(TINY), "sampling": json.dumps(GREEDY)}
    facts |= {"weights": "w" * 64, "prompt": "p" * 64}
    return ok_row(rate, n, **facts | changes)


@pytest.fixture
def side(tmp_path: Path) -> Callable[..., Side]:
    """A side of those rows, their frame by way of a file, as ``frames.cells`` types it."""

    def make(*rows: dict[str, Any], **tags: str) -> Side:
        path = tmp_path / "cells.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, sorted({key for r in rows for key in r}))
            writer.writeheader()
            writer.writerows(rows)
        stored = {}
        for each in rows:
            own = {f"tinygpt.{name}": str(each[name]) for name in PLACE if name in each}
            own |= {f"tinygpt.{name}": value for name, value in tags.items()}
            run = SimpleNamespace(data=SimpleNamespace(tags=own))
            stored[each["cell"]] = StoredCell("bench", cast(Any, run), cast(Store, None))
        return Side(SweepRef("bench", "sweep", ""), stored, frames.read_csv(path))

    return make


Sides = Callable[..., Side]


def only(found: Comparison) -> dict[Any, Any]:
    (one,) = found.frame.to_dict("records")
    return one


def test_a_planted_ratio_comes_back_with_its_interval_n_and_rounds(side: Sides) -> None:
    found = compare(side(row("a-0", 100.0, n=6)), side(row("b-0", 115.0, n=9)))
    one = only(found)
    assert (one["a_tok_per_s"], one["b_tok_per_s"], one["ratio"]) == (100.0, 115.0, 1.15)
    assert (one["low"], one["high"]) == (pytest.approx(1.15), pytest.approx(1.15))
    assert (one["n_a"], one["n_b"], one["rounds_a"], one["rounds_b"]) == (6, 9, 1, 1)
    assert (one["verdict"], one["cells_a"], one["cells_b"]) == ("faster", "a-0", "b-0")
    assert (found.overall.ratio, found.overall.verdict) == (1.15, "faster")
    assert found.unmatched == []


@pytest.mark.parametrize(
    ("rate", "verdict"), [(80.0, "slower"), (97.0, "same"), (103.0, "same"), (125.0, "faster")]
)
def test_it_is_b_that_is_judged(rate: float, verdict: str, side: Sides) -> None:
    found = compare(side(row("a-0", 100.0)), side(row("b-0", rate)))
    assert (only(found)["verdict"], found.overall.verdict) == (verdict, verdict)


OTHER = {
    "shape": (json.dumps(TINY | {"model.n_layers": "4"}), "model.n_layers 6 / 4"),
    "weights": ("v" * 64, "weights wwwwwwwwwwww / vvvvvvvvvvvv"),
    "prompt": ("q" * 64, "prompt pppppppppppp / qqqqqqqqqqqq"),
    "prompt_tokens": (9, "prompt_tokens 8 / 9"),
    "new_tokens": (256, "new_tokens 64 / 256"),
    "batch": (16, "batch 1 / 16"),
    "sampling": (json.dumps(GREEDY | {"sampler.top_p": "0.9"}), "sampler.top_p 1.0 / 0.9"),
    "seed": (2, "seed 1 / 2"),
    "engine": ("compiled", "engine eager / compiled"),
    "precision": ("bf16", "precision fp32 / bf16"),
    "cache": ("none", "cache rolling / none"),
    "device": ("cuda", "device cpu / cuda"),
}


def test_every_key_has_its_case() -> None:
    assert set(OTHER) == set(KEY)


@pytest.mark.parametrize("key", KEY)
def test_cells_match_that_measure_the_same(key: str, side: Sides) -> None:
    value, said = OTHER[key]
    with pytest.raises(ValueError, match="no cell of one measures") as refused:
        compare(side(row("a-0")), side(row("b-0", **{key: value})))
    assert str(refused.value).endswith(f"a's a-0: no partner: b-0 has {said}")
    assert "\n" not in str(refused.value)
    both = [row("x-0", 100.0), row("x-1", 200.0, **{key: value})]
    found = compare(side(*both), side(*both))
    assert sorted(found.frame["a_tok_per_s"]) == [100.0, 200.0]
    assert list(found.frame["ratio"]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"machine": "n x4"}, ("machine", "m x2", "n x4", 1)),
        ({"threads": 4}, ("threads", "2", "4", 1)),
        ({"torch": "2.14"}, ("torch", "2.13", "2.14", 1)),
    ],
)
def test_where_it_was_measured_may_differ_and_is_told(
    changes: dict[str, Any], told: tuple[Any, ...], side: Sides
) -> None:
    found = compare(side(row("a-0")), side(row("b-0", **changes)))
    assert found.differences == [told]
    assert found.same == [name for name in PLACE if name not in changes]


@pytest.mark.parametrize("key", ["round", "model", "sampler"])
def test_names_and_rounds_match_nothing_and_part_nothing(key: str, side: Sides) -> None:
    other = {"round": 2, "model": "tiny n_layers=6", "sampler": "t0.0"}[key]
    assert len(compare(side(row("a-0")), side(row("b-0", **{key: other}))).frame) == 1


def test_what_measures_the_same_is_what_the_tables_pair_by() -> None:
    assert {*KEY, *PLACE} == {*frames.KEY, *frames.PLACE}


def test_code_may_differ_and_is_told_of_the_cells_where_it_does(side: Sides) -> None:
    a = side(row("a-0"), row("a-1", batch=4), code_sha256="0123456789abcdef", version="1")
    b = side(row("b-0"), row("b-1", batch=4), code_sha256="0123456789abcdef", version="1")
    b.cells["b-1"].run.data.tags["tinygpt.code_sha256"] = "fedcba9876543210"
    found = compare(a, b)
    assert found.differences == [("code", "0123456789", "fedcba9876", 1)]
    assert found.same == [*PLACE, "tinygpt"]  # the commit is not known, and so not the same


def test_a_fact_that_one_side_does_not_tell_differs(side: Sides) -> None:
    found = compare(side(row("a-0")), side(row("b-0"), git_sha="abc"))
    assert found.differences == [("git commit", "", "abc", 1)]


@pytest.mark.parametrize("outcome", ["skipped", "failed", "oom", "mismatch", "interrupted"])
def test_what_is_not_ok_is_no_side_and_says_why(outcome: str, side: Sides) -> None:
    lost = row("b-1", batch=4, outcome=outcome, reason="because", rates="[]", weights="", prompt="")
    found = compare(side(row("a-0"), row("a-1", batch=4)), side(row("b-0"), lost))
    assert len(found.frame) == 1
    assert found.unmatched == [
        Unmatched("a", ["a-1"], f"no partner: b-1 {outcome}: because"),
        Unmatched("b", ["b-1"], f"{outcome}: because"),
    ]


def test_a_cell_without_repeats_is_no_side(side: Sides) -> None:
    empty = row("b-1", new_tokens=0, rates="[]")
    found = compare(side(row("a-0")), side(row("b-0"), empty))
    assert found.unmatched == [Unmatched("b", ["b-1"], "no timings")]


def test_the_nearest_is_the_one_with_the_fewest_differences(side: Sides) -> None:
    a = side(row("a-0"), row("a-1", cache="none", batch=16, prompt="16"))
    near = row("b-2", cache="static", batch=16, prompt="16")
    found = compare(a, side(row("b-0"), row("b-1", batch=4, prompt="4"), near))
    assert found.unmatched[0] == Unmatched("a", ["a-1"], "no partner: b-2 has cache none / static")
    # The prompts differ as well, as those of other batches do: that goes without saying.
    assert found.unmatched[1] == Unmatched("b", ["b-1"], "no partner: a-0 has batch 1 / 4")


def test_an_ok_cell_is_nearer_than_one_that_is_not(side: Sides) -> None:
    lost = row("b-1", batch=4, outcome="skipped", rates="[]")
    b = side(row("b-0"), lost, row("b-2", batch=4, cache="none"))
    found = compare(side(row("a-0"), row("a-1", batch=4, engine="other")), b)
    assert found.unmatched[0].reason == "no partner: b-0 has batch 4 / 1, engine other / eager"


def test_cells_that_are_left_for_the_same_reason_stand_together(side: Sides) -> None:
    lost = [
        row(f"a-{n}", device="cuda", batch=n, outcome="skipped", reason="no CUDA", rates="[]")
        for n in (1, 4, 16)
    ]
    found = compare(side(row("a-0"), *lost), side(row("b-0")))
    assert found.unmatched == [Unmatched("a", ["a-1", "a-4", "a-16"], "skipped: no CUDA")]


def test_rounds_are_pooled(side: Sides) -> None:
    a = [row(f"a-{r}", rate, n=5, round=r) for r, rate in ((1, 40.0), (2, 50.0), (3, 60.0))]
    b = [row(f"b-{r}", 100.0, n=4, round=r) for r in (1, 2)]
    one = only(compare(side(*a), side(*b)))
    assert (one["a_tok_per_s"], one["ratio"]) == (50.0, 2.0)
    assert (one["n_a"], one["n_b"], one["rounds_a"], one["rounds_b"]) == (15, 8, 3, 2)
    assert (one["low"], one["high"]) == (pytest.approx(100 / 60), pytest.approx(100 / 40))
    assert (one["cells_a"], one["cells_b"]) == ("a-1 a-2 a-3", "b-1 b-2")


def test_few_repeats_are_unclear_and_leave_the_whole_unclear(side: Sides) -> None:
    a = side(row("a-0", n=10), row("a-1", n=10, batch=4))
    found = compare(a, side(row("b-0", 200.0), row("b-1", 50.0, n=4, batch=4)))
    assert list(found.frame["verdict"]) == ["faster", "unclear"]
    assert found.frame["low"].isna().tolist() == [False, True]
    assert (found.overall.verdict, found.overall.low) == ("unclear", None)
    assert found.overall.ratio == pytest.approx(1.0)


def test_drift_of_the_machine_widens_a_single_round(side: Sides) -> None:
    calm = compare(side(row("a-0", 50.0)), side(row("b-0", 54.0)))
    assert only(calm)["verdict"] == "faster"
    drifted = compare(side(row("a-0", 50.0)), side(row("b-0", 54.0, reference_ms=55.0)))
    assert only(drifted)["verdict"] == "unclear"
    assert only(drifted)["low"] == pytest.approx(1.08 / 1.1)
    assert only(drifted)["drift"] == pytest.approx(1.1)
    assert drifted.overall.low == pytest.approx(1.08 / 1.1)


def test_without_a_yardstick_there_is_still_a_comparison(side: Sides) -> None:
    found = compare(side(row("a-0", reference_ms="")), side(row("b-0", 200.0)))
    assert (only(found)["ratio"], only(found)["drift"]) == (2.0, 1.0)


@pytest.mark.parametrize("key", ["machine", "torch"])
def test_a_side_on_several_machines_is_no_side(key: str, side: Sides) -> None:
    other = {"machine": "n x4", "torch": "2.14"}[key]
    a = side(row("a-0"), row("a-1", batch=4), row("a-2", batch=4, round=2, **{key: other}))
    found = compare(a, side(row("b-0"), row("b-1", batch=4)))
    assert len(found.frame) == 1
    why = f"rounds measured in several places ({key} {row('')[key]}, {other}) are no side"
    assert found.unmatched == [
        Unmatched("a", ["a-1", "a-2"], why),
        Unmatched("b", ["b-1"], f"no partner: {why}"),
    ]
    with pytest.raises(ValueError, match="several places"):
        compare(side(row("a-0"), row("a-1", **{key: other})), side(row("b-0")))


def test_a_sweep_over_threads_is_matched_by_threads(side: Sides) -> None:
    a = [row(f"a-{n}", 100.0 * n, threads=n) for n in (1, 2)]
    found = compare(side(*a), side(*(row(f"b-{n}", 110.0 * n, threads=n) for n in (1, 2))))
    assert list(found.frame["threads"]) == ["1", "2"]
    assert list(found.frame["ratio"]) == pytest.approx([1.1, 1.1])
    assert found.same == list(PLACE)
    fewer = compare(side(*a), side(row("b-2", threads=2)))
    assert list(fewer.frame["threads"]) == ["2"]
    assert fewer.unmatched == [Unmatched("a", ["a-1"], "no partner: b-2 has threads 1 / 2")]


def test_threads_that_differ_are_both_shown(side: Sides) -> None:
    assert only(compare(side(row("a-0", threads=1)), side(row("b-0"))))["threads"] == "1 / 2"


def test_the_overall_ratio_is_the_geometric_mean(side: Sides) -> None:
    a = side(row("a-0"), row("a-1", batch=4), row("a-2", batch=16))
    b = side(row("b-0", 50.0), row("b-1", 200.0, batch=4), row("b-2", 800.0, batch=16))
    overall = compare(a, b).overall
    assert overall.ratio == pytest.approx(2.0)  # (1/2 * 2 * 8) ** (1/3); the mean would be 3.5
    assert overall.low == pytest.approx(2.0)
    assert (overall.verdict, overall.n) == ("faster", (30, 30))


def test_cells_come_in_the_order_of_the_tables(side: Sides) -> None:
    rows = [row(f"x-{b}", batch=b) for b in (16, 1, 4)]
    assert list(compare(side(*rows), side(*rows[::-1])).frame["batch"]) == [1, 4, 16]


def test_a_cell_of_which_not_all_is_known_is_left_out_and_named(side: Sides) -> None:
    found = compare(side(row("a-0"), row("a-1", weights="")), side(row("b-0")))
    assert found.unmatched == [
        Unmatched("a", ["a-1"], "no partner: b-0 ok, and not all is known of it")
    ]


def test_a_frame_of_pairs_has_figures_of_one_type(side: Sides) -> None:
    frame = compare(side(row("a-0", n=1)), side(row("b-0", n=1))).frame
    assert frame["low"].dtype == frame["ratio"].dtype == float
    assert pd.isna(frame["low"].iloc[0])
