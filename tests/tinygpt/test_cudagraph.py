"""The CUDA graph engine on a CPU: all but the recording, which an imitation stands in for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runners.harness.measure import gate
from tests.small_model import BF16, CPU, EXACT, FP32, INT8, NANO, engine_for, random_ids
from tinygpt.checkpoint import cast, random_model
from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig, SamplerConfig
from tinygpt.engines import EngineArgs, make_engine, unsupported
from tinygpt.engines.cudagraph import Body, CudaGraphEngine
from tinygpt.generation import never_stop
from tinygpt.model import GPT
from tinygpt.sampling import make_sampler

GROUPED = replace(NANO, n_kv_heads=2)
STATIC = CacheConfig(kind="static")
WINDOW = NANO.context_length


class Recorded(TorchDispatchMode):
    """Does to kernels what a CUDA graph does: the same ones again on the tensors of the recording,
    with the host's values of that time, and no Python of the body's.
    """

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        with self:
            body()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def __call__(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def engine_over(
    model: GPT, *, batch: int, max_positions: int = 200, record: Callable[[Body], Any] = Recorded
) -> CudaGraphEngine:
    args = EngineArgs(
        model=model, cache=STATIC, batch=batch, max_positions=max_positions, precision=FP32
    )
    return CudaGraphEngine(args, record)


def weights(model: ModelConfig = GROUPED, precision: PrecisionConfig = FP32) -> GPT:
    return cast(random_model(model, seed=1), precision, CPU)


@pytest.mark.parametrize("prompt_tokens", [1, 2, WINDOW - 1, WINDOW, WINDOW + 9])
@pytest.mark.parametrize("batch", [1, 3])
def test_replays_write_the_eager_text_past_the_wrap(batch: int, prompt_tokens: int) -> None:
    model = weights()
    prompt = random_ids(model, batch, prompt_tokens)
    graphed = engine_over(model, batch=batch)
    eager = engine_for("static", model, batch=batch, max_positions=200)
    for sampler in (SamplerConfig(), SamplerConfig(temperature=0.9, repetition_penalty=1.2)):
        texts = []
        for engine in (graphed, eager, graphed):  # again, after what it left in the ring
            pick = make_sampler(sampler, batch=batch, seed=3, device=CPU)
            pick.reset(prompt, NANO.vocab_size)
            texts.append(engine.generate(prompt, 2 * WINDOW, pick, never_stop))
        assert torch.equal(texts[0], texts[1])
        assert torch.equal(texts[2], texts[1])


@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=lambda p: p.kind)
def test_the_gate_passes(precision: PrecisionConfig) -> None:
    model = weights(precision=precision)
    found = gate.check(
        engine_over(model, batch=2), model, random_ids(model, 2, 8), 50, precision, EXACT
    )
    assert found.reason == ""


def test_a_position_that_the_host_knows_is_found_out() -> None:
    # What a recording would freeze: the imitation has to show it, or it proves nothing.
    model = weights()
    engine = engine_over(model, batch=1)
    cache = engine._cache
    step = type(cache).__mro__[1].step  # StaticCache's: rows and slot from the host's position
    cache.step = lambda n: step(cache, n)  # type: ignore[method-assign]
    engine._cache.reset()
    engine._replay = Recorded(engine._body)
    found = gate.check(engine, model, random_ids(model, 1, 8), 50, FP32, EXACT)
    assert "logits differ" in found.reason


def test_the_ring_is_as_large_as_the_text_and_no_larger() -> None:
    model = weights()
    engine = engine_over(model, batch=2, max_positions=20)
    assert engine.kv_cache_bytes == 2 * 2 * 2 * 20 * 16 * 2 * 4  # B, layers, K, slots, D, k and v
    assert engine.weights_bytes == 4 * GROUPED.n_parameters
    prompt = random_ids(model, 2, 8)
    assert engine.generate(prompt, 12, lambda x: x.argmax(-1), never_stop).shape == (2, 20)
    with pytest.raises(ValueError, match=r"position 20 \+ 1 tokens: this cache was made for 20"):
        engine.generate(prompt, 14, lambda x: x.argmax(-1), never_stop)


def test_a_text_of_one_token_needs_no_replay() -> None:
    model = weights()
    engine = engine_over(model, batch=1, max_positions=2)
    assert (
        engine.generate(random_ids(model, 1, 1), 1, lambda x: x.argmax(-1), never_stop).shape[1]
        == 2
    )


def test_what_it_cannot_do_is_said_in_one_line() -> None:
    graph = EngineConfig(kind="cudagraph")
    assert unsupported(graph, NANO, STATIC, "cuda") == ""
    assert "device=cpu has no CUDA graphs" in unsupported(graph, NANO, STATIC, "cpu")
    assert "choose cache=static" in unsupported(graph, NANO, CacheConfig(kind="rolling"), "cuda")
    with pytest.raises(ValueError, match="choose device=cuda or engine=compiled"):
        make_engine(graph, weights(), STATIC, batch=1, max_positions=9, precision=FP32)
