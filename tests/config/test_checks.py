"""What is looked at before a run: a checkpoint's files key by key, its tokenizer, the prompt's ids;
and that a check which breaks down stops the command.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runners.harness.config import checks
from runners.harness.config.checks import check_bench
from runners.harness.config.schema import (
    BenchConfig,
    DeviceConfig,
    LengthConfig,
    PromptConfig,
    PromptsConfig,
    RaceConfig,
    SampleConfig,
    TextPromptConfig,
    TimingConfig,
    TrackingConfig,
    VerifyConfig,
)
from runners.harness.errors import UsageError
from runners.harness.measure import cell, subject
from runners.harness.measure.result import CellResult
from runners.harness.text.race import race
from runners.harness.text.sample import sample
from runners.harness.verify.run import verify
from tests import text_checkpoint
from tests.small_text import KEYS, MODEL
from tests.text_checkpoint import Sample
from tests.train_command import Ended
from tinygpt.checkpoint import load_model, random_model, save_model, to_llama
from tinygpt.config import ModelConfig
from tinygpt.tokenizer import Tokenizer
from tinygpt.weights import hf_config
from tinygpt.weights.names import shapes

Entry = Callable[..., Ended]
INF = float("inf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer."""
    return text_checkpoint.save(tmp_path / "mine")


def bench(folder: Path, **changes: Any) -> BenchConfig:
    parts: dict[str, Any] = {
        "model": MODEL,
        "device": DeviceConfig(threads=1),
        "length": LengthConfig(new_tokens=4),
        "timing": TimingConfig(min_repeats=1, max_repeats=1),
        "checkpoint": str(folder),
        "tracking": TrackingConfig(dir=str(folder.parent / "unused")),
    }
    return BenchConfig(**parts | changes)


def refused(config: BenchConfig) -> str:
    with pytest.raises(UsageError) as error:
        check_bench(config)
    return str(error.value)


# config.json


@pytest.mark.parametrize("content", [[], None, 3, "llama", [{"model_type": "llama"}]])
def test_a_config_json_that_is_no_object_is_refused(content: Any, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(content))
    line = refused(bench(folder))
    assert f"{folder / 'config.json'}: not the config of a supported model" in line
    assert "internal" not in line


WHOLE = (
    "vocab_size",
    "max_position_embeddings",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)
BAD = {"a list": [32], "a text": "32", "half": 32.5, "negative": -1, "zero": 0, "true": True}
BAD |= {"an object": {}, "infinite": INF, "huge": 2**31}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("key", WHOLE)
def test_a_size_of_another_type_or_range_is_named_with_its_value(key: str, bad: Any) -> None:
    config = json.loads(json.dumps(hf_config.write(MODEL) | {key: bad}))
    wanted = f"{key}={bad!r}: must be a whole number from 1 to 2**31 - 1"
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
        hf_config.read(config)


@pytest.mark.parametrize("bad", ["1e-5", [1e-5], True, -1e-5, 0, INF, float("nan")], ids=str)
def test_an_epsilon_of_another_type_or_range_is_named(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^rms_norm_eps=.*: must be a number above 0$"):
        hf_config.read(hf_config.write(MODEL) | {"rms_norm_eps": bad})


@pytest.mark.parametrize("bad", [0, 1, "false", []], ids=str)
def test_a_switch_of_another_type_is_named(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^tie_word_embeddings=.*: must be true or false$"):
        hf_config.read(hf_config.write(MODEL) | {"tie_word_embeddings": bad})


@pytest.mark.parametrize(
    "key", [key for key in WHOLE if key not in ("num_key_value_heads", "head_dim")]
)
@pytest.mark.parametrize("given", [{}, {"null": None}], ids=["missing", "null"])
def test_a_size_that_is_not_there_is_named(key: str, given: dict[str, None]) -> None:
    config = hf_config.write(MODEL)
    del config[key]
    with pytest.raises(ValueError, match=f"^{key}: missing"):
        hf_config.read(config | dict.fromkeys([key] * len(given)))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000], ids=["", "{", "ff", "["])
