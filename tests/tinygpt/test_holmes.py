"""The weights that ship: what they are, and that other engines read them alike."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from runners.harness.config.paths import find_checkpoint
from tinygpt.cache import make_cache
from tinygpt.checkpoint import load_model
from tinygpt.config import CacheConfig, ModelConfig, SamplerConfig
from tinygpt.generation import generate
from tinygpt.sampling import make_sampler
from tinygpt.tokenizer import Tokenizer

TEXT = "“You have been in Afghanistan, I perceive,” said Holmes."
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_checkpoint("holmes", "anywhere")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder / "tokenizer.json")


def test_it_is_the_posts_model_in_bf16_under_12_megabytes(folder: Path) -> None:
    model = load_model(folder, ModelConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_795_072
    assert (folder / "model.safetensors").stat().st_size <= 12e6
    assert (folder / "README.md").read_text(encoding="utf-8").count("runners.train") >= 1


def test_transformers_gives_the_same_ids_and_logits(folder: Path, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"] == ids
    assert tokenizer.decode(ids) == TEXT
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        wanted = theirs(torch.tensor([ids])).logits
        torch.testing.assert_close(
            load_model(folder, ModelConfig())(torch.tensor([ids])), wanted, atol=1e-4, rtol=0
        )


def test_it_has_read_the_canon(folder: Path, tokenizer: Tokenizer) -> None:
    """Below the trigram's 4.3 nats a token on a sentence of the canon, far below log(4096)."""
    ids = torch.tensor([tokenizer.encode(TEXT)])
    with torch.inference_mode():
        logits = load_model(folder, ModelConfig())(ids[:, :-1])
    assert float(torch.nn.functional.cross_entropy(logits[0], ids[0, 1:])) < 4.3


def test_greedy_text_is_english_and_the_same_with_every_cache(
    folder: Path, tokenizer: Tokenizer
) -> None:
    model = load_model(folder, ModelConfig())
    prompt = torch.tensor([tokenizer.encode("Holmes")])
    texts = set()
    for kind in ("none", "rolling", "static"):
        cache = make_cache(
            CacheConfig(kind=kind),
            model.config,
            batch=1,
            max_positions=60,
            device=CPU,
            dtype=torch.float32,
        )
        sampler = make_sampler(SamplerConfig(), batch=1, seed=1, device=CPU)
        sampler.reset(prompt, model.config.vocab_size)
        ids = generate(model, prompt, 40, cache=cache, pick=sampler)
        texts.add(tokenizer.decode(ids[0].tolist()))
    (text,) = texts
    assert sum(word in text.split() for word in ("the", "I", "that", "of", "and", "a")) >= 3
