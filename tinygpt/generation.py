"""Generation: prefill, then one decode step per token; the same code for every cache and batch.

N new tokens take exactly N forward passes: the prefill gives the first token, and each of the N - 1
decode steps gives one more. (The loop in the post makes one pass more than necessary.)

Shapes: B rows, P prompt tokens, N new tokens, V vocabulary.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tinygpt.cache import KVCache

Pick = Callable[[Tensor], Tensor]
"""Picks ids (B,) from logits (B, V): a ``Sampler``, or a function that records the logits too."""


class Model(Protocol):
    """What ``generate`` needs of a model; ``GPT`` is one, and so are parts of some engines."""

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Run the new tokens ``ids`` (B, T) over ``cache``.

        Returns the logits (B, V) of the last token, which are valid until the next step.
        """
        ...


OnToken = Callable[[Tensor], bool]
"""Is called with the newest ids (B,) after each step; returns true to end the text there."""


def never_stop(ids: Tensor) -> bool:
    """The ``OnToken`` that never ends a text."""
    return False


def prefill(model: Model, prompt: Tensor, cache: KVCache) -> Tensor:
    """Start a text: logits (B, V) after the last ``context_length`` tokens of ``prompt`` (B, P)."""
    cache.reset()
    return model.step(cache.pending(prompt), cache)


def decode_step(model: Model, ids: Tensor, cache: KVCache) -> Tensor:
    """Logits (B, V) after all tokens so far, ``ids`` (B, n); the last token is new."""
    return model.step(cache.pending(ids), cache)


@torch.inference_mode()
def generate(
    model: Model,
    prompt: Tensor,
    new_tokens: int,
    *,
    cache: KVCache,
    pick: Pick,
    on_token: OnToken = never_stop,
) -> Tensor:
    """Continue ``prompt`` (B, P) by ``new_tokens`` picked tokens; returns all ids, (B, P + N).

    There are fewer new tokens if ``on_token`` ends the text. Raises ValueError for an empty prompt,
    since the model needs a token to start from.
    """
    batch, prompt_tokens = prompt.shape
    if prompt_tokens == 0:
        raise ValueError("prompt of 0 tokens: the model needs at least 1 to start from")
    ids = torch.empty(batch, prompt_tokens + new_tokens, dtype=prompt.dtype, device=prompt.device)
    ids[:, :prompt_tokens] = prompt
    for n in range(prompt_tokens, prompt_tokens + new_tokens):
        step = prefill if n == prompt_tokens else decode_step
        ids[:, n] = pick(step(model, ids[:, :n], cache))
        if on_token(ids[:, n]):
            return ids[:, : n + 1]
    return ids
