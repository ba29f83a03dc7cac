"""``python -m runners.rerun`` as it is typed: ids, words, refusals; its cells are planted."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from runners.harness.config import paths
from runners.harness.config import presets as config_presets
from runners.harness.config.schema import BenchConfig, RerunConfig, TrackingConfig
from runners.harness.errors import UsageError
from runners.harness.launch import app
from runners.harness.machine import environment
from runners.harness.measure import cell, subject
from runners.harness.measure.result import CellResult
from runners.harness.rerun.run import rerun
from runners.harness.store.find import find_sweep
from runners.harness.store.tracking import Store
from runners.harness.sweep import plan
from tests.train_command import Ended

ROOT = Path(__file__).resolve().parents[2]
Entry = Callable[..., Ended]
OWN = ("device.threads=1", "length.new_tokens=4")


@dataclass
class Planted:
    """Cells that are ok at once, with tokens that follow from their config."""

    ran: list[BenchConfig] = field(default_factory=list)
    shift: int = 0
    """Added to the last new token of every row but the first."""
    stops: bool = False
    """Whether Ctrl-C comes in a cell of batch 4."""

    def __call__(self, config: BenchConfig, report: object = None) -> CellResult:
        self.ran.append(config)
        if self.stops and config.batch.size == 4:
            raise KeyboardInterrupt
        missing = subject.missing_device(config.device.kind)
        if missing:
            return CellResult("skipped", missing)
        first = config.seed + int(100 * config.sampler.temperature)
        rows = [
            {
                "prompt_ids": [row, row],
                "new_ids": [first + row + n for n in range(config.length.new_tokens)],
            }
            for row in range(config.batch.size)
        ]
        for row in rows[1:]:
            row["new_ids"][-1] += self.shift
        rates = [100.0] * 6
        return CellResult(
            "ok",
            metrics={"output_tok_per_s": 100.0, "reference_ms": 1.0},
            tags={"tinygpt.rates": json.dumps(rates), "tinygpt.torch": "2"},
            generations=rows,
        )


@pytest.fixture(scope="module")
def planted() -> Iterator[Planted]:
    cells = Planted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell, "run_cell", cells)
        patch.setattr(plan, "calibrate", lambda *_: plan.Machine(1e-4, 1e9))
        patch.setattr("torch.cuda.is_available", lambda: False)
        yield cells


@dataclass
class Made:
    """A results folder with a lone cell at T = 0.7 and, newer, a sweep of two; both begin ``x``."""

    results: Path
    entry: Entry
    planted: Planted
    lone: str
    sweep: str

    def rerun(self, *words: str) -> Ended:
        self.planted.ran.clear()
        return self.entry("rerun", self.results, *words)

    def refused(self, *words: str, **keys: str) -> str:
        """The line that a command ends with, without the time that Hydra takes for it."""
        config = RerunConfig(**keys, tracking=TrackingConfig(dir=str(self.results)))
        with pytest.raises(UsageError) as ended:
            rerun(config, words)
        return str(ended.value)

    @property
    def ran(self) -> list[BenchConfig]:
        return self.planted.ran

    def folders(self) -> set[Path]:
        found = [*self.results.glob("cells/*"), *self.results.glob("sweeps/*")]
        return {path for path in found if path.is_dir()}

    def runs(self) -> set[str]:
        return {run.info.run_id for run in Store(self.results).search("bench", "")}

    def run_of(self, name: str, tag: str = "cell") -> Any:
        """MLflow's run of a cell, or of a sweep with its own id."""
        where = f"tags.`tinygpt.{tag}` = '{name}'"
        found = Store(self.results).search("bench", where)
        (run,) = [run for run in found if tag == "cell" or "tinygpt.cell" not in run.data.tags]
        return run

    def new(self, before: set[Path]) -> Path:
        """The folder that was made since."""
        (made,) = self.folders() - before
        return made


@pytest.fixture(scope="module")
def made(
    planted: Planted, entry: Entry, empty_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    results = tmp_path_factory.mktemp("made") / "results"
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda n: "xb000000")
        assert entry("bench", results, "sampler=t0.7", *OWN).status == 0
        patch.setattr("secrets.token_hex", lambda n: "xa000000")
        assert entry("bench", results, "-m", "batch=1,4", *OWN).status == 0
    (lone,), (many,) = ([p.name for p in (results / d).iterdir()] for d in ("cells", "sweeps"))
    return Made(results, entry, planted, lone, many)


