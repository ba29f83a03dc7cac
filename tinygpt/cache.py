"""Key/value caches. The cache keeps the position of the next token and chooses the attention mask.

Two common bugs make a model with a cache write fluent text that is wrong, without an error: a new
token is rotated as if it stood at position 0, or a causal mask is aligned to the top left, so that
a single query sees only the first key. Callers pass neither a position nor a mask to a cache, so
they cannot make these mistakes.

Shapes: B rows, H key/value heads, T new tokens, S entries held, D head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tinygpt.config import CacheConfig, ModelConfig
from tinygpt.rope import rope_table


@dataclass(frozen=True)
class CacheShape:
    """What a cache is made for: a model, a number of rows and positions, a device and a dtype."""

    model: ModelConfig
    batch: int
    max_positions: int
    """The most tokens of one text, prompt and new ones together."""
    device: torch.device
    dtype: torch.dtype


class Step(NamedTuple):
    """Rotation angles and attention mask for one forward pass over T new tokens."""

    cos: Tensor
    """(T, D) cosines at the tokens' absolute positions."""
    sin: Tensor
    """(T, D) signed sines at the tokens' absolute positions."""
    mask: Tensor | None
    """(T, S + T) booleans, true where a query sees a key. None if ``is_causal`` is true, or if
    every query sees all keys."""
    is_causal: bool
    """Whether queries and keys are the same tokens, and each token sees itself and earlier ones."""


