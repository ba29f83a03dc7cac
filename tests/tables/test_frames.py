"""Tables: every cell a row, pairs only of what may be compared, numbers in their order."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from runners import tables as tables_module
from runners.harness.config.conversion import from_dict, to_dict
from runners.harness.config.schema import BenchConfig
from runners.harness.measure.result import CellResult
from runners.harness.report import render
from runners.harness.store import disk
from runners.harness.store.disk import Place
from runners.harness.store.tracking import Store
from runners.harness.tables import frames
from runners.harness.tables.bench import bench_tables
from runners.harness.tables.engines import engines
from runners.harness.tables.frames import (
    cache_speedup,
    cells,
    crossovers,
    device_comparison,
    read_csv,
)
from tests.tables.rows import ok_row
from tests.tables.test_compare_cli import sweep as log_sweep
from tests.train_command import Ended

GREEDY = {"sampler.repetition_penalty": "1.0", "sampler.temperature": "0.0", "sampler.top_p": "1.0"}


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    """The cells table of those rows, by way of a file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, sorted({key for r in rows for key in r}))
    writer.writeheader()
    writer.writerows(rows)
    return _read(text.getvalue())


def _read(text: str) -> pd.DataFrame:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells.csv"
        path.write_text(text, encoding="utf-8")
        return read_csv(path)


def none(rate: float = 50.0, **changes: Any) -> dict[str, Any]:
    return ok_row(rate, cache="none", **changes)


CUDA = {"device": "cuda", "machine": "m x2 + GPU", "torch": "2.13+cu", "reference_ms": 0.25}


def cuda(rate: float, **changes: Any) -> dict[str, Any]:
    """A cell of a GPU: another machine, torch and yardstick than the CPU's."""
    return ok_row(rate, **CUDA | changes)


# engines


def fast(rate: float, **changes: Any) -> dict[str, Any]:
    return ok_row(rate, **{"engine": "compiled", "cache": "static"} | changes)


def test_engines_are_multiples_of_one_yardstick() -> None:
    table = engines(
        frame(
            fast(300.0, precision="bf16", batch=16, weights="b", prompt="q", limit_share=0.5),
            fast(250.0, round=2, limit_share=0.7),
            fast(200.0, limit_share=0.6),
            ok_row(100.0, cache="static"),
            ok_row(50.0),
            ok_row(80.0, batch=16, prompt="q"),
            fast(1.0, outcome="failed", rates="[]"),
        )
    )
    shown = table[["precision", "batch", "cache", "engine", "tok_per_s", "speedup", "n"]]
    assert shown.to_numpy().tolist() == [
        ["fp32", 1, "rolling", "eager", 50.0, 1.0, 10],
        ["fp32", 1, "static", "eager", 100.0, 2.0, 10],
        [
            "fp32",
            1,
            "static",
            "compiled",
            pytest.approx(222.2, 1e-3),
            pytest.approx(4.44, 1e-2),
            20,
        ],
        ["fp32", 16, "rolling", "eager", 80.0, 1.6, 10],
        ["bf16", 16, "static", "compiled", 300.0, 6.0, 10],
    ]
    assert table["limit_share"].tolist()[2] == pytest.approx(0.65)
    assert {str(table[name].dtype) for name in ("limit_share", "limit_ms", "speedup")} == {
        "Float64"
    }


def test_without_the_usual_yardstick_the_title_names_another() -> None:
    cells = frame(fast(200.0), ok_row(100.0, cache="static"), ok_row(90.0, batch=2))
    table = engines(cells)
    assert table["tok_per_s"].tolist() == [100.0, 200.0, 90.0]
    assert table["speedup"].fillna(0).tolist() == pytest.approx([1.0, 2.0, 0.0])  # rolling at 2
    title = "engines as multiples of eager fp32 at batch 1 with the same cache (interval: 99 %)"
    assert bench_tables(cells)[3].title == title
    assert "2.00" in render.to_markdown(bench_tables(cells)[3])


def test_without_batch_1_an_engine_is_compared_with_eager_at_its_own_batch() -> None:
    cells = frame(
        ok_row(100.0, cache="static", batch=4),
        fast(150.0, batch=4),
        ok_row(200.0, cache="static", batch=8),
        fast(800.0, batch=8),
    )
    assert engines(cells)["speedup"].tolist() == pytest.approx([1.0, 1.5, 1.0, 4.0])
    assert "eager with the same cache, precision and batch" in bench_tables(cells)[3].title


