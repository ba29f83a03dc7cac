"""What a config holds of what was typed: paths absolute, ~ the home folder, text as it is; and the
files of text that these name.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from runners.harness.config.conversion import from_dict, to_dict
from runners.harness.config.paths import results_dir, settled
from runners.harness.config.schema import (
    BenchConfig,
    PromptsConfig,
    RerunConfig,
    SampleConfig,
    TextPromptConfig,
    TrainConfig,
)
from runners.harness.errors import UsageError
from runners.harness.train import corpus
from tests import text_checkpoint
from tests.small_text import KEYS
from tests.text_checkpoint import Sample, generations, tokenizer
from tests.train_command import Ended

Entry = Callable[..., Ended]
TEXT = ("length.new_tokens=4", "device.threads=1", *KEYS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, and another folder to type commands in."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def stored(results: Path) -> dict[str, Any]:
    """The kept config of the only cell."""
    (path,) = [*results.glob("cells/*/config.yaml"), *results.glob("sweeps/*/*/config.yaml")]
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("~", "HOME"),
        ("~/x", "HOME/x"),
        ("x", "HERE/x"),
        ("./x y", "HERE/x y"),
        ("a~/x", "HERE/a~/x"),
        ("./~", "HERE/~"),
        ("/x", "/x"),
    ],
)
def test_a_path_is_absolute_and_its_tilde_the_home_folder(
    typed: str, kept: str, home: Path
) -> None:
    kept = kept.replace("HOME", str(home)).replace("HERE", str(Path.cwd()))
    assert settled(typed) == kept
    assert settled(kept) == kept


def test_an_empty_path_and_nobodys_home_are_refused(home: Path) -> None:
    with pytest.raises(ValueError, match="is empty"):
        settled("")
    with pytest.raises(ValueError, match="no user has the home ~nobody-here/x"):
        settled("~nobody-here/x")


def test_a_name_stays_a_name_unless_such_a_folder_is_there(home: Path) -> None:
    for name in ("holmes", "3fa9b01c", "none", "a.b"):
        assert settled(name, "config.json") == name
    for name in ("holmes", "none"):
        Path(name).mkdir()
        assert settled(name, "config.json") == name
        Path(name, "config.json").touch()
    assert settled("holmes", "config.json") == str(Path.cwd() / "holmes")
    assert settled("none", "config.json") == "none"  # which means random weights
    for path in ("./gone", "a/b", "~/gone"):
        assert Path(settled(path, "config.json")).is_absolute()


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (BenchConfig, {"checkpoint": "./a", "prompt": {"file": "a"}}),
        (SampleConfig, {"checkpoint": "~/a", "prompt": {"jsonl": "a"}}),
        (TrainConfig, {"corpus": {"path": "a"}, "resume": "./a"}),
        (RerunConfig, {"config": "a"}),
    ],
)
def test_every_path_of_a_config_is_absolute_and_stays_so(
    schema: type, values: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = from_dict(values | {"tracking": {"dir": "a"}}, schema)
    kept = to_dict(config)
    for part, typed in [*values.items(), ("tracking", {"dir": "a"})]:
        for key in typed if isinstance(typed, dict) else ():
            assert kept[part][key] == str(Path.cwd() / "a")
        if isinstance(typed, str):
            assert Path(kept[part]).is_absolute()
    monkeypatch.chdir(home)
    assert to_dict(from_dict(kept, schema)) == kept


@pytest.mark.parametrize("typed", ["tracking.dir=~/my results", "tracking.dir='~/my results'"])
@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["alone", "sweep"])
def test_results_go_into_the_home_folder(
    typed: str,
    sweep: tuple[str, ...],
    entry: Entry,
    empty_store: Path,
    home: Path,
    instant: list[Any],
) -> None:
    results = home / "my results"
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    ended = entry("bench", Path(typed.removeprefix("tracking.dir=")), "model=nano", *sweep)
    assert ended.status == 0, ended.err
    assert stored(results)["tracking"]["dir"] == str(results)
    assert instant[0].tracking.dir == str(results)
    assert list(Path.cwd().iterdir()) == []
    assert entry("tables", Path("~/my results")).status == 0


def test_a_run_of_relative_paths_is_found_from_every_folder(
    entry: Entry, results: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = text_checkpoint.save(Path.cwd() / "mine")
    prompt = Path.cwd() / "prompt.txt"
    prompt.write_text("the river")
    ended = entry("sample", results, "checkpoint=mine", "prompt.file=prompt.txt", *TEXT)
    assert ended.status == 0, ended.err
    kept = stored(results)
    assert (kept["checkpoint"], kept["prompt"]["file"]) == (str(mine), str(prompt))
    (cell,) = (results / "cells").iterdir()
    monkeypatch.chdir(home)
    again = entry("rerun", results, f"run={cell.name}", "strict=true")
    assert again.status == 0, again.err
    assert "tokens identical" in again.out
    shutil.copy(cell / "config.yaml", home / "mine.yaml")
    again = entry("rerun", results, "config=mine.yaml")
    assert again.status == 0, again.err


def test_a_folder_goes_before_a_checkpoint_of_its_name(
    entry: Entry, results: Path, home: Path
) -> None:
    mine = text_checkpoint.save(Path.cwd() / "holmes")
    ended = entry("sample", results, "checkpoint=holmes", "prompt.text=the river", *TEXT)
    assert ended.status == 0, ended.err
    assert stored(results)["checkpoint"] == str(mine)


def test_a_checkpoint_by_name_is_stored_by_name(
    entry: Entry, results: Path, home: Path, instant: list[Any]
) -> None:
    assert entry("bench", results, "checkpoint=holmes").status == 0
    assert stored(results)["checkpoint"] == "holmes"
    assert (results_dir() / "checkpoints" / "holmes").is_dir()


def test_a_rerun_takes_a_new_prompt_for_the_old_one(
    entry: Entry, results: Path, home: Path
) -> None:
    mine = text_checkpoint.save(Path.cwd() / "mine")
    words = (f"checkpoint={mine}", "prompt.text=the river", *TEXT)
    assert entry("sample", results, *words).status == 0
    (cell,) = (results / "cells").iterdir()
    Path("other.txt").write_text("a lamp")
    again = entry("rerun", results, f"run={cell.name}", "prompt.file=other.txt")
    assert again.status == 0, again.err
    (new,) = set((results / "cells").iterdir()) - {cell}
    assert [row["prompt"] for row in generations(new)] == ["a lamp"]
    both = entry("rerun", results, f"run={cell.name}", "prompt.file=other.txt", "prompt.text=a")
    assert "give one of them" in both.line


# bytes that are no text


@pytest.mark.parametrize(
    "name", ["bench", "sample", "verify", "race", "train", "tables", "rerun", "compare", "doctor"]
)
def test_bytes_that_are_not_utf8_are_one_line_and_nothing_is_made(
    name: str, entry: Entry, tmp_path: Path
) -> None:
    ended = entry(name, tmp_path / "results", "prompt.text=caf\udce9")  # as Python holds byte E9
    assert (ended.status, ended.out) == (2, "")
    assert r"prompt.text=caf\xe9: is not UTF-8" in ended.line
    assert not (tmp_path / "results").exists()


def test_a_stored_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UsageError, match=r"prompt.text=a\\ud83d: is not UTF-8"):
        from_dict({"prompt": {"text": "a\ud83d"}, "tracking": {"dir": "x"}}, BenchConfig)


# a byte-order mark


def test_a_byte_order_mark_is_no_text_but_in_a_prompt_that_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff\ufeffé".encode())
    assert corpus.read_text(str(path)) == "\ufeffé"  # one mark, and only at the head
    path.write_bytes('\ufeff"a"\n{"prompt": "\ufeffb"}\n'.encode())
    assert list(PromptsConfig(jsonl=str(path)).content.texts) == ["a", "\ufeffb"]
    path.write_bytes("\ufeffé".encode())
    assert TextPromptConfig(file=str(path)).content.texts == ("\ufeffé",)
    path.write_bytes(b"\xff\xfea\x00")
    with pytest.raises(ValueError, match="byte 0 is not UTF-8"):
        corpus.read_text(str(path))


def test_a_mark_that_is_fed_is_told(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffa".encode())
    ended = sample(f"prompt.file={path}")
    assert ended.status == 0, ended.err
    assert (
        "the prompt begins with a byte-order mark" in (sample.cells()[0] / "cell.json").read_text()
    )


# a line feed as stop


def test_a_text_ends_at_a_line_feed_and_a_rerun_of_it_too(
    entry: Entry, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runners.harness.measure import subject

    class Scripted:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def reset(self, *_: Any) -> None:
            self._left = iter(tokenizer().encode("the river\nand"))

        def check(self) -> None: ...

        def __call__(self, logits: Any) -> Any:
            import torch

            return torch.tensor([next(self._left)])

    monkeypatch.setattr(subject, "make_sampler", Scripted)
    ended = sample("stop=\n", "length.new_tokens=40")
    assert ended.status == 0, ended.err
    (row,) = sample.rows()
    assert (row["text"], row["stopped"]) == ("the river", True)
    assert stored(sample.results)["stop"] == "\n"
    (cell,) = sample.cells()
    again = entry("rerun", sample.results, f"run={cell.name}", "strict=true")
    assert again.status == 0, again.err
    assert "tokens identical" in again.out
    assert [row["text"] for row in sample.rows()] == ["the river", "the river"]
