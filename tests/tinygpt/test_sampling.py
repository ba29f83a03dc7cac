"""The samplers: S1 to S10 of the known faults, transformers' processors, and statistics."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tinygpt.cache import make_cache
from tinygpt.checkpoint import random_model
from tinygpt.config import CacheConfig, ModelConfig, SamplerConfig
from tinygpt.generation import generate
from tinygpt.sampling import Sampler, keep_top_k, keep_top_p, make_sampler
from tinygpt.seeds import row_seed

CPU = torch.device("cpu")
NAN, INF = float("nan"), float("inf")


def sampler(*, batch: int = 1, seed: int = 1, vocab: int = 4096, prompt: Any = None, **config: Any):
    made = make_sampler(SamplerConfig(**config), batch=batch, seed=seed, device=CPU)
    made.reset(torch.tensor([prompt or [0]] * batch), vocab)
    return made


def survivors(made: Sampler, *logits: float) -> set[int]:
    return set(made.scores(torch.tensor([logits]))[0].isfinite().nonzero().flatten().tolist())


def draws(made: Sampler, logits: Tensor, steps: int) -> Tensor:
    """Ids (steps, B) for the same logits (V,) again and again."""
    rows = logits.expand(len(made._generators), -1)
    return torch.stack([made(rows) for _ in range(steps)])


def random_logits(seed: int, *shape: int, scale: float = 3.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def test_s1_top_p_of_nearly_nothing_keeps_the_best() -> None:
    with pytest.raises(ValueError, match="top_p=0"):
        SamplerConfig(top_p=0)
    # 1e-46 is above 0 as Python counts, and 0 in fp32
    for p in (1e-8, 1e-46):
        made = sampler(temperature=1.0, top_p=p, vocab=3)
        assert set(draws(made, torch.tensor([2.0, 1.0, 0.0]), 50).flatten().tolist()) == {0}
        made.check()


def test_s2_each_distinct_token_is_penalised_once() -> None:
    made = sampler(repetition_penalty=2.0, vocab=4, prompt=[0, 0, 0, 2, 3])
    assert made.scores(torch.tensor([[8.0, 1.0, -3.0, 0.0]])).tolist() == [[4, 1, -6, 0]]


def test_s3_penalty_below_one_encourages_and_one_is_off() -> None:
    for penalty in (0, -1):
        with pytest.raises(ValueError, match=f"repetition_penalty={penalty}"):
            SamplerConfig(repetition_penalty=penalty)
    logits = torch.tensor([[8.0, 1.0, -3.0, 0.0]])
    half = sampler(repetition_penalty=0.5, vocab=4, prompt=[0, 2])
    assert half.scores(logits).tolist() == [[16, 1, -1.5, 0]]
    many = random_logits(1, 1, 4096)
    assert torch.equal(sampler(repetition_penalty=1.0, prompt=[5]).scores(many), many)


def test_the_history_is_prompt_and_output_of_its_own_row() -> None:
    made = make_sampler(SamplerConfig(repetition_penalty=4.0), batch=2, seed=1, device=CPU)
    logits = torch.tensor([4.0, 3.0, 2.0, 1.5]).expand(2, -1)
    for _ in range(2):  # a second text knows nothing of the first
        made.reset(torch.tensor([[0], [1]]), 4)
        assert [made(logits).tolist() for _ in range(3)] == [[1, 0], [2, 2], [3, 3]]


def test_s4_temperatures_down_to_nothing_are_argmax() -> None:
    with pytest.raises(ValueError, match="temperature=-1"):
        SamplerConfig(temperature=-1)
    logits = random_logits(1, 4, 4096)
    for temperature in (0.0, 1e-40):
        for factor in (1.0, 1e12):  # a penalty close to 0 makes such scores
            made = sampler(batch=4, temperature=temperature)
            assert torch.equal(made(logits * factor), logits.argmax(dim=-1))
            made.check()


def test_s4_fp16_logits_of_ten_do_not_overflow() -> None:
    made = sampler(temperature=1e-4, vocab=4)
    logits = torch.tensor([9.0, 9.9, 10.0, -10.0], dtype=torch.float16)
    assert made.scores(logits[None]).dtype == torch.float32
    assert set(draws(made, logits, 50).flatten().tolist()) == {2}
    made.check()


def test_s5_more_than_the_vocabulary_is_off() -> None:
    with pytest.raises(ValueError, match="top_k=-1"):
        SamplerConfig(top_k=-1)
    logits = random_logits(1, 4096)
    off = draws(sampler(temperature=1.0, batch=4), logits, 20)
    for k in (0, 4096, 5000):
        assert torch.equal(draws(sampler(temperature=1.0, top_k=k, batch=4), logits, 20), off)
    assert survivors(sampler(temperature=1.0, top_k=2), 1, 4, 3, 2) == {1, 2}


def test_s6_half_of_four_equals() -> None:
    four = (1.0, 1.0, 1.0, 1.0)
    assert len(survivors(sampler(temperature=1.0, top_p=0.5), *four)) == 2
    assert len(survivors(sampler(temperature=1.0, top_p=1.0), *four)) == 4
    with pytest.raises(ValueError, match=r"top_p=1\.5"):
        SamplerConfig(top_p=1.5)


def test_s7_temperature_comes_before_top_p() -> None:
    assert survivors(sampler(temperature=0.5, top_p=0.8), 3, 2, 1) == {0}
    assert survivors(sampler(temperature=1.0, top_p=0.8), 3, 2, 1) == {0, 1}


def test_top_k_comes_before_top_p() -> None:
    # of all five, 0.6 needs four tokens; of the two best, the first has 0.5 only
    assert survivors(sampler(temperature=1.0, top_k=2, top_p=0.6), 1, 1, 0.9, 0.9, 0.9) == {0, 1}
    assert len(survivors(sampler(temperature=1.0, top_p=0.6), 1, 1, 0.9, 0.9, 0.9)) == 3


def test_s8_min_p_is_not_offered() -> None:
    """Whoever offers it brings S8's values along."""
    with pytest.raises(TypeError, match="min_p"):
        SamplerConfig(min_p=0.4)


