"""Checks that a cache changes nothing: the texts of two caches are compared step by step.

A step, like a new id, is numbered by how many came before it.

Shapes: P prompt tokens, N new tokens (one a step), V vocabulary, L layers, H heads, D head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from runners.harness.measure import gate
from runners.harness.verify.report import Check, judged
from runners.harness.verify.watch import STEPS, TOKEN, WatchedText
from tinygpt import reference as reference_pass
from tinygpt.cache import CacheClass, Seen
from tinygpt.config import PrecisionConfig
from tinygpt.model import GPT


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """How many ids two texts share before they differ; None if they are the same."""
    pairs = enumerate(zip_longest(one, other))
    return next((n for n, (a, b) in pairs if a != b), None)


@dataclass(frozen=True)
class Closeness:
    """How close two runs' logits are, over steps at which they should be the same."""

    worst: float
    """Largest absolute difference of a logit."""
    limit: float
    """The most that rounding explains."""
    off: int | None
    """The first step beyond the limit; None if there is none."""

    def is_tie(self, margin: float) -> bool:
        """Whether rounding decides between two ids whose logits are ``margin`` apart. Each logit
        may be off by ``worst``, provided that no step is beyond the limit.
        """
        return self.off is None and abs(margin) <= 2 * self.worst


def closeness(
    reference: Tensor, logits: Tensor, precision: PrecisionConfig, stated: Seen | None = None
) -> Closeness:
    """Compare ``logits`` (n, V) with the right ones, ``reference``, by the gate's tolerances."""
    steps = (reference - logits).abs().amax(dim=-1)
    limit = tolerance(reference, precision, stated)
    off = (~(steps <= limit)).nonzero().flatten().tolist()  # NaN counts as off
    return Closeness(float(steps.max()), limit, off[0] if off else None)


def tolerance(reference: Tensor, precision: PrecisionConfig, stated: Seen | None = None) -> float:
    """The gate's: a share of the largest value in bf16 or a cache that rounds, else absolute."""
    return gate.tolerance(precision, float(reference.abs().max()), stated)


def must_match(run: WatchedText, window: int) -> int:
    """New ids that a cache cannot change: those picked before a token leaves the window."""
    return min(len(run.new), window + 1 - run.prompt.shape[1])


def margin_at(plain: WatchedText, run: WatchedText, step: int) -> float:
    """How far apart the two ids chosen at ``step`` are in ``plain``'s logits."""
    return float(plain.logits[step, plain.new[step]] - plain.logits[step, run.new[step]])


def check_window(
    model: GPT, plain: WatchedText, run: WatchedText, precision: PrecisionConfig
) -> tuple[list[Check], Closeness]:
    """Compare ids and logits of ``run`` with the loop without a cache, inside the window.

    If the texts differ, which a rounding tie can cause, the logits to compare with come from one
    causal pass over the run's own text.
    """
    n = must_match(run, model.config.context_length)
    parted = first_difference(plain.new[:n], run.new[:n])
    reference = plain.logits[:n]
    if parted is not None:
        new = torch.tensor([run.new[: n - 1]], dtype=torch.int64, device=run.prompt.device)
        with torch.inference_mode():
            ids = torch.cat([run.prompt, new], dim=1)
            reference = model(ids)[0, run.prompt.shape[1] - 1 :].float().cpu()
    close = closeness(reference, run.logits[:n], precision)
    same, ids_seen = parted is None, f"the first {n} of {n} are those without a cache"
    if parted is not None:
        margin = margin_at(plain, run, parted)
        same = close.is_tie(margin)
        ids_seen = (
            f"the first {parted} of {n} are those without a cache: {tie_or_not(margin, close)}"
        )
    off = "" if close.off is None else f", off after {close.off}"
    logits_seen = f"over {n} steps within {close.worst:.2g}{off} ({_allowed(precision, close)})"
    checks = [
        judged(f"{run.name} ids", same, ids_seen),
        judged(f"{run.name} logits", close.off is None, logits_seen),
    ]
    return checks, close


def check_same(
    right: WatchedText, run: WatchedText, precision: PrecisionConfig
) -> tuple[Check, Closeness]:
    """Compare ids and logits of ``run`` with those of ``right``, whose cache keeps the same
    entries, inside the window and past it. Logits are compared up to the first step whose ids
    differ, that step included.
    """
    parted, total = first_difference(right.new, run.new), len(run.new)
    n = total if parted is None else parted + 1
    close = closeness(right.logits[:n], run.logits[:n], precision)
    ok, seen = close.off is None, f"all {total} of {total} ids are the same"
    if parted is not None:
        margin = margin_at(right, run, parted)
        ok = close.is_tie(margin)
        seen = f"the first {parted} of {total} ids are the same: {tie_or_not(margin, close)}"
    off = "" if close.off is None else f", off after {close.off}"
    seen += f"; logits within {close.worst:.2g}{off}"
    return judged(f"{run.name} = {right.name}", ok, seen), close


