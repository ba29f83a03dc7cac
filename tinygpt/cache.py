"""Key/value caches. The cache owns the position and picks the mask.

Two classic bugs make a cached model print fluent nonsense without an error: rotating a new token
as if it stood at position 0, and a causal mask aligned to the top left, which shows a lone query
only the first key. Nobody passes a start position or a mask here, so neither can be written.

Shapes: B rows, H key/value heads, T new tokens, S entries held, D head_dim.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tinygpt.config import CacheConfig, ModelConfig
from tinygpt.rope import rope_table


class Step(NamedTuple):
    """What one forward pass over T new tokens has to know of their place."""

    cos: Tensor
    """(T, D) cosines at the tokens' absolute positions."""
    sin: Tensor
    """(T, D) signed sines at the tokens' absolute positions."""
    mask: Tensor | None
    """(T, S + T) booleans, true where a query may look; None where ``is_causal`` says it all."""
    is_causal: bool
    """Queries and keys are the same tokens, each seeing itself and those before it."""


def as_they_are(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a cache that stores what it is given."""
    return k, v


class Seen(NamedTuple):
    """What a cache shows to the queries of a text of n tokens, said without running the cache.

    Enough for a forward pass over all n at once (reference.py), which shows whether the cache does
    what its class states.
    """

    mask: Tensor
    """(n, n) booleans, true where the query of token i (row) sees the key of token j (column)."""
    distances: Tensor
    """(n, n) integers: how many positions query i stands after key j; of no account unseen."""
    kept: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = as_they_are
    """Rotated keys and values (B, H, n, D) to what attention gets of them: rounded, say."""


class KVCache(Protocol):
    """Feed ``pending(ids)`` to the model; it calls ``step``, ``update`` per layer, ``advance``."""

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
    """A class of caches, as ``CACHES`` lists them: what it states, and how it is made."""

    exact: bool
    """Whether logits in the window are those without a cache, and past it those over the last
    ``context_length`` entries. Any other cache is an approximation, and compared with ``seen``."""

    def seen(self, model: ModelConfig, prompt_tokens: int, tokens: int) -> Seen:
        """What its queries see in a text of ``tokens``, of which the prompt was fed at once."""
        ...

    def __call__(
        self,
        model: ModelConfig,
        batch: int,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> KVCache: ...


class _Positions:
    """Position, rotation rows and mask: what all caches share."""

    exact = True

    def __init__(
        self,
        model: ModelConfig,
        batch: int,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.position = 0
        self.window = model.context_length
        self.max_positions = max_positions
        self._cos, self._sin = rope_table(
            max_positions, model.head_dim, model.rope_base, str(device)
        )
        empty = torch.empty(batch, model.n_kv_heads, 0, model.head_dim, device=device, dtype=dtype)
        self.k = [empty] * model.n_layers
        self.v = [empty] * model.n_layers

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct storages held."""
        held = [tensor.untyped_storage() for tensor in self.k + self.v if tensor.numel()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())

    @property
    def length(self) -> int:
        """Entries held a row."""
        return min(self.position, self.window)

    def pending(self, ids: Tensor) -> Tensor:
        """Those of all tokens so far, ``ids`` (B, n), that the model has yet to see."""
        if self.position == 0:
            return ids[:, -self.window :]
        return ids[:, -1:]

    def step(self, n_new: int) -> Step:
        """Rows and mask of the next ``n_new`` tokens.

        Raises ValueError past ``max_positions``, or where several tokens at once would push out
        entries that the first of them may still see.
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
        """ValueError where ``n_new`` tokens more are past ``max_positions``."""
        if self.position + n_new > self.max_positions:
            raise ValueError(
                f"position {self.position} + {n_new} tokens: this cache was made for "
                f"{self.max_positions} positions; make it with a larger max_positions"
            )

    def advance(self, n_new: int) -> None:
        """Close a forward pass over ``n_new`` tokens."""
        self.position += n_new

    @staticmethod
    def seen(model: ModelConfig, prompt_tokens: int, tokens: int) -> Seen:
        """Each token sees itself and those before it, at most ``context_length`` in all; of a
        prompt that is longer, the beginning is never seen.
        """
        at = torch.arange(tokens)
        back = at[:, None] - at
        cut = max(0, prompt_tokens - model.context_length)
        return Seen((back >= 0) & (back < model.context_length) & (at >= cut), back)


class NoCache(_Positions):
    """Holds nothing: every step runs the last ``context_length`` tokens again, from position 0."""

    def __init__(
        self,
        model: ModelConfig,
        batch: int,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(model, batch, model.context_length, device, dtype)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The new keys and values are all there are."""
        return k, v

    def advance(self, n_new: int) -> None:
        """Nothing is remembered."""

    def reset(self) -> None:
        """Nothing to forget."""


class RollingCache(_Positions):
    """The post's cache: concatenate, keep the last ``context_length`` entries.

    Old entries go before attention, not after, so no query ever sees more than the window, and
    concatenation copies, so no entry pins the storage it was cut from.
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
    """A preallocated ring of min(context_length, max_positions) slots, one tensor a layer.

    Keys are rotated by absolute position when written, so their order in the ring is of no
    consequence to attention, and past the window the newest token takes the oldest one's slot.
    """

    def __init__(
        self,
        model: ModelConfig,
        batch: int,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(model, batch, max_positions, device, dtype)
        self.slots = min(model.context_length, max_positions)
        shape = (batch, model.n_kv_heads, self.slots, model.head_dim)
        self.k = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(model.n_layers)]
        self.v = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(model.n_layers)]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (B, H, T, D) into their slots; returns the filled ones, (B, H, S, D)."""
        n_new = k.shape[2]
        slot, filled = self.position % self.slots, min(self.position + n_new, self.slots)
        self.k[layer][:, :, slot : slot + n_new] = k
        self.v[layer][:, :, slot : slot + n_new] = v
        return self.k[layer][:, :, :filled], self.v[layer][:, :, :filled]

    def reset(self) -> None:
        """Start again at position 0; what the slots hold is never looked at before a write."""
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
    """The cache that ``config`` names, for ``batch`` rows of up to ``max_positions`` tokens."""
    return CACHES[config.kind](model, batch, max_positions, device, dtype)
