"""The tokenizer against known answers, the naive form of its rule, and the clock."""

import time
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygpt.tokenizer
from tinygpt.tokenizer import EOT, SPLIT, Tokenizer

GOLDEN_TEXT = """The lamp-lighter's round took 45 minutes; he'd count 1,024 steps, and we'll see.
“It’s the river,” she said. “It’s always the river — the river, the bridge, the other river.”

      “Naïve,” said the café owner. Ⅻ o'clock, ½ past; ２０ ℃ in the shade.
\tТри моста, три реки. 東京都の橋、東京都の川。 나는 강을 봅니다. नमस्ते नमस्ते
👩‍👩‍👧 👩‍👩‍👧 e\u0301e\u0301 <|endoftext|>  \u00a0\u2003\u3000 \r\n\r\n x_y_z   !!!???
"""
GOLDEN_VOCAB_SIZE = 257 + 64


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(GOLDEN_TEXT, GOLDEN_VOCAB_SIZE)


def test_no_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="the training text is empty"):
        Tokenizer.train("")


def test_one_letter_leaves_the_bytes() -> None:
    tokenizer = Tokenizer.train("a")
    assert tokenizer.merges == ()
    assert tokenizer.vocab_size == 257
    assert tokenizer.eot_id == 256
    assert [tokenizer.decode_bytes([value]) for value in range(256)] == [
        bytes([value]) for value in range(256)
    ]


def test_a_pair_must_occur_twice() -> None:
    # "aaaa" has three pairs (a, a); once they are merged, the pair (aa, aa) is there once only
    assert Tokenizer.train("aaaa").merges == ((97, 97),)
    assert Tokenizer.train("aaaaaaaa").merges == ((97, 97), (256, 256))


@pytest.mark.parametrize("vocab_size", [255, 256, 0, -1])
def test_a_vocabulary_below_the_bytes_is_an_error(vocab_size: int) -> None:
    with pytest.raises(ValueError, match=f"vocab_size={vocab_size} is below 257"):
        Tokenizer.train("abc", vocab_size)


def test_three_merges() -> None:
    # the example of the encyclopaedias; here ties go to the smallest ids, so (a, b) is the second
    tokenizer = Tokenizer.train("aaabdaaabac", 260)
    assert tokenizer.merges == ((97, 97), (97, 98), (256, 257))
    assert tokenizer.encode("aaabdaaabac") == [258, 100, 258, 97, 99]
    assert tokenizer.vocab_size == 260
    assert tokenizer.eot_id == 259


def test_ties_go_to_the_smallest_ids() -> None:
    assert Tokenizer.train("zy zy\nyx\nyx\nby\nby", 260).merges == (
        (98, 121),
        (121, 120),
        (122, 121),
    )


def test_golden_merges_and_ids(tokenizer: Tokenizer) -> None:
    # A failure here after an upgrade of `regex` means that it splits text in another way: models
    # trained before need the older release. The file names the one it was trained with.
    assert tokenizer.vocab_size == GOLDEN_VOCAB_SIZE
    assert tokenizer.merges[:5] == ((226, 128), (104, 101), (32, 116), (224, 164), (258, 257))
    text = "The other café's river, he'd said: 1,024 steps!\n\n  3½ ℃ — 東京 👩‍👩‍👧"
    ids = [
        84, 257, 274, 116, 257, 114, 285, 97, 102, 195, 169, 39, 115, 273, 44, 32, 257, 39, 100,
        312, 58, 32, 49, 44, 48, 50, 52, 262, 278, 112, 115, 33, 10, 10, 32, 32, 51, 194, 189,
        286, 132, 131, 275, 148, 32, 307, 228, 186, 172, 32, 313, 316,
    ]  # fmt: skip
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


def test_the_split() -> None:
    text = "We'll see  it\n\n   Don’t 12½ x_y\u00a0z\u3000 !? \r\nÉtés'D's"
    assert SPLIT.findall(text) == [
        "We", "'ll", " see", " ", " it", "\n\n  ", " Don", "’", "t", " 12½", " x", "_", "y",
        "\u00a0", "z", "\u3000", " !?", " \r", "\n", "Étés", "'", "D", "'s",
    ]  # fmt: skip