def test_one_series_with_the_usual_yardstick_keeps_it_for_all() -> None:
    usual = [ok_row(50.0), fast(200.0)]
    other = [ok_row(100.0, cache="static", new_tokens=128), fast(150.0, new_tokens=128)]
    table = engines(frame(*usual, *other))
    assert bench_tables(frame(*usual, *other))[3].title.startswith(
        "engines as multiples of eager rolling fp32 at batch 1 ("
    )
    by_length = table.set_index("new_tokens")["speedup"]
    assert by_length[64].max() == pytest.approx(4.0)
    assert by_length[128].isna().all()


def test_two_engines_and_neither_eager_have_rates_alone() -> None:
    table = engines(frame(fast(200.0), fast(300.0, engine="cudagraph")))
    assert table["tok_per_s"].tolist() == [200.0, 300.0]
    assert table["speedup"].isna().all()
    assert engines(frame(ok_row(), ok_row(cache="static"))).empty, "one engine is no comparison"
    other = fast(200.0, machine="another", cell="d")
    assert engines(frame(ok_row(), other)).empty, "nor are two machines"


# cache against none


def test_a_speed_up_is_the_ratio_of_medians_with_its_interval_and_n() -> None:
    table = cache_speedup(frame(none(50.0, n=6), ok_row(200.0, n=10)))
    assert len(table) == 1
    only = table.iloc[0]
    assert (only["none_tok_per_s"], only["tok_per_s"], only["speedup"]) == (50.0, 200.0, 4.0)
    assert (only["low"], only["high"]) == (pytest.approx(4.0), pytest.approx(4.0))
    assert (only["n_none"], only["n"], only["verdict"]) == (6, 10, "faster")
    assert (only["device"], only["batch"], only["new_tokens"], only["cache"]) == (
        "cpu",
        1,
        64,
        "rolling",
    )


def test_each_cache_is_paired_with_none() -> None:
    table = cache_speedup(frame(none(), ok_row(100.0), ok_row(200.0, cache="static")))
    assert list(table["cache"]) == ["rolling", "static"]
    assert list(table["speedup"]) == [2.0, 4.0]


def test_no_pair_without_both_sides() -> None:
    assert cache_speedup(frame(ok_row(), ok_row(cache="static"))).empty
    assert cache_speedup(frame(none())).empty


DIFFERENT = {
    "threads": 4,
    "torch": "2.14",
    "machine": "another x2",
    "weights": "others",
    "prompt": "another",
    "prompt_tokens": 9,
    "new_tokens": 256,
    "batch": 16,
    "sampling": json.dumps(GREEDY | {"sampler.top_p": "0.9"}),
    "seed": 2,
    "engine": "compiled",
    "precision": "bf16",
    "device": "cuda",
}


@pytest.mark.parametrize("key", DIFFERENT)
def test_a_pair_agrees_in_everything_else(key: str) -> None:
    assert len(cache_speedup(frame(none(), ok_row()))) == 1
    assert cache_speedup(frame(none(), ok_row(**{key: DIFFERENT[key]}))).empty
    both = frame(none(), ok_row(), none(**{key: DIFFERENT[key]}), ok_row(**{key: DIFFERENT[key]}))
    assert len(cache_speedup(both)) == 2


@pytest.mark.parametrize("key", ["round", "cell", "sweep", "stable", "overrides"])
def test_a_pair_may_differ_in_how_it_was_made(key: str) -> None:
    other = {"round": 2, "cell": "d", "sweep": "t", "stable": "false", "overrides": "x=1"}
    assert len(cache_speedup(frame(none(), ok_row(**{key: other[key]})))) == 1


@pytest.mark.parametrize("outcome", ["skipped", "failed", "oom", "mismatch", "interrupted"])
def test_what_is_not_ok_is_a_row_and_never_a_side(outcome: str) -> None:
    table = frame(none(), ok_row(outcome=outcome, reason="because"))
    assert sorted(table["outcome"]) == sorted(["ok", outcome])
    assert cache_speedup(table).empty
    bare = frame(none(), {"cell": "c", "outcome": outcome, "cache": "rolling", "batch": 1})
    assert len(bare) == 2
    assert cache_speedup(bare).empty
    assert device_comparison(frame(ok_row(), cuda(500.0, outcome=outcome))).empty


