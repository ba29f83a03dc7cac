"""Baselines for the held-out loss: models that only count, judged on the same tokens.

They count on the training part and are judged on all held-out tokens but the first, as the model
is. The trigram is interpolated Kneser-Ney (Chen & Goodman 1998, section 4.1.6): a fixed amount is
taken off every count and given to the shorter context, which counts distinct contexts instead of
occurrences. The amount is n1 / (n1 + 2 n2), where n1 and n2 are the numbers of entries seen once
and twice. Both models give every token of the vocabulary some probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def unigram_nats(train: Sequence[int], held_out: Sequence[int], vocab_size: int) -> float:
    """Nats per token if each has its share of the training part, with 1 added to every count."""
    counts = np.bincount(np.asarray(train), minlength=vocab_size) + 1
    shares = counts / counts.sum()
    return float(-np.log(shares[np.asarray(held_out)[1:]]).mean())


def trigram_nats(train: Sequence[int], held_out: Sequence[int], vocab_size: int) -> float:
    """Nats per token of a Kneser-Ney trigram; the second token has one token before it."""
    model = KneserNey(np.asarray(train, dtype=np.int64), vocab_size)
    ids = np.asarray(held_out, dtype=np.int64)
    first = model.bigram(ids[:1], ids[1:2])
    rest = model.trigram(ids[:-2], ids[1:-1], ids[2:])
    return float(-np.log(np.concatenate([first, rest])).mean())


@dataclass(frozen=True)
class _Counts:
    """Counts of keys, sorted by key, so that many are looked up at once."""

    keys: Ids
    values: Ids

    @classmethod
    def of(cls, keys: Ids) -> "_Counts":
        found, values = np.unique(keys, return_counts=True)
        return cls(found, values.astype(np.int64))

    def __getitem__(self, keys: Ids) -> Ids:
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.values[at], 0)

    @property
    def discount(self) -> float:
        """The amount taken off every count; never 0, or unseen tokens would have no probability."""
        once, twice = int((self.values == 1).sum()), int((self.values == 2).sum())
        return min(max(once / max(1, once + 2 * twice), 0.05), 0.95)


class KneserNey:
    """Probabilities of a token after two, one or no others, counted in a text."""

    def __init__(self, ids: Ids, vocab_size: int) -> None:
        self._size = vocab_size
        pairs = ids[:-1] * vocab_size + ids[1:]
        triples = pairs[:-1] * vocab_size + ids[2:]
        # Triples count their occurrences; pairs and singles the distinct tokens before them.
        self._triples = _Counts.of(triples)
        distinct = self._triples.keys
        self._pairs = _Counts.of(distinct % vocab_size**2)
        self._singles = _Counts.of(self._pairs.keys % vocab_size)
        # For each context: the sum of its counts, and how many distinct tokens were seen after it.
        self._after_two = _Counts.of(triples // vocab_size)
        self._kinds_after_two = _Counts.of(distinct // vocab_size)
        self._after_one = _Counts.of(distinct % vocab_size**2 // vocab_size)
        self._kinds_after_one = _Counts.of(self._pairs.keys // vocab_size)

    def unigram(self, c: Ids) -> Floats:
        """P(c), from the number of distinct tokens that were seen before c."""
        total, kinds = len(self._pairs.keys), len(self._singles.keys)
        discount = self._singles.discount
        seen = np.maximum(self._singles[c] - discount, 0.0)
        return np.asarray((seen + discount * kinds / self._size) / max(1, total))

    def bigram(self, b: Ids, c: Ids) -> Floats:
        """P(c | b)."""
        return _interpolate(
            self._pairs[b * self._size + c],
            self._pairs.discount,
            self._after_one[b],
            self._kinds_after_one[b],
            self.unigram(c),
        )

    def trigram(self, a: Ids, b: Ids, c: Ids) -> Floats:
        """P(c | a, b)."""
        before = a * self._size + b
        return _interpolate(
            self._triples[before * self._size + c],
            self._triples.discount,
            self._after_two[before],
            self._kinds_after_two[before],
            self.bigram(b, c),
        )


def _interpolate(count: Ids, discount: float, total: Ids, kinds: Ids, shorter: Floats) -> Floats:
    """Discounted shares plus the shorter context's part; that context alone if this one is new."""
    share = (np.maximum(count - discount, 0.0) + discount * kinds * shorter) / np.maximum(total, 1)
    return np.where(total > 0, share, shorter)
