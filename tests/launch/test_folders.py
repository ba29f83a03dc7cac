"""No command touches a file that no run of ours made: where it writes is checked first."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.harness.store import disk as result
from runners.harness.store.disk import CellResult, Place
from runners.harness.train.state import publish
from tests import text_checkpoint
from tests.small_text import KEYS, text
from tests.train_command import Command, Ended

Entry = Callable[..., Ended]
CORPUS = "corpus.path=story.txt"
KEEPING = {"bench": [], "sample": [], "verify": [], "train": [CORPUS, *KEYS]}
LOOKING = ["tables", "compare", "doctor", "rerun", "race"]
NEEDED = {"compare": ["a=latest", "b=latest"], "rerun": ["run=latest"]}


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user stands, with files of their own."""
    folder = tmp_path / "theirs"
    (folder / "0").mkdir(parents=True)
    for name in ("README.md", "cell.json", "config.yaml", "config.json", "0/config.yaml"):
        (folder / name).write_text("{}")
    (folder / "story.txt").write_text(text(), encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(entry: Entry, theirs: Path, results: Path) -> Callable[..., str]:
    """A command that has to be refused, with nothing changed: its line."""

    def call(name: str, *words: str) -> str:
        before = contents(theirs), contents(results)
        ended = entry(name, results, *words)
        assert (ended.status, ended.out) == (2, ""), ended
        assert (contents(theirs), contents(results)) == before
        return ended.line

    return call


@pytest.mark.parametrize("name", KEEPING)
def test_a_job_keeps_to_the_results_folder(
    name: str, refused: Callable[..., str], results: Path, theirs: Path
) -> None:
    lone, swept = [*KEEPING[name]], [*KEEPING[name], "-m", "seed=1,2"]
    line = refused(name, *lone, "hydra.run.dir=.")
    assert line.startswith(f"{name}: hydra.run.dir={theirs}: must be in {results}/cells, where ")
    line = refused(name, *swept, "hydra.sweep.dir=.")
    assert line.startswith(f"{name}: hydra.sweep.dir={theirs}: must be in {results}/sweeps, ")
    subdir = f"hydra.sweep.subdir={theirs}"
    assert refused(name, *swept, subdir).startswith(f"{name}: {subdir}: the cells of a sweep are")
    for below in (str(theirs), ".", "..", "../../../theirs", "''"):
        line = refused(name, *lone, f"hydra.output_subdir={below}")
        assert "must be the name of a folder in the cell's own" in line


@pytest.mark.parametrize("name", KEEPING)
def test_a_sweep_is_kept_in_one_place(
    name: str, entry: Entry, theirs: Path, tmp_path: Path
) -> None:
    before = contents(tmp_path)
    ended = entry(name, Path(f"{tmp_path}/a,{tmp_path}/b"), *KEEPING[name], "-m")
    assert ended.status == 2
    assert ended.line.startswith(f"{name}: tracking.dir: a sweep is kept in one folder, and a cell")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", KEEPING)
def test_a_folder_that_has_something_in_it_is_refused(
    name: str, refused: Callable[..., str], results: Path, theirs: Path
) -> None:
    link = results / "cells" / "link"
    (results / "cells" / "notes").mkdir(parents=True)
    (results / "cells" / "notes" / "mine.txt").write_text("mine")
    (results / "sweeps" / "notes").mkdir(parents=True)
    (results / "sweeps" / "notes" / "sweep.json").write_text("{}")
    link.symlink_to(theirs)
    line = refused(name, *KEEPING[name], f"hydra.run.dir={results}/cells/notes")
    assert "cells/notes: is not empty, and nothing in it is replaced" in line
    assert "must be in" in refused(name, *KEEPING[name], f"hydra.run.dir={link}")
    assert "must be in" in refused(name, *KEEPING[name], f"hydra.run.dir={results}")
    swept = [*KEEPING[name], "-m", "seed=1,2", f"hydra.sweep.dir={results}/sweeps/notes"]
    assert "sweeps/notes: is not empty" in refused(name, *swept)


def test_a_folder_of_its_own_may_have_a_name(
    instant: list[object], entry: Entry, theirs: Path, results: Path
) -> None:
    (results / "cells" / "mine").mkdir(parents=True)
    words = ["hydra.run.dir=${tracking.dir}/cells/mine", "hydra.output_subdir=.hydra"]
    assert entry("bench", results, *words, "hydra.job.chdir=true").status == 0
    assert (results / "cells" / "mine" / ".hydra" / "config.yaml").is_file()
    assert entry("bench", results, *words).status == 2
    assert len(instant) == 1
    assert sorted(path.name for path in theirs.iterdir()) == [
        *("0", "README.md", "cell.json", "config.json", "config.yaml", "story.txt")
    ]


@pytest.mark.parametrize("name", LOOKING)
def test_what_only_looks_makes_no_folder(name: str, refused: Callable[..., str]) -> None:
    for key, value in (("hydra.run.dir", "new"), ("hydra.output_subdir", ".hydra")):
        line = refused(name, *NEEDED.get(name, []), f"{key}={value}")
        assert line == f"{name}: {key}={value}: {name} keeps no folder; leave {key} out"
    assert "-m: " in refused(name, *NEEDED.get(name, []), "-m", "tracking.uri=null")


REQUIRED = (
    "kind",
    "cell",
    "sweep",
    "choices",
    "outcome",
    "host",
    "pid",
    "process_started",
    "started",
)
"""Keys that a cell.json has had in every version."""


def place(folder: Path, sweep: str | None = None) -> Place:
    return Place(folder, folder.name, sweep, 0, {}, [])


def test_a_cell_measured_again_replaces_its_own_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "a1"
    result.begin(place(folder), "bench", {"a": 1})
    result.finish(place(folder), CellResult("failed", error="a trace", files={"text.txt": "old"}))
    strange = ("notes.txt", "mine.tmp", "figures/plot.png")
    (folder / "figures").mkdir()
    for name in strange:
        (folder / name).write_text(name)
    before_it_was_emptied = (folder / "cell.json").read_text()
    for name in result.FILES:
        (folder / name).write_text("")
    facts = json.loads(before_it_was_emptied)
    (folder / "cell.json").write_text(json.dumps({key: facts[key] for key in REQUIRED}))
    result.begin(place(folder), "bench", {"a": 2})
    assert not (folder / "error.txt").exists()
    assert not (folder / "text.txt").exists()
    assert (folder / "config.yaml").read_text() == "a: 2\n"
    assert all((folder / name).read_text() == name for name in strange)
    result.discard(folder)
    assert set(contents(folder)) == {*strange, "figures"}


@pytest.mark.parametrize("cell", [None, "{}", "[]", "not json"])
def test_a_cell_does_not_begin_among_the_files_of_others(cell: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("theirs")
    if cell is not None:
        (tmp_path / "cell.json").write_text(cell)
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match="nothing is replaced"):
        result.begin(place(tmp_path), "bench", {})
    assert contents(tmp_path) == before


def test_a_run_that_is_taken_back_takes_its_own_files_along(tmp_path: Path) -> None:
    for name, left in (("a1", {"notes", "notes/mine.txt"}), ("a2", set())):
        folder = tmp_path / "cells" / name
        result.begin(place(folder), "train", {})
        if left:
            (folder / "notes").mkdir()
            (folder / "notes" / "mine.txt").write_text("mine")
        result.discard(folder)
        assert set(contents(folder)) == left
        assert folder.exists() == bool(left)


def test_every_file_of_a_cell_is_known(entry: Entry, results: Path, done: Command) -> None:
    checkpoint = text_checkpoint.save(results / "checkpoints" / "small")
    (results / "a.txt").write_text("Holmes")
    quick = [f"checkpoint={checkpoint}", "length.new_tokens=4", "device.threads=1", *KEYS]
    text = f"prompt.file={results / 'a.txt'}"
    assert entry("bench", results, *quick, text, "timing=quick").status == 0
    assert entry("sample", results, *quick, text).status == 0
    assert entry("verify", results, *quick, text).status in (0, 1)
    assert entry("rerun", results, "run=latest").status == 0
    folders = [*(results / "cells").iterdir(), *(done.results / "cells").iterdir()]
    assert len(folders) >= 5  # `done` may have been resumed by another test
    for folder in folders:
        assert result.foreign(folder) is None
    names = {name for folder in folders for name in contents(folder)}
    made_elsewhere = {"code.diff", "error.txt", "prompts.jsonl"}  # not in every run
    assert {n for n in result.FILES if not n.endswith(".tmp")} - names <= made_elsewhere


def checkpoint_of_others(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "README.md"):
        (folder / name).write_text(f"their {name}")
    return folder


def test_a_checkpoint_of_others_is_not_replaced(
    train: Command, done: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = checkpoint_of_others(train.results / "checkpoints" / "llama")
    before = contents(train.results)
    ended = train(capfd, "out=llama")
    assert ended.status == 2
    assert ended.line.startswith(
        f"train: out=llama: {theirs} is not the checkpoint of a training run (its README.md does "
    )
    assert contents(train.results) == before
    ours = done.results / "checkpoints" / done.ids()[0]
    with pytest.raises(FileExistsError, match="is not replaced"):
        publish(ours, theirs)
    assert contents(train.results) == before


def test_what_lies_beside_a_checkpoint_of_ours_stays(done: Command, tmp_path: Path) -> None:
    ours = Path(shutil.copytree(done.results / "checkpoints" / done.ids()[0], tmp_path / "ours"))
    published = Path(shutil.copytree(done.results / "checkpoints" / "story", tmp_path / "story"))
    (published / "notes.txt").write_text("mine")
    (published / "model.safetensors").write_text("old")
    (ours / "notes.txt").write_text("another's")
    publish(ours, published)
    assert (published / "notes.txt").read_text() == "mine"
    assert (published / "model.safetensors").read_bytes() == (
        ours / "model.safetensors"
    ).read_bytes()


def test_a_run_takes_no_name_that_a_checkpoint_has(
    train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = checkpoint_of_others(train.results / "checkpoints" / "llama")
    before = contents(train.results)
    ended = train(capfd, f"hydra.run.dir={train.results}/cells/llama")
    assert ended.status == 2
    assert (
        ended.line == f"train: {theirs}: is there already, and not of this run; nothing is replaced"
    )
    after = contents(train.results)
    assert {name: after.get(name) for name in before} == before
    new = {name for name in set(after) - set(before) if not name.startswith("mlflow.")}
    assert new <= {"cells"}


def test_a_temporary_file_tells_whether_a_folder_can_be_written(tmp_path: Path) -> None:
    from runners.harness.config.paths import unwritable

    assert unwritable(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    assert unwritable(tmp_path / "none") == "No such file or directory"