def test_a_cell_without_repeats_is_no_side() -> None:
    assert cache_speedup(frame(none(), ok_row(rates="[]"))).empty


def test_rounds_are_pooled_and_n_says_so() -> None:
    rounds = [none(40.0, round=1, n=5), none(60.0, round=2, n=6), none(50.0, round=3, n=7)]
    others = [ok_row(100.0, round=r, n=5) for r in (1, 2, 3)]
    table = cache_speedup(frame(*rounds, *others))
    assert len(table) == 1
    only = table.iloc[0]
    assert (only["n_none"], only["n"]) == (18, 15)
    assert only["none_tok_per_s"] == 50.0  # of the 18 values, not the mean of three medians
    assert only["speedup"] == 2.0
    assert only["low"] == pytest.approx(100 / 60)  # rounds disagree, and the interval says it
    assert only["high"] == pytest.approx(100 / 40)


def test_rounds_of_one_sweep_are_shared_and_of_two_are_not() -> None:
    weather = [100.0, 60.0, 110.0, 80.0, 95.0, 70.0]
    slow, fast = (
        [side(rate * share, round=n, n=1, cell=f"{share}-{n}") for n, rate in enumerate(weather)]
        for side, share in ((none, 0.5), (ok_row, 1.0))
    )
    shared = cache_speedup(frame(*slow, *fast[::-1])).iloc[0]
    assert [shared["low"], shared["high"]] == pytest.approx([2.0, 2.0])
    apart = cache_speedup(frame(*slow, *(cell | {"sweep": "other"} for cell in fast))).iloc[0]
    assert apart["low"] < 1.5
    assert apart["speedup"] == pytest.approx(2.0)


def test_duplicates_are_pooled_never_averaged() -> None:
    twice = [none(10.0, n=5), none(100.0, n=6)]
    only = cache_speedup(frame(*twice, ok_row(100.0))).iloc[0]
    assert only["none_tok_per_s"] == 100.0  # the median of 11 values; the mean would be 55
    assert only["n_none"] == 11


def test_few_repeats_are_unclear() -> None:
    only = cache_speedup(frame(none(n=4), ok_row(1000.0))).iloc[0]
    assert only["verdict"] == "unclear"
    assert only["speedup"] == 20.0
    assert pd.isna(only["low"])


QUIET = {"others_cpu_share": 0.02, "noise": "quiet"}


def test_few_repeats_on_a_quiet_machine_and_far_apart_are_judged() -> None:
    def verdict(**changes: Any) -> str:
        pair = frame(none(100.0, n=3, **QUIET), ok_row(1000.0, n=4, **QUIET | changes))
        return str(cache_speedup(pair).iloc[0]["verdict"])

    assert verdict() == "faster"
    assert verdict(others_cpu_share=0.5, noise="load") == "unclear"
    assert verdict(noise="reference") == "unclear"  # as the whole sweep shows
    assert verdict(reference_ms=56.0) == "unclear"  # beside the other side's 50
    assert verdict(reference_ms="") == "unclear"
    assert verdict(others_cpu_share="") == "unclear"


def test_two_sweeps_that_disagree_show_their_spread() -> None:
    twice = [none(90.0, n=1, sweep="s"), none(110.0, n=1, sweep="t")]
    cells_of_both = frame(*twice, ok_row(300.0))
    only = cache_speedup(cells_of_both).iloc[0]
    assert only["none_tok_per_s"] == pytest.approx(99.0)  # the rate of the median time
    assert (only["none_lowest"], only["none_highest"], only["n_none"]) == (90.0, 110.0, 2)
    assert only["verdict"] == "unclear"
    shown = io.StringIO()
    render.show(bench_tables(cells_of_both)[1], "md", shown)
    assert "| none tok/s | none range | tok/s | range | speedup | verdict |" in shown.getvalue()
    assert "| 99.0 | 90.0–110 | 300 | 300–300 | 3.03 | unclear | 2 | 10 |" in shown.getvalue()
    sure = io.StringIO()
    render.show(bench_tables(frame(none(), ok_row()))[1], "md", sure)
    assert "range" not in sure.getvalue()  # the interval of the speed-up says it


