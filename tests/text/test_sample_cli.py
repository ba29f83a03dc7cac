"""The command that writes text: prompts as typed, every text kept, a line for what is wrong."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from runners import sample as sample_module
from runners.harness.config import grammar
from runners.harness.config.schema import DeviceConfig, LengthConfig, SampleConfig
from runners.harness.launch.entry import Finished
from runners.harness.launch.kinds import Kind
from runners.harness.measure import fingerprint, subject
from runners.harness.measure.result import CellResult
from runners.harness.store.tracking import Store
from runners.harness.terminal import printable
from runners.harness.text import sample as sample_run
from runners.harness.text.figures import common_prefix
from tests.cells import ARTIFACTS
from tests.text_checkpoint import Sample, generations, tokenizer
from tests.train_command import Ended
from tinygpt.config import ModelConfig, SamplerConfig
from tinygpt.tokenizer import EOT

ROOT = Path(__file__).resolve().parents[2]
NASTY = 'a <b>bold</b> | [red]x[/red] [y](z) & \\ "q"\n*next* \u2028 line'
"""What some format or other would take for its own."""


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SampleConfig]:
    """Nothing is run or kept: the configs of what would have been."""
    configs: list[SampleConfig] = []

    def finish(kind: Kind, config: SampleConfig, *_: object) -> Finished:
        assert kind.name == "sample"
        configs.append(config)
        return Finished("id", "ok", "", True)

    monkeypatch.setattr(sample_module, "run_job", finish)
    return configs


def row_of(prompt: str) -> dict[str, Any]:
    """A row of generations whose text is "!"."""
    return {
        "prompt": prompt,
        "prompt_ids": [1],
        "new_ids": [2, 3],
        "text": "!",
        "stopped": False,
        "distinct_2": 1.0,
        "longest_repeat_tokens": 0,
        "longest_repeat": "",
        "mean_logprob_nats": -1.25,
    }


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is "!", at once."""

    def write(config: SampleConfig, show: sample_run.Show) -> CellResult:
        prompts = list(config.prompt.content.texts)
        for prompt in prompts:
            show(prompt, "")
            show("", "!")
        return CellResult("ok", generations=[row_of(prompt) for prompt in prompts])

    monkeypatch.setattr(sample_run, "sample", write)


def prompts_file(folder: Path, *prompts: str) -> str:
    path = folder / "prompts.jsonl"
    lines = [json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts]
    path.write_bytes("".join(lines).encode())
    return f"prompt.jsonl={path}"


# prompts as typed


def parsed(word: str) -> list[str]:
    """The texts that Hydra takes from a word of the command line, each parsed again in its job."""
    grammar.install()
    parser = OverridesParser.create()
    jobs = BasicSweeper.split_arguments(parser.parse_overrides([word]), None)[0]
    return [parser.parse_override(typed).value() for (typed,) in jobs]


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        ("1984", ["1984"]),
        ("true", ["true"]),
        ("83e5", ["83e5"]),
        ("nan", ["nan"]),
        ("It was a", ["It was a"]),
        ("a/b", ["a/b"]),
        ("'null'", ["null"]),
        ("'  \"Stop!\" he said '", ['  "Stop!" he said ']),
        ('"it\'s, so: 5 = 4"', ["it's, so: 5 = 4"]),
        ("'one\ntwo'", ["one\ntwo"]),
        ("'“é” 👩‍👩‍👧 東京'", ["“é” 👩‍👩‍👧 東京"]),
        ("'a [/b] 100 % {0} \\d <|endoftext|>'", ["a [/b] 100 % {0} \\d <|endoftext|>"]),
        ("1984,true,83e5", ["1984", "true", "83e5"]),
        ("true,'a, b',83e5", ["true", "a, b", "83e5"]),
    ],
    ids=ascii,
)
def test_a_prompt_is_what_was_typed(typed: str, texts: list[str]) -> None:
    assert parsed(f"prompt.text={typed}") == texts


