"""A text as it comes: nothing lost, nothing shown too early, nothing after its stop string."""

import sys
import unicodedata
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.harness.terminal import printable
from runners.harness.text.screen import Screen
from runners.harness.text.stream import TextStream
from tests.text_checkpoint import tokenizer
from tinygpt.tokenizer import EOT

TOKENIZER = tokenizer()
IDS = st.lists(st.integers(0, TOKENIZER.eot_id), max_size=30)
"""Every token: bytes that are half a character or none, merges, the end of a text."""
HARD = [*"👩‍👩‍👧é’".encode(), *b"ab", 0xFF, 0xF0, 0x9F, 0xC3, 0xE2, 0x80]
HARD_IDS = st.lists(st.sampled_from([*HARD, TOKENIZER.eot_id]), max_size=30)
"""Characters of several tokens, cut anywhere."""


def fed(ids: list[int], stop: str | None) -> tuple[TextStream, list[str]]:
    """A stream that was fed until it stopped, and the pieces that it gave."""
    stream = TextStream(TOKENIZER, stop)
    pieces = []
    for token_id in ids:
        pieces.append(stream.feed(token_id))
        if stream.stopped:
            break
    return stream, [*pieces, stream.end()]


def held_back(text: str, stop: str) -> str:
    """The longest end of a text that begins the stop string."""
    ends = (text[at:] for at in range(len(text) + 1))
    return next(end for end in ends if stop.startswith(end))


@given(IDS | HARD_IDS)
def test_without_a_stop_it_is_what_decoding_all_gives(ids: list[int]) -> None:
    stream, pieces = fed(ids, None)
    assert "".join(pieces) == stream.text == TOKENIZER.decode(ids)
    assert not stream.stopped


@given(IDS | HARD_IDS)
def test_what_is_shown_never_has_to_be_taken_back(ids: list[int]) -> None:
    whole, stream, shown = TOKENIZER.decode(ids), TextStream(TOKENIZER, EOT), ""
    for token_id in ids:
        shown += stream.feed(token_id)
        assert whole.startswith(shown)


@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=5))
def test_a_stop_ends_a_text_of_bytes_and_holds_back_as_little_as_it_can(
    text: str, stop: str
) -> None:
    stream, shown = TextStream(TOKENIZER, stop), ""
    for n, value in enumerate(text.encode(), 1):
        shown += stream.feed(value)
        before, found, _ = text[:n].partition(stop)
        assert stream.stopped == bool(found)
        if stream.stopped:
            assert shown == stream.text == before
            break
        assert shown == text[: n - len(held_back(text[:n], stop))]
    assert shown + stream.end() == stream.text == text.partition(stop)[0]


@given(IDS | HARD_IDS, st.data())
def test_a_stop_from_anywhere_in_the_text_is_found(ids: list[int], data: st.DataObject) -> None:
    whole = TOKENIZER.decode(ids)
    at = data.draw(st.integers(0, max(0, len(whole) - 1)))
    stop = whole[at : at + data.draw(st.integers(1, 9))] or "nothing"
    stream, pieces = fed(ids, stop)
    assert "".join(pieces) == stream.text == whole.partition(stop)[0]
    assert stream.stopped == (stop in whole)


@given(st.text("abé👩", max_size=10), st.text("abé👩", min_size=1, max_size=4))
def test_what_comes_after_the_stop_is_never_shown(text: str, stop: str) -> None:
    stream, _ = fed(TOKENIZER.encode(text + stop), stop)
    before = stream.text
    assert stream.stopped
    later = [stream.feed(token_id) for token_id in TOKENIZER.encode("ab👩" + stop)]
    assert set(later) == {""}
    assert stream.end() == ""
    assert stream.text == before


@pytest.mark.parametrize(
    ("text", "stop", "pieces"),
    [
        ("xabcy", "abc", ["x", "", "", "", ""]),  # split over tokens
        ("abcx", "abc", ["", "", "", ""]),  # at the start
        ("aaab", "aab", ["", "", "a", "", ""]),  # begins anew within itself
        ("aab", "ab", ["", "a", "", ""]),
        ("xab", "abc", ["x", "", "", "ab"]),  # only its beginning came
        ("abab", "abc", ["", "", "ab", "", "ab"]),
        ("a", "a", ["", ""]),
        ("xaxa", "a", ["x", "", ""]),  # the first of two
        ("abc", None, ["a", "b", "c", ""]),
        ("", "abc", [""]),
    ],
)
def test_stop_strings_byte_by_byte(text: str, stop: str | None, pieces: list[str]) -> None:
    assert fed(list(text.encode()), stop)[1] == pieces


def test_a_character_is_shown_once_it_is_whole() -> None:
    assert fed(list("a👩b".encode()), None)[1] == ["a", "", "", "", "👩", "b", ""]
    assert fed(list("👩".encode())[:2], None)[1] == ["", "", "�"]


def test_the_end_of_a_text_is_one_token_and_ends_it_in_the_middle_of_a_character() -> None:
    stream, pieces = fed([*"a👩".encode()[:3], TOKENIZER.eot_id, *b"b"], EOT)
    assert (stream.text, stream.stopped) == ("a�", True)
    assert "".join(pieces) == "a�"
    stream, pieces = fed([TOKENIZER.eot_id, *b"b"], EOT)
    assert (stream.text, stream.stopped, pieces) == ("", True, ["", ""])


def test_a_stop_string_within_a_token_leaves_what_stands_before_it() -> None:
    token_id = max(range(256, TOKENIZER.eot_id), key=lambda n: len(TOKENIZER.decode_bytes([n])))
    text = TOKENIZER.decode([token_id])
    stream, pieces = fed([token_id], text[1:])
    assert len(text) > 2
    assert (stream.text, pieces, stream.stopped) == (text[0], [text[0], ""], True)


def test_a_stop_may_be_longer_than_the_text() -> None:
    assert fed(list(b"ab"), "ab" * 100)[1] == ["", "", "ab"]


# on the terminal


@given(st.text())
def test_printable_text_has_no_control_characters_and_is_else_the_same(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        if unicodedata.category(before) == "Cc" and before not in "\n\t":
            assert after == "�"
        else:
            assert after == before


def test_printable_text_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[31mb\rc\x07\x9b2J\x7f\0") == "a�[31mb�c��2J��"
    assert printable("“é”\n\t👩‍👩‍👧") == "“é”\n\t👩‍👩‍👧"


def test_the_screen_shows_prompt_and_text_and_ends_the_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen("") as screen:
        screen("Holm", "")
        screen("", "es")
        assert capsys.readouterr().out == "Holmes"  # as it comes
        screen("", "\x1b[2J")
    assert capsys.readouterr().out == "�[2J\n"


def test_the_screen_tells_texts_and_settings_apart(capsys: pytest.CaptureFixture[str]) -> None:
    for title in ("seed=1", "seed=2"):
        with Screen(title) as screen:
            for prompt in ("one", "two"):
                screen(prompt, "")
                screen("", "!")
    wanted = "--- seed=1\none!\n\ntwo!\n\n--- seed=2\none!\n\ntwo!\n\n"
    assert capsys.readouterr().out == wanted


def test_on_a_terminal_the_prompt_is_bold_and_steers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    with Screen("") as screen:
        screen("a\x1b[0m", "")
        screen("", "b")
    assert terminal.getvalue() == "\x1b[1ma�[0m\x1b[0mb\n"
