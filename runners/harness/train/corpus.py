"""Reads a text to learn from, cuts off a held-out tail, and turns both parts into tokens.

The text is cut first and the tokenizer learns from the first part only, so that nothing sees any of
the held-out tail. The cut is at the end of a paragraph, line or word.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from runners.harness.config.schema import TrainConfig
from runners.harness.config.text_files import read_utf8
from tinygpt.tokenizer import Tokenizer

_LOOK_BACK = 2000
"""How many characters before the exact share are searched for a clean place to cut."""


@dataclass(frozen=True)
class Corpus:
    """A text in tokens."""

    name: str
    """The name of the file, without its folder."""
    sha256: str
    """The digest of the text in UTF-8."""
    text_bytes: int
    """Bytes of the whole text."""
    train_bytes: int
    """Bytes of the part that is learnt."""
    train_ids: list[int]
    held_out_ids: list[int]
    tokenizer: Tokenizer

    @property
    def target_bytes(self) -> int:
        """Bytes of the held-out tokens that are predicted: all but the first one."""
        return len(self.tokenizer.decode_bytes(self.held_out_ids[1:]))


def read_text(path: str | None) -> str:
    """The text of a file. Raises ValueError of one line if it is missing, empty or not UTF-8."""
    if path is None:
        raise ValueError(
            "corpus.path: no text is given; corpus.path=FILE, any UTF-8 text, or "
            "experiment=holmes for the one that scripts/fetch_corpus.py fetches"
        )
    text = read_utf8(
        "corpus.path",
        path,
        "give the path of a UTF-8 text (python scripts/fetch_corpus.py fetches the one of "
        "experiment=holmes)",
    )
    if not text:
        raise ValueError(f"corpus.path={path}: is empty; give a text to learn from")
    return text


def sha256(text: str) -> str:
    """A digest of the text in UTF-8: that of its file, unless the file has a byte-order mark."""
    return hashlib.sha256(text.encode()).hexdigest()


def split(text: str, held_out: float) -> tuple[str, str]:
    """The part to learn from and the held-out tail, which has at least its share of characters."""
    cut = len(text) - round(len(text) * held_out)
    earliest = max(0, cut - min(_LOOK_BACK, len(text) - cut))
    for boundary in ("\n\n", "\n", " "):
        found = text.rfind(boundary, earliest, cut)
        if found >= 0:
            cut = found + len(boundary)
            break
    return text[:cut], text[cut:]


def load(config: TrainConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """The tokens of ``corpus.path``, by a tokenizer that learns from the text unless one is given.

    Raises ValueError of one line if the text is too short for the model's window or vocabulary.
    """
    path, size = config.corpus.path, config.model.vocab_size
    text = read_text(path)
    corpus = _tokenized(Path(path or "").name, text, config.corpus.held_out, size, tokenizer)
    _require_enough(config, len(corpus.train_ids), len(corpus.held_out_ids))
    entries = corpus.tokenizer.vocab_size
    if entries != size:
        raise ValueError(
            f"model.vocab_size={size}: the tokenizer of corpus.path={path} has {entries} entries, "
            f"since no other pair of symbols occurs twice; set model.vocab_size={entries} or give "
            "a longer text"
        )
    return corpus


@lru_cache(maxsize=4)
def _tokenized(
    name: str, text: str, held_out: float, vocab_size: int, tokenizer: Tokenizer | None
) -> Corpus:
    """The corpus of a text; cached, since all jobs of a sweep are checked before the first runs."""
    learnt, tail = split(text, held_out)
    if tokenizer is None:
        # Without a text to learn from, a tokenizer of bytes alone can still count tokens.
        tokenizer = Tokenizer.train(learnt, vocab_size) if learnt else Tokenizer([])
    return Corpus(
        name=name,
        sha256=sha256(text),
        text_bytes=len(text.encode()),
        train_bytes=len(learnt.encode()),
        train_ids=tokenizer.encode(learnt),
        held_out_ids=tokenizer.encode(tail),
        tokenizer=tokenizer,
    )


def _require_enough(config: TrainConfig, train_tokens: int, held_out_tokens: int) -> None:
    share, window = config.corpus.held_out, config.model.context_length
    if train_tokens <= window:
        raise ValueError(
            f"corpus.path={config.corpus.path}: its first {1 - share:.4g} make {train_tokens} "
            f"tokens, and a window of model.context_length={window} needs at least {window + 1}; "
            "give a longer text or lower model.context_length"
        )
    if held_out_tokens < 2:
        raise ValueError(
            f"corpus.path={config.corpus.path}: its last {share:.4g} make {held_out_tokens} "
            "tokens, and a loss needs at least 2; give a longer text or raise corpus.held_out"
        )
