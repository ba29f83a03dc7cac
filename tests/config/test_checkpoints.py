"""The checkpoint decides the model: a Hugging Face folder or a GGUF file is one option away."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from runners.harness.store.tracking import Store
from runners.harness.tables.frames import cells
from tests.tinygpt.test_architectures import Saved
from tests.tinygpt.test_gguf import write
from tests.tinygpt.test_hf_tokenizer import byte_level, metadata
from tests.train_command import Ended

Entry = Callable[..., Ended]
QUICK = ("length.new_tokens=4", "device.threads=1", "timing=quick")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen2 that transformers saved in shards, with a tokenizer of its own."""
    found = tmp_path_factory.mktemp("models") / "my-qwen2"
    Saved("qwen2", found, vocab_size=400)
    byte_level(found)
    return found


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """The same model and tokenizer in one file."""
    saved = Saved("qwen2", folder.parent / "again", vocab_size=400)
    path = folder.parent / "my-qwen2.gguf"
    facts = metadata(byte_level(folder.parent))

    def add_tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(facts["model"])
        writer.add_tokenizer_pre(facts["pre"])
        writer.add_token_list(facts["tokens"])
        writer.add_token_types(facts["token_type"])
        writer.add_token_merges(facts["merges"])

    return write(path, saved.ours, "qwen2", also=add_tokenizer)


def told(results: Path, kind: str = "bench") -> list[dict[str, Any]]:
    """cell.json of every cell, in order of time."""
    found = [json.loads(p.read_text()) for p in results.glob("cells/*/cell.json")]
    return sorted((cell for cell in found if cell["kind"] == kind), key=lambda c: c["started"])


def test_a_folder_and_a_file_need_no_further_word(
    folder: Path, file: Path, entry: Entry, results: Path
) -> None:
    texts = []
    for path in (folder, file):
        words = (f"checkpoint={path}", "prompt.text=the river", "sampler=greedy", *QUICK[:2])
        ended = entry("sample", results, *words)
        assert ended.status == 0, ended.err
        (row,) = (
            json.loads(line)
            for cell in results.glob("cells/*/generations.jsonl")
            if str(path) + "\n" in (cell.parent / "config.yaml").read_text()
            for line in cell.read_text().splitlines()
        )
        texts.append(row["new_ids"])
    assert texts[0] == texts[1]
    assert [cell["choices"]["model"] for cell in told(results, "sample")] == [
        "my-qwen2",
        "my-qwen2.gguf",
    ]


def test_every_cache_is_measured_and_the_table_names_the_checkpoint(
    file: Path, entry: Entry, results: Path
) -> None:
    words = ("-m", f"checkpoint={file}", "cache=none,rolling,static", "batch.size=1,3", *QUICK)
    ended = entry("bench", results, *words)
    assert ended.status == 0, ended.err
    frame = cells("latest", Store(results))
    assert set(frame["model"]) == {"my-qwen2.gguf"}
    assert set(frame["outcome"]) == {"ok"}
    run = Store(results).search("bench", "tags.`tinygpt.kind` = 'bench'", limit=1)[0]
    assert run.data.params["model.qkv_bias"] == "True"


def test_a_window_may_be_lower_and_nothing_else_may_differ(
    folder: Path, entry: Entry, results: Path
) -> None:
    given = f"checkpoint={folder}"
    assert entry("bench", results, given, "model.context_length=16", *QUICK).status == 0
    assert "context_length: 16" in next(results.glob("cells/*/config.yaml")).read_text()
    for word, line in (
        (
            "model.context_length=129",
            f"{given} has 128; leave model.context_length out, or give at",
        ),
        ("model.n_layers=5", f"model.n_layers=5: {given} has 4; leave model.n_layers out"),
        ("model=nano", f"model=nano: {given} is another model (vocab_size 400, not 4096"),
    ):
        ended = entry("bench", results, given, word, *QUICK)
        assert (ended.status, ended.out) == (2, "")
        assert line in ended.line
    assert len(list(results.glob("cells/*"))) == 1  # nothing was run
    assert entry("bench", results, given, "model.n_layers=4", *QUICK).status == 0  # it agrees


def test_a_rerun_takes_the_stored_model(file: Path, entry: Entry, results: Path) -> None:
    given = f"checkpoint={file}"
    assert entry("bench", results, given, *QUICK).status == 0
    ended = entry("rerun", results, "run=latest", "strict=true")
    assert ended.status == 0, ended.err
    assert "tokens identical" in ended.out


def test_a_text_ends_at_the_end_tokens_of_the_checkpoint(
    folder: Path, entry: Entry, results: Path, tmp_path: Path
) -> None:
    def written(path: Path, *words: str) -> dict[str, Any]:
        before = set(results.glob("cells/*"))
        given = (f"checkpoint={path}", "prompt.text=the", "sampler=greedy", "length.new_tokens=6")
        ended = entry("sample", results, *given, "device.threads=1", *words)
        assert ended.status == 0, ended.err
        (cell,) = set(results.glob("cells/*")) - before
        row: dict[str, Any] = json.loads((cell / "generations.jsonl").read_text(encoding="utf-8"))
        return row

    whole = written(folder)["new_ids"]
    assert len(whole) == 6
    other = shutil.copytree(folder, tmp_path / "other")
    for name, ids in (("config.json", whole[3]), ("generation_config.json", [whole[3], 399])):
        path = other / name
        facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        path.write_text(json.dumps(facts | {"eos_token_id": ids}), encoding="utf-8")
        row = written(other)
        assert (row["new_ids"], row["stopped"]) == (whole[: whole.index(whole[3]) + 1], True)
    assert written(other, "stop=null")["new_ids"] == whole
    assert written(other, "stop=nowhere")["new_ids"] == whole


@pytest.mark.parametrize("cut", [0, 100, -100])
def test_a_file_that_is_cut_short_is_one_line_and_nothing_is_run(
    cut: int, file: Path, entry: Entry, results: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(file.read_bytes()[:cut])
    ended = entry("bench", results, "-m", f"checkpoint={half}", "batch=1,2", *QUICK)
    assert (ended.status, ended.out) == (2, "")
    assert f"{half}: cannot be read (" in ended.line
    assert not (results / "sweeps").exists()


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(
    tmp_path: Path, entry: Entry, results: Path
) -> None:
    folder = tmp_path / "small"
    Saved("llama", folder)  # of 300 ids
    byte_level(folder)  # of 400
    ended = entry("sample", results, f"checkpoint={folder}", "prompt.text=the", *QUICK[:2])
    assert (ended.status, ended.out) == (2, "")
    assert "tokenizer has 400 entries and the model 300" in ended.line
