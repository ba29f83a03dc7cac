"""The main command: what it makes of good input, of bad input, and of cells that go wrong."""

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from runners.harness.config.nested import flatten
from runners.harness.config.schema import BenchConfig
from runners.harness.measure import gate, subject
from runners.harness.measure.result import CellResult
from runners.harness.store import disk
from runners.harness.store.tracking import Store
from runners.harness.sweep import plan
from runners.harness.tables.bench import bench_tables
from runners.harness.tables.frames import cache_speedup, cells
from tests.cells import ARTIFACTS
from tests.train_command import Ended
from tinygpt.cache import RollingCache, Step, _Positions

Bench = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[2]
NANO = ("model=nano", "length.new_tokens=2", "timing=quick")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whose speed need not be measured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(plan, "calibrate", lambda *_: plan.Machine(1e-4, 1e9))


def folders(results: Path) -> list[Path]:
    """The folders of all cells, in order of their number."""
    found = [*results.glob("cells/*/cell.json"), *results.glob("sweeps/*/*/cell.json")]
    return sorted(path.parent for path in found)


def outcomes(results: Path) -> list[str]:
    return [json.loads((path / "cell.json").read_text())["outcome"] for path in folders(results)]


def runs(results: Path) -> list[Any]:
    """MLflow's runs of cells, in order of their number."""
    found = Store(results).search("bench", "tags.`tinygpt.kind` = 'bench'")
    return sorted(found, key=lambda run: str(run.data.tags["tinygpt.cell"]))


def commands(out: str) -> list[str]:
    """The commands that fill the empty tables of ``out``."""
    return re.findall(r"python -m runners\.bench -m .*", out)


def nothing_was_made(results: Path) -> bool:
    """Neither a folder nor a run."""
    with closing(sqlite3.connect(results / "mlflow.db")) as store:
        (n_runs,) = store.execute("SELECT count(*) FROM runs").fetchone()
    return n_runs == 0 and not [path for path in results.iterdir() if path.is_dir()]


# a real sweep, in a process of its own, from another folder


@dataclass
class Swept:
    """What a sweep left behind."""

    status: int
    out: str
    err: str
    cwd: Path
    results: Path
    store: Store
    parent: Any
    children: list[Any]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Swept:
    folder = tmp_path_factory.mktemp("swept")
    results, cwd = folder / "results", folder / "elsewhere"
    results.mkdir()
    cwd.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    words = "-m device=cpu,cuda batch=1,2 model=nano length.new_tokens=8 timing=quick"
    own = ["device.threads=1", f"tracking.dir={results}"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, "-m", "runners.bench", *words.split(), *own],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    store = Store(results)
    parents = store.search("bench", "tags.`tinygpt.kind` = 'sweep'")
    assert len(parents) == 1, done.stderr
    return Swept(
        done.returncode, done.stdout, done.stderr, cwd, results, store, parents[0], runs(results)
    )


def test_h2_without_a_gpu_the_cpu_cells_run_and_the_others_say_why(swept: Swept) -> None:
    assert swept.status == 0, swept.err
    found = [
        (r.data.params["device.kind"], r.data.params["batch.size"], r.data.tags["tinygpt.outcome"])
        for r in swept.children
    ]
    assert found == [
        ("cpu", "1", "ok"),
        ("cpu", "2", "ok"),
        ("cuda", "1", "skipped"),
        ("cuda", "2", "skipped"),
    ]
    for run in swept.children[2:]:
        assert re.search("no CUDA device|built without CUDA", run.data.tags["tinygpt.reason"])
    assert "Traceback" not in swept.err
    assert "Warning" not in swept.err


def test_nothing_is_left_in_the_folder_where_it_was_typed(swept: Swept) -> None:
    assert list(swept.cwd.iterdir()) == []


def test_a_sweep_is_one_parent_with_its_cells_as_children(swept: Swept) -> None:
    assert len(swept.children) == 4
    parent = swept.parent.info.run_id
    assert {run.data.tags["mlflow.parentRunId"] for run in swept.children} == {parent}
    assert {run.info.status for run in [swept.parent, *swept.children]} == {"FINISHED"}
    sweep = swept.parent.data.tags["tinygpt.sweep"]
    assert {run.data.tags["tinygpt.sweep"] for run in swept.children} == {sweep}
    assert [run.data.tags["tinygpt.cell"] for run in swept.children] == [
        f"{sweep}-{n}" for n in range(4)
    ]
    assert [path.relative_to(swept.results).as_posix() for path in folders(swept.results)] == [
        f"sweeps/{sweep}/{n}" for n in range(4)
    ]
    assert json.loads((swept.results / "sweeps" / sweep / "sweep.json").read_text())["cells"] == 4