@pytest.fixture
def untouched(made: Made) -> Iterator[None]:
    """Nothing is run or made, neither a folder nor a run in the store."""
    before = made.folders(), made.runs()
    made.ran.clear()
    yield
    assert made.ran == []
    assert (made.folders(), made.runs()) == before


# which run


@pytest.fixture(scope="module")
def again(made: Made) -> tuple[Ended, list[BenchConfig], Path]:
    """The newest run again: how that ended, what ran, and the folder it made."""
    before = made.folders()
    ended = made.rerun("run=latest")
    return ended, [*made.ran], made.new(before)


def test_latest_is_the_newest_and_a_sweep_is_run_whole(
    made: Made, again: tuple[Ended, list[BenchConfig], Path]
) -> None:
    ended, ran, folder = again
    assert ended.status == 0, ended.err
    assert ended.out.startswith(f"sweep {made.sweep}: 2 cells to run again\n")
    assert [config.batch.size for config in ran] == [1, 4]
    assert folder.parent.name == "sweeps"


def test_latest_is_no_rerun(made: Made, again: tuple[Ended, list[BenchConfig], Path]) -> None:
    assert find_sweep(Store(made.results), "latest").identity == made.sweep
    assert find_sweep(Store(made.results), again[2].name).identity == again[2].name


def test_the_beginning_of_an_id_is_enough_and_the_verdict_is_said(made: Made) -> None:
    before = made.folders()
    ended = made.rerun(f"run={made.lone[:2]}")
    assert ended.status == 0, ended.err
    assert [config.sampler.temperature for config in made.ran] == [0.7]
    folder = made.new(before)
    assert folder.parent.name == "cells"
    assert ended.out.splitlines() == [
        f"{made.lone}: 1 cell to run again",
        "  nothing has changed since",
        f"{made.lone}, now {folder.name}",
        "  tokens identical: 1 row of 4 new tokens",
        "  timing same: 1.000 times the old rate, 99 % interval 1.000 to 1.000 "
        "(6 repeats against 6)",
    ]


def test_one_cell_of_a_sweep_becomes_a_lone_cell(made: Made) -> None:
    before = made.folders()
    ended = made.rerun(f"run={made.sweep}-1")
    assert ended.status == 0, ended.err
    assert [config.batch.size for config in made.ran] == [4]
    folder = made.new(before)
    tags = made.run_of(folder.name).data.tags
    assert tags["tinygpt.rerun_of"] == f"{made.sweep}-1"
    assert tags["tinygpt.sweep"] == folder.name
    assert "mlflow.parentRunId" not in tags


def test_a_rerun_can_be_run_again_and_nothing_has_changed(made: Made) -> None:
    before = made.folders()
    assert made.rerun(f"run={made.lone}", "seed=5").status == 0
    first = made.new(before).name
    before = made.folders()
    ended = made.rerun(f"run={first}", "strict=true")
    assert ended.status == 0, ended.err
    assert [config.seed for config in made.ran] == [5]
    assert "tokens identical" in ended.out
    assert made.run_of(made.new(before).name).data.tags["tinygpt.rerun_of"] == first


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("zz", "run=zz: no such sweep or cell in "),
        ("a%", "run=a%: no such sweep or cell in "),
        ("x", "run=x: 2 begin so (xa000000, xb000000); say more"),
        ("xa-7", "run=xa-7: sweep xa000000 has no such cell; it has xa000000-0, xa000000-1"),
        ("xb-0", "xb000000 has no such cell"),
    ],
)
def test_an_id_of_no_run_or_of_several_is_one_line(
    run: str, said: str, made: Made, untouched: None
) -> None:
    assert said in made.refused(run=run)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("not/here.yaml", "config=not/here.yaml: cannot be read"),
        ("conf/bench.yaml", "config=conf/bench.yaml: is not the config.yaml of a run"),
        ("conf", "config=conf: cannot be read"),
        ("README.md", "config=README.md: "),
    ],
)
def test_a_file_that_is_no_config_is_one_line(
    name: str, said: str, made: Made, untouched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    line = made.refused(config=name)
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "run=ID or config=FILE: give one of them"),
        (["run=a", "config=x.yaml"], "run=ID or config=FILE: give one of them"),
        (["run="], "run= is empty"),
        (["run=xb", "-m"], "-m: one run at a time"),
        (["run=xb", "experiment=post"], "experiment=post: is for another command"),
        (["run=xb", "strict=perhaps"], "strict: "),
        (["run=xb", "batch.sise=4"], "batch.sise: no such key"),
        (["run=xb", "batch.size=["], "batch.size=[: the value cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_is_one_line_and_exit_2(
    words: list[str], said: str, made: Made, untouched: None
) -> None:
    ended = made.rerun(*words)
    assert (ended.status, ended.out) == (2, "")
    assert ended.line.startswith("rerun: ")
    assert said in ended.line


