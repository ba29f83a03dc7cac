"""Arithmetic against counting: operations of real passes, bytes of real weights and caches."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.live_bytes import LiveBytes
from tinygpt import cost
from tinygpt.cache import KVCache, make_cache
from tinygpt.checkpoint import cast, random_model
from tinygpt.config import CACHE_KINDS, CacheConfig, ModelConfig, PrecisionConfig, SamplerConfig
from tinygpt.generation import generate
from tinygpt.model import GPT
from tinygpt.quantisation import quantise
from tinygpt.sampling import make_sampler

SMALL = ModelConfig(
    vocab_size=500,
    context_length=32,
    n_layers=3,
    d_model=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    d_ff=96,
)
CONFIGS = [SMALL, replace(SMALL, tie_embeddings=False, n_kv_heads=4), ModelConfig()]
CPU = torch.device("cpu")


def cache_for(kind: str, model: GPT, batch: int, max_positions: int) -> KVCache:
    return make_cache(
        CacheConfig(kind=kind),
        model.config,
        batch=batch,
        max_positions=max_positions,
        device=CPU,
        dtype=model.dtype,
    )


@pytest.fixture
def flops() -> Iterator[FlopCounterMode]:
    """Counts matrix products, attention's two among them."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def uncounted(config: ModelConfig, tokens: int) -> int:
    """What the formula has and the counter does not see: two operations a norm's weight."""
    return 2 * (2 * config.n_layers + 1) * config.d_model * tokens


def masked(config: ModelConfig, tokens: int) -> int:
    """What the counter sees and the formula leaves out: products of a prefill with later tokens."""
    per_pair = 4 * config.n_layers * config.n_heads * config.head_dim
    return per_pair * tokens * (tokens - 1) // 2


@pytest.mark.parametrize("config", CONFIGS)
def test_flops_of_a_prefill_and_a_step(config: ModelConfig, flops: FlopCounterMode) -> None:
    model = random_model(config, seed=1)
    cache = cache_for("static", model, 1, 64)
    model.step(torch.zeros(1, 24, dtype=torch.long), cache)
    prefill = flops.get_total_flops()
    model.step(torch.zeros(1, 1, dtype=torch.long), cache)
    step = flops.get_total_flops() - prefill
    stated = cost.forward_flops(config, 24, 0)
    assert prefill == stated - uncounted(config, 24) + masked(config, 24)
    assert step == cost.forward_flops(config, 1, 24) - uncounted(config, 1)


@pytest.mark.parametrize("kind", CACHE_KINDS)
@pytest.mark.parametrize(("prompt", "new"), [(8, 1), (8, 40), (50, 10)])
def test_flops_of_a_generation(kind: str, prompt: int, new: int, flops: FlopCounterMode) -> None:
    model = random_model(SMALL, seed=1)
    cache = cache_for(kind, model, 2, prompt + new)
    ids = torch.zeros(2, prompt, dtype=torch.long)
    generate(model, ids, new, cache=cache, pick=lambda logits: logits.argmax(dim=-1))
    cached = kind != "none"
    fed = [min(n, 32) for n in range(prompt, prompt + new)]
    if cached:
        fed[1:] = [1] * (new - 1)
    wanted = cost.generation_flops(SMALL, 2, prompt, new, cached=cached)
    wanted += 2 * sum(masked(SMALL, tokens) - uncounted(SMALL, tokens) for tokens in fed)
    assert flops.get_total_flops() == wanted


def test_a_cached_token_of_the_post_s_model() -> None:
    # 2 operations for each of 5.8 M parameters, and 256 keys and values of 256 in 6 layers
    assert cost.forward_flops(ModelConfig(), 1, 255) == pytest.approx(
        2 * 5.79e6 + 4 * 6 * 256 * 256, rel=0.002
    )


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_bytes(config: ModelConfig, precision: str) -> None:
    kind = PrecisionConfig(kind=precision)
    model = cast(random_model(config, seed=1), kind, CPU)
    counted = sum(parameter.nbytes for parameter in model.parameters())
    assert cost.weights_bytes(config, kind) == counted
    assert cost.held_weights_bytes(config, kind) == counted


@pytest.mark.parametrize("config", CONFIGS)
def test_int8_weights_are_a_byte_each_and_a_scale_a_row(config: ModelConfig) -> None:
    model, int8 = random_model(config, seed=1), PrecisionConfig(kind="int8")
    parts = [quantise(p) if p.dim() == 2 else (p,) for p in model.parameters()]
    assert cost.weights_bytes(config, int8) == sum(t.nbytes for part in parts for t in part)
    held = sum(parameter.nbytes for parameter in cast(model, int8, CPU).parameters())
    assert cost.held_weights_bytes(config, int8) == held


def test_cache_bytes_of_the_post() -> None:
    assert cost.kv_cache_bytes(ModelConfig(), 1, 256, 4) == 3 * 2**20
    assert cost.kv_cache_bytes(ModelConfig(), 16, 1032, 4) == 48 * 2**20
    assert cost.kv_cache_bytes(ModelConfig(), 1, 256, 2) == 3 * 2**19


@pytest.mark.parametrize("kind", ["rolling", "static"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("tokens", [1, 20, 32, 50])
def test_cache_bytes_are_those_of_real_caches(kind: str, precision: str, tokens: int) -> None:
    config = PrecisionConfig(kind=precision)
    model = cast(random_model(SMALL, seed=1), config, CPU)
    cache = cache_for(kind, model, 3, tokens)
    with torch.inference_mode():
        for _ in range(tokens):
            model.step(torch.zeros(3, 1, dtype=torch.long), cache)
    assert cache.nbytes == cost.kv_cache_bytes(SMALL, 3, tokens, config.bytes_per_value)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 256), (4, 64), (16, 1)])
def test_activation_bytes_are_right_to_a_small_factor(batch: int, tokens: int) -> None:
    model = random_model(ModelConfig(), seed=1)
    cache = cache_for("none", model, batch, tokens)
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    pick = make_sampler(SamplerConfig(temperature=1.0, top_p=0.9), batch=batch, seed=1, device=CPU)
    pick.reset(ids, ModelConfig().vocab_size)
    with torch.inference_mode(), LiveBytes() as counted:
        pick(model.step(ids, cache))
    stated = cost.activation_bytes(ModelConfig(), batch, tokens, 4)
    assert counted.peak / 2.5 < stated < counted.peak * 2.5
