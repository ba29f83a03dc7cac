"""Rolling caches that are broken on purpose. Each has a real bug that gives fluent text, no error.

Each fault changes what the cache itself does for its callers; no caller can cause it from outside.
"""

import torch
from torch import Tensor

from tinygpt.cache import CacheClass, RollingCache, Step


class RopeFromZero(RollingCache):
    """The post's first gotcha: the table of angles begins at 0 in every call.

    A decode step has one token, so each new query and key is rotated as if it stood at the very
    start of the text, and its distance to every cached key is wrong.
    """

    def step(self, n_new: int) -> Step:
        """The right step, with the rows of the first ``n_new`` positions."""
        return super().step(n_new)._replace(cos=self._cos[:n_new], sin=self._sin[:n_new])


class TopLeftMask(RollingCache):
    """The post's second gotcha: ``is_causal=True`` with one query.

    torch aligns that mask to the top left, so a lone query sees the first key and no other.
    """

    def step(self, n_new: int) -> Step:
        """The right step, always causal."""
        return super().step(n_new)._replace(mask=None, is_causal=True)


class TrimAfterAttention(RollingCache):
    """What the post's own code does: the cache is cut to the window after attention has seen it.

    Once the window is full, every query sees ``context_length`` + 1 keys, one more than the model
    was trained with.
    """

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, H, T, D), keep the window, and return more than is kept."""
        k = torch.cat([self.k[layer], k], dim=2)
        v = torch.cat([self.v[layer], v], dim=2)
        self.k[layer], self.v[layer] = k[:, :, -self.window :], v[:, :, -self.window :]
        return k, v


FAULTS: dict[str, CacheClass] = {
    "rope": RopeFromZero,
    "mask": TopLeftMask,
    "window": TrimAfterAttention,
}
"""The broken caches, by the option of ``fault`` that selects them."""
