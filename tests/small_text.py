"""A text to learn from that is nobody's, and a model that learns it in seconds."""

import random
from dataclasses import asdict
from functools import cache

from runners.harness.config.nested import flatten
from runners.harness.train import corpus
from tinygpt.config import ModelConfig
from tinygpt.tokenizer import Tokenizer

WORDS = (
    "the a of and it was in that lamp river bridge clerk letter night rain door hand street found "
    "said came went behind under before after slowly again nothing everything window letter’s"
).split()
MODEL = ModelConfig(
    vocab_size=300,
    context_length=16,
    n_layers=2,
    d_model=32,
    n_heads=2,
    n_kv_heads=2,
    head_dim=16,
    d_ff=64,
)
KEYS = [f"model.{key}={value}" for key, value in flatten(asdict(MODEL)).items()]
"""The same model on a command line."""


def text(sentences: int = 300, seed: int = 1) -> str:
    """Sentences of words in a seeded order, in paragraphs."""
    draw = random.Random(seed)
    parts = []
    for number in range(sentences):
        words = draw.choices(WORDS, k=draw.randint(3, 9))
        parts.append(" ".join(words).capitalize() + (".\n\n" if number % 5 == 4 else ". "))
    return "".join(parts)


@cache
def ids() -> tuple[list[int], list[int]]:
    """The text in tokens: those to learn from, and those held out."""
    learnt, tail = corpus.split(text(), 0.05)
    tokenizer = Tokenizer.train(learnt, MODEL.vocab_size)
    return tokenizer.encode(learnt), tokenizer.encode(tail)
