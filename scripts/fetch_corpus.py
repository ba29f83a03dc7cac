"""Fetch the Sherlock Holmes canon from Project Gutenberg and make one clean text of it.

    python scripts/fetch_corpus.py [--out FILE] [--cache FOLDER] [--base URL]

Nine books, about 3.8 MB. What was fetched stays in the cache: a book that is there is not fetched
again, one that was cut off goes on where it stopped (its .part file). Gutenberg corrects its files
now and then, so no hash is pinned: each book must have its known number of words, within 1 %.
The text is in the public domain in the United States and where copyright ends 70 years after death.
"""

import argparse
import hashlib
import os
import re
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TaskID

FOLDER = Path(__file__).resolve().parents[1] / "results" / "corpus"
BASE = "https://www.gutenberg.org"
HEADERS = {"User-Agent": "tinygpt-fetch-corpus (nine books, once)"}
TIMEOUT_S = 30.0
TRIES = 5
LONGEST_WAIT_S = 60
CHUNK_BYTES = 1 << 15
TRY_AGAIN = {408, 416, 425, 429, 500, 502, 503, 504}
NETWORK_ERRORS = (URLError, HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
WORDS_TOLERANCE = 0.01

START = r"^ *\*\*\* ?START OF TH.*\n"
END = (
    r"^ *\*\*\* ?END OF TH.*"
    r"|^End of (?:the )?Project Gutenberg.*"
    r"|^Printed in Great Britain.*"  # the printer, and then advertisements
)
REMOVED = (
    r"^Produced by .*(?:\n.+)*\n"
    r"|(?:\A\n*|(?<=\n\n))cover\n(?=\n)"  # the picture's alternative text
    r"|^\[Illustration[^\]]*\]\n"
    r"|^Illustrations\n\n(?:.+\n)+"  # the list of plates
)

Report = Callable[[int, int | None], None]
"""Told the bytes of a book that are there, and how many there will be where that is known."""


class Book(NamedTuple):
    number: int
    """Gutenberg's."""
    title: str
    words: int
    """After cleaning, as separated by whitespace."""


BOOKS: tuple[Book, ...] = (  # in the order they were published as books
    Book(244, "A Study in Scarlet", 43_429),
    Book(2097, "The Sign of the Four", 43_095),
    Book(1661, "The Adventures", 104_506),
    Book(834, "The Memoirs", 95_485),
    Book(2852, "The Hound of the Baskervilles", 59_258),
    Book(108, "The Return", 112_113),
    Book(3289, "The Valley of Fear", 57_590),
    Book(2350, "His Last Bow", 59_022),
    Book(69700, "The Case-Book", 82_632),
)


class FetchError(Exception):
    """One line for the user: what failed, why, and what to do."""


def fetch(url: str, target: Path, report: Report, say: Callable[[str], None]) -> None:
    """Bring a file here unless it is here: several tries, each going on where the last one stopped.

    Raises FetchError when the server refuses or the tries are used up; the .part file stays.
    """
    if target.exists():
        report(target.stat().st_size, target.stat().st_size)
        return
    part = target.with_name(f"{target.name}.part")
    for attempt in range(1, TRIES + 1):
        wait = 2 ** (attempt - 1)
        try:
            download(url, part, report)
        except HTTPError as error:
            error.close()
            cause = f"HTTP {error.code} {error.reason}"
            if error.code not in TRY_AGAIN:
                raise FetchError(f"{url}: {cause}; is --base right?") from None
            if error.code == 416:  # there is no such rest of the file: start again
                part.unlink(missing_ok=True)
            asked = error.headers.get("Retry-After", "")
            wait = max(wait, int(asked)) if asked.isdecimal() else wait
        except NETWORK_ERRORS as error:
            reason = error.reason if isinstance(error, URLError) else error
            cause = f"{reason}" or type(error).__name__
        else:
            part.replace(target)
            version_file(part).unlink(missing_ok=True)
            return
        if attempt < TRIES:
            wait = min(wait, LONGEST_WAIT_S)
            say(f"{url}: {cause}; try {attempt + 1} of {TRIES} in {wait} s")
            time.sleep(wait)
    raise FetchError(f"{url}: {cause}, {TRIES} times; run it again later, it will go on from here")


def download(url: str, part: Path, report: Report) -> None:
    """One try: ask for what ``part`` lacks, and append it if the file is still the same there."""
    headers, here = dict(HEADERS), 0
    version = version_file(part).read_text() if version_file(part).exists() else ""
    if version and part.exists():
        here = part.stat().st_size
        headers |= {"Range": f"bytes={here}-", "If-Range": version}
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT_S) as response:
        if response.status != 206:
            here = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {here}-"):
            version_file(part).unlink(missing_ok=True)
            raise ConnectionError("it answered with another part of the file")
        length = response.headers.get("Content-Length", "")
        total = here + int(length) if length.isdecimal() else None
        with part.open("ab" if here else "wb") as file:
            if not here:
                version_file(part).write_text(version_of(response.headers))
            report(here, total)
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                here += len(chunk)
                report(here, total)
    if total is not None and here != total:
        raise ConnectionError(f"the answer ended after {here} of {total} bytes")


