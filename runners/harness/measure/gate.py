"""The gate: before a cell is timed, its logits are compared with those of a slow reference.

A few dozen ids are generated with the cell's own engine, cache and batch. One forward pass without
a cache over prompt and ids (teacher forcing) gives the reference logits at each of their positions.
The logits decide. An id may differ from the reference's first choice by a margin within rounding.

For an exact cache the reference is the plain causal pass, inside the window. For an approximate one
it is a pass in which each query sees what the cache's class states, also past its first wrap.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinygpt import cost, reference
from tinygpt.cache import CACHES, CacheClass, Seen, as_they_are
from tinygpt.config import CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.engines import Engine
from tinygpt.generation import never_stop
from tinygpt.model import GPT

NEW_TOKENS = 32
"""The most ids that are compared; fewer if the window or the cell ends earlier. For an approximate
cache so many are compared at the start, before its first wrap, and after it."""
FP32_TOLERANCE = 1e-4
"""Largest allowed difference of a logit in fp32, where 2e-6 is usual. It holds for int8 as well,
since its reference has the same rounded weights and computes in fp32."""
BF16_TOLERANCE = 0.05
"""The same in bf16, as a share of the reference's largest logit. The reference has the same rounded
weights, so only the order of additions differs: 1 to 2 %. A wrong mask or position gives 60 %."""
ROWS_AT_ONCE = 8
"""The most rows that go through the reference at a time."""
TOKENS_AT_ONCE = 4096
"""The most tokens that do so, unless a single row has more."""
LOGITS_BYTES = 2**28
"""The most that the logits to compare may take. A large batch over a large vocabulary is compared
at fewer positions, evenly spread."""
FEWEST = 4
"""The fewest positions that are compared, if the gate generates as many."""


def _name(cache: CacheConfig) -> str:
    if CACHES[cache.kind].exact:
        return "a forward pass without cache"
    return f"a forward pass over what cache={cache.kind} states that it sees"


@dataclass(frozen=True)
class GateResult:
    """How far the cell's logits are from the reference."""

    max_difference: float
    """Largest absolute difference of a logit."""
    ties: int
    """Ids that differ from the reference's first choice within the rounding margin."""
    reason: str
    """Why the gate fails; empty if it passes."""


def tolerance(precision: PrecisionConfig, largest: float, seen: Seen | None = None) -> float:
    """Largest difference of a logit that ``precision`` explains; ``largest`` is the largest logit.

    bf16 rounds activations and cache; the other precisions compute in fp32. A cache that states
    that it rounds is treated like bf16, since a value between two steps may be rounded either way.
    """
    rounds = seen is not None and seen.kept is not as_they_are
    coarse = rounds or precision.kind == "bf16"
    return BF16_TOLERANCE * largest if coarse else FP32_TOLERANCE


def first_wrap(cache: CacheClass, model: GPT, prompt_tokens: int, tokens: int) -> int:
    """How many tokens come before the first new token that does not see all tokens before it.

    Tokens of the prompt are not looked at. Returns ``tokens`` if every new token sees all of them.
    """
    seen = cache.seen(model.config, prompt_tokens, tokens).mask.sum(dim=-1)
    lacking = seen[prompt_tokens:] < torch.arange(prompt_tokens, tokens) + 1
    return prompt_tokens + int(lacking.int().argmax()) if lacking.any() else tokens


def most_new_tokens(cache: CacheConfig, window: int, prompt_tokens: int, new_tokens: int) -> int:
    """The most ids that the gate generates. For an approximate cache this is an upper bound, since
    only its class knows where it first wraps.
    """
    if CACHES[cache.kind].exact:
        return min(new_tokens, NEW_TOKENS, window + 1 - prompt_tokens)
    return min(new_tokens, window + NEW_TOKENS)


def needed_bytes(
    model: ModelConfig,
    cache: CacheConfig,
    batch: int,
    prompt_tokens: int,
    new_tokens: int,
    values: int,
) -> int:
    """Bytes that ``check`` takes at its peak, with ``values`` bytes per activation."""
    n = prompt_tokens + most_new_tokens(cache, model.context_length, prompt_tokens, new_tokens)
    rows = _rows_at_once(batch, n)
    work = cost.activation_bytes(model, rows, n, values)
    compared = n - prompt_tokens
    if not CACHES[cache.kind].exact:
        compared = min(compared, 3 * NEW_TOKENS + 1)
        scores = 4 * rows * model.n_heads * reference.QUERIES_AT_ONCE
        work += n * (4 * scores + 4 * n * 8)  # scores, masks and distances
    compared = min(compared, _most_compared(batch, model.vocab_size))
    return work + 4 * model.vocab_size * (batch + 4 * rows) * compared