def test_h8_no_prompt_is_a_name(sample: Sample, plain: None) -> None:
    texts = ["true", "x" * 300, '../a/b [/b] "“é”"\n👩‍👩‍👧']
    ended = sample("-m", f"prompt.text={texts[0]},{texts[1]},'{texts[2]}'")
    assert ended.status == 0, ended.err
    names = [path.relative_to(sample.results).as_posix() for path in sample.cells()]
    assert [re.sub(r"^sweeps/\w{8}/", "", name) for name in sorted(names)] == list("012")
    assert all(path.is_file() for cell in sample.cells() for path in cell.iterdir())
    assert [row["prompt"] for row in sample.rows()] == texts
    assert [run.data.params["prompt.text"] for run in sample.runs()] == texts
    for text in texts:
        assert f"\n{text}!\n" in ended.out
        assert text in ended.err


def test_the_defaults_are_the_posts(sample: Sample, asked: list[SampleConfig]) -> None:
    ended = sample(own=False)
    assert ended.status == 0, ended.err
    (config,) = asked
    assert list(config.prompt.content.texts) == ["Holmes"]
    assert (config.checkpoint, config.seed, config.stop) == ("holmes", 1, EOT)
    assert (config.length.new_tokens, config.device.kind) == (60, "cpu")


def test_the_preset_is_the_readmes_grid() -> None:
    preset = yaml.safe_load((ROOT / "conf/experiment/sampling.yaml").read_text(encoding="utf-8"))
    axes = {"sampler": "greedy,t0.5,t0.7,t0.8_topp0.9,t1.0,topp0.9,t1.5,penalty1.3"}
    assert preset == {"hydra": {"sweeper": {"params": axes}}}


def test_m4_a_long_prompt_is_whole_in_the_artifacts(sample: Sample) -> None:
    text = "0123456789" * 700
    ended = sample(f"prompt.text={text}", "length.new_tokens=1")
    assert ended.status == 0, ended.err
    (run,) = sample.runs()
    assert "note: prompt of 7000 tokens cut to its last 16" in ended.err
    assert run.data.tags["tinygpt.notes"] == "prompt of 7000 tokens cut to its last 16"
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert yaml.safe_load((artifacts / "config.yaml").read_text())["prompt"]["text"] == text
    assert generations(artifacts)[0]["prompt"] == text
    assert (artifacts / "text.txt").read_text(encoding="utf-8").startswith(text)
    (typed,) = [
        word
        for word in yaml.safe_load((artifacts / "overrides.yaml").read_text())
        if word.startswith("prompt.")
    ]
    assert typed == f"prompt.text={text}"


# one text


def test_it_is_kept_and_tracked(sample: Sample, tmp_path: Path) -> None:
    ended = sample(prompts_file(tmp_path, "the river", NASTY), "sampler=t1.0", "stop=null")
    assert ended.status == 0, ended.err
    ((run,), (cell,)) = sample.runs(), sample.cells()
    rows = generations(cell)
    assert [row["prompt"] for row in rows] == ["the river", NASTY]
    assert run.info.status == "FINISHED"
    assert run.data.tags["tinygpt.kind"] == "sample"
    assert run.data.tags["tinygpt.outcome"] == "ok"
    assert run.data.tags["tinygpt.tokens_sha256"] == (
        fingerprint.sha256([row["new_ids"] for row in rows])
    )
    assert set(run.data.metrics) == {
        "new_tokens",
        "distinct_2",
        "mean_logprob_nats",
        "longest_repeat_tokens",
    }
    assert run.data.metrics["new_tokens"] == 12
    assert run.data.params["sampler.temperature"] == "1.0"
    assert run.data.params["choice.sampler"] == "t1.0"
    artifacts = {item.path for item in Store(sample.results).client.list_artifacts(run.info.run_id)}
    assert artifacts >= ARTIFACTS | {"text.txt"}
    assert artifacts <= {path.name for path in cell.iterdir()}
    text = (cell / "text.txt").read_bytes().decode()
    assert text == "\n---\n".join(f"{row['prompt']}{row['text']}\n" for row in rows)