def check_keys_seen(run: WatchedText, window: int) -> Check:
    """Check that every query saw min(tokens so far, window) keys."""
    name = f"{run.name} keys seen"
    for tokens, seen in run.shown:
        right = min(tokens, window)
        if seen != right:
            found = (
                f"{seen} with {tokens} tokens so far; right is min({tokens}, {window}) = {right}"
            )
            return judged(name, False, found)
    return judged(name, True, f"min(tokens so far, {window}) in each of {len(run.new)} steps")


def check_stated(
    model: GPT, run: WatchedText, cache: CacheClass, precision: PrecisionConfig
) -> tuple[list[Check], Closeness]:
    """Check what an approximate ``cache`` promises: the logits of a pass over the run's own text in
    which queries see what its class states, and as many keys. Only steps of the first two windows
    are checked, since the time of the pass grows with the square of its length.
    """
    prompt, window = run.prompt.shape[1], model.config.context_length
    n = min(len(run.new), 2 * window)
    new = torch.tensor([run.new[: n - 1]], dtype=torch.int64, device=run.prompt.device)
    ids = torch.cat([run.prompt, new], dim=1)
    stated = cache.seen(model.config, prompt, ids.shape[1])
    at = torch.arange(prompt - 1, ids.shape[1])
    reference = reference_pass.forward(model, ids, stated, at)[0].float().cpu()
    close = closeness(reference, run.logits[:n], precision, stated)
    off = "" if close.off is None else f", off after {close.off}"
    steps = f"the first {n} of {len(run.new)} steps" if n < len(run.new) else f"{n} steps"
    seen = (
        f"over {steps} within {close.worst:.2g}{off} of a pass over what its class states "
        f"({_allowed(precision, close)})"
    )
    keys, wanted = f"as its class states in each of {n} steps", stated.mask.sum(dim=-1).tolist()
    wrong = [(t, k) for t, k in run.shown if t <= len(wanted) and k != wanted[t - 1]]
    if wrong:
        tokens, found = wrong[0]
        keys = f"{found} with {tokens} tokens so far; its class states {wanted[tokens - 1]}"
    checks = [
        judged(f"{run.name} logits", close.off is None, seen),
        judged(f"{run.name} keys seen", not wrong, keys),
    ]
    return checks, close


def token_difference(run: WatchedText) -> float | None:
    """By how much token 100's keys differ between steps 200 and 201; None if one is missing."""
    before, after = (run.keys.get(step) for step in STEPS)
    if before is None or after is None:
        return None
    return float((torch.stack(before) - torch.stack(after)).abs().max())


def check_token(run: WatchedText, window: int, precision: PrecisionConfig) -> Check:
    """Check that token 100's keys are the same at steps 200 and 201: bit for bit if a cache stores
    them, within rounding if they are computed anew.
    """
    name = f"{run.name} token {TOKEN}"
    difference = token_difference(run)
    if difference is None:
        return Check(name, "skipped", _why_no_keys(run, window))
    limit = 0.0 if run.name != "none" else tolerance(torch.stack(run.keys[STEPS[0]]), precision)
    how = "stored" if run.name != "none" else f"computed anew, {precision.kind} allows {limit:.2g}"
    found = "equal" if difference == 0.0 else f"differ by {difference:.2g}"
    seen = f"keys {found} with {STEPS[0]} and {STEPS[1]} tokens, every layer ({how})"
    return judged(name, difference <= limit, seen)


def _why_no_keys(run: WatchedText, window: int) -> str:
    prompt, last = run.prompt.shape[1], STEPS[1]
    why = f"needs {STEPS[0]} and {last} tokens inside the window, and"
    if window < last:
        return f"{why} the window is {window}; take a model with a larger context_length"
    if prompt > STEPS[0]:
        return f"{why} the prompt has {prompt}; give a shorter one"
    if prompt + len(run.new) <= last:  # the last new token is never fed back
        needed = last + 1 - prompt
        return f"{why} {len(run.new)} new tokens end before; give length.new_tokens={needed}"
    return f"{why} the cache holds others"


def tie_or_not(margin: float, close: Closeness) -> str:
    """Whether a rounding tie parts two texts: the margin of their ids against the rounding seen."""
    if close.off is not None:
        return f"no tie, the logits are off by more than rounding (margin {margin:.2g})"
    what = "a rounding tie" if close.is_tie(margin) else "no rounding tie"
    return f"{what} (margin {margin:.2g}, rounding {close.worst:.2g})"


def _allowed(precision: PrecisionConfig, close: Closeness) -> str:
    return f"{precision.kind} allows {close.limit:.2g}"