def test_an_emoji_token_by_token(tokenizer: Tokenizer) -> None:
    family = "👩‍👩‍👧"
    for text in (family, family * 3, f"x{family}y"):
        ids = tokenizer.encode(text)
        assert b"".join(tokenizer.decode_bytes([token_id]) for token_id in ids) == text.encode()
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("ids", "text"),
    [([0xF0, 0x9F], "\ufffd"), ([0x41, 0xFF, 0x42], "A\ufffdB"), ([0x80], "\ufffd"), ([], "")],
)
def test_invalid_bytes_become_replacement_characters(
    tokenizer: Tokenizer, ids: list[int], text: str
) -> None:
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("token_id", [70_000, GOLDEN_VOCAB_SIZE, -1])
def test_an_id_outside_the_vocabulary_is_an_error(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(ValueError, match=rf"token id {token_id} is outside 0\.\.320"):
        tokenizer.decode([104, token_id])


def test_text_that_looks_like_the_special_token_is_text(tokenizer: Tokenizer) -> None:
    text = f"a{EOT}b"
    plain = tokenizer.encode(text)
    assert tokenizer.eot_id not in plain
    assert tokenizer.decode(plain) == text
    assert tokenizer.encode(text, allow_special=True) == [97, tokenizer.eot_id, 98]
    assert tokenizer.encode(EOT * 2, allow_special=True) == [tokenizer.eot_id] * 2
    assert tokenizer.decode([97, tokenizer.eot_id, 98]) == text


def test_training_on_the_special_token_never_learns_it() -> None:
    tokenizer = Tokenizer.train(EOT * 50, 400)
    assert EOT.encode() not in [
        tokenizer.decode_bytes([token_id]) for token_id in range(tokenizer.eot_id)
    ]


@pytest.mark.parametrize("special", [False, True])
def test_a_lone_surrogate_is_an_error(tokenizer: Tokenizer, special: bool) -> None:
    with pytest.raises(ValueError, match=r"character 2 of the text is U\+DC80"):
        tokenizer.encode("ab\udc80", allow_special=special)
    with pytest.raises(ValueError, match=r"character 0 of the text is U\+D83D"):
        Tokenizer.train("\ud83d")


def naive_merges(text: str, limit: int) -> list[tuple[int, int]]:
    """The rule of training in its plainest form: count everything again for every merge."""
    pieces = [
        (list(piece.encode()), weight) for piece, weight in Counter(SPLIT.findall(text)).items()
    ]
    merges: list[tuple[int, int]] = []
    while len(merges) < limit:
        counts: Counter[tuple[int, int]] = Counter()
        for ids, weight in pieces:
            for pair in pairwise(ids):
                counts[pair] += weight
        most = max(counts.values(), default=0)
        if most < 2:
            break
        best = min(pair for pair, count in counts.items() if count == most)
        pieces = [(replace(ids, best, 256 + len(merges)), weight) for ids, weight in pieces]
        merges.append(best)
    return merges


def replace(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    out: list[int] = []
    for token_id in ids:
        if out and (out[-1], token_id) == pair:
            out[-1] = new_id
        else:
            out.append(token_id)
    return out


REPETITIVE = st.lists(st.text("ab", min_size=1, max_size=30), min_size=1, max_size=8).map(" ".join)


@settings(deadline=None, max_examples=150)
@given(text=st.one_of(REPETITIVE, st.text(min_size=1)), limit=st.integers(0, 30))
def test_training_is_the_naive_rule(text: str, limit: int) -> None:
    tokenizer = Tokenizer.train(text, 257 + limit)
    assert list(tokenizer.merges) == naive_merges(text, limit)
    ids = list(text.encode())
    tokens = [tokenizer.decode_bytes([token_id]) for token_id in range(tokenizer.eot_id)]
    assert len(set(tokens)) == len(tokens)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) <= len(ids)


@settings(deadline=None, max_examples=100)
@given(text=REPETITIVE)
def test_encoding_is_one_merge_after_another(text: str) -> None:
    tokenizer = Tokenizer.train(text, 300)
    expected: list[int] = []
    for piece in SPLIT.findall(text[::-1]):
        ids = list(piece.encode())
        for rank, pair in enumerate(tokenizer.merges):
            ids = replace(ids, pair, 256 + rank)
        expected += ids
    assert tokenizer.encode(text[::-1]) == expected


@pytest.mark.parametrize("piece", ["a" * 100_000, "the" * 33_333, " " * 100_000, "é" * 50_000])
def test_one_long_piece(tokenizer: Tokenizer, piece: str) -> None:
    start = time.perf_counter()
    ids = tokenizer.encode(piece)
    assert time.perf_counter() - start < 5
    assert tokenizer.decode(ids) == piece
    start = time.perf_counter()
    trained = Tokenizer.train(piece, 1000)
    assert time.perf_counter() - start < 5
    assert trained.decode(trained.encode(piece)) == piece
    assert len(trained.encode(piece)) < 100


def test_the_cache_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinygpt.tokenizer, "MAX_CACHED_PIECES", 3)
    tokenizer = Tokenizer.train(GOLDEN_TEXT, 300)
    fresh = [Tokenizer(tokenizer.merges).encode(piece) for piece in GOLDEN_TEXT.split()]
    assert [tokenizer.encode(piece) for piece in GOLDEN_TEXT.split()] == fresh
    assert 0 < len(tokenizer._cache) <= 3
    tokenizer._cache.clear()
    tokenizer.encode("x" * 65)
    assert not tokenizer._cache


def test_what_is_returned_is_the_callers_own(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("river")
    first.append(0)
    assert tokenizer.encode("river") == first[:-1]