def test_a_config_json_that_is_no_json_is_one_line(content: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    line = refused(bench(folder))
    assert "not the config of a supported model" in line
    assert "internal" not in line


# the weights' header


@pytest.mark.parametrize("tied", [True, False])
def test_the_shapes_are_those_of_the_model(tied: bool) -> None:
    config = ModelConfig(n_layers=2, n_kv_heads=2, head_dim=16, tie_embeddings=tied)
    found = {name: list(tensor.shape) for name, tensor in to_llama(random_model(config, 1)).items()}
    assert shapes(config) == found


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


NORM = "model.norm.weight"
WRONG_WEIGHTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "missing": (lambda tensors: tensors.pop(NORM), f"missing {NORM} [32]"),
    "unknown": (lambda tensors: tensors.update(b=torch.ones(3)), "unknown b [3]"),
    "shape": (
        lambda tensors: tensors.update({NORM: torch.ones(31)}),
        f"{NORM} is [31], the model has [32]",
    ),
    "format": (
        lambda tensors: tensors.update({NORM: torch.ones(32, dtype=torch.int8)}),
        "has weights in I8; only F64, F32, F16, BF16 are read",
    ),
}


@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_weights_that_do_not_fit_are_refused_by_their_header(case: str, folder: Path) -> None:
    change, said = WRONG_WEIGHTS[case]
    changed(folder, change)
    assert said in refused(bench(folder))
    with pytest.raises(ValueError, match=re.escape(said)):  # the library says the same by itself
        load_model(folder, MODEL)


@pytest.mark.parametrize("kept", [0, 7, 1000, -1])
def test_weights_that_are_cut_short_are_refused(kept: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path}: cannot be read" in refused(bench(folder))


# the tokenizer and the prompt


def foreign(folder: Path) -> None:
    """A tokenizer.json as other models have one."""
    document = json.loads((folder / "tokenizer.json").read_bytes())
    document["normalizer"] = {"type": "NFC"}
    (folder / "tokenizer.json").write_text(json.dumps(document))


def test_a_tokenizer_of_another_kind_is_refused_where_a_text_needs_it(folder: Path) -> None:
    foreign(folder)
    line = refused(bench(folder, prompt=PromptConfig(text="the river")))
    assert "tokenizer.json: is another kind of tokenizer (ValueError: another normalizer)" in line
    assert "only tinygpt's own byte-level BPE can be read" in line
    assert "train" not in line
    check_bench(bench(folder))  # random ids need none


@pytest.mark.parametrize("name", ["bench", "sample", "verify", "race"])
def test_every_entry_point_refuses_it_before_anything_runs(
    name: str, folder: Path, entry: Entry, tmp_path: Path
) -> None:
    foreign(folder)
    ended = entry(
        name, tmp_path / "results", f"checkpoint={folder}", *KEYS, "prompt.text=the river"
    )
    assert (ended.status, ended.out) == (2, "")
    assert "only tinygpt's own byte-level BPE" in ended.line
    assert not (tmp_path / "results").exists()


def resized(folder: Path, vocab_size: int) -> ModelConfig:
    """Give the checkpoint a model with another vocabulary than its tokenizer's."""
    model = random_model(ModelConfig(**vars(MODEL) | {"vocab_size": vocab_size}), 1)
    tokenizer = (folder / "tokenizer.json").read_bytes()
    save_model(model, folder)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return model.config


def test_a_prompt_whose_ids_are_not_the_models_is_refused(folder: Path) -> None:
    model = resized(folder, 270)  # as small as that the tokenizer's first merges are still in it
    line = refused(bench(folder, model=model, prompt=PromptConfig(text="the river")))
    assert "is outside the model's vocabulary of 270 (the tokenizer has 300)" in line
    check_bench(bench(folder, model=model, prompt=PromptConfig(text="x")))  # ids that fit


def test_a_byte_that_is_no_id_is_refused_without_a_tokenizer(tmp_path: Path) -> None:
    model = ModelConfig(**vars(MODEL) | {"vocab_size": 120})
    config = bench(tmp_path / "x", model=model, checkpoint="none", prompt=PromptConfig(text="y"))
    assert "its id 121 is outside the model's vocabulary of 120" in refused(config)


def test_a_line_of_a_file_of_prompts_is_checked_too(folder: Path, tmp_path: Path) -> None:
    model = resized(folder, 270)
    path = tmp_path / "prompts.jsonl"
    path.write_text('"x"\n"the river"\n')
    config = SampleConfig(
        model=model,
        prompt=PromptsConfig(jsonl=str(path)),
        checkpoint=str(folder),
        tracking=TrackingConfig(dir="unused"),
    )
    with pytest.raises(UsageError, match="outside the model's vocabulary of 270"):
        checks.check_text(config)


