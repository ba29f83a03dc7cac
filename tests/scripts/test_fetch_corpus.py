"""The corpus fetcher against a local server, over files written here and over the real ones."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.local_server import Server

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch_corpus.py"


spec = importlib.util.spec_from_file_location("fetch_corpus", SCRIPT)
assert spec is not None and spec.loader is not None  # noqa: PT018
fetch_corpus = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch_corpus)
BOOKS = fetch_corpus.BOOKS

FIRST = (
    "\ufeffThe Project Gutenberg eBook of A Lamp\r\n\r\n"
    "*** START OF THE PROJECT GUTENBERG EBOOK A LAMP ***\r\n\r\n\r\n"
    "Produced by Somebody,\r\nand another\r\n\r\n\r\n\r\n\r\ncover \r\n\r\n\r\n\r\n\r\n"
    "   A LAMP\r\n\r\nChapter 1\tThe Wick\r\n\r\nIllustrations\r\n\r\n A wick.\r\n No wick.\r\n\r\n"
    "“It burns,” he said. “It’s a good\r\ncover\r\nfor the wick.”  Twice.\r\n\r\n"
    "[Illustration: “It burns,”\r\nhe said.]\r\n\r\n\r\nThe lamp -- it burnt.   \r\n\r\n\r\n"
    "End of Project Gutenberg’s A Lamp\r\n\r\n"
    "            *** END OF THE PROJECT GUTENBERG EBOOK A LAMP ***\r\nlicence\r\n"
).encode()
FIRST_CLEAN = (
    "   A LAMP\n\nChapter 1 The Wick\n\n\n"
    "“It burns,” he said. “It’s a good\ncover\nfor the wick.”  Twice.\n\n\n"
    "The lamp -- it burnt.\n"
)
SECOND = b"""\xef\xbb\xbf*** START OF THE PROJECT GUTENBERG EBOOK 2 ***

  A WICK

"Well--it's 'good,'" said he.  "'Tis not 'ere," she "said."
('No,' _"no"_.)



Printed in Great Britain by X

  By THE SAME