def test_drift_of_the_machine_widens_a_single_round() -> None:
    calm = cache_speedup(frame(none(50.0), ok_row(54.0))).iloc[0]
    assert calm["verdict"] == "faster"
    drifted = cache_speedup(frame(none(50.0), ok_row(54.0, reference_ms=55.0))).iloc[0]
    assert drifted["verdict"] == "unclear"
    assert drifted["low"] == pytest.approx(1.08 / 1.1)


def test_without_a_yardstick_a_pair_is_still_a_pair() -> None:
    table = cache_speedup(frame(none(reference_ms=""), ok_row(reference_ms="")))
    assert list(table["speedup"]) == [2.0]


# device against cpu


def test_a_gpu_is_compared_with_a_cpu_whatever_its_yardstick() -> None:
    table = device_comparison(frame(ok_row(100.0), cuda(500.0)))
    assert len(table) == 1
    only = table.iloc[0]
    assert (only["device"], only["cpu_tok_per_s"], only["tok_per_s"]) == ("cuda", 100.0, 500.0)
    assert only["speedup"] == 5.0
    assert (only["verdict"], only["wins"]) == ("faster", "cuda")


@pytest.mark.parametrize(
    ("rate", "n", "wins"),
    [(500.0, 10, "cuda"), (20.0, 10, "cpu"), (101.0, 10, "neither"), (500.0, 4, "unclear")],
)
def test_which_device_wins(rate: float, n: int, wins: str) -> None:
    rounds = [
        side for r in (1, 2) for side in (ok_row(100.0, round=r), cuda(rate, n=n // 2, round=r))
    ]
    assert list(device_comparison(frame(*rounds))["wins"]) == [wins]


@pytest.mark.parametrize("key", ["weights", "prompt", "batch", "new_tokens", "cache", "precision"])
def test_devices_are_compared_on_the_same_cell(key: str) -> None:
    different = DIFFERENT | {"cache": "static"}
    assert device_comparison(frame(ok_row(), cuda(500.0, **{key: different[key]}))).empty


@pytest.mark.parametrize("key", ["machine", "threads", "torch"])
def test_a_side_on_two_machines_is_no_side(key: str) -> None:
    other = {"machine": "another x2", "threads": 8, "torch": "2.14"}[key]
    assert device_comparison(frame(ok_row(), ok_row(**{key: other}), cuda(500.0))).empty


def series(cpu: list[float], gpu: list[float], **changes: Any) -> list[dict[str, Any]]:
    """Both devices at batch 1, 4, 16, ... in two rounds."""
    return [
        side
        for n, (a, b) in enumerate(zip(cpu, gpu, strict=True))
        for r in (1, 2)
        for side in (
            ok_row(a, batch=4**n, round=r, **changes),
            cuda(b, batch=4**n, round=r, **changes),
        )
    ]


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ([50.0, 90.0, 900.0, 999.0], "wins from batch 16 on"),
        ([500.0, 900.0, 900.0, 999.0], "wins from batch 1 on"),
        ([500.0, 90.0, 900.0, 999.0], "wins from batch 16 on"),  # a lead that is lost is none
        ([50.0, 50.0, 50.0, 50.0], "does not win up to batch 64"),
        ([500.0, 500.0, 500.0, 50.0], "does not win up to batch 64"),
    ],
)
def test_from_which_batch_on_a_device_wins(gpu: list[float], said: str) -> None:
    (line,) = crossovers(device_comparison(frame(*series([100.0] * 4, gpu))))
    assert line.startswith("cuda (64 new tokens, cache rolling)")
    assert line.endswith(said)


def test_what_is_unclear_is_not_called_lost() -> None:
    both = series([50.0] * 2, [90.0] * 2)
    rows = [one | {"rates": "[500.0]"} if one["batch"] == 4 else one for one in both]
    (line,) = crossovers(device_comparison(frame(*rows)))
    assert line.endswith("does not win up to batch 4; unclear at batch 4")