def _rows_at_once(batch: int, tokens: int) -> int:
    return min(batch, ROWS_AT_ONCE, max(1, TOKENS_AT_ONCE // tokens))


def _most_compared(batch: int, vocab_size: int) -> int:
    return max(FEWEST, LOGITS_BYTES // (4 * batch * vocab_size))


def _spread(steps: list[int], most: int) -> list[int]:
    """At most so many of ``steps``, evenly spread, with the first and the last of them."""
    if len(steps) <= most:
        return steps
    return [steps[round(n * (len(steps) - 1) / (most - 1))] for n in range(most)]


def _steps(
    cache: CacheConfig, model: GPT, prompt_tokens: int, new_tokens: int
) -> tuple[int, list[int]]:
    """How many new ids to generate, and the indices of those to compare."""
    window, of = model.config.context_length, CACHES[cache.kind]
    most = most_new_tokens(cache, window, prompt_tokens, new_tokens)
    if of.exact:
        return most, [*range(most)]
    wrap = first_wrap(of, model, prompt_tokens, prompt_tokens + most) - prompt_tokens
    end = min(most, wrap + 1 + NEW_TOKENS)
    return end, sorted({*range(min(NEW_TOKENS, end)), *range(max(0, wrap - NEW_TOKENS), end)})


@torch.inference_mode()
def check(
    engine: Engine,
    model: GPT,
    prompt: Tensor,
    new_tokens: int,
    precision: PrecisionConfig,
    cache: CacheConfig,
) -> GateResult:
    """Compare ``engine``, which runs ``cache``, on ``prompt`` (B, P) with a forward pass over all
    tokens at once: ``model``'s own, or for an approximate cache a pass over what it states.
    """
    prompt_tokens, of = prompt.shape[1], CACHES[cache.kind]
    end, steps_to_compare = _steps(cache, model, prompt_tokens, new_tokens)
    compared = _spread(steps_to_compare, _most_compared(len(prompt), model.config.vocab_size))
    wanted, steps = set(compared), list[Tensor]()
    n = 0

    def pick(logits: Tensor) -> Tensor:
        nonlocal n
        if n in wanted:
            steps.append(logits.float().clone())
        n += 1
        return logits.argmax(dim=-1)

    ids = engine.generate(prompt, end, pick, never_stop)
    at = torch.tensor(compared, device=ids.device) + prompt_tokens - 1
    new = ids[:, at + 1]
    seen = None if of.exact else of.seen(model.config, prompt_tokens, ids.shape[1] - 1)
    differences: list[float] = []
    largest, ties, wrong = 0.0, 0, 0
    at_once = _rows_at_once(*ids.shape)
    for rows in range(0, len(ids), at_once):
        part = slice(rows, rows + at_once)
        before = ids[part, :-1]
        slow = (
            model(before, at=at) if seen is None else reference.forward(model, before, seen, at)
        ).float()
        largest = max(largest, float(slow.abs().max()))
        fast = torch.stack([logits[part] for logits in steps], dim=1)  # (rows, compared, V)
        difference = float((fast - slow).abs().max())
        differences.append(difference)
        chosen = slow.gather(-1, new[part, :, None])[..., 0]
        below = slow.amax(dim=-1) - chosen
        wrong += int((below > 2 * difference).sum())
        ties += int(((below > 0) & (below <= 2 * difference)).sum())
    worst = float(torch.tensor(differences).max())  # NaN if any difference is
    limit = tolerance(precision, largest, seen)
    reason = ""
    if not worst <= limit:
        ties = 0  # a margin of that size says nothing
        reason = (
            f"logits differ by {worst:.2g} from {_name(cache)} ({precision.kind} allows "
            f"{limit:.2g}): the cache, mask or positions are wrong"
        )
    elif wrong:
        reason = (
            f"{wrong} greedy ids are not the reference's choice by more than rounding: the "
            "ids are picked from other logits than those shown"
        )
    return GateResult(worst, ties, reason)