*** END OF THE PROJECT GUTENBERG EBOOK 2 ***
"""
SECOND_CLEAN = (
    "  A WICK\n\n“Well—it’s ‘good,’” said he. “’Tis not ’ere,” she “said.”\n(‘No,’ _“no”_.)\n"
)
BOTH = FIRST_CLEAN + "\n" + SECOND_CLEAN


@dataclass
class Site:
    """Two small books on a server, and the script run against it."""

    server: Server
    cache: Path
    out: Path
    capsys: pytest.CaptureFixture[str]
    waits: list[float] = field(default_factory=list)
    """Between two tries, in seconds; recorded and not waited for."""

    def run(self) -> int:
        out, cache, base = str(self.out), str(self.cache), self.server.base + "/"
        return int(fetch_corpus.main(["--out", out, "--cache", cache, "--base", base]))

    def last_error(self) -> str:
        lines = self.capsys.readouterr().err.strip().splitlines()
        assert not any("Traceback" in line for line in lines)
        return str(lines[-1])


@pytest.fixture
def site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Site]:
    lamp = fetch_corpus.Book(1, "A Lamp", len(FIRST_CLEAN.split()))
    wick = fetch_corpus.Book(2, "A Wick", len(SECOND_CLEAN.split()))
    monkeypatch.setattr(fetch_corpus, "BOOKS", (lamp, wick))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.publish(1, FIRST)
        server.publish(2, SECOND)
        site = Site(server, tmp_path / "cache", tmp_path / "deep" / "out.txt", capsys)
        monkeypatch.setattr("time.sleep", site.waits.append)
        yield site
        server.shutdown()
        thread.join()


def test_two_books_make_one_text(site: Site) -> None:
    assert site.run() == 0
    assert site.out.read_bytes().decode() == BOTH
    assert site.server.requests == [("pg1.txt", None), ("pg2.txt", None)]
    said = site.capsys.readouterr().out
    assert f"{len(BOTH.encode())} bytes, {len(BOTH.split())} words" in said
    assert sorted(path.name for path in site.cache.iterdir()) == ["pg1.txt", "pg2.txt"]
    assert list(site.out.parent.iterdir()) == [site.out]
    (site.cache / "pg2.txt").unlink()
    assert site.run() == 0
    assert site.server.requests[2:] == [("pg2.txt", None)]  # the other one is there


def test_an_answer_cut_short_goes_on_where_it_stopped(site: Site) -> None:
    site.server.faults = ["cut", "cut"]
    assert site.run() == 0
    half = len(FIRST) // 2
    more = half + (len(FIRST) - half) // 2
    wanted = [None, f"bytes={half}-", f"bytes={more}-", None]
    assert [bytes_range for _, bytes_range in site.server.requests] == wanted
    assert site.out.read_bytes().decode() == BOTH
    assert site.waits == [1, 2]


@pytest.mark.parametrize("fault", ["no range", "other range"])
def test_a_server_that_cannot_go_on_is_asked_for_all(site: Site, fault: str) -> None:
    site.server.faults = ["cut", fault]
    assert site.run() == 0
    assert site.out.read_bytes().decode() == BOTH


def test_a_file_that_changed_meanwhile_is_fetched_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_corpus, "TRIES", 1)
    site.server.faults = ["cut"]
    assert site.run() == 1
    site.server.etag = '"2"'
    longer = FIRST.replace(b"licence", b"a longer licence").replace(b"Gutenberg eBook", b"G")
    site.server.publish(1, longer)
    assert site.run() == 0
    assert (site.cache / "pg1.txt").read_bytes() == longer


@pytest.mark.parametrize(("part", "version"), [(b"another", ""), (FIRST + b"!", '"1"')])
def test_a_part_that_does_not_fit_is_fetched_anew(site: Site, part: bytes, version: str) -> None:
    site.cache.mkdir()
    (site.cache / "pg1.txt.part").write_bytes(part)
    if version:
        (site.cache / "pg1.txt.part.version").write_text(version)
    assert site.run() == 0
    assert (site.cache / "pg1.txt").read_bytes() == FIRST


def test_a_busy_server_is_asked_again(site: Site) -> None:
    site.server.faults = ["503"]
    assert site.run() == 0
    assert site.waits == [7]  # as Retry-After says
    assert "HTTP 503 Service Unavailable; try 2 of 5 in 7 s" in site.capsys.readouterr().err


def test_it_gives_up_and_loses_nothing(site: Site) -> None:
    site.server.faults = ["cut", *["500"] * 4]
    assert site.run() == 1
    assert site.waits == [1, 7, 7, 8]
    line = site.last_error()
    assert line.startswith(f"fetch_corpus: {site.server.base}/cache/epub/1/pg1.txt: HTTP 500")
    assert "5 times" in line
    half = FIRST[: len(FIRST) // 2]
    assert (site.cache / "pg1.txt.part").read_bytes() == half
    assert not site.out.exists()
    assert site.run() == 0
    assert site.server.requests[5] == ("pg1.txt", f"bytes={len(half)}-")


def test_a_refusal_is_final_and_silence_is_not(site: Site) -> None:
    site.server.faults = ["403"]
    assert site.run() == 1
    assert site.waits == []
    site.server.base = "http://127.0.0.1:1"
    assert site.run() == 1
    assert len(site.waits) == 4
    assert "refused" in site.last_error()


@pytest.mark.parametrize("content", [SECOND.replace(b"said", b""), b"<html>wait</html>"])
def test_a_wrong_number_of_words(site: Site, content: bytes) -> None:
    site.server.publish(2, content)
    site.out.parent.mkdir()
    site.out.write_text("older")
    assert site.run() == 1
    line = site.last_error()
    assert f"words after cleaning, not {len(SECOND_CLEAN.split())} within 1%" in line
    assert "is it A Wick? Delete it" in line
    assert site.out.read_text() == "older"


def test_other_failures_are_one_line(site: Site) -> None:
    site.out.parent.write_text("a file where the folder should be")
    assert site.run() == 1
    assert site.last_error().startswith("fetch_corpus: [Errno")
    (site.cache / "pg2.txt").write_bytes(b"caf\xe9")
    assert site.run() == 1
    assert "can't decode byte 0xe9" in site.last_error()


def test_an_interruption_keeps_the_part(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", stop)
    site.server.faults = ["cut"]
    assert site.run() == 130
    assert (site.cache / "pg1.txt.part").stat().st_size == len(FIRST) // 2


WRONG = {
    "--base=ftp://example.org": "--base=ftp://example.org is no http",
    "--base=": "is no http",
    "--out=.": "--out=. is a folder",
    "--speed=9": "unrecognized arguments: --speed=9",
}


@pytest.mark.parametrize(("argument", "cause"), WRONG.items())
def test_a_wrong_command_is_one_line(argument: str, cause: str) -> None:
    command = [sys.executable, str(SCRIPT), argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert cause in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_published_books(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    if "TINYGPT_GUTENBERG" not in os.environ:
        pytest.skip("TINYGPT_GUTENBERG names no folder of pgN.txt")
    monkeypatch.setattr(fetch_corpus, "BOOKS", BOOKS)
    for book in BOOKS:
        path = Path(os.environ["TINYGPT_GUTENBERG"]) / f"pg{book.number}.txt"
        site.server.publish(book.number, path.read_bytes())
    assert site.run() == 0
    text = site.out.read_bytes().decode()
    unwanted = r"\r|\t| \n|\n{4}|\A\s*\n|(?i:gutenberg)|Illustration:|^cover$|\ufeff"
    assert re.search(unwanted, text, re.MULTILINE) is None
    corpus = Path(os.environ.get("TINYGPT_CORPUS", ""))
    if corpus.name == "holmes.txt":
        assert text == corpus.read_bytes().decode()


def test_a_text_of_others_is_not_replaced(site: Site) -> None:
    assert site.run() == 0
    assert site.run() == 0  # its own is as it was
    site.out.write_text("a thesis")
    assert site.run() == 1
    assert site.last_error() == (
        f"fetch_corpus: --out={site.out}: another text is there and is not replaced; move it away, "
        "or name another file"
    )
    assert site.out.read_text() == "a thesis"