def test_where_nothing_was_tracked_yet_one_line_says_what_to_do(
    entry: Entry, tmp_path: Path
) -> None:
    ended = entry("rerun", tmp_path / "none", "run=latest")
    assert ended.status == 2
    assert "nothing is tracked" in ended.line
    assert "runners.bench" in ended.line
    assert not (tmp_path / "none").exists()


# what is changed by the command


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("batch.sise=4", "batch.sise: no such key in the stored config, which has batch.size"),
        ("stop=x", "stop: no such key in the stored config, which has model, device, "),
        ("tracking=x", "tracking: no such key"),
        ("batch=3", "batch=3: no such option; choose one of 1, 2, 4, 8, 16, 32, 64"),
        ("batch=1,4", "batch=1,4: a rerun takes one value a key"),
        ("seed=range(1,3)", "seed=range(1,3): a rerun takes one value a key"),
        ("prompt.text=a,b", "prompt.file=PATH"),
        ("+batch.size=4", "+batch.size=4: a rerun takes one value a key"),
        ("~batch=1", "~batch=1: no group can be left out"),
        ("batch.size=0", "batch.size=0: must be from 1 to"),
        ("batch.size=hot", "batch.size: 'hot' is not a whole number"),
        ("sampler.top_p=2", "sampler.top_p=2.0: must be in (0, 1]"),
        ("batch=null", "batch=null: not an option"),
        ("checkpoint=nothere", "checkpoint=nothere: no such checkpoint"),
        ("prompt.file=not/here.txt", "/not/here.txt: cannot be read"),
        ("prompt=Holmes", "prompt=Holmes: prompt has keys of its own, such as prompt.text"),
        ("plan=true", "plan: no such key"),
        ("resume=true", "resume: no such key"),
        ("batch.size=[", "batch.size=["),
    ],
)
def test_a_word_that_does_not_fit_is_one_line(
    word: str, said: str, made: Made, untouched: None
) -> None:
    line = made.refused(word, run="xb")
    assert said in line
    assert len(line) < 400


def test_values_are_applied_and_named_in_the_verdict(made: Made) -> None:
    before = made.folders()
    ended = made.rerun(f"run={made.sweep}-1", "length.new_tokens=3", "timing.min_repeats=2")
    assert ended.status == 0, ended.err
    assert [(c.batch.size, c.length.new_tokens, c.timing.min_repeats) for c in made.ran] == [
        (4, 3, 2)
    ]
    assert "  asked for: length.new_tokens 4 -> 3\n" in ended.out
    assert "  tokens identical: 4 rows of 3 new tokens\n" in ended.out
    assert "  timing not comparable: the command changes length.new_tokens\n" in ended.out
    folder = made.new(before)
    told = json.loads((folder / "rerun.json").read_text())
    assert "length.new_tokens 4 -> 3" in told["changed_by_command"]
    assert told["tokens"] == "identical"
    page = (folder / "rerun.md").read_text()
    assert page.startswith(f"# {folder.name}, a rerun of {made.sweep}-1\n\n- asked for: ")
    assert "\n- asked for: timing.min_repeats 5 -> 2\n" in page
    params = made.run_of(folder.name).data.params
    assert params["length.new_tokens"] == "3"
    assert params["choice.length"] == "256 new_tokens=4 new_tokens=3"
    assert params["choice.batch"] == "4"


def test_options_are_applied_before_values_wherever_they_stand(made: Made) -> None:
    assert made.rerun(f"run={made.lone}", "length.new_tokens=3", "length=64").status == 0
    assert [config.length.new_tokens for config in made.ran] == [3]