def as_they_are(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values unchanged: for a cache that stores exactly what it is given."""
    return k, v


class Seen(NamedTuple):
    """Which keys each query of a text of n tokens sees, stated without running the cache.

    A forward pass over all n tokens at once (reference.py) uses this statement to check that the
    cache does what its class says.
    """

    mask: Tensor
    """(n, n) booleans, true where the query of token i (row) sees the key of token j (column)."""
    distances: Tensor
    """(n, n) integers: how many positions query i stands after key j. Ignored where ``mask`` is
    false."""
    kept: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = as_they_are
    """Turns rotated keys and values (B, H, n, D) into those that attention receives, for example
    rounded ones."""


class KVCache(Protocol):
    """What a model needs of a cache.

    The caller feeds ``pending(ids)`` to the model. The model then calls ``step`` once, ``update``
    once per layer, and ``advance`` once.
    """

    position: int
    """Absolute position of the next token."""

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def pending(self, ids: Tensor) -> Tensor: ...
    def step(self, n_new: int) -> Step: ...
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...
    def advance(self, n_new: int) -> None: ...
    def reset(self) -> None: ...


class CacheClass(Protocol):
    """A class of caches, as listed in ``CACHES``: what it promises, and how one is made."""

    exact: bool
    """Whether the logits equal those without a cache inside the window, and those of attention over
    the last ``context_length`` entries past it. A cache that is not exact is an approximation, and
    is compared with what ``seen`` states."""

    def seen(self, model: ModelConfig, prompt_tokens: int, tokens: int) -> Seen:
        """What each query sees in a text of ``tokens`` tokens whose prompt was fed in one pass."""
        ...

    def __call__(self, shape: CacheShape) -> KVCache: ...


class _Positions:
    """What all caches share: the position, the rotation angles and the mask."""

    exact = True

    def __init__(self, shape: CacheShape) -> None:
        model = shape.model
        self.position = 0
        self.window = model.context_length
        self.max_positions = shape.max_positions
        self._cos, self._sin = rope_table(shape.max_positions, model.rope, str(shape.device))
        size = (shape.batch, model.n_kv_heads, 0, model.head_dim)
        empty = torch.empty(size, device=shape.device, dtype=shape.dtype)
        self.k = [empty] * model.n_layers
        self.v = [empty] * model.n_layers

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values held; a storage that is shared counts once."""
        held = [tensor.untyped_storage() for tensor in self.k + self.v if tensor.numel()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())

    @property
    def length(self) -> int:
        """Entries held per row."""
        return min(self.position, self.window)

    def pending(self, ids: Tensor) -> Tensor:
        """The tokens that the model has not seen yet, out of all tokens so far, ``ids`` (B, n)."""
        if self.position == 0:
            return ids[:, -self.window :]
        return ids[:, -1:]

    def step(self, n_new: int) -> Step:
        """Angles and mask of the next ``n_new`` tokens.

        Raises ValueError past ``max_positions``, and where several tokens fed at once would push
        out entries that the first of them still has to see.
        """
        self.require_room(n_new)
        start, held = self.position, self.length
        if n_new > 1 and held + n_new > self.window:
            raise ValueError(
                f"{n_new} tokens at once over {held} entries: the window holds {self.window}; "
                "past it feed one token at a time"
            )
        mask = None
        if n_new > 1 and held > 0:
            full = torch.ones(n_new, held + n_new, dtype=torch.bool, device=self._cos.device)
            mask = full.tril(diagonal=held)
        rows = slice(start, start + n_new)
        return Step(self._cos[rows], self._sin[rows], mask, n_new > 1 and held == 0)

    def require_room(self, n_new: int) -> None:
        """Raise ValueError if ``n_new`` more tokens do not fit into ``max_positions``."""
        if self.position + n_new > self.max_positions:
            raise ValueError(
                f"position {self.position} + {n_new} tokens: this cache was made for "
                f"{self.max_positions} positions; make it with a larger max_positions"
            )

    def advance(self, n_new: int) -> None:
        """Move the position on, after a forward pass over ``n_new`` tokens."""
        self.position += n_new

    @staticmethod
    def seen(model: ModelConfig, prompt_tokens: int, tokens: int) -> Seen:
        """Each token sees itself and the tokens before it, at most ``context_length`` in all.

        The beginning of a prompt that is longer than the window is never seen.
        """
        at = torch.arange(tokens)
        back = at[:, None] - at
        cut = max(0, prompt_tokens - model.context_length)
        return Seen((back >= 0) & (back < model.context_length) & (at >= cut), back)


class NoCache(_Positions):
    """Holds nothing: every step runs the last ``context_length`` tokens again, from position 0."""

    def __init__(self, shape: CacheShape) -> None:
        most = min(shape.model.context_length, shape.max_positions)
        super().__init__(replace(shape, max_positions=most))

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new keys and values, since there are no others."""
        return k, v

    def advance(self, n_new: int) -> None:
        """Do nothing: the next pass starts at position 0 again."""

    def reset(self) -> None:
        """Do nothing: there is nothing to forget."""


class RollingCache(_Positions):
    """The post's cache: append new entries and keep the last ``context_length`` ones.

    Old entries are dropped before attention, not after it, so no query sees more than the window.
    Concatenation copies, so the dropped entries do not stay in memory.
    """

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, H, T, D); returns all entries, (B, H, S, D) each."""
        gone = max(0, self.length + k.shape[2] - self.window)
        self.k[layer] = torch.cat([self.k[layer][:, :, gone:], k], dim=2)
        self.v[layer] = torch.cat([self.v[layer][:, :, gone:], v], dim=2)
        return self.k[layer], self.v[layer]

    def reset(self) -> None:
        """Forget everything."""
        self.position = 0
        self.k = [tensor[:, :, :0].clone() for tensor in self.k]
        self.v = [tensor[:, :, :0].clone() for tensor in self.v]


class StaticCache(_Positions):
    """A preallocated ring buffer of min(context_length, max_positions) slots.

    Each layer has one tensor for keys and one for values. Keys are rotated by their absolute
    position when they are written, so their order in the ring does not matter to attention, and
    past the window the newest token takes the slot of the oldest.
    """

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        model = shape.model
        self.slots = min(model.context_length, shape.max_positions)
        size = (shape.batch, model.n_kv_heads, self.slots, model.head_dim)
        zeros = partial(torch.zeros, size, device=shape.device, dtype=shape.dtype)
        self.k = [zeros() for _ in range(model.n_layers)]
        self.v = [zeros() for _ in range(model.n_layers)]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (B, H, T, D) into their slots; returns the filled ones, (B, H, S, D)."""
        n_new = k.shape[2]
        slot, filled = self.position % self.slots, min(self.position + n_new, self.slots)
        self.k[layer][:, :, slot : slot + n_new] = k
        self.v[layer][:, :, slot : slot + n_new] = v
        return self.k[layer][:, :, :filled], self.v[layer][:, :, :filled]

    def reset(self) -> None:
        """Start again at position 0; the old contents are overwritten before they can be seen."""
        self.position = 0


CACHES: dict[str, CacheClass] = {
    "none": NoCache,
    "rolling": RollingCache,
    "static": StaticCache,
}


def make_cache(
    config: CacheConfig,
    model: ModelConfig,
    *,
    batch: int,
    max_positions: int,
    device: torch.device,
    dtype: torch.dtype,
) -> KVCache:
    """Make the cache that ``config`` names; ``CacheShape`` says what the other parameters are."""
    return CACHES[config.kind](CacheShape(model, batch, max_positions, device, dtype))
