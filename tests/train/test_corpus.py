"""The text: cut before anything learns from it; and the checkpoint with its tokenizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.harness.config.schema import TrainConfig
from runners.harness.train import corpus
from runners.harness.train.trainer import Batches, first_weights
from tests.small_text import MODEL, text
from tinygpt.checkpoint import load_model, save_model
from tinygpt.config import PrecisionConfig
from tinygpt.tokenizer import Tokenizer
from tinygpt.weights import hf_config


def corpus_config(path: Path, held_out: float = 0.05, **model: Any) -> TrainConfig:
    config = TrainConfig(model=replace(MODEL, **model))
    config.corpus.path, config.corpus.held_out = str(path), held_out
    return config


def test_c3_the_last_training_target_is_before_the_first_held_out_input(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text(), encoding="utf-8")
    found = corpus.load(corpus_config(path))
    learnt, tail = (found.tokenizer.decode(ids) for ids in (found.train_ids, found.held_out_ids))
    assert learnt + tail == text()
    assert learnt.endswith("\n\n")
    assert 0.05 * len(text()) <= len(tail) < 0.07 * len(text())
    batches = Batches(torch.tensor(found.train_ids), 16, 4, seed=1)
    last = max(max(batches.starts(step)) + 16 for step in range(3 * batches.per_epoch))
    assert last <= len(found.train_ids) - 1
    # ... and nothing of the tail made the tokenizer
    assert found.tokenizer.sha256 == Tokenizer.train(learnt, 300).sha256
    assert found.tokenizer.sha256 != Tokenizer.train(text()[:-9] + tail * 5, 300).sha256
    assert found.train_bytes == len(learnt.encode())
    assert found.text_bytes == len(text().encode())
    first = found.tokenizer.decode_bytes(found.held_out_ids[:1])
    assert found.target_bytes == len(tail.encode()) - len(first)


@pytest.mark.parametrize(
    ("content", "held_out", "tail"),
    [
        ("a" * 100, 0.05, "a" * 5),
        ("word " * 20, 0.05, "word "),
        ("a" * 85 + "\n" + "b" * 14, 0.1, "b" * 14),
        ("a" * 70 + "\n" + "b" * 29, 0.1, "b" * 10),  # further back than the tail is long
        ("x" * 40 + "\n\n" + "b c " * 12, 0.5, "b c " * 12),
        ("ab", 0.5, "b"),
        ("a", 0.05, ""),
    ],
)
def test_the_cut_is_at_a_clean_place_near_the_share(
    content: str, held_out: float, tail: str
) -> None:
    assert corpus.split(content, held_out) == (content[: len(content) - len(tail)], tail)


@pytest.mark.parametrize(
    ("content", "model", "said"),
    [
        (b"", {}, "is empty"),
        (b"abc\xff", {}, "byte 3 is not UTF-8"),
        (b"a", {}, "make 1 tokens, and a window of model.context_length=16 needs at least 17"),
        (b"short " * 3, {}, r"tokens, and a window of model.context_length=16 needs at least 17"),
        (
            text().encode(),
            {"context_length": 40000},
            r"make \d+ tokens, and a window of model.context_length=40000 needs at least 40001",
        ),
        (b"abcdefghijklmnopqrstuvwxyz", {}, "its last 0.05 make 1 tokens, and a loss needs"),
        (
            b"word " * 200,
            {},
            r"vocab_size=300: the tokenizer .* has \d+ entries, .*set model.vocab_size=\d+",
        ),
        (text().encode(), {"vocab_size": 256}, "vocab_size=256 is below 257"),
    ],
)
def test_a_text_that_cannot_be_learnt_is_one_line(
    content: bytes, model: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as raised:
        corpus.load(corpus_config(path, **model))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "said"), [(None, "no text is given"), ("gone", "corpus.path=gone: cannot be read")]
)
def test_a_text_that_is_not_there_is_one_line(path: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        corpus.read_text(path)


def test_a_checkpoint_in_bf16_is_the_rounded_model(tmp_path: Path) -> None:
    model = first_weights(MODEL, 1)
    tokenizer = Tokenizer.train(text(), 300)
    bf16 = PrecisionConfig(kind="bf16")
    save_model(model, tmp_path, precision=bf16, tokenizer=tokenizer, card="# card\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert model.dtype == torch.float32
    loaded = load_model(tmp_path, MODEL)
    assert torch.equal(loaded.emb.weight, model.emb.weight.bfloat16().float())
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (written["torch_dtype"], written["eos_token_id"]) == ("bfloat16", 299)
    assert hf_config.read(written) == MODEL
    assert Tokenizer.load(tmp_path / "tokenizer.json").sha256 == tokenizer.sha256
