"""``python -m runners.compare``: ids, forms, exit statuses, on stores as the commands fill them."""

import csv
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners import compare as module
from runners.harness.config.conversion import from_dict, to_dict
from runners.harness.config.schema import BenchConfig
from runners.harness.launch import tracked
from runners.harness.launch.entry import Sweep
from runners.harness.measure.result import CellResult
from runners.harness.store import disk, run_data
from runners.harness.store.disk import Place
from runners.harness.store.records import write_json
from runners.harness.store.tracking import Store
from tests.train_command import Ended

Typed = Callable[..., tuple[int, str, str]]
ELSEWHERE = {"tinygpt.machine": "n x4", "tinygpt.threads": "4", "tinygpt.torch": "2.14"}
OLD = {"packages": {"torch": "2.13", "numpy": "1"}, "code": {"version": "1", "sha256": "a"}}
NEW = {"packages": {"torch": "2.14", "numpy": "2"}, "code": {"version": "1", "sha256": "b"}}


def log(
    store: Store,
    cell: str,
    rate: float = 100.0,
    *,
    n: int = 5,
    outcome: str = "ok",
    kind: str = "bench",
    tags: dict[str, str] | None = None,
    metrics: dict[str, float] | None = None,
    code: str = "c0de" * 16,
    environment: dict[str, Any] | None = None,
    **config: Any,
) -> None:
    """Log a cell: its id, SWEEP-N in a sweep that is open; its rate, tags, and config."""
    built = from_dict({"tracking": {"dir": "results"}} | config, BenchConfig)
    known = {
        "tinygpt.rates": json.dumps([rate] * n),
        "tinygpt.weights_sha256": "w" * 64,
        "tinygpt.prompt_sha256": f"{built.batch.size}" * 64,
        "tinygpt.prompt_tokens": "8",
        "tinygpt.threads": "2",
        "tinygpt.machine": "m x2",
        "tinygpt.torch": "2.13",
    }
    ok = outcome == "ok"
    measured = CellResult(
        outcome,
        reason="" if ok else "because",
        metrics={"output_tok_per_s": rate, "reference_ms": 50.0} | (metrics or {}) if ok else {},
        tags=known | (tags or {}) if ok else {},
    )
    sweep, _, number = cell.rpartition("-")
    folder = store.dir / ("sweeps" if sweep else "cells") / cell.replace("-", "/")
    choices = {"model": "tiny", "sampler": "greedy"}
    place = Place(folder, cell, sweep or None, int(number, 36) if sweep else 0, choices, ["x=1"])
    told = {"tinygpt.version": "1", "tinygpt.code_sha256": code, "tinygpt.git_sha": "9" * 40}
    disk.begin(place, kind, to_dict(built))
    disk.finish(place, measured)
    if environment is not None:
        write_json(folder / "environment.json", environment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_data, "code_tags", lambda code: told)
        store.log_cell(folder)


def sweep(
    store: Store,
    identity: str,
    *rates: float,
    words: tuple[str, ...] = ("batch=1,4,16",),
    **changes: Any,
) -> None:
    """Log a sweep: its id, and the rates of its cells of batch 1, 4, 16; as typed in ``words``."""
    sizes = [{"batch": {"size": 4**number}} for number in range(len(rates))]
    tracking = {"tracking": {"dir": str(store.dir)}}
    configs = [from_dict(tracking | size, BenchConfig) for size in sizes]
    folder = store.dir / "sweeps" / identity
    made = Sweep(folder, list(words), [[]] * len(rates), configs)
    with tracked.tracked_sweep("bench", made):
        for number, rate in enumerate(rates):
            log(store, f"{identity}-{number}", rate, **sizes[number] | changes)


RATES = {
    "5a000000": (100.0, 200.0),
    "5a000001": (96.0, 192.0),
    "5a000002": (95.0, 190.0),
    "5a000003": (100.0, 160.0),
    "5a000004": (100.0, 184.0),
    "5a000005": (130.0, 180.0),
    "5a000006": (80.0, 100.0),
}
"""Sweeps by their ids, of rates (tokens/s) at batch 1 and 4."""


