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
from tinygpt.hf_tokenizer import HFTokenizer

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


def _changed(name: str, **values: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values))

    return change


def _pickles_only(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def _cut_shard(folder: Path) -> None:
    shard = min(folder.glob("model-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-9])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a broken shard": (_cut_shard, "cannot be read"),
    "a missing shard": (
        lambda folder: max(folder.glob("model-*.safetensors")).unlink(),
        "no such file, and model.safetensors.index.json says that weights are in it",
    ),
    "a missing key": (_changed("config.json", num_hidden_layers=5), "missing model.layers.4."),
    "a wrong shape": (
        _changed("config.json", intermediate_size=80),
        "mlp.gate_proj.weight is [96, 64], the model has [80, 64]",
    ),
    "pickles only": (_pickles_only, "has its weights as pickles only (pytorch_model.bin)"),
    "an unknown rope_type": (
        _changed("config.json", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
        "rope_type=yarn: is not supported; supported are default, linear, llama3",
    ),
    "an unknown architecture": (
        _changed("config.json", model_type="gpt2"),
        "model_type=gpt2: is not supported",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_one_line_and_nothing_is_run(
    name: str, folder: Path, entry: Entry, results: Path, tmp_path: Path
) -> None:
    breaks, line = BROKEN[name]
    other = shutil.copytree(folder, tmp_path / "other")
    breaks(other)
    ended = entry("bench", results, "-m", f"checkpoint={other}", "batch=1,2", *QUICK)
    assert (ended.status, ended.out) == (2, "")
    assert line in ended.line
    assert not (results / "sweeps").exists()


TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


def test_a_prompt_may_be_a_users_turn_or_have_special_tokens(
    folder: Path, entry: Entry, results: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (other / "generation_config.json").unlink(missing_ok=True)
    _changed("config.json", eos_token_id=None)(other)

    def written(*words: str) -> dict[str, Any]:
        before = set(results.glob("cells/*"))
        given = (f"checkpoint={other}", "sampler=greedy", "length.new_tokens=6", *words)
        ended = entry("sample", results, *given, "device.threads=1")
        assert ended.status == 0, ended.err
        (cell,) = set(results.glob("cells/*")) - before
        row: dict[str, Any] = json.loads((cell / "generations.jsonl").read_text(encoding="utf-8"))
        return row

    ours = HFTokenizer.load(other / "tokenizer.json")
    spelt = "<|begin|>user\nthe<|end|>\n<|begin|>assistant\n"
    chat = written("prompt.text=the", "prompt.chat=true")
    assert chat["prompt_ids"] == ours.encode(spelt, allow_special=True)
    assert chat["prompt"] == "the"
    by_hand = written("prompt.special=true", f"prompt.text='{spelt}'")
    assert (by_hand["prompt_ids"], by_hand["new_ids"]) == (chat["prompt_ids"], chat["new_ids"])
    as_text = written(f"prompt.text='{spelt}'")
    assert as_text["prompt_ids"] == ours.encode(spelt)
    assert len(as_text["prompt_ids"]) > len(chat["prompt_ids"])

    # A template that ends a turn with what the model writes fourth.
    tokens = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    fourth = chat["new_ids"][3]
    name = next(name for name, n in tokens["model"]["vocab"].items() if n == fourth)
    tokens["added_tokens"].append(tokens["added_tokens"][0] | {"id": fourth, "content": name})
    (other / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    ending = TEMPLATE.replace("<|end|>", "{{ '<|end|>' if m.role == 'user' else name }}")
    ending = ending.replace("name", json.dumps(name))
    (other / "chat_template.jinja").write_text(ending, encoding="utf-8")
    ended = written("prompt.text=the", "prompt.chat=true")
    assert ended["prompt_ids"] == chat["prompt_ids"]
    until = chat["new_ids"].index(fourth) + 1
    assert (ended["new_ids"], ended["stopped"]) == (chat["new_ids"][:until], True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("prompt.chat=true",), "prompt.chat=true: is for a text, and the prompt is random ids"),
        (("prompt.special=true",), "prompt.special=true: is for a text"),
        (("prompt.chat=true", "prompt.text=x"), "prompt.chat=true: needs a checkpoint with a chat"),
        (
            ("prompt.chat=true", "prompt.text=x", "checkpoint=holmes"),
            "prompt.chat=true: the checkpoint has no chat template; leave it out",
        ),
    ],
)
def test_where_there_is_no_chat(
    words: tuple[str, ...], line: str, entry: Entry, results: Path
) -> None:
    ended = entry("bench", results, *words, *QUICK)
    assert (ended.status, ended.out) == (2, "")
    assert line in ended.line