def test_s9_row_0_is_the_same_text_at_batch_1_and_16() -> None:
    config = ModelConfig(
        vocab_size=512, context_length=32, n_layers=2, d_model=64, n_heads=4, n_kv_heads=4, d_ff=96
    )
    model, texts = random_model(config, seed=1), []
    for batch in (1, 16):
        prompt = torch.arange(8).expand(batch, -1)
        cache = make_cache(
            CacheConfig(), config, batch=batch, max_positions=48, device=CPU, dtype=torch.float32
        )
        pick = sampler(batch=batch, temperature=1.0, vocab=512)
        texts.append(generate(model, prompt, 40, cache=cache, pick=pick).tolist())
    assert texts[1][0] == texts[0][0]
    assert len({tuple(row) for row in texts[1]}) == 16


def test_s10_what_has_no_probability_is_never_drawn() -> None:
    one_hot = torch.zeros(64, dtype=torch.float16)
    one_hot[5] = 1.0
    for logits in (one_hot.log(), one_hot * 200 - 100):
        drawn = draws(sampler(temperature=1.0, batch=100, vocab=64), logits, 200)
        assert drawn.numel() == 20_000
        assert set(drawn.flatten().tolist()) == {5}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("knobs", [{}, {"top_k": 3, "top_p": 0.9, "repetition_penalty": 1.3}])
@pytest.mark.parametrize("value", [[NAN, 1, 1, 1], [-INF] * 4, [NAN] * 4, [1, 1, 1, INF]])
def test_s10_a_row_without_a_maximum_is_named_afterwards(
    temperature: float, knobs: dict[str, Any], value: list[float]
) -> None:
    made = sampler(temperature=temperature, batch=4, vocab=4, **knobs)
    bad = torch.ones(4, 4)
    bad[2] = torch.tensor(value)
    for logits in (torch.ones(4, 4), bad, torch.ones(4, 4)):
        made(logits)
    with pytest.raises(ValueError, match=r"^row 2: the logits were NaN or infinite"):
        made.check()
    made.reset(torch.zeros(4, 1, dtype=torch.long), 4)
    made.check()


