"""Old runs run again for real: equal tokens, and what is said where they are not."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.harness.measure import subject
from runners.harness.store.tracking import Store
from runners.harness.sweep import plan
from tests import text_checkpoint
from tests.small_text import KEYS, MODEL
from tests.text_checkpoint import generations
from tests.train_command import Ended
from tinygpt.checkpoint import random_model, save_model
from tinygpt.sampling import Sampler, make_sampler

Entry = Callable[..., Ended]
NANO = ("model=nano", "length.new_tokens=6", "timing=quick", "device.threads=1")
PROMPTS = ["It was a", "the lamp\u2028 of the", 'a "letter" went']


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file below, with its bytes and when it was changed."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def rows(folder: Path) -> list[dict[str, Any]]:
    found = generations(folder)
    assert found
    return found


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@dataclass
class Again:
    """A run of some kind, and its rerun."""

    kind: str
    results: Path
    ended: Ended
    old: Path
    """Its folder: of a cell, or of a sweep."""
    new: Path
    before: tuple[Any, Any]
    """The old folder's files and MLflow's runs, before the rerun."""

    @classmethod
    def of(cls, kind: str, entry: Entry, results: Path, old: Path, *words: str) -> "Again":
        def folders() -> set[Path]:
            return {path for d in ("cells", "sweeps") for path in (results / d).glob("*")}

        before = contents(old), runs_of(results, kind)
        made = folders()
        ended = entry("rerun", results, f"run={old.name}", *words)
        assert ended.status == 0, ended.err
        (new,) = folders() - made
        return cls(kind, results, ended, old, new, before)

    def cells(self) -> list[tuple[Path, Path]]:
        """Folders of the old cells, each with its new one."""
        if (self.old / "cell.json").is_file():
            return [(self.old, self.new)]
        numbers = sorted(path.parent.name for path in self.old.glob("*/cell.json"))
        return [(self.old / n, self.new / n) for n in numbers]

    def run(self, folder: Path) -> Any:
        name = json.loads((folder / "cell.json").read_text())["cell"]
        (run,) = Store(self.results).search(self.kind, f"tags.`tinygpt.cell` = '{name}'")
        return run


def runs_of(results: Path, kind: str) -> dict[str, Any]:
    """All that MLflow has of the runs of a kind, by id."""
    return {run.info.run_id: run.to_dictionary() for run in Store(results).search(kind, "")}


@pytest.fixture(scope="module")
def results(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerun") / "results"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def bench(entry: Entry, results: Path) -> Again:
    """A sweep of greedy and sampled cells, batch 1 and 4."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "calibrate", lambda *_: plan.Machine(1e-4, 1e9))
        ended = entry("bench", results, "-m", "sampler=greedy,t1.0", "batch=1,4", *NANO)
    assert ended.status == 0, ended.err
    return Again.of("bench", entry, results, only(results / "sweeps"))


@pytest.fixture(scope="module")
def texts(
    entry: Entry, empty_store: Path, writer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Again:
    """Sampled texts after prompts of a file that is gone since."""
    folder = tmp_path_factory.mktemp("texts")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(p) + "\n" for p in PROMPTS), encoding="utf-8")
    results = folder / "results"
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    words = (f"checkpoint={writer}", *KEYS, "length.new_tokens=6", "device.threads=1")
    ended = entry("sample", results, f"prompt.jsonl={prompts}", "sampler=t1.0", *words)
    assert ended.status == 0, ended.err
    prompts.unlink()
    return Again.of("sample", entry, results, only(results / "cells"))