def test_every_series_has_a_crossover_of_its_own() -> None:
    short = series([100.0] * 2, [50.0, 500.0])
    long = series([100.0] * 2, [500.0, 500.0], new_tokens=1024)
    lines = crossovers(device_comparison(frame(*short, *long)))
    assert lines == [
        "cuda (64 new tokens, cache rolling) wins from batch 4 on",
        "cuda (1024 new tokens, cache rolling) wins from batch 1 on",
    ]


def test_no_devices_no_crossover() -> None:
    assert crossovers(device_comparison(frame(ok_row()))) == []


# order, types, files


def test_m8_numbers_sort_as_numbers() -> None:
    table = frame(
        *(
            ok_row(cell=f"{b}-{n}", batch=b, new_tokens=n)
            for b in (16, 1, 4)
            for n in (1024, 64, 256)
        )
    )
    assert list(table["batch"]) == [1] * 3 + [4] * 3 + [16] * 3
    assert list(table["new_tokens"]) == [64, 256, 1024] * 3
    assert str(table["batch"].dtype) == "Int64"
    pairs = cache_speedup(
        frame(*(s for b in (16, 4, 1, 64) for s in (none(batch=b), ok_row(batch=b))))
    )
    assert list(pairs["batch"]) == [1, 4, 16, 64]


def test_devices_and_caches_sort_from_slow_to_fast() -> None:
    table = frame(ok_row(cache="static"), cuda(1.0), ok_row(device="mps"), ok_row(), none())
    assert list(zip(table["device"], table["cache"], strict=True)) == [
        ("cpu", "none"),
        ("cpu", "rolling"),
        ("cpu", "static"),
        ("cuda", "rolling"),
        ("mps", "rolling"),
    ]


def test_m9_the_baseline_survives_a_file(tmp_path: Path) -> None:
    table = frame(none(), ok_row(), ok_row(cache="static", outcome="failed", reason="a, b\n'c'"))
    path = tmp_path / "cells.csv"
    path.write_text(render.to_csv(table), encoding="utf-8")
    again = read_csv(path)
    pd.testing.assert_frame_equal(again, table)
    assert set(again["cache"]) == {"none", "rolling", "static"}
    pd.testing.assert_frame_equal(cache_speedup(again), cache_speedup(table))


@pytest.mark.parametrize("word", ["none", "None", "null", "NA", "nan", "1.0", "007"])
def test_m9_a_word_stays_a_word(word: str) -> None:
    (again,) = frame(ok_row(cache=word, model=word, cell=word)).to_dict("records")
    assert (again["cache"], again["model"], again["cell"]) == (word, word, word)


def test_m9_the_file_a_sweep_writes_can_be_read_again(tmp_path: Path) -> None:
    table = frame(none(), ok_row(), none(batch=16), ok_row(batch=16))
    render.write(tmp_path, bench_tables(table), table)
    pd.testing.assert_frame_equal(read_csv(tmp_path / "cells.csv"), table)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{suffix}"
        for name in ("cells", "cache", "device", "engine")
        for suffix in ("csv", "md", "json")
    }


def test_no_cells_at_all() -> None:
    empty = frame(ok_row()).iloc[:0]
    assert cache_speedup(empty).empty
    assert device_comparison(empty).empty
    for table in bench_tables(empty):
        for form in ("rich", "md", "csv", "json"):
            render.show(table, form, io.StringIO())


@pytest.mark.parametrize("text", ["a [/b] c", "[bold]x", "a|b", "[1, 2]", "ü\u2028"])
def test_a_reason_is_shown_as_it_is(text: str) -> None:
    table = bench_tables(frame(ok_row(), ok_row(cell="d", outcome="failed", reason=text)))[0]
    for form in ("rich", "md", "csv", "json"):
        out = io.StringIO()
        render.show(table, form, out)
        shown = out.getvalue().replace("\\|", "|")
        assert text in shown


# from the store


@pytest.fixture
def store(results: Path) -> Store:
    return Store(results)


Log = Callable[..., str]


