"""A greedy text written with any cache, and what attention was shown while it was written.

``Watched`` stands between the model and a cache, so that every cache is observed in the same way,
whatever it keeps inside.

Shapes: P prompt tokens, N new tokens (one a step), V vocabulary, L layers, H heads, D head_dim,
S keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinygpt.cache import KVCache, Step
from tinygpt.generation import generate
from tinygpt.model import GPT

TOKEN, STEPS = 100, (200, 201)
"""The post's example: token 100's key is the same on step 200 and on step 201."""


class Watched:
    """A cache that notes how many keys a query sees, and what token ``TOKEN``'s keys are."""

    def __init__(self, cache: KVCache) -> None:
        self._cache, self._tokens = cache, 0
        self._now: tuple[int, Step] | None = None
        self.shown: list[tuple[int, int]] = []
        """Tokens so far, and keys that the last query sees: a pair for each step and layer."""
        self.keys: dict[int, list[Tensor]] = {}
        """Each layer's key (H, D) of token ``TOKEN``, by the number of tokens so far."""

    @property
    def position(self) -> int:
        return self._cache.position

    @position.setter
    def position(self, value: int) -> None:
        self._cache.position = value

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes

    def pending(self, ids: Tensor) -> Tensor:
        """Note the number of tokens so far: every step begins with this call."""
        self._tokens = ids.shape[1]
        return self._cache.pending(ids)

    def step(self, n_new: int) -> Step:
        """The cache's own step."""
        step = self._cache.step(n_new)
        self._now = n_new, step
        return step

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The cache's own keys and values (B, H, S, D), which attention is about to see."""
        assert self._now is not None, "step() comes before update()"
        k, v = self._cache.update(layer, k, v)
        (queries, step), held = self._now, k.shape[2]
        if step.mask is not None:
            seen = int(step.mask[-1].sum())
        else:  # torch aligns a causal mask to the top left
            seen = min(queries, held) if step.is_causal else held
        self.shown.append((self._tokens, seen))
        if self._tokens in STEPS and held == self._tokens:
            key = k[0, :, TOKEN - 1].float().cpu()
            self.keys.setdefault(self._tokens, []).append(key)
        return k, v

    def advance(self, n_new: int) -> None:
        self._cache.advance(n_new)

    def reset(self) -> None:
        self._cache.reset()


@dataclass(frozen=True)
class WatchedText:
    """A greedy text written with one cache, and what was noted meanwhile."""

    name: str
    prompt: Tensor
    """(1, P)."""
    new: list[int]
    """N ids."""
    logits: Tensor
    """(N, V) in fp32 on the CPU: those that each new id was picked from."""
    shown: list[tuple[int, int]]
    keys: dict[int, list[Tensor]]


def watch(name: str, model: GPT, prompt: Tensor, new_tokens: int, cache: KVCache) -> WatchedText:
    """Generate ``new_tokens`` greedily after ``prompt`` (1, P), and watch the cache."""
    watched = Watched(cache)
    logits = torch.empty(new_tokens, model.config.vocab_size)
    picked = 0

    def pick(scores: Tensor) -> Tensor:
        nonlocal picked
        logits[picked] = scores[0]
        picked += 1
        return scores.argmax(dim=-1)

    ids = generate(model, prompt, new_tokens, cache=watched, pick=pick)
    new = ids[0, prompt.shape[1] :].tolist()
    return WatchedText(name, prompt, new, logits, watched.shown, watched.keys)
