"""Other tokenizers: their ids are those of the library and transformers, and texts come back."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests import small_text
from tinygpt.hf_tokenizer import PRE_TOKENIZERS, HFTokenizer

TEXT = "It was 1984 on the bridge, wasn't it?\r\n  naïve 漢字 🙂\t<|end|> x"
SPECIAL = ["<|begin|>", "<|end|>"]


def byte_level(
    folder: Path, bos: bool = False, vocab_size: int = 400, also: tuple[str, ...] = ()
) -> Path:
    """A byte-level BPE like that of Llama 3, which has learnt the small text and ``also``."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([small_text.text(), *also], trainer)
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def sentence_piece(folder: Path, vocab_size: int = 500, also: tuple[str, ...] = ()) -> Path:
    """A BPE like that of Llama 2: spaces are ▁, and lone bytes have entries."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", *SPECIAL, *bytes_], show_progress=False
    )
    made.train_from_iterator([small_text.text(), *also], trainer)
    made.save(str(folder / "tokenizer.json"))
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    document["added_tokens"] = [
        entry for entry in document["added_tokens"] if not entry["content"].startswith("<0x")
    ]
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return folder / "tokenizer.json"


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_a_text_comes_back_from_its_ids(make: Any, tmp_path: Path) -> None:
    found = HFTokenizer.load(make(tmp_path))
    text = found.decode(found.encode(TEXT))
    assert text.removeprefix(" ") == TEXT  # SentencePiece puts a space in front
    pieces = b"".join(found.decode_bytes([token_id]) for token_id in found.encode(TEXT))
    assert pieces.decode() == text


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_any_text_comes_back(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = HFTokenizer.load(_any(tmp_path_factory))
    assert found.decode(found.encode(text)) == text


def _any(factory: pytest.TempPathFactory) -> Path:
    folder = factory.getbasetemp() / "any_tokenizer"
    if not folder.is_dir():
        folder.mkdir()
        byte_level(folder)
    return folder / "tokenizer.json"


def test_special_tokens_in_a_text_stay_text_unless_asked_for(tmp_path: Path) -> None:
    found = HFTokenizer.load(byte_level(tmp_path))
    assert 1 not in found.encode("a<|end|>b")
    assert found.decode(found.encode("a<|end|>b")) == "a<|end|>b"
    assert found.encode("a<|end|>b", allow_special=True).count(1) == 1
    assert found.decode([1]) == "<|end|>"


@pytest.mark.parametrize("bos", [False, True])
def test_a_beginning_is_put_where_transformers_puts_it(bos: bool, tmp_path: Path) -> None:
    path = byte_level(tmp_path, bos)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    found = HFTokenizer.load(path)
    assert found.encode(TEXT, allow_special=True) == theirs(TEXT).input_ids
    assert (found.encode("a")[0] == 0) is bos


def metadata(path: Path, **changes: Any) -> dict[str, Any]:
    """What a GGUF file has of the tokenizer in ``path``."""
    document = json.loads(path.read_text(encoding="utf-8"))
    vocab = document["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {entry["content"] for entry in document["added_tokens"]}
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3 if token in special else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in document["model"]["merges"]],
        "bos_token_id": 0,
        **changes,
    }


def test_the_vocabulary_of_a_gguf_file_is_the_tokenizer_it_came_from(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    one, other = HFTokenizer.load(path), HFTokenizer.from_gguf(metadata(path), path)
    for text in (TEXT, small_text.text(20)):
        for special in (False, True):
            assert one.encode(text, special) == other.encode(text, special)
    assert HFTokenizer.from_gguf(metadata(path, add_bos_token=True), path).encode("a")[0] == 0


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("qwen2", None, False),
        ("gpt-2", True, True),
    ],
)
def test_a_text_begins_as_the_file_says_or_as_llama_cpp_does(
    pre: str, said: bool | None, begins: bool, tmp_path: Path
) -> None:
    path = byte_level(tmp_path)
    says = {} if said is None else {"add_bos_token": said}
    found = HFTokenizer.from_gguf(metadata(path, pre=pre, **says), path)
    assert (found.encode("a")[0] == 0) is begins
    assert (
        found.encode("<|begin|>a", allow_special=True).count(0) == 1
    )  # where llama.cpp puts a second


def test_the_unknown_token_is_a_special_token(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    facts = metadata(path)
    facts["token_type"][1] = 2
    found = HFTokenizer.from_gguf(facts, path)
    assert 1 not in found.encode("a<|end|>b")
    assert found.encode("a<|end|>b", allow_special=True).count(1) == 1


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_way_to_split_keeps_the_text(pre: str, tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    found = HFTokenizer.from_gguf(metadata(path, pre=pre), path)
    assert found.decode(found.encode(TEXT)).removeprefix("<|begin|>") == TEXT


def test_scores_of_a_gguf_file_are_its_merges(tmp_path: Path) -> None:
    path = sentence_piece(tmp_path)
    document = json.loads(path.read_text(encoding="utf-8"))
    ranks = {a + b: n for n, (a, b) in enumerate(document["model"]["merges"])}
    facts = metadata(path, model="llama", add_bos_token=False)
    facts["scores"] = [-float(ranks.get(token, 0)) for token in facts["tokens"]]
    found = HFTokenizer.from_gguf(facts, path)
    assert found.encode(TEXT) == HFTokenizer.load(path).encode(TEXT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "deepseek"}, "tokenizer.ggml.pre=deepseek: is not supported"),
        ({"model": "bert"}, "tokenizer.ggml.model=bert: is not supported; supported are gpt2"),
    ],
)
def test_a_kind_that_is_not_supported_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = byte_level(tmp_path)
    with pytest.raises(ValueError, match=message):
        HFTokenizer.from_gguf(metadata(path, **changes), path)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="cannot be read") as raised:
        HFTokenizer.load(path)
    assert "\n" not in str(raised.value)
    tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).save(str(path))
    with pytest.raises(ValueError, match="its decoder is None; only byte-level BPE"):
        HFTokenizer.load(path)


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    found = HFTokenizer.load(byte_level(tmp_path))
    with pytest.raises(ValueError, match=f"token id {found.vocab_size} is outside"):
        found.decode([found.vocab_size])
    assert found.padded(found.vocab_size + 8).decode([found.vocab_size + 3]) == ""