def logger(store: Store, folder: Path) -> Log:
    """Log a lone cell: its id and what differs in its config."""

    def log(
        cell: str,
        *,
        outcome: str = "ok",
        rate: float = 100.0,
        choices: dict[str, str] | None = None,
        **config: Any,
    ) -> str:
        built = from_dict({"tracking": {"dir": "results"}} | config, BenchConfig)
        measured = CellResult(
            outcome,
            reason="" if outcome == "ok" else "because",
            metrics={"output_tok_per_s": rate, "reference_ms": 50.0} if outcome == "ok" else {},
            tags={
                "tinygpt.rates": json.dumps([rate] * 5),
                "tinygpt.weights_sha256": "w",
                "tinygpt.prompt_sha256": "p",
                "tinygpt.prompt_tokens": "8",
                "tinygpt.threads": "2",
                "tinygpt.machine": "m",
                "tinygpt.torch": "2.13",
            }
            if outcome == "ok"
            else {},
        )
        chosen = {"model": "tiny", **(choices or {})}
        place = Place(folder / "cells" / cell, cell, None, 0, chosen, [])
        disk.begin(place, "bench", to_dict(built))
        disk.finish(place, measured)
        return store.log_cell(place.folder)

    return log


@pytest.fixture
def log(store: Store, tmp_path: Path) -> Log:
    return logger(store, tmp_path)


def test_a_cell_comes_back_as_it_went(log: Log, store: Store) -> None:
    log("aaaa0001", batch={"size": 16}, cache={"kind": "none"})
    (only,) = cells("aaaa0001", store).to_dict("records")
    assert (only["cell"], only["sweep"], only["outcome"]) == ("aaaa0001", "aaaa0001", "ok")
    assert (only["batch"], only["new_tokens"], only["cache"]) == (16, 256, "none")
    assert (only["output_tok_per_s"], only["reference_ms"]) == (100.0, 50.0)
    assert only["rates"] == "[100.0, 100.0, 100.0, 100.0, 100.0]"


def test_sweeps_are_found_by_prefix_and_by_latest(log: Log, store: Store) -> None:
    for cell in ("aaaa0001", "aaaa0002", "bbbb0001"):
        log(cell)
    assert list(cells("aaaa0001", store)["cell"]) == ["aaaa0001"]
    assert list(cells("b", store)["cell"]) == ["bbbb0001"]
    assert list(cells("latest", store)["cell"]) == ["bbbb0001"]
    assert list(cells("b,aaaa0002", store)["cell"]) == ["aaaa0002", "bbbb0001"]
    assert list(cells("b, latest", store)["cell"].unique()) == ["bbbb0001"]