def test_params_are_the_whole_config_and_every_choice(swept: Swept) -> None:
    for run, folder in zip(swept.children, folders(swept.results), strict=True):
        config = flatten(yaml.safe_load((folder / "config.yaml").read_text()))
        overrides = yaml.safe_load((folder / "overrides.yaml").read_text())
        device, batch = run.data.params["device.kind"], run.data.params["batch.size"]
        choices = {
            "model": "nano",
            "device": f"{device} threads=1",
            "batch": batch,
            "length": "256 new_tokens=8",
            "cache": "rolling",
            "sampler": "greedy",
            "engine": "eager",
            "precision": "fp32",
            "timing": "quick",
        }
        wanted = {key: str(value) for key, value in config.items()}
        wanted |= {f"choice.{group}": option for group, option in choices.items()}
        assert run.data.params == wanted
        assert run.data.tags["tinygpt.overrides"] == shlex.join(overrides)


def test_a_stored_config_cannot_run_code(swept: Swept) -> None:
    for folder in folders(swept.results):
        assert "_target_" not in (folder / "config.yaml").read_text()
        assert "hydra" not in yaml.safe_load((folder / "config.yaml").read_text())


def test_artifacts_are_the_contracts(swept: Swept) -> None:
    for run, folder in zip(swept.children, folders(swept.results), strict=True):
        names = {item.path for item in swept.store.client.list_artifacts(run.info.run_id)}
        assert names >= ARTIFACTS
        assert names == {path.name for path in folder.iterdir()} - {"tracked.json"}
    tables = swept.store.client.list_artifacts(swept.parent.info.run_id, "tables")
    assert {item.path for item in tables} == {
        f"tables/{name}.{form}"
        for name in ("cells", "cache", "device", "engine")
        for form in ("csv", "md", "json")
    }