@pytest.fixture(scope="module")
def verified(
    entry: Entry, empty_store: Path, writer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Again:
    results = tmp_path_factory.mktemp("verified") / "results"
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    words = (f"checkpoint={writer}", *KEYS, "length.new_tokens=20", "device.threads=1")
    ended = entry("verify", results, "check=cache", *words)
    assert ended.status == 0, ended.err
    return Again.of("verify", entry, results, only(results / "cells"))


@pytest.fixture(params=["bench", "texts", "verified"])
def kind(request: pytest.FixtureRequest) -> Again:
    """A run of each kind, run again."""
    found: Again = request.getfixturevalue(request.param)
    return found


# the same again


def test_tokens_are_equal(kind: Again) -> None:
    assert "  nothing has changed since\n" in kind.ended.out
    for old, new in kind.cells():
        assert rows(new) == rows(old)
        told = json.loads((new / "rerun.json").read_text())
        assert told["tokens"] == "identical"
        assert told["changed_since"] == told["changed_by_command"] == []
        tags = [kind.run(folder).data.tags for folder in (old, new)]
        for name in ("tokens_sha256", "cell_hash", "weights_sha256", "prompt_sha256"):
            assert tags[0][f"tinygpt.{name}"] == tags[1][f"tinygpt.{name}"]


def test_sampled_rows_differ_from_each_other_and_from_the_greedy_ones(bench: Again) -> None:
    """Else equal tokens would show little."""
    greedy, sampled = ([row["new_ids"] for row in rows(bench.new / n)] for n in "13")
    assert len({tuple(ids) for ids in sampled}) == 4
    assert greedy != sampled


def test_the_old_run_is_untouched(kind: Again) -> None:
    files, runs = kind.before
    assert contents(kind.old) == files
    now = runs_of(kind.results, kind.kind)
    assert {run_id: now[run_id] for run_id in runs} == runs
    assert len(now) > len(runs)


def test_the_new_run_is_tagged_and_has_the_comparison_as_an_artifact(kind: Again) -> None:
    for old, new in kind.cells():
        run = kind.run(new)
        tags = run.data.tags
        assert tags["tinygpt.kind"] == "rerun"
        assert tags["tinygpt.rerun_of"] == kind.run(old).data.tags["tinygpt.cell"]
        assert tags["tinygpt.outcome"] == "ok"
        assert tags["tinygpt.rerun_tokens"] == "identical"
        timed = ("same", "faster", "slower", "unclear")
        assert tags["tinygpt.rerun_timing"] in (
            timed if kind.kind == "bench" else ["not comparable"]
        )
        assert run.info.status == "FINISHED"
        names = {file.path for file in Store(kind.results).client.list_artifacts(run.info.run_id)}
        assert {"rerun.md", "rerun.json", "config.yaml", "generations.jsonl"} <= names
        assert run.data.params.items() >= choices(kind.run(old)).items()


def choices(run: Any) -> dict[str, str]:
    """The options that were chosen."""
    return {k: v for k, v in run.data.params.items() if k.startswith("choice.")}


def test_prompts_of_a_file_that_is_gone_are_read_from_the_runs_own_copy(texts: Again) -> None:
    assert [row["prompt"] for row in rows(texts.new)] == PROMPTS
    copies = [(folder / "prompts.jsonl").read_bytes() for folder in (texts.old, texts.new)]
    assert copies[0] == copies[1]


def test_a_text_is_run_shorter_by_value(texts: Again, entry: Entry) -> None:
    ended = entry("rerun", texts.results, f"run={texts.old.name}", "length.new_tokens=3")
    assert ended.status == 0, ended.err
    assert "  asked for: length.new_tokens 6 -> 3\n" in ended.out
    assert "tokens identical: 3 rows of 3 new tokens" in ended.out
    assert "timing not comparable: runs of kind sample are not timed" in ended.out


# tokens that are not the same


def test_an_old_run_with_other_tokens_is_a_mismatch(
    bench: Again, entry: Entry, tmp_path: Path
) -> None:
    folder = shutil.copytree(bench.old / "3", tmp_path / "edited")
    edited = rows(folder)
    was = edited[2]["new_ids"][4]
    edited[2]["new_ids"][4] = was + 1
    edited[3]["new_ids"][0] += 1
    path = folder / "generations.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in edited), encoding="utf-8")
    ended = entry("rerun", bench.results, f"config={folder / 'config.yaml'}")
    assert ended.status == 1
    said = f"row 2 parts at new token 4 (position 12 with the prompt): {was + 1} before, {was} now"
    assert f"  tokens different: {said}\n" in ended.out
    last = ended.err.splitlines()[-1]
    assert f" mismatch: not the tokens of {bench.old.name}-3: {said}" in last
    new = last.partition(" ")[0]
    (run,) = Store(bench.results).search("bench", f"tags.`tinygpt.cell` = '{new}'")
    assert (run.data.tags["tinygpt.outcome"], run.info.status) == ("mismatch", "FAILED")
    told = json.loads((bench.results / "cells" / new / "rerun.json").read_text())
    assert told["tokens"] == "different"


def test_a_sampler_that_draws_otherwise_is_found(
    bench: Again, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_seed(*args: Any, seed: int, **keys: Any) -> Sampler:
        return make_sampler(*args, seed=seed + 1, **keys)

    monkeypatch.setattr(subject, "make_sampler", other_seed)
    ended = entry("rerun", bench.results, f"run={bench.old.name}-2")
    assert ended.status == 1
    assert "tokens different: row 0 parts at new token " in ended.out


def test_other_weights_under_the_same_name_are_said_and_not_compared(
    entry: Entry, empty_store: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    mine = text_checkpoint.save(results / "checkpoints" / "mine")
    shutil.copy(empty_store, results / "mlflow.db")
    words = ("checkpoint=mine", *KEYS, "length.new_tokens=4", "timing=quick", "device.threads=1")
    assert entry("bench", results, *words).status == 0
    old = only(results / "cells")
    shutil.rmtree(mine)
    save_model(random_model(MODEL, 2), mine, tokenizer=text_checkpoint.tokenizer())
    refused = entry("rerun", results, "run=latest", "strict=true")
    assert (refused.status, refused.out) == (2, "")
    assert "strict=true: changed since: weights: " in refused.line
    assert only(results / "cells") == old
    ended = entry("rerun", results, "run=latest")
    assert ended.status == 0, ended.err
    assert "  changed since: weights: " in ended.out
    assert "  tokens not comparable: the weights are not the old one's\n" in ended.out
    weights = mine / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    before = sorted(results.glob("cells/*"))
    ended = entry("rerun", results, f"run={old.name}")
    assert (ended.status, ended.out) == (2, "")
    assert f"{weights}: cannot be read" in ended.line
    assert sorted(results.glob("cells/*")) == before


# where its files are


LONG = "".join(f"{n} lamps of {n * n} streets; " for n in range(1000))[:7000]


@pytest.fixture
def long(entry: Entry, empty_store: Path, tmp_path: Path) -> Path:
    """The results folder of a run on a prompt of 7,000 characters, whose file changed since."""
    results, prompt = tmp_path / "results", tmp_path / "prompt.txt"
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    prompt.write_text(LONG, encoding="utf-8")
    tiny = ("n_layers=1", "n_heads=1", "n_kv_heads=1", "d_model=8", "head_dim=8", "d_ff=8")
    model = [f"model.{word}" for word in (*tiny, "vocab_size=256", "context_length=8192")]
    once = ("timing.min_repeats=1", "timing.max_repeats=1", "timing.budget_s=0")
    words = (f"prompt.file={prompt}", *model, *once, "length.new_tokens=2", "device.threads=1")
    ended = entry("bench", results, *words)
    assert ended.status == 0, ended.err
    prompt.write_text("another text", encoding="utf-8")
    return results


def newest(results: Path) -> Path:
    """The folder of the cell that began last."""
    cells = (results / "cells").glob("*/cell.json")
    return max(cells, key=lambda path: json.loads(path.read_text())["started"]).parent


def feeds_all_of_it(results: Path) -> bool:
    folder = newest(results)
    (row,) = rows(folder)
    assert (folder / "prompt.txt").read_text(encoding="utf-8") == LONG
    return bytes(row["prompt_ids"]).decode() == LONG


def test_m4_a_prompt_of_7000_characters_is_fed_whole_though_its_file_changed(
    long: Path, entry: Entry
) -> None:
    assert feeds_all_of_it(long)
    first = newest(long)
    ended = entry("rerun", long, "run=latest", "strict=true")
    assert ended.status == 0, ended.err
    assert "  nothing has changed since\n" in ended.out
    assert "tokens identical: 1 row of 2 new tokens" in ended.out
    second = newest(long)
    assert second != first
    assert feeds_all_of_it(long)
    # The rerun has a copy of its own: it outlives what it was a rerun of.
    shutil.rmtree(first)
    ended = entry("rerun", long, f"run={second.name}")
    assert ended.status == 0, ended.err
    assert "tokens identical" in ended.out
    assert feeds_all_of_it(long)


def test_m7_without_its_folder_a_run_is_read_from_mlflow_and_without_both_the_doctor_is_named(
    long: Path, entry: Entry
) -> None:
    (long.parent / "prompt.txt").unlink()
    shutil.rmtree(long / "cells")
    ended = entry("rerun", long, "run=latest")
    assert ended.status == 0, ended.err
    assert "tokens identical: 1 row of 2 new tokens" in ended.out
    assert "  nothing has changed since\n" in ended.out
    assert feeds_all_of_it(long)
    shutil.rmtree(long / "cells")
    shutil.rmtree(long / "artifacts")
    ended = entry("rerun", long, "run=latest")
    assert (ended.status, ended.out) == (2, "")
    assert "python -m runners.doctor fix=true" in ended.line
    assert not (long / "cells").exists()


@pytest.mark.parametrize("content", [b"a: [", b"\xff"])
def test_a_stored_config_that_is_damaged_is_one_line_with_the_cure(
    content: bytes, long: Path, entry: Entry
) -> None:
    (config,) = long.glob("cells/*/config.yaml")
    config.write_bytes(content)
    ended = entry("rerun", long, "run=latest")
    assert (ended.status, ended.out) == (2, "")
    assert "cannot be run again (" in ended.line
    assert "python -m runners.doctor" in ended.line


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
