"""The gate: a fast path computes what the slow one does, shown for every cell before its clock.

Teacher-forced: a few dozen ids are generated with the cell's own engine, cache and batch, and one
causal forward pass without a cache over prompt and ids gives the reference logits at each of
their positions. Logits decide; ids are judged by the reference's own margin.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinygpt.config import PrecisionConfig
from tinygpt.engines import Engine
from tinygpt.generation import go_on
from tinygpt.model import GPT

NEW_TOKENS = 32
"""Ids generated for the gate at most; fewer where the window or the cell ends before."""
FP32_TOLERANCE = 1e-4
"""Largest difference of a logit in fp32, where 2e-6 is usual; also in int8, whose reference has the
same rounded weights and computes in fp32."""
BF16_TOLERANCE = 0.05
"""In bf16, as a share of the reference's largest logit. The reference has the same rounded
weights, so what differs is the order of additions: 1 to 2 %; a wrong mask or position: 60 %."""
ROWS_AT_ONCE = 8
"""Rows compared at a time: the reference has logits for every position."""


@dataclass(frozen=True)
class GateResult:
    """How far the path is from the reference."""

    max_difference: float
    """Largest absolute difference of a logit."""
    ties: int
    """Ids that differ from the reference's first choice within the rounding margin."""
    reason: str
    """Empty when the path is right."""


def tolerance(precision: PrecisionConfig, largest: float) -> float:
    """Largest difference of a logit that ``precision`` explains, where the largest is ``largest``.

    bf16 rounds activations and cache; the others compute in fp32.
    """
    return BF16_TOLERANCE * largest if precision.kind == "bf16" else FP32_TOLERANCE


@torch.inference_mode()
def check(
    engine: Engine, model: GPT, prompt: Tensor, new_tokens: int, precision: PrecisionConfig
) -> GateResult:
    """Compare ``engine`` on ``prompt`` (B, P) with ``model``'s full forward pass."""
    prompt_tokens = prompt.shape[1]
    new_tokens = min(new_tokens, NEW_TOKENS, model.config.context_length + 1 - prompt_tokens)
    steps: list[Tensor] = []

    def pick(logits: Tensor) -> Tensor:
        steps.append(logits.float().clone())
        return logits.argmax(dim=-1)

    ids = engine.generate(prompt, new_tokens, pick, go_on)
    new = ids[:, prompt_tokens:]
    differences: list[float] = []
    largest, ties, strays = 0.0, 0, 0
    for rows in range(0, len(ids), ROWS_AT_ONCE):
        part = slice(rows, rows + ROWS_AT_ONCE)
        slow = model(ids[part, :-1]).float()[:, prompt_tokens - 1 :]
        largest = max(largest, float(slow.abs().max()))
        fast = torch.stack([logits[part] for logits in steps], dim=1)  # (rows, N, V)
        difference = float((fast - slow).abs().max())
        differences.append(difference)
        chosen = slow.gather(-1, new[part, :, None])[..., 0]
        below = slow.amax(dim=-1) - chosen
        strays += int((below > 2 * difference).sum())
        ties += int(((below > 0) & (below <= 2 * difference)).sum())
    worst = float(torch.tensor(differences).max())  # NaN if any is
    limit = tolerance(precision, largest)
    reason = ""
    if not worst <= limit:
        ties = 0  # a margin of that size says nothing
        reason = (
            f"logits differ by {worst:.2g} from a forward pass without cache "
            f"({precision.kind} allows {limit:.2g}): the cache, mask or positions are wrong"
        )
    elif strays:
        reason = (
            f"{strays} greedy ids are not the reference's choice by more than rounding: the "
            "ids are picked from other logits than those shown"
        )
    return GateResult(worst, ties, reason)