def test_an_option_replaces_its_whole_group_and_what_it_changes_is_said(made: Made) -> None:
    before = made.folders()
    ended = made.rerun(f"run={made.sweep}-0", "sampler=t0.8_topp0.9")
    assert ended.status == 0, ended.err
    (config,) = made.ran
    assert (config.sampler.temperature, config.sampler.top_p) == (0.8, 0.9)
    said = "not comparable: the command changes sampler.temperature, sampler.top_p"
    assert f"  {said}\n" in ended.out
    run = made.run_of(made.new(before).name)
    assert run.data.params["choice.sampler"] == "t0.8_topp0.9"
    assert run.data.tags["tinygpt.rerun_tokens"] == "not comparable"
    assert run.data.tags["tinygpt.outcome"] == "ok"


def test_m6_on_a_device_that_is_not_here_nothing_has_failed(made: Made) -> None:
    ended = made.rerun(f"run={made.lone}", "device=cuda")
    assert ended.status == 0, ended.err
    assert [config.device.kind for config in made.ran] == ["cuda"]
    assert "  not comparable: this run is skipped: " in ended.out
    assert "reproduce" not in ended.out + ended.err
    assert "asked for: device.kind cpu -> cuda\n" in ended.out


def test_what_is_asked_of_some_cells_only_is_said_with_them(made: Made) -> None:
    ended = made.rerun("run=latest", "batch.size=1")
    assert ended.status == 0, ended.err
    assert f"  asked for: batch.size 4 -> 1 ({made.sweep}-1)\n" in ended.out
    for rows in ("1 row of 4", "1 row that both have, of 4"):
        assert ended.out.count(f"tokens identical: {rows} new tokens") == 1


# a sweep, and what does not come out as before


def test_a_sweep_is_run_under_one_parent_that_ends(
    made: Made, again: tuple[Ended, list[BenchConfig], Path]
) -> None:
    folder = again[2]
    parent = made.run_of(folder.name, "sweep")
    tags = parent.data.tags
    assert (tags["tinygpt.kind"], tags["tinygpt.rerun_of"]) == ("rerun", made.sweep)
    assert (parent.info.status, tags["tinygpt.outcome"]) == ("FINISHED", "ok")
    for n in range(2):
        child = made.run_of(f"{folder.name}-{n}").data.tags
        assert child["mlflow.parentRunId"] == parent.info.run_id
        assert child["tinygpt.rerun_of"] == f"{made.sweep}-{n}"
        assert child["tinygpt.kind"] == "rerun"
        assert (folder / str(n) / "rerun.json").is_file()
    words = (f"sweep={folder.name}", "table=cells", "format=csv")
    shown = made.entry("tables", made.results, *words)
    assert shown.status == 0, shown.err
    rows = shown.out.splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == [f"{folder.name}-{n}" for n in range(2)]


def test_other_tokens_are_a_mismatch_of_that_cell_alone(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made.planted, "shift", 1)
    before = made.folders()
    ended = made.rerun("run=latest")
    assert ended.status == 1
    said = "row 1 parts at new token 3 (position 5 with the prompt): 5 before, 6 now"
    assert f"  tokens different: {said}\n" in ended.out
    assert "  tokens identical: 1 row of 4 new tokens\n" in ended.out
    folder = made.new(before)
    assert ended.err.splitlines()[-1] == (
        f"{folder.name}-1 mismatch: not the tokens of {made.sweep}-1: {said}"
    )
    assert [made.run_of(f"{folder.name}-{n}").info.status for n in range(2)] == [
        "FINISHED",
        "FAILED",
    ]
    assert made.run_of(folder.name, "sweep").info.status == "FAILED"


def test_ctrl_c_leaves_what_was_done_and_no_run_open(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made.planted, "stops", True)
    before = made.folders()
    ended = made.rerun("run=latest")
    assert ended.status == 130
    assert "Traceback" not in ended.err
    folder = made.new(before)
    found = [made.run_of(f"{folder.name}-{n}") for n in range(2)]
    assert [run.data.tags["tinygpt.outcome"] for run in found] == ["ok", "interrupted"]
    assert [run.info.status for run in found] == ["FINISHED", "KILLED"]
    assert found[1].data.tags["tinygpt.rerun_of"] == f"{made.sweep}-1"
    assert made.run_of(folder.name, "sweep").info.status == "KILLED"
    assert find_sweep(Store(made.results), "latest").identity == made.sweep