@pytest.fixture(scope="module")
def stocked(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with all that is compared here, which no test changes."""
    folder = tmp_path_factory.mktemp("stocked")
    shutil.copy(empty_store, folder / "mlflow.db")
    store = Store(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for identity, rates in RATES.items():
            sweep(store, identity, *rates)
        sweep(store, "bbbb0001", 100.0, 240.0, 320.0, tags={"tinygpt.machine": "another " * 20})
        sweep(store, "cccc0001", 50.0, 200.0, n=4)
        wide = json.dumps([70.0, 75.0, 80.0, 99.0, 101.0])
        log(store, "dddd0001", tags={"tinygpt.rates": wide})
        log(store, "dddd0002", 90.0, tags=ELSEWHERE, code="f00d" * 16, environment=NEW)
        log(store, "dddd0003", environment=OLD)
        log(store, "feed0000", 273.0, metrics={"others_cpu_share": 0.01})
        log(store, "feed0001", 17.0, n=1, metrics={"others_cpu_share": 0.01})
        log(store, "feed0003", 17.0, n=3, metrics={"others_cpu_share": 0.01})
        log(store, "feed0004", 17.0, n=3, metrics={"others_cpu_share": 0.7})
        sweep(store, "feed0005", 50.0, 200.0)
        log(store, "eeee0001", outcome="failed")
        log(store, "eeee0002", cache={"kind": "none"})
        log(store, "eeee0003", kind="sample")
        sweep(store, "aaaa0001", 100.0, 200.0, 400.0)
    return folder


@pytest.fixture
def typed(
    stocked: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Typed:
    """Call ``python -m runners.compare`` in this process, on the stocked store or another."""

    def call(*arguments: str, folder: Path = stocked) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["compare", *arguments, f"tracking.dir={folder}"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            module.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_two_sweeps_on_the_terminal(typed: Typed) -> None:
    status, out, err = typed("a=aaaa0001", "b=bbbb0001")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert re.match(r"a: aaaa0001 of .*, 3 of 3 cells measured: batch=1,4,16$", lines[0])
    assert re.match(r"b: bbbb0001 of .*, 3 of 3 cells measured: batch=1,4,16$", lines[1])
    assert lines[2].startswith("different machine: m x2 -> another another")
    assert lines[3] == "the same threads, torch, tinygpt, code, git commit"
    table = [line.split() for line in lines if re.match(r" *\d+ ", line)]
    assert table == [
        ["1", "100", "100", "1.000", "1.000–1.000", "same"],
        ["4", "200", "240", "1.200", "1.200–1.200", "faster"],
        ["16", "400", "320", "0.800", "0.800–0.800", "slower"],
    ]
    (overall,) = (line for line in lines if line.startswith("overall: "))
    assert overall.startswith("overall: 0.986 (0.986–0.986), same: geometric mean of 3 matched")
    assert "n a 15, n b 15, rounds 1 and 1;" in overall


@pytest.mark.parametrize("width", [80, 100])
def test_it_fits_the_terminal(width: int, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    for name, value in (("COLUMNS", str(width)), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    assert typed("a=aaaa0001", "b=bbbb0001")[0] == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).splitlines()
    heading = lines[: lines.index("")]
    assert any(line.startswith("different machine: m x2 -> another") for line in heading)
    assert max(map(len, heading)) <= width
    table = [line for line in lines if re.match(r" *(\d+ .*–|batch )", line)]
    assert len(table) == 4
    assert max(map(len, table)) <= width
    assert "…" not in "".join(table)


def test_what_differs_is_said_in_the_first_lines(typed: Typed) -> None:
    lines = typed("a=dddd0003", "b=dddd0002")[1].splitlines()
    assert lines[2:8] == [
        "different machine: m x2 -> n x4",
        "different threads: 2 -> 4",
        "different torch: 2.13 -> 2.14",
        "different code: c0dec0dec0 -> f00df00df0",
        "different as well: numpy 1 -> 2",  # what the tags have told is not told again
        "the same tinygpt, git commit",
    ]


@pytest.mark.parametrize("text", [None, "", "half a"])
def test_an_environment_that_is_lost_is_no_reason_to_stop(
    text: str | None, typed: Typed, results: Path
) -> None:
    for cell in ("aaaa0001", "bbbb0001"):
        log(Store(results), cell)
    path = results / "cells" / "bbbb0001" / "environment.json"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    status, out, _ = typed("a=aaaa0001", "b=bbbb0001", folder=results)
    assert status == 0
    assert "different as well: " in out


def test_the_same_run_twice_is_said(typed: Typed) -> None:
    status, out, _ = typed("a=aaaa0001", "b=latest")
    assert status == 0
    assert out.splitlines()[2].startswith("a and b are the same run: ")
    part = typed("a=aaaa", "b=aaaa0001-1")[1]
    assert part.splitlines()[2].startswith("on both sides: aaaa0001-1: ")
    assert "not compared, a: aaaa0001-0: no partner: aaaa0001-1 has batch 1 / 4" in part


def test_the_forms(typed: Typed) -> None:
    asked = ("a=5a000000", "b=dddd0002")

    status, out, err = typed(*asked, "format=json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert set(found) == {
        "a",
        "b",
        "environment",
        "cells",
        "overall",
        "unmatched",
        "fail_if_slower",
    }
    assert (found["a"]["id"], found["b"]["id"]) == ("5a000000", "dddd0002")
    told = {"what": "machine", "a": "m x2", "b": "n x4", "cells": 1}
    assert found["environment"]["different"][0] == told
    (cell,) = found["cells"]
    assert (cell["batch"], cell["ratio"], cell["verdict"], cell["n_a"]) == (1, 0.9, "slower", 5)
    assert (found["overall"]["ratio"], found["overall"]["n_b"]) == (0.9, 5)
    reason = "no partner: dddd0002 has batch 4 / 1"
    assert found["unmatched"] == [{"side": "a", "cells": ["5a000000-1"], "reason": reason}]
    assert found["fail_if_slower"] is None

    status, out, err = typed(*asked, "format=csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert status == 0
    assert (float(row["a_tok_per_s"]), float(row["ratio"])) == (100.0, 0.9)
    assert (row["cells_a"], row["cells_b"]) == ("5a000000-0", "dddd0002")
    assert "different machine: m x2 -> n x4" in err
    assert "overall: 0.900" in err
    assert f"not compared, a: 5a000000-1: {reason}" in err

    status, out, err = typed(*asked, "format=md")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[2] == "- different machine: m x2 -> n x4"
    rule = next(line for line in lines if line.startswith("|--"))
    assert rule.count("|") == lines[lines.index(rule) + 1].count("|")
    assert any(line.startswith("overall: 0.900") for line in lines)


def test_no_interval_is_null_in_json_and_empty_in_csv(typed: Typed) -> None:
    asked = ("a=cccc0001-0", "b=5a000000")
    found = json.loads(typed(*asked, "format=json")[1])
    assert found["cells"][0]["low"] is None
    assert (found["overall"]["low"], found["overall"]["verdict"]) == (None, "unclear")
    (row,) = csv.DictReader(io.StringIO(typed(*asked, "format=csv")[1]))
    assert (row["low"], row["verdict"]) == ("", "unclear")
    assert "(no interval), unclear" in typed(*asked)[1]


# fail_if_slower


@pytest.mark.parametrize(
    ("b", "share", "status", "last"),
    [
        ("5a000000", "5%", 0, "passed, none is slower by more"),
        ("5a000001", "5%", 0, "passed, none is slower by more"),
        ("5a000002", "5%", 0, "passed, none is slower by more"),  # by that, not by more
        ("5a000003", "5%", 1, "FAILED, slower: batch 4 by 20.0%, the mean by 10.6%"),
        ("5a000003", "25%", 0, "passed, none is slower by more"),
        ("5a000004", "0.05", 1, "FAILED, slower: batch 4 by 8.0%"),  # the mean by 4.1 %
        ("5a000005", "5%", 1, "FAILED, slower: batch 4 by 10.0%"),  # the mean is faster
        (
            "5a000006",
            "10%",
            1,
            "FAILED, slower: batch 4 by 50.0%, batch 1 by 20.0%, the mean by 36.8%",
        ),
    ],
)
def test_slower_than_allowed_is_exit_1(
    b: str, share: str, status: int, last: str, typed: Typed
) -> None:
    ended, out, err = typed("a=5a000000", f"b={b}", f"fail_if_slower={share}")
    assert (ended, err) == (status, "")
    assert out.splitlines()[-1] == f"fail_if_slower={share}: {last}"


@pytest.mark.parametrize("form", ["rich", "md", "csv", "json"])
def test_every_form_ends_with_it(form: str, typed: Typed) -> None:
    asked = ("a=5a000000-0", "b=5a000006-0", "fail_if_slower=5%")
    status, out, err = typed(*asked, f"format={form}")
    last = (out if form in ("rich", "md") else err).splitlines()[-1]
    assert status == 1
    assert last == "fail_if_slower=5%: FAILED, slower: 5a000006-0 by 20.0%"
    if form == "json":
        assert json.loads(out)["fail_if_slower"] == {
            "status": 1,
            "line": last,
            "slower": ["5a000006-0"],
            "unjudged": [],
            "missing": [],
        }


def test_what_cannot_be_judged_is_no_pass(typed: Typed) -> None:
    asked = ("a=aaaa0001", "b=cccc0001", "fail_if_slower=5%")
    status, out, _ = typed(*asked)
    assert status == 3
    assert out.splitlines()[-1] == (
        "fail_if_slower=5%: NOT JUDGED: 2 of 2 cells (batch 1, batch 4: fewer than 5 values a "
        "side, or an interval around 0.95); measure again with more rounds: b by "
        "`python -m runners.bench -m batch=1,4,16 round=1,2,3`; NOT JUDGED: a's aaaa0001-2 without "
        "a partner in b; measure b as a was: `python -m runners.bench -m batch=1,4,16`"
    )
    found = json.loads(typed(*asked, "format=json")[1])["fail_if_slower"]
    assert (found["status"], found["slower"]) == (3, [])
    assert found["unjudged"] == ["cccc0001-0", "cccc0001-1"]
    assert found["missing"] == ["aaaa0001-2"]


def test_an_interval_around_what_is_allowed_is_no_pass(typed: Typed) -> None:
    status, out, _ = typed("a=dddd0003", "b=dddd0001", "fail_if_slower=5%")
    assert status == 3
    assert out.splitlines()[-1].endswith("a and b by `python -m runners.bench -m x=1 round=1,2,3`")


def test_a_regression_cannot_hide_by_being_large(typed: Typed) -> None:
    asked = ("a=feed0000", "fail_if_slower=5%")
    assert typed(*asked, "b=feed0001")[0] == 3  # one value: nothing is known for sure
    status, out, _ = typed(*asked, "b=feed0003")  # three, on a quiet machine
    assert status == 1
    assert out.splitlines()[-1].startswith("fail_if_slower=5%: FAILED, slower: feed0003 by 93.8%")
    status, out, _ = typed(*asked, "b=feed0004")
    assert status == 3
    assert "noisy: 1 of 1 rows rest on cells that were measured on a busy machine (load)" in out


def test_slower_for_sure_goes_before_what_cannot_be_judged(typed: Typed) -> None:
    status, out, _ = typed("a=aaaa0001", "b=feed0005", "fail_if_slower=5%")
    assert status == 1
    last = out.splitlines()[-1]
    assert last.startswith("fail_if_slower=5%: FAILED, slower: batch 1 by 50.0%")
    assert "NOT JUDGED: a's aaaa0001-2" in last


@pytest.mark.usefixtures("instant")
def test_the_command_that_would_tell_can_be_pasted(
    typed: Typed, entry: Callable[..., Ended], results: Path
) -> None:
    store = Store(results)
    typed_words = ("model=nano", "batch=1,4", "prompt.text='it is'", "resume=true")
    for identity in ("aaaa0001", "bbbb0001"):
        sweep(store, identity, 100.0, words=typed_words, n=2)
    out = typed("a=aaaa0001", "b=bbbb0001", "fail_if_slower=5%", folder=results)[1]
    (command,) = re.findall(r"`(.*?)`", out.splitlines()[-1])
    python, module, name, *words = shlex.split(command)
    assert (python, module, name) == ("python", "-m", "runners.bench")
    ended = entry("bench", results, *words, "plan=true")
    assert (ended.status, ended.err) == (0, "")
    assert "6 cells" in ended.out


@pytest.mark.parametrize(("n", "rounds"), [(1, "1,2,3,4,5"), (2, "1,2,3"), (4, "1,2,3")])
def test_as_many_rounds_are_asked_for_as_it_takes(
    n: int, rounds: str, typed: Typed, results: Path
) -> None:
    for cell, values in (("aaaa0001", 5), ("bbbb0001", n)):
        log(Store(results), cell, n=values)
    out = typed("a=aaaa0001", "b=bbbb0001", "fail_if_slower=5%", folder=results)[1]
    assert out.splitlines()[-1].endswith(f"b by `python -m runners.bench -m x=1 round={rounds}`")


# what is asked for


def test_a_cell_of_a_sweep_and_a_lone_cell(typed: Typed) -> None:
    status, out, _ = typed("a=aaaa0001-0", "b=dddd0002", "format=json")
    found = json.loads(out)
    assert status == 0
    assert (found["a"]["id"], found["cells"][0]["ratio"]) == ("aaaa0001-0", 0.9)
    assert found["unmatched"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "compare: a=ID b=ID: give the id of the run or sweep"),
        (["a=aaaa0001"], "compare: b=ID: give the id"),
        (["b=aaaa0001"], "compare: a=ID: give the id"),
        (["a=aaaa0001", "b="], "compare: b=ID: give the id"),
        (["a=zzzz", "b=aaaa0001"], "compare: a=zzzz: no such sweep or cell"),
        (["a=aaaa0001", "b=zzzz"], "compare: b=zzzz: no such sweep or cell"),
        (["a=aaaa0001", "b=dddd"], "compare: b=dddd: 3 begin so"),
        (["a=aaaa0001-7", "b=aaaa0001"], "has no such cell"),
        (["a=aaaa0001", "b=eeee0001"], "compare: b=eeee0001: no cell has timings; eeee0001 failed"),
        (["a=aaaa0001", "b=eeee0002"], "no partner: eeee0002 has cache rolling / none"),
        (["a=aaaa0001", "b=eeee0003"], "python -m runners.rerun run=eeee0003"),
        (["a=5a000000", "b=5a000001", "format=xls"], "must be one of rich, md, csv, json"),
        (
            ["a=5a000000", "b=5a000001", "fail_if_slower=yes"],
            "must be a share of above 0 and below 1",
        ),
        (["a=5a000000", "b=5a000001", "c=1"], "c"),
        (["-m", "a=aaaa0001", "b=aaaa0001,5a000001"], "leave -m out"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_2(
    arguments: list[str], said: str, typed: Typed
) -> None:
    status, out, err = typed(*arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_nothing_measured_yet_says_how_to(typed: Typed, tmp_path: Path) -> None:
    status, _, err = typed("a=latest", "b=latest", folder=tmp_path / "nowhere")
    assert status == 2
    assert "measure something first" in err
    assert not (tmp_path / "nowhere").exists()


def test_help_names_every_key(typed: Typed) -> None:
    status, out, _ = typed("--help")
    assert status == 0
    for key in ("a=", "b=", "fail_if_slower", "format", "tracking.dir", "tracking.uri"):
        assert key in out