class Reads(TorchDispatchMode):
    """Notes operations whose result has to come back from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in (
            "_local_scalar_dense",
            "nonzero",
            "equal",
            "is_nonzero",
        ):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_waits_for_nothing(temperature: float) -> None:
    made = sampler(temperature=temperature, top_k=9, top_p=0.9, repetition_penalty=1.3, batch=4)
    with Reads() as reads:
        made(random_logits(1, 4, 4096))
        assert reads.seen == []
        made.check()
        assert len(reads.seen) == 1


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    vocab=st.sampled_from([5, 100, 1000]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    temperature=st.floats(0.05, 3.0),
    top_k=st.integers(1, 120),
    top_p=st.floats(0.01, 0.999),
    penalty=st.floats(0.5, 2.0),
)
def test_scores_are_those_of_transformers(
    seed: int,
    vocab: int,
    spread: float,
    temperature: float,
    top_k: int,
    top_p: float,
    penalty: float,
) -> None:
    logits = random_logits(seed, 3, vocab, scale=spread)
    prompt = torch.randint(vocab, (3, 6), generator=torch.Generator().manual_seed(seed))
    config = {"temperature": temperature, "top_k": top_k, "repetition_penalty": penalty}
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(penalty),
            TemperatureLogitsWarper(temperature),
            TopKLogitsWarper(top_k),
        ]
    )(prompt, logits.clone())
    made = make_sampler(SamplerConfig(**config), batch=3, seed=1, device=CPU)
    made.reset(prompt, vocab)
    ours = made.scores(logits)
    if bool((theirs.isfinite().sum(-1) > top_k).any()):  # they keep all that tie with the last
        return
    torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1), atol=1e-5, rtol=1e-4)
    assert torch.equal(ours.isfinite(), theirs.isfinite())

    # a token whose rank begins within rounding of p may fall on either side
    ranked, order = theirs.softmax(-1).double().sort(-1, descending=True)
    close = ((ranked.cumsum(-1) - ranked - top_p).abs() < 1e-5).gather(-1, order.argsort(-1))
    theirs_kept = TopPLogitsWarper(top_p)(prompt, theirs).isfinite()
    made = make_sampler(SamplerConfig(**config, top_p=top_p), batch=3, seed=1, device=CPU)
    made.reset(prompt, vocab)
    assert bool(((made.scores(logits).isfinite() == theirs_kept) | close).all())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_that_reaches_p(values: list[float], p: float) -> None:
    kept = keep_top_p(torch.tensor([values]), p)[0].isfinite()
    probabilities = torch.tensor(values, dtype=torch.float64).softmax(-1)
    assert float(probabilities[kept].sum()) >= p - 1e-5
    assert float(probabilities[kept].sum() - probabilities[kept].min()) <= p + 1e-5
    if not bool(kept.all()):
        assert probabilities[kept].min() >= probabilities[~kept].max() - 1e-12


@pytest.mark.parametrize(
    ("values", "k", "kept"),
    [
        ([0, 4, 4, 4, 1], 1, {1}),
        ([0, 4, 4, 4, 1], 2, {1, 2}),
        ([0, 4, 4, 4, 1], 4, {1, 2, 3, 4}),
        ([3, 2, 5, 2, 2], 3, {0, 1, 2}),
        ([-INF, 1, -INF, -INF], 2, {1}),
    ],
)
def test_of_equal_scores_top_k_keeps_the_lowest_ids(
    values: list[float], k: int, kept: set[int]
) -> None:
    assert survivors(sampler(temperature=1.0, top_k=k), *values) == kept


def test_of_equal_scores_top_p_keeps_the_lowest_ids() -> None:
    assert survivors(sampler(temperature=1.0, top_p=0.5), *[1.0] * 4) == {0, 1}
    assert survivors(sampler(temperature=1.0, top_p=0.6), 0, 4, 4, 4, 0) == {1, 2}
    many = keep_top_p(torch.ones(3, 4096), 0.25)
    assert torch.equal(
        many.isfinite().nonzero()[:, 1].view(3, -1), torch.arange(1024).expand(3, -1)
    )


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**20),
    vocab=st.sampled_from([7, 1000, 4099, 50_001]),
    k=st.integers(1, 60),
    spread=st.sampled_from([0.0, 1.0, 20.0]),
)
def test_top_k_is_the_head_of_a_stable_order(seed: int, vocab: int, k: int, spread: float) -> None:
    scores = random_logits(seed, 3, vocab, scale=spread).round()  # most of them tie
    order = sorted(range(vocab), key=lambda n: -float(scores[0, n]))
    kept = keep_top_k(scores, k).isfinite()
    assert kept[0].nonzero().flatten().tolist() == sorted(order[:k])
    assert kept.sum(-1).tolist() == [min(k, vocab)] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [5, 4096, 50_001])
def test_greedy_takes_the_first_of_equals_and_so_does_top_k_of_one(
    vocab: int, dtype: torch.dtype
) -> None:
    for seed in range(20):
        logits = random_logits(seed, 4, vocab).clamp(max=4.0).to(dtype)
        wanted = [row.index(max(row)) for row in logits.tolist()]
        assert sampler(batch=4, vocab=vocab)(logits).tolist() == wanted
        one = sampler(batch=4, vocab=vocab, temperature=1.0, top_k=1)
        assert one(logits).tolist() == wanted


def test_top_k_leaves_nan_for_the_check_to_find() -> None:
    assert bool(keep_top_k(torch.tensor([[NAN, 3.0, 2.0, 1.0]]), 2)[0, 0].isnan())


@pytest.mark.parametrize(
    "config", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 12, "top_p": 0.9}]
)
def test_draws_follow_softmax(config: dict[str, Any]) -> None:
    logits = random_logits(4, 20, scale=1.0)
    made = sampler(batch=500, vocab=20, **config)
    drawn = draws(made, logits, 80)
    wanted = made.scores(logits[None])[0].double().softmax(-1)
    counts = torch.bincount(drawn.flatten(), minlength=20)
    possible = wanted > 0
    assert int(counts[~possible].sum()) == 0
    fit = stats.chisquare(counts[possible], wanted[possible] * drawn.numel())
    assert fit.pvalue > 1e-3


@pytest.mark.parametrize("along", ["steps", "rows"])
def test_neighbouring_draws_are_independent(along: str) -> None:
    drawn = draws(sampler(temperature=1.0, batch=500, vocab=4), torch.zeros(4), 40)
    pairs = (drawn[:-1], drawn[1:]) if along == "steps" else (drawn[:, :-1], drawn[:, 1:])
    table = torch.bincount((pairs[0] * 4 + pairs[1]).flatten(), minlength=16).view(4, 4)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_a_seed_is_a_text() -> None:
    logits = random_logits(1, 4096)
    first = draws(sampler(temperature=1.0, batch=4), logits, 10)
    again = sampler(temperature=1.0, batch=4)
    assert torch.equal(draws(again, logits, 10), first)
    again.reset(torch.zeros(4, 1, dtype=torch.long), 4096)
    assert torch.equal(draws(again, logits, 10), first)
    assert not torch.equal(draws(sampler(temperature=1.0, batch=4, seed=2), logits, 10), first)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    draws(sampler(temperature=1.0, batch=2), random_logits(1, 50), 3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_top_p_shares_its_opening_with_t1() -> None:
    """Same seed, same likely tokens: the two differ only where t1.0 draws a token top-p drops."""
    plain = sampler(temperature=1.0, batch=4)
    nucleus = sampler(temperature=1.0, top_p=0.9, batch=4)
    shared = 0
    for step in range(60):
        logits = random_logits(step, 4, 4096)
        kept = nucleus.scores(logits).isfinite()
        one, other = plain(logits), nucleus(logits)
        stays = kept.gather(-1, one[:, None])[:, 0]
        assert torch.equal(one[stays], other[stays])
        assert bool((one[~stays] != other[~stays]).all())
        shared += int(stays.sum())
    assert 0.8 < shared / 240 < 1.0


def test_row_seeds_are_what_they_were() -> None:
    """Stored runs depend on these values."""
    assert row_seed("sample", 1, 0) == 3651612664
    assert row_seed("sample", 1, 1) == 1611599061
    assert row_seed("sample", 2, 0) == 2142079967
    assert row_seed("prompt", 1, 0) == 3299385135
    seeds = {row_seed("sample", seed, row) for seed in range(100) for row in range(64)}
    assert len(seeds) == 6400
    assert max(seeds) < 2**32, "torch's CPU generator looks at 32 bits"