# what has changed since


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ that is used in the place of it."""
    folder = shutil.copytree(ROOT / "conf", tmp_path / "conf")
    for module in (app, config_presets, paths):
        monkeypatch.setattr(module, "conf_dir", lambda: folder)
    return folder


def test_m5_a_preset_that_changed_is_reported_and_the_old_value_used(
    made: Made, presets: Path
) -> None:
    (presets / "sampler" / "t0.7.yaml").write_text("temperature: 0.9\n")
    ended = made.rerun(f"run={made.lone}")
    assert ended.status == 0, ended.err
    assert [config.sampler.temperature for config in made.ran] == [0.7]
    line = "presets: sampler.temperature 0.7 -> 0.9 (the old value is used)"
    assert f"  changed since: {line}\n" in ended.out
    assert "tokens identical" in ended.out
    assert "sampler.temperature" not in ended.out.replace(line, "")


def test_m5_a_default_that_changed_is_reported_and_kept_by_strict_from_running(
    made: Made, presets: Path
) -> None:
    path = presets / "bench.yaml"
    path.write_text(path.read_text().replace("cache: rolling", "cache: static"))
    before = made.folders(), made.runs()
    ended = made.rerun(f"run={made.lone}", "strict=true")
    assert (ended.status, ended.out) == (2, "")
    assert "presets: cache.kind rolling -> static (the old value is used)" in ended.line
    assert "nothing was run" in ended.line
    assert made.ran == []
    assert (made.folders(), made.runs()) == before
    assert made.rerun(f"run={made.lone}").status == 0
    assert [config.cache.kind for config in made.ran] == ["rolling"]


def test_m5_a_preset_that_is_gone_is_reported_and_its_value_used(made: Made, presets: Path) -> None:
    (presets / "sampler" / "t0.7.yaml").unlink()
    ended = made.rerun(f"run={made.lone}")
    assert ended.status == 0, ended.err
    assert [config.sampler.temperature for config in made.ran] == [0.7]
    assert "presets: its command cannot be composed today: sampler=t0.7: no such" in ended.out


def test_machine_versions_and_code_that_changed_are_told_and_refused_by_strict(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = environment.collect()
    changed = now | {
        "packages": now["packages"] | {"torch": "99.0"},
        "cpu": now["cpu"] | {"model": "another cpu"},
        "code": now["code"] | {"sha256": "0" * 64, "commit": "f" * 40},
    }
    monkeypatch.setattr(environment, "collect", lambda: changed)
    refused = made.rerun(f"run={made.lone}", "strict=true")
    assert (refused.status, refused.out, made.ran) == (2, "", [])
    ended = made.rerun(f"run={made.lone}")
    assert ended.status == 0, ended.err
    for said in (f"torch {now['packages']['torch']} -> 99.0", "-> another cpu", "-> fffffff"):
        assert said in refused.line
        (line,) = [line for line in ended.out.splitlines() if said in line]
        assert line.startswith("  changed since: ")


def test_strict_runs_where_nothing_has_changed_even_with_words(made: Made) -> None:
    ended = made.rerun(f"run={made.lone}", "strict=true", "seed=2")
    assert ended.status == 0, ended.err
    assert [config.seed for config in made.ran] == [2]
    assert "  nothing has changed since\n" in ended.out


# a config from anywhere


@pytest.fixture
def alone(made: Made, tmp_path: Path) -> Path:
    """A run's config.yaml far from its run."""
    return Path(
        shutil.copy(made.results / "cells" / made.lone / "config.yaml", tmp_path / "c.yaml")
    )


def test_a_config_alone_is_run_and_cannot_be_judged(made: Made, alone: Path) -> None:
    before = made.folders()
    ended = made.rerun(f"config={alone}", "seed=3")
    assert ended.status == 0, ended.err
    assert [(c.sampler.temperature, c.seed) for c in made.ran] == [(0.7, 3)]
    assert [config.tracking.dir for config in made.ran] == [str(made.results)]
    assert "  not comparable: there is no result beside the config\n" in ended.out
    folder = made.new(before)
    assert made.run_of(folder.name).data.tags["tinygpt.rerun_of"] == str(alone)
    shown = made.entry("tables", made.results, f"sweep={folder.name}", "table=cells", "format=csv")
    assert shown.status == 0, shown.err
    assert folder.name in shown.out