def test_h5_a_file_is_literal_and_the_same_command_gives_the_same_text(
    sample: Sample, tmp_path: Path
) -> None:
    text = "\ufeffcost ${x} and $5, \\${y} [/z]\r\n"
    path = tmp_path / "prompt.txt"
    path.write_bytes(text.encode())
    ended = [sample(f"prompt.file={path}", "sampler=t1.0", "stop=null") for _ in range(2)]
    assert [one.status for one in ended] == [0, 0], ended[0].err
    row, again = sample.rows()
    assert row == again
    assert row["prompt"] == text
    assert row["prompt_ids"] == tokenizer().encode(text)[-16:]
    assert ended[0].out == ended[1].out == f"{printable(text + row['text'])}\n"
    assert "ok 6 tokens, distinct-2 " in ended[0].err
    first, second = sample.runs()
    assert first.info.run_id != second.info.run_id
    for tag in ("tokens_sha256", "cell_hash", "weights_sha256", "prompt_sha256"):
        assert first.data.tags[f"tinygpt.{tag}"] == second.data.tags[f"tinygpt.{tag}"]


def test_a_reader_that_went_away_leaves_no_cell_running(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m runners.sample | head -c 5``."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            if len(self.getvalue()) > 4:
                raise BrokenPipeError(32, "Broken pipe")
            return super().write(text)

    stub = SimpleNamespace(stdout=Gone())
    told: list[bool] = []
    monkeypatch.setattr("runners.harness.text.screen.sys", stub)
    monkeypatch.setattr("runners.harness.text.screen.reader_gone", lambda: told.append(True))
    sample("prompt.text=Holmes")
    assert told
    (cell,) = sample.cells()
    outcome = json.loads((cell / "cell.json").read_text())["outcome"]
    assert outcome == "ok"
    assert [run.data.tags["tinygpt.outcome"] for run in sample.runs()] == [outcome]


# bad input


WRONG = {
    "a bad line": ("prompt.jsonl=FOLDER/bad.jsonl", "bad.jsonl: line 3 is not JSON"),
    "hydra's own": ("prompt.text='${x}'", "prompt.file=PATH"),
    "another model": ("model.n_layers=3", "model.n_layers=3: checkpoint=holmes has 6; leave"),
    "empty stop": ("stop=''", "stop= is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_no_run(
    case: str, sample: Sample, asked: list[SampleConfig], tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'"a"\n\n{"prompt": \n"b"')
    typed, said = WRONG[case]
    ended = sample(*typed.replace("FOLDER", str(tmp_path)).split(), own=False)
    assert (ended.status, ended.out) == (2, "")
    assert ended.line.startswith("sample: ")
    assert said in ended.line
    assert asked == []
    assert [path for path in sample.results.iterdir() if path.is_dir()] == []


def test_a_checkpoint_without_a_tokenizer_is_one_line(
    sample: Sample, writer: Path, tmp_path: Path
) -> None:
    half = shutil.copytree(writer, tmp_path / "half")
    (half / "tokenizer.json").unlink()
    ended = sample(f"checkpoint={half}")
    assert (ended.status, ended.out) == (2, "")
    assert "half has no tokenizer.json" in ended.line
    assert sample.made_nothing()


# several side by side


@pytest.fixture(scope="module")
def swept(
    empty_store: Path, writer: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Sample, Ended]:
    """Two prompts with three settings, of which the second cannot be run."""
    folder = tmp_path_factory.mktemp("swept")
    command, real = Sample(empty_store, folder, writer), subject.make_model

    def make_model(config: SampleConfig, device: torch.device) -> Any:
        if config.sampler.temperature == 1.0:
            raise RuntimeError("planted <i>|\nand more")
        return real(config, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "make_model", make_model)
        ended = command(
            "-m", "sampler=greedy,t1.0,t1.5", prompts_file(folder, "the river", NASTY), "stop=null"
        )
    return command, ended


def test_a_sweep_is_one_parent_with_a_run_a_setting(swept: tuple[Sample, Ended]) -> None:
    command, ended = swept
    (parent,), children = command.runs("sweep"), command.runs()
    assert ended.status == 1
    assert [run.data.tags["tinygpt.outcome"] for run in children] == ["ok", "failed", "ok"]
    assert [run.data.params["choice.sampler"] for run in children] == ["greedy", "t1.0", "t1.5"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert [run.info.status for run in children] == ["FINISHED", "FAILED", "FINISHED"]
    assert (parent.info.status, parent.data.tags["tinygpt.outcome"]) == ("FAILED", "failed")


def test_a_sweep_streams_every_text_under_its_setting(swept: tuple[Sample, Ended]) -> None:
    _, ended = swept
    for setting in ("greedy", "t1.0", "t1.5"):
        assert f"--- sampler={setting}\n" in ended.out
    assert ended.out.count(NASTY.partition("\n")[0]) >= 2
    failed = [line for line in ended.err.splitlines() if "failed: RuntimeError: planted" in line]
    assert len(failed) == 1
    assert "Traceback" not in ended.err


def test_a_sweeps_tables_hold_every_text(swept: tuple[Sample, Ended]) -> None:
    command, _ = swept
    (parent,) = command.runs("sweep")
    store = Store(command.results)
    tables = store.client.list_artifacts(parent.info.run_id, "tables")
    assert {item.path for item in tables} == {
        f"tables/samples.{form}" for form in ("md", "html", "csv", "json")
    }
    artifacts = Path(parent.info.artifact_uri.removeprefix("file://")) / "tables"
    cells = {cell.name: cell for cell in command.cells()}
    wanted = [
        *((("greedy", "ok", row["prompt"], row["text"])) for row in generations(cells["0"])),
        ("t1.0", "failed", None, None),
        *((("t1.5", "ok", row["prompt"], row["text"])) for row in generations(cells["2"])),
    ]
    keys = ("setting", "outcome", "prompt", "text")
    rows = json.loads((artifacts / "samples.json").read_text(encoding="utf-8"))
    assert [tuple(row[key] for key in keys) for row in rows] == wanted
    with (artifacts / "samples.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [tuple(row[key] or None for key in keys) for row in read] == wanted
    assert [bool(row["reason"]) for row in rows] == [False, False, True, False, False]
    page = (artifacts / "samples.html").read_text(encoding="utf-8")
    assert page.count("<article>") == 5
    assert "planted &lt;i&gt;" in page
    markdown = (artifacts / "samples.md").read_text(encoding="utf-8")
    assert markdown.count("\n| ") == 2 + 5 - 1


# the model that ships


def test_it_shows_what_the_post_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and a penalty share an opening, and so do temperature 1.0 and top-p 0.9."""
    loaded = subject.load_model(ROOT / "results/checkpoints/holmes", ModelConfig())
    monkeypatch.setattr(subject, "load_model", lambda *_: loaded)
    samplers = {
        "greedy": SamplerConfig(),
        "penalty1.3": SamplerConfig(repetition_penalty=1.3),
        "t1.0": SamplerConfig(temperature=1.0),
        "topp0.9": SamplerConfig(temperature=1.0, top_p=0.9),
    }
    ids = {}
    for name, sampler in samplers.items():
        config = SampleConfig(
            sampler=sampler, length=LengthConfig(new_tokens=24), device=DeviceConfig(threads=1)
        )
        result = sample_run.sample(config, lambda prompt, piece: None)
        assert result.outcome == "ok", result.error
        ids[name] = result.generations[0]["new_ids"]
    shared = {(one, other): common_prefix(ids[one], ids[other]) for one in ids for other in ids}
    for one, other in (("greedy", "penalty1.3"), ("t1.0", "topp0.9")):
        strangers = max(shared[one, name] for name in ids if name not in (one, other))
        assert strangers < shared[one, other] < 24