PADDED = "the tokenizer has 300 entries and the model 512: ids from 300 on are no text"


@pytest.fixture
def padded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Parts of a config whose model, like some that are published, has more ids than its tokenizer
    has entries; it writes nothing but one of those.
    """
    model = resized(folder, 512)
    biased = load_model(folder, model)
    with torch.no_grad():
        for name, weight in biased.named_parameters():
            weight.zero_() if weight.ndim > 1 else weight.fill_(1.0)
            if name.startswith("emb"):
                weight[:, 0] = 1.0
                weight[511, 0] = 2.0
    monkeypatch.setattr(subject, "make_model", lambda *_: biased)
    return {
        "model": model,
        "device": DeviceConfig(threads=1),
        "length": LengthConfig(new_tokens=6),
        "checkpoint": str(folder),
        "tracking": TrackingConfig(dir="unused"),
    }


def told_once(result: CellResult) -> None:
    assert result.outcome in ("ok", "mismatch"), result.error or result.reason
    assert result.notes == [PADDED]
    for row in result.generations:
        assert row["new_ids"] == [511] * 6
        assert row["text"] == ""


def test_ids_beyond_the_tokenizer_are_no_text_and_a_note_says_so(padded: dict[str, Any]) -> None:
    text = "the river"
    quick = TimingConfig(min_repeats=1, max_repeats=1)
    told_once(cell.run_cell(BenchConfig(prompt=PromptConfig(text=text), timing=quick, **padded)))
    shown: list[str] = []
    config = SampleConfig(prompt=PromptsConfig(text=text), **padded)
    told_once(sample(config, lambda prompt, piece: shown.append(piece)))
    assert "".join(shown) == ""
    prompt = TextPromptConfig(text=text)
    told_once(verify(VerifyConfig(prompt=prompt, check="cache", **padded)))
    raced = race(RaceConfig(prompt=prompt, **padded))
    assert raced.notes == [PADDED]
    assert [b"".join(side.pieces) for side in raced.passes] == [b"", b""]


def test_a_padded_tokenizer_is_the_same_but_for_ids_that_are_no_text() -> None:
    tokenizer = text_checkpoint.tokenizer()
    wider = tokenizer.padded(302)
    assert (wider.vocab_size, wider.sha256) == (tokenizer.vocab_size, tokenizer.sha256)
    assert wider.decode_bytes([104, 300, 301, 105]) == b"hi"
    with pytest.raises(ValueError, match=r"302 is outside 0\.\.301"):
        wider.decode_bytes([302])
    with pytest.raises(ValueError, match=r"300 is outside 0\.\.299"):
        tokenizer.decode_bytes([300])
    assert Tokenizer([]).padded(3).decode_bytes([256]) == b"<|endoftext|>"


# a check that breaks down


@pytest.mark.parametrize("arguments", [(), ("-m", "seed=1,2")], ids=["alone", "sweep"])
def test_an_error_that_nobody_foresaw_stops_the_command(
    arguments: tuple[str, ...],
    entry: Entry,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    instant: list[Any],
) -> None:
    def broken(*_: object) -> None:
        raise AttributeError("'list' object has no attribute 'get'")

    monkeypatch.setattr(checks, "check_checkpoint", broken)
    words = ("checkpoint=holmes", "length.new_tokens=4", *arguments)
    ended = entry("bench", results, *words)
    assert (ended.status, ended.out) == (2, "")
    assert "internal error in a check: AttributeError: 'list' object has no" in ended.line
    assert "nothing was run" in ended.line
    assert instant == []
    assert [path for path in results.iterdir() if path.is_dir()] == []
    monkeypatch.setenv("TINYGPT_DEBUG", "1")
    assert "in broken" in entry("bench", results, *words).err


def test_a_broken_checkpoint_is_one_line_and_no_run(
    sample: Sample, writer: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(writer, tmp_path / "copy")
    (folder / "config.json").write_text("[]")
    ended = sample(f"checkpoint={folder}")
    assert (ended.status, ended.out) == (2, "")
    assert "config.json: not the config of a supported model" in ended.line
    assert sample.made_nothing()