def test_one_cell_of_a_sweep_and_several_mixed(log: Log, store: Store) -> None:
    log_sweep(store, "aaaa0001", 100.0, 200.0, 300.0)
    log("bbbb0001")

    def found(wanted: str) -> list[str]:
        return sorted(cells(wanted, store)["cell"])

    assert found("aaaa0001-1") == ["aaaa0001-1"]
    assert found("aaaa-1, b") == ["aaaa0001-1", "bbbb0001"]
    assert found("aaaa-1,aaaa-2,aaaa0001-1") == ["aaaa0001-1", "aaaa0001-2"]
    assert found("aaaa,aaaa-1") == ["aaaa0001-0", "aaaa0001-1", "aaaa0001-2"]
    with pytest.raises(ValueError, match="no such cell; it has aaaa0001-0, aaaa0001-1, aaaa0001-2"):
        cells("aaaa-7", store)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("aaaa", "2 begin so (aaaa0001, aaaa0002)"),
        ("cccc", "no such sweep"),
        ("", "no such sweep"),
        ("%", "no such sweep"),
        ("_aaa0001", "no such sweep"),
        ("b,cccc", "sweep=cccc: no such sweep"),
    ],
)
def test_what_is_unknown_or_ambiguous_is_said(
    wanted: str, said: str, log: Log, store: Store
) -> None:
    for cell in ("aaaa0001", "aaaa0002", "bbbb0001"):
        log(cell)
    with pytest.raises(ValueError, match="sweep=") as refused:
        cells(wanted, store)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing is tracked .* python -m runners\.bench"):
        cells("latest", Store(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_m8_settings_are_grouped_by_value_and_nobody_is_lost(log: Log, store: Store) -> None:
    log("aaaa0001", sampler={"temperature": 1.0, "top_p": 1})
    log("aaaa0002", sampler={"temperature": 1.0, "top_p": 1.0}, cache={"kind": "none"})
    log("aaaa0003")
    log("aaaa0004", cache={"kind": "none"})
    table = cells("aaaa0001,aaaa0002,aaaa0003,aaaa0004", store)
    assert len(table) == 4
    assert len(table["sampling"].unique()) == 2
    assert len(cache_speedup(table)) == 2


# where


@pytest.fixture(scope="module")
def several(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Four cells: both caches, two batches, of which the larger without a cache was skipped; to
    read from only.
    """
    folder = tmp_path_factory.mktemp("several")
    shutil.copy(empty_store, folder / "mlflow.db")
    store = Store(folder)
    log = logger(store, folder)
    log("aaaa0001", cache={"kind": "none"}, rate=50.0, choices={"batch": "1", "cache": "none"})
    log("aaaa0002", rate=200.0, choices={"sampler": "t0.8_topp0.9", "batch": "1 size=1"})
    log("bbbb0003", cache={"kind": "none"}, batch={"size": 16}, outcome="skipped", seed=2)
    log("bbbb0004", batch={"size": 16}, device={"threads": 1}, rate=100.0)
    return store


EVERY = "aaaa0001,aaaa0002,bbbb0003,bbbb0004"


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("", "1234"),
        ("batch.size>=4", "34"),
        ("batch>=4 and device=cpu", "34"),
        ("batch=1", "12"),
        ("batch='1 size=1'", "2"),
        ("cache=none", "13"),
        ("cache.kind==rolling and batch!=16", "2"),
        ("length=256 and length.new_tokens<257 and new_tokens>255", "1234"),
        ("sampler=t0.8_topp0.9", "2"),
        ("choice.sampler='t0.8_topp0.9'", "2"),
        ("sampler.temperature=0", "1234"),
        ("model=tiny and model.n_layers=6", "1234"),
        ("seed=2", "3"),
        ("outcome=ok", "124"),
        ("outcome!=ok", "3"),
        ("reason=because", "3"),
        ("output_tok_per_s>=100", "24"),
        ("output_tok_per_s!=100", "123"),
        ("device.threads=1", "4"),
        ("threads=2 and machine='m'", "124"),
        ("round=1 and stable!=false and checkpoint=none", "1234"),
        ("cell=bbbb0003", "3"),
        ("resume=false", "1234"),
    ],
)
def test_where_leaves_the_cells_that_fit(where: str, numbers: str, several: Store) -> None:
    assert {cell[-1] for cell in cells(EVERY, several, where=where)["cell"]} == set(numbers)


def test_where_and_sweeps_that_are_joined(several: Store) -> None:
    table = cells("aaaa0001, aaaa0002", several, "cache=none")
    assert list(table["cell"]) == ["aaaa0001"]
    pairs = cache_speedup(cells(EVERY, several, where="batch=1 and sampler.temperature=0"))
    assert list(pairs["speedup"]) == [4.0]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("cache<3", "cache is a text (none, rolling): it compares with = and != only"),
        ("checkpoint>a", "checkpoint is a text (none)"),
        ("batch.size=four", "batch.size is a number, and 'four' is none"),
        ("batch.sise=4", "did you mean batch.size"),
        ("cash=none", "did you mean cache"),
        ("temperature=0", "did you mean sampler.temperature?"),
        ("xyzzy=0", "no such key; there are the groups (batch, cache, device, "),
        ("batch.size", "an operator is missing at its end"),
    ],
)
def test_a_wrong_where_is_a_line(where: str, said: str, several: Store) -> None:
    with pytest.raises(ValueError, match="where=") as refused:
        cells(EVERY, several, where=where)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_where_is_found_before_the_store_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a value is missing"):
        cells("latest", Store(tmp_path), where="batch=")


def test_models_of_other_shapes_are_no_pair_though_their_weights_agree(
    log: Log, store: Store
) -> None:
    # Seeded weights are the same numbers whatever the window, the heads' width or the base.
    log("aaaa0001", cache={"kind": "none"})
    for n, other in enumerate(
        [
            {"context_length": 128},
            {"rope_base": 500.0},
            {"n_heads": 4, "n_kv_heads": 4, "head_dim": 64},
        ]
    ):
        log(f"bbbb000{n}", model=other)
        assert cache_speedup(cells(f"aaaa0001,bbbb000{n}", store)).empty, other


def test_a_run_that_a_kill_left_half_made_is_no_row(log: Log, store: Store) -> None:
    log("aaaa0001", cache={"kind": "none"})
    tags = {
        "tinygpt.kind": "bench",
        "tinygpt.sweep": "aaaa0001",
        "tinygpt.cell": "aaaa0001-1",
        "tinygpt.outcome": "ok",
        "tinygpt.rates": "[1.0]",
    }
    store.client.create_run(store.experiment_id("bench"), tags=tags)
    assert list(cells("aaaa0001", store)["cell"]) == ["aaaa0001"]


@pytest.fixture
def typed(
    results: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Call ``python -m runners.tables`` in this process."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["tables", *arguments, f"tracking.dir={results}"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            tables_module.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_the_forms_of_a_table(typed: Callable[..., tuple[int, str, str]], log: Log) -> None:
    log("aaaa0001", cache={"kind": "none"}, rate=50.0)
    log("aaaa0002", rate=200.0)
    log("aaaa0003", outcome="skipped", device={"kind": "cuda"})
    both = "sweep=aaaa0001,aaaa0002,aaaa0003"

    status, out, err = typed(both, "table=cells", "format=csv")
    assert (status, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [r["cell"] for r in rows] == ["aaaa0001", "aaaa0002", "aaaa0003"]
    assert [r["outcome"] for r in rows] == ["ok", "ok", "skipped"]
    assert [float(r["output_tok_per_s"]) for r in rows[:2]] == [50.0, 200.0]
    assert rows[2]["output_tok_per_s"] == ""

    status, out, _ = typed(both, "table=cache", "format=json")
    (pair,) = json.loads(out)
    assert status == 0
    assert (pair["cache"], pair["speedup"], pair["n"]) == ("rolling", 4.0, 5)

    status, out, _ = typed(both, "format=md")
    assert status == 0
    assert out.count("### ") == 4
    assert "because" in out
    assert "python -m runners.bench -m" in out  # fills the device table
    rule = next(line for line in out.splitlines() if line.startswith("|--"))
    above = out.splitlines()[out.splitlines().index(rule) - 1]
    assert rule.count("|") == above.count("|")

    status, out, _ = typed(both, "table=device")
    assert status == 0
    assert "device=cpu,cuda" in out


def test_where_on_the_command_line(entry: Callable[..., Ended], several: Store) -> None:
    def typed(*arguments: str) -> Ended:
        return entry("tables", several.dir, f"sweep={EVERY}", *arguments)

    status, out, err = typed("where=batch.size>=4 and outcome==ok", "format=md")
    assert (status, err) == (0, "")
    assert "### cells where batch.size>=4 and outcome==ok (" in out
    assert "| bbbb0004 |" in out
    assert "aaaa" not in out
    assert "no two cells differ in the cache alone where batch.size>=4 and outcome==ok\n" in out
    assert "python -m" not in out  # no sweep fills what where leaves out

    status, out, err = typed("where=batch=1 and device=cuda and cache=none")
    assert (status, err) == (0, "")
    said = "where=batch=1 and device=cuda and cache=none: none of 2 rows has device=cuda"
    assert out.count(f"{said} (device: cpu)") == 1  # not once more for each table

    status, out, err = typed("where=seed>9", "table=cells", "format=json")
    assert (status, json.loads(out)) == (0, [])
    assert "none of 4 rows has seed>9 (seed: 1, 2)" in err


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("where=cache<3", "tables: where=cache<3: cache is a text (rolling)"),
        ("where=batch.size", "an operator is missing at its end"),
        ("where=bach=1", "did you mean batch or cache?"),
        ("sweep=zzzz", "no such sweep"),
        ("table=cash", "must be one of"),
        ("tabel=cache", "did you mean table"),
        ("format=csv", "holds one table"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_2(
    argument: str, said: str, typed: Callable[..., tuple[int, str, str]], log: Log
) -> None:
    log("aaaa0001")
    status, out, err = typed(argument)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_the_fixed_columns_are_there_though_nobody_logged_them() -> None:
    bare = frame({"cell": "c", "outcome": "failed", "reason": "boom"})
    assert set(bare.columns) == {column.name for column in frames.CELLS}
    assert pd.isna(bare["batch"].iloc[0])
    assert bare["device"].iloc[0] == ""
