"""Generation: prefill, then one decode step a token, the same code for every cache and batch.

N new tokens take exactly N forward passes: the prefill gives the first, each of the N - 1 decode
steps one more. (The post's loop runs the model once more than it has to.)

Shapes: B rows, P prompt tokens, N new tokens, V vocabulary.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tinygpt.cache import KVCache

Pick = Callable[[Tensor], Tensor]
"""Logits (B, V) to ids (B,); a Sampler, or anything that looks at the logits on their way."""


class Model(Protocol):
    """What a loop needs of a model; a ``GPT`` is one."""

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Run the new tokens ``ids`` (B, T) over ``cache``; logits (B, V) of the last one, which
        are good until the next step.
        """
        ...


OnToken = Callable[[Tensor], bool]
"""Shown the newest ids (B,) after each step; true ends the text there."""


def go_on(ids: Tensor) -> bool:
    """The ``OnToken`` that never ends a text."""
    return False


def prefill(model: Model, prompt: Tensor, cache: KVCache) -> Tensor:
    """Start a text: logits (B, V) after the last ``context_length`` tokens of ``prompt`` (B, P)."""
    cache.reset()
    return model.step(cache.pending(prompt), cache)


def decode_step(model: Model, ids: Tensor, cache: KVCache) -> Tensor:
    """Logits (B, V) after all tokens so far, ``ids`` (B, n), of which the last is new."""
    return model.step(cache.pending(ids), cache)


@torch.inference_mode()
def generate(
    model: Model,
    prompt: Tensor,
    new_tokens: int,
    *,
    cache: KVCache,
    pick: Pick,
    on_token: OnToken = go_on,
) -> Tensor:
    """Prompt (B, P) and ``new_tokens`` picked ones, (B, P + N); fewer where ``on_token`` ends it.

    Raises ValueError for an empty prompt: the model has no token to start from.
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