def test_raw_seconds_overrides_and_generations_are_in_the_artifacts(swept: Swept) -> None:
    two_rows = folders(swept.results)[1]
    timings = json.loads((two_rows / "timings.json").read_text())
    assert len(timings["e2e_s"]) == 3
    overrides = yaml.safe_load((two_rows / "overrides.yaml").read_text())
    assert overrides[:5] == [
        "device=cpu",
        "batch=2",
        "model=nano",
        "length.new_tokens=8",
        "timing=quick",
    ]
    lines = (two_rows / "generations.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["new_ids"]) for line in lines] == [8, 8]
    environment = json.loads((two_rows / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__


def test_tags_are_the_contracts(swept: Swept) -> None:
    wanted = {
        "tinygpt.kind",
        "tinygpt.sweep",
        "tinygpt.cell",
        "tinygpt.outcome",
        "tinygpt.cell_hash",
        "tinygpt.tokens_sha256",
        "tinygpt.stable",
        "tinygpt.code_sha256",
    }
    for run in swept.children[:2]:
        assert wanted <= set(run.data.tags)
        assert run.data.metrics["output_tok_per_s"] > 0
        if (ROOT / ".git").exists():
            assert {"tinygpt.git_sha", "tinygpt.git_dirty"} <= set(run.data.tags)
    for run in swept.children[2:]:
        assert run.data.metrics == {}
    assert len({run.data.tags["tinygpt.cell_hash"] for run in swept.children[:2]}) == 2


def test_one_line_says_which_tables_are_empty_and_a_table_asked_for_what_fills_it(
    swept: Swept, entry: Callable[..., Ended]
) -> None:
    (line,) = (line for line in swept.out.splitlines() if line.startswith("empty: "))
    assert line.startswith("empty: cache, device, engine; ")
    python, _, module, *words, folder = shlex.split(line.split("`")[1])
    assert (python, module) == ("python", "runners.tables")
    assert folder == f"tracking.dir={swept.store.dir}"
    pasted = entry("tables", swept.store.dir, *words)
    assert pasted.status == 0
    assert len(commands(pasted.out)) == 1
    found = [entry("tables", swept.store.dir, f"table={n}") for n in ("cache", "device", "engine")]
    cache, device, engine = commands("".join(ended.out for ended in found))
    assert "cache=none,rolling" in cache
    assert "device=cpu,cuda" in device
    assert "engine=eager,compiled cache=rolling,static" in engine
    for command in (cache, device, engine):
        assert "model=nano" in command
        assert "batch=1,2" in command
        assert command.count("device=") == 1
    assert len(cells("latest", swept.store)) == 4


def test_before_and_while_it_runs_a_sweep_says_how_far_it_is(swept: Swept) -> None:
    lines = swept.err.splitlines()
    sweep = swept.parent.data.tags["tinygpt.sweep"]
    assert lines[0].startswith(f"sweep {sweep}: 4 cells")
    assert "about" in lines[0]
    assert [line[:4] for line in lines[1:] if re.match(r"\d/4 ", line)] == [
        "1/4 ",
        "2/4 ",
        "3/4 ",
        "4/4 ",
    ]


# good input


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (["batch=16"], [16]),
        (["-m", "batch=1,16"], [1, 16]),
        (["-m", "batch=16"], [16]),
        (["-m", "experiment=post", "device=cpu", "length=64", "cache=none"], [1, 16]),
    ],
)
def test_h1_numbers_name_options(
    arguments: list[str], sizes: list[int], bench: Bench, instant: list[BenchConfig]
) -> None:
    status, _, err = bench(*arguments)
    assert status == 0, err
    assert [config.batch.size for config in instant] == sizes
    assert {type(config.batch.size) for config in instant} == {int}


def test_round_is_the_slowest_axis_wherever_it_stands(
    bench: Bench, instant: list[BenchConfig]
) -> None:
    assert bench("-m", "batch=1,4", "round=1,2")[0] == 0
    assert [(c.round, c.batch.size) for c in instant] == [(1, 1), (1, 4), (2, 1), (2, 4)]


def test_round_is_the_slowest_axis_of_a_preset_too(
    bench: Bench, instant: list[BenchConfig], tmp_path: Path
) -> None:
    preset = tmp_path / "conf" / "experiment" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text(
        "# @package _global_\nhydra: {sweeper: {params: {batch: '1,4', round: '1,2'}}}\n",
        encoding="utf-8",
    )
    where = f"hydra.searchpath=[file://{preset.parents[1]}]"
    status, _, err = bench("-m", "experiment=mine", where)
    assert status == 0, err
    assert [(c.round, c.batch.size) for c in instant] == [(1, 1), (1, 4), (2, 1), (2, 4)]


def test_h7_sweeps_and_cells_never_share_a_folder(
    bench: Bench, instant: list[BenchConfig], results: Path
) -> None:
    for arguments in (["-m", "seed=1,2"], ["-m", "seed=3"], ["seed=4"]):
        assert bench(*arguments)[0] == 0
    found = folders(results)
    assert len(found) == len({*found}) == 4
    assert len(list((results / "sweeps").iterdir())) == 2
    assert len(list((results / "cells").iterdir())) == 1
    seeds = {yaml.safe_load((path / "config.yaml").read_text())["seed"] for path in found}
    assert seeds == {1, 2, 3, 4}
    assert len({run.data.tags["tinygpt.cell"] for run in runs(results)}) == 4
    assert len({run.data.tags["tinygpt.sweep"] for run in runs(results)}) == 3


def test_h5_a_prompt_file_is_literal(bench: Bench, results: Path, tmp_path: Path) -> None:
    path = tmp_path / "a prompt, with = and ${x}.txt"
    path.write_text("cost ${x} and $5", encoding="utf-8")
    plain = tmp_path / "prompt.txt"
    shutil.copy(path, plain)
    status, _, err = bench(*NANO, f"prompt.file={plain}")
    assert status == 0, err
    (folder,) = folders(results)
    (line,) = (folder / "generations.jsonl").read_text().splitlines()
    assert bytes(json.loads(line)["prompt_ids"]).decode() == "cost ${x} and $5"


def test_h5_what_hydra_would_replace_is_one_clear_line(bench: Bench, results: Path) -> None:
    status, out, err = bench("prompt.text='cost ${x} and $5'")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "prompt.text" in err
    assert "prompt.file=PATH" in err
    assert nothing_was_made(results)


@pytest.mark.parametrize(
    "text",
    ["x" * 300, "a/b", "'../../a'", "'a [/b] c'", "'[red]a'", "'100 % %s {0}'"],
    ids=["300 bytes", "a/b", "up", "closing tag", "tag", "percent"],
)
def test_h8_no_prompt_is_a_name(
    text: str, bench: Bench, instant: list[BenchConfig], results: Path
) -> None:
    status, _, err = bench(f"prompt.text={text}")
    assert status == 0, err
    text = text.strip("'")
    assert [config.prompt.text for config in instant] == [text]
    (folder,) = folders(results)
    assert re.fullmatch(r"cells/\w{8}", folder.relative_to(results).as_posix())
    assert all(path.is_file() for path in folder.iterdir())
    (run,) = runs(results)
    assert run.data.params["prompt.text"] == text
    assert f"{folder.name}: ok" in err  # the line that says how it went


def test_h8_no_swept_prompt_is_a_name(
    bench: Bench, instant: list[BenchConfig], results: Path
) -> None:
    texts = ["x" * 300, "a/b", "a [/b] c"]
    typed = f"prompt.text={','.join(repr(text) for text in texts)}"
    status, _, err = bench("-m", typed)
    assert status == 0, err
    assert [config.prompt.text for config in instant] == texts
    names = [path.relative_to(results / "sweeps").as_posix() for path in folders(results)]
    assert [re.sub(r"^\w{8}/", "", name) for name in names] == ["0", "1", "2"]
    for text in texts:
        assert text in err
    filling = [table.empty for table in bench_tables(cells("latest", Store(results)))[1:]]
    for command in commands("\n".join(filling)):  # as a shell reads it
        assert typed in shlex.split(command)


def test_a_lone_cell_is_a_sweep_of_one(
    bench: Bench, instant: list[BenchConfig], results: Path
) -> None:
    assert bench("batch=4")[0] == 0
    (run,) = runs(results)
    assert "mlflow.parentRunId" not in run.data.tags
    assert run.data.tags["tinygpt.sweep"] == run.data.tags["tinygpt.cell"]
    assert Store(results).search("bench", "tags.`tinygpt.kind` = 'sweep'") == []
    frame = cells("latest", Store(results))
    assert list(frame["batch"]) == [4]
    for table in bench_tables(frame)[1:]:
        (command,) = commands(table.empty)
        assert "batch=4" in command  # what fills it is that cell on another device, say


# bad input


WRONG = [
    ("batch.sise=4", "batch.sise: no such key; did you mean batch.size?"),
    ("+batch.sise=4", "batch.sise: no such key; did you mean batch.size?"),
    ("bach=4", "batch"),
    ("device=tpu", "device=tpu: no such option; choose one of cpu, mps, cuda"),
    ("batch=3", "choose one of 1, 2, 4, 8, 16, 32, 64"),
    ("sampler.top_p=2", "sampler.top_p=2.0: must be in (0, 1]"),
    ("sampler.temperature=hot", "sampler.temperature: 'hot' is not a number"),
    ("batch.size=-3", "batch.size=-3: must be from 1 to"),
    ("checkpoint=nothere", "checkpoint=nothere: no such checkpoint"),
    ("prompt.file=not/here.txt", "/not/here.txt: cannot be read"),
    ("prompt.text=''", "prompt.text= is empty"),
    ("experiment=nothere", "experiment=nothere: no such option; choose one of "),
    ("batch.size", "batch.size"),
    ("batch.size=99999999999999999999", "batch.size=99999999999999999999: must be"),
    ("device=null", "device=null"),
    ("batch=[1,4]", "batch=[1,4]"),
    ("prompt.text=[a", "prompt.file=PATH"),
    ("batch=12", "give it by value: batch.size=12"),
    ("length=100", "give it by value: length.new_tokens=100"),
    ("temperature=0.8", "temperature: no such key; did you mean sampler.temperature?"),
    ("new_tokens=32", "new_tokens: no such key; did you mean length.new_tokens?"),
    ("prompt=Hello", "give prompt.text=Hello"),
    ("prompt=[a]", "prompt: takes no value, it has keys"),
    ("tracking=/x", "give tracking.dir=/x"),
    ("batch=[1", "brackets and quotes come in pairs"),
    ("batch='1", "brackets and quotes come in pairs"),
    ("batch", "batch: has no value; give batch=VALUE"),
    ("=3", "=3: has no key"),
    ("~batch", "no group can be left out"),
]


@pytest.mark.parametrize(("argument", "said"), WRONG)
def test_h4_wrong_input_is_one_line_and_nothing_is_made(
    argument: str,
    said: str,
    bench: Bench,
    instant: list[BenchConfig],
    results: Path,
) -> None:
    status, out, err = bench(argument)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("bench: ")
    for word in said.split(", ") if "choose" in said else [said]:
        assert word in err
    assert not re.search("viable|Lexer|Dict|subclass", err), "words of Hydra's inside"
    assert len(err) < 400
    assert instant == []
    assert nothing_was_made(results)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "batch.size=1,4,-3"], "batch.size=-3: must be from 1 to"),
        (["-m", "sampler.top_p=0.5,2"], "sampler.top_p=2.0: must be in (0, 1]"),
        (["-m", "device=cpu,tpu"], "device=tpu: no such option"),
        (["-m", "batch.sise=4,8"], "batch.sise: no such key"),
        (["-m", "+batch.sise=4"], "batch.sise: no such key"),
        (["-m", "batch=1,4", "checkpoint=none,nothere"], "checkpoint=nothere"),
        (["batch=1,16"], "add -m"),
        (["experiment=post"], "add -m"),
        (["prompt.text=a,b"], "prompt.file=PATH"),
    ],
)
def test_h4_every_job_is_checked_before_the_first_runs(
    arguments: list[str], said: str, bench: Bench, instant: list[BenchConfig], results: Path
) -> None:
    status, out, err = bench(*arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert said in err
    assert instant == []
    assert nothing_was_made(results)


def test_version(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from runners import bench as module
    from tinygpt import __version__

    monkeypatch.setattr("sys.argv", ["bench", "--version"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert capfd.readouterr().out == f"tinygpt {__version__}\n"


QUICK_ANSWERS = """
import sys
from runners import bench
for argument, status in (("--help", 0), ("--version", 0), ("batch.sise=4", 2), ("device=tpu", 2)):
    sys.argv = ["bench", argument]
    try:
        bench.main()
    except SystemExit as ended:
        assert (ended.code or 0) == status, (argument, ended.code)
print(sorted({"torch", "mlflow", "pandas", "scipy", "matplotlib"} & set(sys.modules)))
"""


def test_help_and_typos_answer_without_importing_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUICK_ANSWERS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "device=cpu,cuda batch=1,16" in done.stdout
    assert len(done.stderr.splitlines()) == 2


# cells that go wrong


@pytest.mark.parametrize("error", [RuntimeError("planted"), SystemExit(3)], ids=["raises", "exits"])
def test_h3_one_bad_job_does_not_stop_the_others(
    error: BaseException, bench: Bench, monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    real = subject.make_model

    def bad_at_four(config: BenchConfig, device: torch.device) -> Any:
        if config.batch.size == 4:
            raise error
        return real(config, device)

    monkeypatch.setattr(subject, "make_model", bad_at_four)
    status, _, err = bench("-m", "batch=1,4,2", *NANO)
    assert status == 1
    assert outcomes(results) == ["ok", "failed", "ok"]
    assert [run.info.status for run in runs(results)] == ["FINISHED", "FAILED", "FINISHED"]
    sweep = folders(results)[0].parent.name
    assert err.splitlines()[-1].startswith(f"{sweep}-1 failed: {type(error).__name__}: ")
    assert "Traceback" not in err
    assert "Traceback" in (folders(results)[1] / "error.txt").read_text()


def test_h3_a_result_that_cannot_be_written_does_not_stop_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, instant: list[BenchConfig], results: Path
) -> None:
    real = disk.finish

    def full_at_the_first(place: disk.Place, measured: CellResult) -> None:
        if place.number == 0:
            raise OSError(28, "No space left on device")
        real(place, measured)

    monkeypatch.setattr(disk, "finish", full_at_the_first)
    status, out, err = bench("-m", "batch=1,4")
    assert status == 1
    assert [config.batch.size for config in instant] == [1, 4]
    assert len(runs(results)) == 1
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert out  # the tables, all the same


def test_every_failure_is_summed_up_at_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, instant: list[BenchConfig]
) -> None:
    def run_cell(config: BenchConfig, report: object) -> CellResult:
        named = {1: "ok", 2: "failed", 4: "oom", 8: "mismatch", 16: "skipped"}
        return CellResult(named[config.batch.size], reason=f"reason {config.batch.size}")

    monkeypatch.setattr("runners.harness.measure.cell.run_cell", run_cell)
    status, _, err = bench("-m", "batch=1,2,4,8,16")
    assert status == 1
    last = [line.partition(" ")[2] for line in err.splitlines()[-3:]]
    assert last == ["failed: reason 2", "oom: reason 4", "mismatch: reason 8"]


def test_h9_a_cell_too_large_is_oom_and_a_small_one_after_it_is_ok(
    bench: Bench, results: Path
) -> None:
    status, _, err = bench("-m", "batch.size=200000000,1", *NANO)
    assert status == 1
    assert outcomes(results) == ["oom", "ok"]
    large, small = runs(results)
    assert "GB" in large.data.tags["tinygpt.reason"]
    assert "peak_memory_bytes" not in large.data.metrics
    if Path("/proc/self/clear_refs").exists():
        assert small.data.metrics["peak_memory_bytes"] > 0
    assert "oom: needs about" in err.splitlines()[-1]


def test_a_broken_cache_is_a_mismatch_and_enters_no_pair(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    def step_at_position_0(self: RollingCache, n_new: int) -> Step:
        right = _Positions.step(self, n_new)
        return right._replace(cos=self._cos[:n_new], sin=self._sin[:n_new])

    monkeypatch.setattr(RollingCache, "step", step_at_position_0)
    status, out, err = bench("-m", "cache=none,rolling", *NANO, "length.new_tokens=8")
    assert status == 1
    assert outcomes(results) == ["ok", "mismatch"]
    assert "mismatch: logits differ by" in err.splitlines()[-1]
    assert runs(results)[1].info.status == "FAILED"
    assert "tinygpt.rates" not in runs(results)[1].data.tags
    assert "empty: cache, " in out  # the pair has no sides
    frame = cells("latest", Store(results))
    assert list(frame["outcome"]) == ["ok", "mismatch"]
    assert cache_speedup(frame).empty


@pytest.mark.parametrize("words", [["--cfg", "job"], ["--cfg=job"], ["-c", "job"], ["--info"]])
def test_a_sweep_s_config_is_refused_in_one_line(
    words: list[str], bench: Bench, results: Path
) -> None:
    status, _, err = bench("-m", "batch=1,4", *words)
    assert status == 2
    assert len(err.splitlines()) == 1
    assert "leave -m out" in err
    assert not (results / "sweeps").exists()


@pytest.mark.parametrize(
    ("on_missing", "outcome", "status"), [("skip", "skipped", 0), ("fail", "failed", 1)]
)
def test_h2_a_missing_device_is_skipped_or_failed_as_told(
    on_missing: str, outcome: str, status: int, bench: Bench, results: Path
) -> None:
    found, _, err = bench("device=cuda", f"device.on_missing={on_missing}")
    assert found == status
    assert outcomes(results) == [outcome]
    (run,) = runs(results)
    assert "CUDA" in run.data.tags["tinygpt.reason"]
    assert run.info.status == ("FINISHED" if status == 0 else "FAILED")
    assert "CUDA" in err


@pytest.mark.usefixtures("instant")
def test_each_cell_s_environment_has_its_own_threads(
    entry: Callable[..., Ended], results: Path
) -> None:
    assert entry("bench", results, "-m", "model=nano", "device.threads=2,3").status == 0
    told = [json.loads((f / "environment.json").read_text())["threads"] for f in folders(results)]
    assert [threads["torch"] for threads in told] == [2, 3]


@pytest.mark.parametrize(
    ("sent", "said", "wanted"),
    [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)],
    ids=["ctrl-c", "sigterm"],
)
@pytest.mark.parametrize("mode", [[], ["-m"]], ids=["lone", "sweep"])
def test_a_signal_ends_all_and_leaves_no_run_open(
    mode: list[str],
    sent: signal.Signals,
    said: str,
    wanted: int,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    results: Path,
) -> None:
    monkeypatch.setattr(gate, "check", lambda *_: signal.raise_signal(sent))
    status, _, err = bench(*mode, *NANO)
    assert status == wanted
    assert "Traceback" not in err
    assert outcomes(results) == ["interrupted"]
    assert runs(results)[0].data.tags["tinygpt.reason"] == said
    every = Store(results).search("bench", "")
    assert {run.info.status for run in every} == {"KILLED"}
    assert len(every) == 1 + len(mode)