def version_file(part: Path) -> Path:
    """Where the server's name for the version of the file that ``part`` began is kept."""
    return part.with_name(f"{part.name}.version")


def version_of(headers: Message) -> str:
    """What If-Range can compare; empty where the server says nothing, and resuming is unsafe."""
    etag = headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")


def clean(raw: bytes) -> str:
    """The book alone: no header, licence, captions or advertisements; newlines and blanks tidied.

    Raises UnicodeDecodeError for what is not UTF-8.
    """
    text = raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ")
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    text = re.split(START, text, maxsplit=1, flags=re.MULTILINE)[-1]
    text = re.split(END, text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(REMOVED, "", text, flags=re.MULTILINE)
    text = re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"
    return text if "“" in text else curly(text)


def curly(text: str) -> str:
    """A book in the typewriter's characters, set like the others: “ ” ‘ ’ — and single blanks."""
    text = re.sub(r"(?<=\S)  (?=\S)", " ", text).replace("--", "—")
    text = re.sub(r"(?<![^\s—(\[_])\"(?=\S)", "“", text).replace('"', "”")
    text = re.sub(r"'(?=(?i:em|ere|tis|twas)\b)", "’", text)
    return re.sub(r"(?<![^\s—(\[_“])'(?=\S)", "‘", text).replace("'", "’")


def make_corpus(base: str, cache: Path, progress: Progress) -> str:
    """Fetch, clean and check all books; one blank line between two of them."""
    texts = []
    cache.mkdir(parents=True, exist_ok=True)
    for book in BOOKS:
        target = cache / f"pg{book.number}.txt"
        task = progress.add_task(book.title, total=None)

        def report(here: int, total: int | None, task: TaskID = task) -> None:
            progress.update(task, completed=here, total=total)

        url = f"{base.rstrip('/')}/cache/epub/{book.number}/{target.name}"
        fetch(url, target, report, progress.console.print)
        try:
            text = clean(target.read_bytes())
        except UnicodeDecodeError as error:
            raise FetchError(f"{target}: {error}; delete it to fetch it again") from None
        words = len(text.split())
        if abs(words - book.words) > WORDS_TOLERANCE * book.words:
            raise FetchError(
                f"{target}: {words} words after cleaning, not {book.words} within "
                f"{WORDS_TOLERANCE:.0%}; is it {book.title}? Delete it to fetch it again"
            )
        texts.append(text)
    return "\n".join(texts)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that an older one is replaced only by a complete one."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"fetch_corpus: {message}; --help says more\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the text is written, 1 when that failed, 2 for a wrong command, 130 after Ctrl-C."""
    parser = OneLineParser(description="Fetch the Sherlock Holmes canon as one clean text.")
    parser.add_argument("--out", type=Path, default=FOLDER / "holmes.txt", help="%(default)s")
    parser.add_argument("--cache", type=Path, default=FOLDER / "gutenberg", help="%(default)s")
    parser.add_argument("--base", default=BASE, help="%(default)s")
    options = parser.parse_args(arguments)
    options.out, options.cache = options.out.expanduser(), options.cache.expanduser()
    if not re.fullmatch(r"https?://[^/\s]\S*", options.base):
        parser.error(f"--base={options.base} is no http:// or https:// address")
    if options.out.is_dir():
        parser.error(f"--out={options.out} is a folder, not a file")
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    columns = (*Progress.get_default_columns(), DownloadColumn())
    try:
        with Progress(*columns, console=console) as progress:
            text = make_corpus(options.base, options.cache, progress)
        if options.out.is_file() and options.out.read_bytes() != text.encode():
            raise FetchError(
                f"--out={options.out}: another text is there and is not replaced; move it away, or "
                "name another file"
            )
        write_whole(options.out, text.encode())
    except (FetchError, OSError) as error:
        console.print(f"fetch_corpus: {error}")
        return 1
    except KeyboardInterrupt:
        console.print("fetch_corpus: interrupted; run it again, it will go on from here")
        return 130
    digest = hashlib.sha256(text.encode()).hexdigest()
    print(f"{options.out}: {len(text.encode())} bytes, {len(text.split())} words, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
