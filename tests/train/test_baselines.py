"""Counting models: known answers by hand, and that what they give are probabilities."""

import itertools
from math import log

import numpy as np
import pytest

from runners.harness.train.baselines import KneserNey, trigram_nats, unigram_nats

A, B, C = 0, 1, 2
TEXT = [A, B, C, A, B, A, A, B, C, B]
# Triples: ABC 2, BCA, CAB, ABA, BAA, AAB, BCB 1 each. Distinct triples by their last two tokens:
# BC 1 (A), CA 1 (B), AB 2 (C, A), BA 1 (A), AA 1 (B), CB 1 (B).
PAIRS = {(B, C): 1, (C, A): 1, (A, B): 2, (B, A): 1, (A, A): 1, (C, B): 1}
SINGLES = {A: 3, B: 2, C: 1}  # distinct pairs by their last token


def ids(*values: int) -> np.ndarray:
    return np.array(values)


def test_a_unigram_is_shares_with_one_added() -> None:
    # A is 3 of 4, B 1 of 4; with one added in a vocabulary of 4: 4/8, 2/8, 1/8, 1/8
    assert unigram_nats([A, A, A, B], [C, A, B, 3], 4) == pytest.approx(
        (log(8 / 4) + log(8 / 2) + log(8)) / 3
    )


def test_the_first_token_is_not_predicted() -> None:
    assert unigram_nats([A, B], [A, B], 2) == unigram_nats([A, B], [B, B], 2)
    assert trigram_nats(TEXT, [A, B], 3) != trigram_nats(TEXT, [B, B], 3)  # but it is a context


def test_discounts_are_those_of_the_counts() -> None:
    model = KneserNey(np.array(TEXT), 3)
    assert model._triples.discount == pytest.approx(6 / (6 + 2 * 1))
    assert model._pairs.discount == pytest.approx(5 / (5 + 2 * 1))
    assert model._singles.discount == pytest.approx(1 / (1 + 2 * 1))


def test_kneser_ney_by_hand() -> None:
    model = KneserNey(np.array(TEXT), 3)
    single = {c: (SINGLES[c] - 1 / 3 + 1 / 3 * 3 / 3) / 6 for c in (A, B, C)}
    assert model.unigram(ids(A, B, C)).tolist() == pytest.approx(list(single.values()))
    # after B in the middle: BC 1 and BA 1
    pair = (1 - 5 / 7 + 5 / 7 * 2 * single[C]) / 2
    assert model.bigram(ids(B), ids(C)).tolist() == pytest.approx([pair])
    # AB was seen 3 times: ABC twice, ABA once
    assert model.trigram(ids(A), ids(B), ids(C)).tolist() == pytest.approx(
        [(2 - 0.75 + 0.75 * 2 * pair) / 3]
    )
    # CB ends the text: nothing was seen after it, so the shorter context decides
    assert model.trigram(ids(C), ids(B), ids(C)).tolist() == pytest.approx([pair])


def test_the_loss_is_over_the_second_token_by_a_bigram_and_the_rest_by_trigrams() -> None:
    model = KneserNey(np.array(TEXT), 3)
    tail = [B, C, A, A]
    expected = [
        model.bigram(ids(B), ids(C)),
        model.trigram(ids(B), ids(C), ids(A)),
        model.trigram(ids(C), ids(A), ids(A)),
    ]
    mean = -sum(log(float(p[0])) for p in expected) / 3
    assert trigram_nats(TEXT, tail, 3) == pytest.approx(mean)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TEXT, id="known"),
        pytest.param([A, A, A, A], id="one token"),
        pytest.param([A, B, C], id="one triple"),
        pytest.param([A, B, A, B, A, B, A, B], id="nothing once"),
        pytest.param(np.random.default_rng(1).integers(0, 5, 200).tolist(), id="noise"),
    ],
)
def test_every_context_gives_a_distribution_without_zeros(text: list[int]) -> None:
    size = 6  # a token more than any text has
    model = KneserNey(np.array(text), size)
    every = np.arange(size)
    assert model.unigram(every).sum() == pytest.approx(1.0)
    for a, b in itertools.product(range(size), repeat=2):
        for shares in (
            model.bigram(np.full(size, b), every),
            model.trigram(np.full(size, a), np.full(size, b), every),
        ):
            assert shares.sum() == pytest.approx(1.0)
            assert (shares > 0).all()


def test_a_large_vocabulary_does_not_overflow() -> None:
    size = 2**20
    text = [size - 1, size - 2, size - 3] * 5
    assert trigram_nats(text, text, size) < 1.0
    assert unigram_nats(text, text, size) > 10.0
