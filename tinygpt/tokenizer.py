"""Byte-level BPE: train, encode, decode, and Hugging Face's tokenizer.json.

Repeatedly merging the most frequent pair of symbols is the method of Sennrich et al. 2016
(arXiv:1508.07909). GPT-2 applies it to the UTF-8 bytes of text that was split into pieces; its
split and its letters for bytes are used here (github.com/openai/gpt-2, src/encoder.py), since all
common tokenizer libraries support them. Ids 0-255 are the bytes, followed by the merges in the
order learnt, and last ``<|endoftext|>``.

Training merges the most frequent pair first; among equally frequent pairs the one with the smallest
ids (left, then right). A pair that occurs only once is never merged.
"""

import hashlib
import heapq
import json
import os
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import regex

EOT = "<|endoftext|>"
# GPT-2's split of a text into pieces; no merge crosses from one piece into the next.
SPLIT = regex.compile(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
MIN_VOCAB_SIZE = 257  # the bytes and EOT
MAX_CACHED_PIECES = 1 << 16  # beyond this many, the cache is emptied
MAX_CACHED_LENGTH = 64  # in characters; longer pieces are not cached

Merge = tuple[int, int]


class Decoder(ABC):
    """What all tokenizers share: ids become bytes, and these a text."""

    vocab_size: int
    """Entries of the vocabulary."""
    n_ids: int
    """Ids that may be decoded: those of the model, of which some may have no entry."""
    end_ids: frozenset[int] = frozenset()
    """Tokens at which a text ends; none in tinygpt's own, which end it by ``<|endoftext|>``."""

    @property
    def end_of_turn_ids(self) -> frozenset[int]:
        """Tokens that end an answer in the chat template."""
        return frozenset()

    def encode_chat(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text as a user's turn in the chat template; ValueError if there is none."""
        raise ValueError(
            "prompt.chat=true: the checkpoint has no chat template; leave it out, or give the "
            "checkpoint of a model that was taught to chat"
        )

    @abstractmethod
    def _bytes_of(self, token_id: int) -> bytes:
        """The bytes of an id below ``n_ids``; none if it has no entry."""

    def padded(self, n_ids: int) -> Self:
        """The same tokenizer for a model with a vocabulary of ``n_ids``.

        Ids beyond the tokenizer's own vocabulary decode to nothing.
        """
        wider = copy(self)
        wider.n_ids = max(n_ids, self.vocab_size)
        return wider

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that the ids stand for. Raises ValueError for an id outside the vocabulary."""
        out = bytearray()
        for token_id in ids:
            if not 0 <= token_id < self.n_ids:
                raise ValueError(
                    f"token id {token_id} is outside 0..{self.n_ids - 1}, the ids of this "
                    "tokenizer: decode with the one that made it"
                )
            out += self._bytes_of(token_id)
        return bytes(out)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, with U+FFFD for invalid UTF-8. Raises as ``decode_bytes``."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")


class Tokenizer(Decoder):
    """A vocabulary and its merges, made by ``train`` or ``load``; it never changes."""

    def __init__(self, merges: Sequence[Merge], regex_version: str = regex.__version__) -> None:
        """Make a tokenizer from pairs of ids in the order learnt.

        ``regex_version`` is the version of ``regex`` that split the training text.
        """
        self.merges = tuple(merges)
        self.regex_version = regex_version
        self.eot_id = 256 + len(self.merges)
        self.vocab_size = self.n_ids = self.eot_id + 1
        self._tokens = [bytes([value]) for value in range(256)]
        for left, right in self.merges:
            self._tokens.append(self._tokens[left] + self._tokens[right])
        self._tokens.append(EOT.encode())
        self._merged = {pair: 256 + rank for rank, pair in enumerate(self.merges)}
        self._cache: dict[str, list[int]] = {}

    @classmethod
    def train(cls, text: str, vocab_size: int = 4096) -> Self:
        """Learn up to ``vocab_size`` - 257 merges; the same text always gives the same file.

        Training ends early, with a smaller ``vocab_size``, when no pair is left that occurs twice.
        ``<|endoftext|>`` in the text is treated as plain text. Raises ValueError for an empty text,
        a text with lone surrogates, and a ``vocab_size`` below 257.
        """
        if vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(
                f"vocab_size={vocab_size} is below {MIN_VOCAB_SIZE}, which the 256 bytes and {EOT} "
                "take: ask for more"
            )
        if not text:
            raise ValueError("the training text is empty (0 characters): give a text to learn from")
        _require_utf8(text)
        return cls(_learn_merges(Counter(SPLIT.findall(text)), vocab_size - MIN_VOCAB_SIZE))

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text; raises ValueError for a text with lone surrogates.

        If ``allow_special``, ``<|endoftext|>`` in the text becomes the special token; otherwise it
        is plain text.
        """
        _require_utf8(text)
        ids: list[int] = []
        for number, part in enumerate(text.split(EOT) if allow_special else [text]):
            if number > 0:
                ids.append(self.eot_id)
            for piece in SPLIT.findall(part):
                ids.extend(self._cache.get(piece) or self._encode_piece(piece))
        return ids

    def _bytes_of(self, token_id: int) -> bytes:
        return self._tokens[token_id] if token_id < self.vocab_size else b""

    @property
    def sha256(self) -> str:
        """The hexadecimal SHA-256 digest of the file that ``save`` writes."""
        return hashlib.sha256(self._file_content()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; an older file is replaced only once the new one is complete."""
        target = Path(path)
        partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        try:
            with partial.open("wb") as file:
                file.write(self._file_content())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a tokenizer.json that ``save`` wrote, even if ``tokenizers`` has saved it again.

        Raises ValueError, with a message of one line, for a file that is missing, damaged or of
        another kind of tokenizer.
        """
        try:
            document = json.loads(Path(path).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{path}: cannot be read ({_cause(error)}); fetch or save it again"
            ) from None
        try:
            vocab, merges = document["model"]["vocab"], document["model"]["merges"]
            version = document["pre_tokenizer"].setdefault("regex_version", "unknown")
            tokenizer = cls([(vocab[left], vocab[right]) for left, right in merges], str(version))
            if len(vocab) != tokenizer.vocab_size:
                raise ValueError(f"{len(vocab)} entries, but {len(merges)} merges")
            for key, ours in tokenizer._document().items():
                theirs = document[key]
                if theirs != (theirs | ours if isinstance(ours, dict) else ours):
                    raise ValueError(f"another {key}")
        except Exception as error:  # a foreign file can fail in any way
            raise ValueError(
                f"{path}: is another kind of tokenizer ({_cause(error)}); only tinygpt's own "
                "byte-level BPE can be read"
            ) from None
        return tokenizer

    @staticmethod
    def wrote(path: Path) -> bool:
        """Whether ``path`` is a file of ours, which ``load`` reads; it may be damaged."""
        try:
            document = json.loads(path.read_bytes())
            return "regex_version" in document["pre_tokenizer"]
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return False

    def _encode_piece(self, piece: str) -> list[int]:
        """The ids of one piece, in n log n steps: a heap of possible merges over a linked list."""
        ids, merged = list(piece.encode()), self._merged
        after, before = list(range(1, len(ids) + 1)), list(range(-1, len(ids) - 1))
        heap = [(merged[pair], at) for at, pair in enumerate(pairwise(ids)) if pair in merged]
        heapq.heapify(heap)
        while heap:
            new_id, at = heapq.heappop(heap)
            right = after[at]
            if right == len(ids) or merged.get((ids[at], ids[right])) != new_id:
                continue  # one of the two has been merged since
            ids[at], ids[right], after[at] = new_id, -1, after[right]
            if after[at] < len(ids):
                before[after[at]] = at
            for start in (before[at], at):
                if start >= 0 and after[start] < len(ids):
                    found = merged.get((ids[start], ids[after[start]]))
                    if found is not None:
                        heapq.heappush(heap, (found, start))
        ids = [token_id for token_id in ids if token_id >= 0]
        if len(piece) <= MAX_CACHED_LENGTH:
            if len(self._cache) >= MAX_CACHED_PIECES:
                self._cache.clear()
            self._cache[piece] = ids
        return ids

    def _document(self) -> dict[str, Any]:
        visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
        hidden = iter(range(256, 512))  # the other bytes get letters from U+0100 on
        letters = [chr(value if value in visible else next(hidden)) for value in range(256)]
        names = ["".join(letters[value] for value in token) for token in self._tokens]
        vocab = {name: token_id for token_id, name in enumerate(names)}
        merges = [[names[left], names[right]] for left, right in self.merges]
        flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
        split = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "added_tokens": [{"id": self.eot_id, "content": EOT, "special": True, **flags}],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", **split, "regex_version": self.regex_version},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", **split},
            "model": {"type": "BPE", "dropout": None, "vocab": vocab, "merges": merges},
        }

    def _file_content(self) -> bytes:
        return json.dumps(self._document(), ensure_ascii=False).encode()


def _learn_merges(pieces: Counter[str], limit: int) -> list[Merge]:
    """Learn up to ``limit`` merges from pieces of text and how often each occurs.

    The pieces are stored one after another in a linked list. ``places`` lists where each pair was
    seen, in rising order; places where it has since been merged away are skipped. Entries of the
    heap may also be out of date: a pair's count only falls, so an entry with too high a count is
    pushed again with the present count.
    """
    ids, weights, after, before = list[int](), list[int](), list[int](), list[int]()
    counts, places = defaultdict[Merge, int](int), defaultdict[Merge, list[int]](list)
    for piece, weight in pieces.items():
        start, encoded = len(ids), piece.encode()
        stop = start + len(encoded)
        ids += encoded
        weights += [weight] * len(encoded)
        after += [*range(start + 1, stop), -1]
        before += [-1, *range(start, stop - 1)]
        for at, pair in enumerate(pairwise(encoded), start):
            counts[pair] += weight
            places[pair].append(at)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    merges: list[Merge] = []
    while heap and len(merges) < limit:
        negative, pair = heapq.heappop(heap)
        if counts[pair] != -negative:
            heapq.heappush(heap, (-counts[pair], pair))
            continue
        if counts[pair] < 2:
            break
        new_id, made = 256 + len(merges), set[Merge]()
        merges.append(pair)
        for at in places.pop(pair):
            right, weight = after[at], weights[at]
            if right < 0 or (ids[at], ids[right]) != pair:
                continue
            previous, following = before[at], after[right]
            if previous >= 0:
                counts[ids[previous], pair[0]] -= weight
            if following >= 0:
                counts[pair[1], ids[following]] -= weight
                before[following] = at
            ids[at], ids[right], after[at] = new_id, -1, following
            for start in (previous, at):
                if start >= 0 and after[start] >= 0:
                    neighbours = (ids[start], ids[after[start]])
                    counts[neighbours] += weight
                    places[neighbours].append(start)
                    made.add(neighbours)
        for neighbours in made:
            heapq.heappush(heap, (-counts[neighbours], neighbours))
    return merges


def _cause(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _require_utf8(text: str) -> None:
    found = regex.search("[\ud800-\udfff]", text)
    if found:
        raise ValueError(
            f"character {found.start()} of the text is U+{ord(found[0]):04X}, half a surrogate "
            "pair, which UTF-8 cannot hold: read the text in its own encoding"
        )
