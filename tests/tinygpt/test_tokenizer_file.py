"""tokenizer.json: saved, loaded, refused, and read by Hugging Face's library with the same ids."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

import tinygpt.tokenizer
from tinygpt.tokenizer import EOT, SPLIT, Tokenizer

TEXT = """We'll see the river, he'd said; the other river's 1,024 steps. ２０ ℃ ½\r\n\r\n
      “It’s the café’s — the café’s,” said <|endoftext|> e\u0301e\u0301  \u00a0\u2003 x_y !!!???
\tТри моста, три реки. 東京都の橋、東京都の川。 나는 강을 नमस्ते नमस्ते 👩‍👩‍👧 👩‍👩‍👧
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXT, 300)


@pytest.fixture(scope="module")
def independent(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> HuggingFace:
    return as_hugging_face(tokenizer, tmp_path_factory.mktemp("hf"))


def as_hugging_face(tokenizer: Tokenizer, folder: Path) -> HuggingFace:
    tokenizer.save(folder / "tokenizer.json")
    other = HuggingFace.from_file(str(folder / "tokenizer.json"))
    other.encode_special_tokens = True  # text that looks like the special token is text
    return other


def in_tokenizers(pattern: str, text: str) -> set[str]:
    """The characters of a text that a pattern matches in the engine of ``tokenizers``."""
    rest = pre_tokenizers.Split(Regex(f"{pattern}+"), behavior="removed").pre_tokenize_str(text)
    return set(text) - set("".join(piece for piece, _ in rest))


def in_regex(pattern: str, text: str) -> set[str]:
    return set("".join(regex.findall(f"{pattern}+", text)))


EVERY = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x32400)]))
# The two engines know different releases of Unicode. They agree on what both have heard of.
ASSIGNED = "".join(
    sorted(set(EVERY) - in_tokenizers(r"\p{Cn}", EVERY) - in_regex(r"\p{Cn}", EVERY))
)
TEXTS = st.one_of(
    st.text(ASSIGNED),
    st.text(st.sampled_from(" \n\r\t\u00a0'’sdtlverabAB19½_.!<|>é東👩\u200d\u0301\x00\x1f\x85")),
    st.lists(st.sampled_from([EOT, *SPLIT.findall(TEXT)])).map("".join),
)


def test_the_two_tables_agree_on_what_both_know() -> None:
    assert len(ASSIGNED) > 100_000
    for pattern in (r"\p{L}", r"\p{N}", r"\s"):
        assert in_regex(pattern, ASSIGNED) == in_tokenizers(pattern, ASSIGNED)


@settings(deadline=None, max_examples=300)
@given(text=TEXTS)
def test_hugging_face_gives_the_same_ids(
    tokenizer: Tokenizer, independent: HuggingFace, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == independent.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert independent.decode(ids, skip_special_tokens=False) == text


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 299)))
def test_hugging_face_decodes_the_same_text(
    tokenizer: Tokenizer, independent: HuggingFace, ids: list[int]
) -> None:
    assert tokenizer.decode(ids) == independent.decode(ids, skip_special_tokens=False)


def test_hugging_face_knows_the_special_token(
    tokenizer: Tokenizer, independent: HuggingFace, tmp_path: Path
) -> None:
    assert independent.get_vocab_size() == tokenizer.vocab_size
    assert independent.token_to_id(EOT) == tokenizer.eot_id
    text = f"one{EOT}{EOT} two"
    assert independent.encode(text).ids == tokenizer.encode(text)
    tokenizer.save(tmp_path / "tokenizer.json")
    with_special = HuggingFace.from_file(str(tmp_path / "tokenizer.json"))
    assert with_special.encode(text).ids == tokenizer.encode(text, allow_special=True)


def test_the_corpus(tmp_path: Path) -> None:
    if "TINYGPT_CORPUS" not in os.environ:
        pytest.skip("TINYGPT_CORPUS names no text")
    text = Path(os.environ["TINYGPT_CORPUS"]).read_bytes().decode()
    start = time.perf_counter()
    tokenizer = Tokenizer.train(text)
    assert time.perf_counter() - start < 30
    assert tokenizer.vocab_size == 4096
    ids = tokenizer.encode(text)
    assert ids == as_hugging_face(tokenizer, tmp_path).encode(text).ids
    assert tokenizer.decode(ids) == text
    assert 3.5 < len(text) / len(ids) < 3.8


@pytest.mark.parametrize("piece", ["a" * 50_000, " " * 50_000, "é東" * 20_000, "9" * 50_000])
def test_hugging_face_agrees_on_a_long_piece(
    tokenizer: Tokenizer, independent: HuggingFace, piece: str
) -> None:
    assert tokenizer.encode(piece) == independent.encode(piece).ids


def test_the_file_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "import sys; from tinygpt.tokenizer import Tokenizer; "
        "print(Tokenizer.train(sys.stdin.buffer.read().decode(), 400).sha256)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=TEXT.encode(),
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": str(Path(tinygpt.tokenizer.__file__).parents[1]),
            },
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42")
    }
    assert digests == {f"{Tokenizer.train(TEXT, 400).sha256}\n".encode()}


def test_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(str(path))
    assert loaded.merges == tokenizer.merges
    assert loaded.regex_version == regex.__version__
    assert loaded.sha256 == tokenizer.sha256
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_loaded_after_hugging_face_saved_it(
    tokenizer: Tokenizer, independent: HuggingFace, tmp_path: Path
) -> None:
    independent.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.merges == tokenizer.merges
    assert loaded.regex_version == "unknown"


def test_a_failed_save_keeps_the_older_file(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer.train("a").save(path)
    older = path.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        tokenizer.save(path)
    assert path.read_bytes() == older
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"normalizer": {"type": "NFC"}}, "another normalizer"),
        ({"pre_tokenizer": None}, "AttributeError"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "another pre_tokenizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "another pre_tokeni"),
        ({"added_tokens": []}, "another added_tokens"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "KeyError: 'merges'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "1 entries, but 0 merges"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}, "KeyError: 'b'"),
        ({"model": []}, "TypeError"),
        ({"model": None}, "TypeError"),
    ],
)
def test_a_file_of_another_kind_is_an_error(
    tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, object], cause: str
) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    check_refused(path, cause)


def test_a_file_with_other_ids_is_an_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    document = json.loads(path.read_bytes())
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    path.write_text(json.dumps(document))
    check_refused(path, "another model")
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    merges[0], merges[1] = merges[1], merges[0]
    path.write_text(json.dumps(document))
    check_refused(path, "another model")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "JSONDecodeError"),
        (b"\xff\xfe\xff", "UnicodeDecodeError"),
        (b"[" * 100_000, "RecursionError"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes, cause: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    check_refused(tmp_path / "tokenizer.json", cause, "cannot be read")


def test_a_file_cut_short_or_missing_is_an_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    check_refused(path, "FileNotFoundError", "cannot be read")
    tokenizer.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    check_refused(path, "JSONDecodeError", "cannot be read")


def check_refused(path: Path, cause: str, why: str = "only tinygpt's own byte-level BPE") -> None:
    with pytest.raises(ValueError, match=why) as caught:
        Tokenizer.load(path)
    message = str(caught.value)
    assert cause in message
    assert str(path) in message
    assert "\n" not in message