def test_a_config_that_was_changed_runs_as_it_is(made: Made, alone: Path) -> None:
    values = yaml.safe_load(alone.read_text())
    values["sampler"]["temperature"] = 1.25
    alone.write_text(yaml.safe_dump(values))
    assert made.rerun(f"config={alone}").status == 0
    assert [c.sampler.temperature for c in made.ran] == [1.25]


def test_keys_that_an_older_config_does_not_have_are_filled_and_said(
    made: Made, alone: Path, untouched: None
) -> None:
    values = yaml.safe_load(alone.read_text())
    del values["engine"], values["sampler"]["top_k"], values["resume"]
    del values["model"]["rope_scaling"], values["prompt"]["chat"]  # by default as it was before
    alone.write_text(yaml.safe_dump(values))
    filled = [
        "config: sampler.top_k is not in the stored config, which is older; today's default is "
        "used: 0",
        "config: engine.kind is not in the stored config, which is older; today's default is "
        "used: eager",
    ]
    assert made.refused(config=str(alone), strict="true") == (
        f"strict=true: changed since: {'; '.join(filled)}; nothing was run; leave strict out to "
        "run it all the same"
    )


def test_a_word_may_set_a_key_that_an_older_config_does_not_have(made: Made, alone: Path) -> None:
    values = yaml.safe_load(alone.read_text())
    del values["cache"], values["sampler"]["top_k"]
    alone.write_text(yaml.safe_dump(values))
    ended = made.rerun(f"config={alone}", "cache=static", "sampler.top_k=5")
    assert ended.status == 0, ended.err
    assert [(c.cache.kind, c.sampler.top_k) for c in made.ran] == [("static", 5)]
    assert "not in the stored config" not in ended.out
    assert "nothing has changed since" in ended.out
    assert made.rerun(f"config={alone}").status == 0
    assert [(c.cache.kind, c.sampler.top_k) for c in made.ran] == [("rolling", 0)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": {"size": -3}}, "batch.size=-3: must be from 1 to"),
        ({"batch": {"size": 1, "colour": "red"}}, "batch.colour: no such key"),
        ({"device": "cpu"}, "device=cpu: device has keys of its own, such as device.kind"),
    ],
    ids=["range", "key", "type"],
)
def test_a_config_that_does_not_fit_is_one_line(
    change: dict[str, Any], said: str, made: Made, alone: Path, untouched: None
) -> None:
    alone.write_text(yaml.safe_dump(yaml.safe_load(alone.read_text()) | change))
    assert said in made.refused(config=str(alone))


@pytest.mark.parametrize("found", ["whole", "half a cell.json", "half the rows"])
def test_a_config_with_its_result_beside_it_is_judged(
    found: str, made: Made, tmp_path: Path
) -> None:
    folder = shutil.copytree(made.results / "sweeps" / made.sweep / "1", tmp_path / "taken away")
    if found == "half a cell.json":
        (folder / "cell.json").write_text('{"outcome": "o')
    if found == "half the rows":
        (folder / "generations.jsonl").write_text('{"prompt_ids": [0')
    before = made.folders()
    ended = made.rerun(f"config={folder / 'config.yaml'}")
    assert ended.status == 0, ended.err
    said = {
        "whole": "tokens identical: 4 rows of 4 new tokens",
        "half a cell.json": "not comparable: there is no result beside the config",
        "half the rows": "tokens not comparable: the old run's generations.jsonl",
    }
    assert said[found] in ended.out
    tag = made.run_of(made.new(before).name).data.tags["tinygpt.rerun_of"]
    whole = found != "half a cell.json"
    assert tag == (f"{made.sweep}-1" if whole else str(folder / "config.yaml"))


def test_help_and_version_are_answered(entry: Entry, tmp_path: Path) -> None:
    ended = entry("rerun", tmp_path, "--help")
    assert ended.status == 0
    for word in ("run=latest", "config=", "strict=true", "exit status"):
        assert word in ended.out
