"""Sampling: penalty, temperature, top-k and top-p, in this order, then one seeded draw per row.

The draw is argmax(p / q) with q ~ Exp(1), which torch.multinomial also uses for a single draw. The
noise q comes from a CPU generator per row, seeded by (seed, row), with one value per vocabulary
entry and step. So row 0 is the same text at any batch size and on any device, and two settings that
keep the same likely tokens begin with the same text.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tinygpt.config import SamplerConfig
from tinygpt.seeds import row_seed

Transform = Callable[[Tensor], Tensor]
"""Maps scores (B, V) in fp32 to new scores (B, V); the score of a dropped token is -inf."""

_MIN_TEMPERATURE = 1e-30
"""Lower temperatures are raised to this one: they would overflow fp32 and give the same result."""


def penalise(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Lower the scores of the tokens in ``seen`` (B, V booleans), however often they occurred.

    Positive scores are divided by ``penalty``, negative ones multiplied (Keskar et al., 2019).
    """
    return torch.where(seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)


def scale(scores: Tensor, temperature: float) -> Tensor:
    """Divide scores by ``temperature``, after subtracting their maximum against overflow."""
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    return shifted / max(temperature, _MIN_TEMPERATURE)


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Keep the k highest scores; among scores equal to the k-th highest, those of the lowest ids.

    ``torch.topk`` does not define which of equal scores it returns, so only its k-th value is used.
    NaN stays NaN, so that ``Sampler.check`` finds it.
    """
    kth = scores.topk(min(k, scores.shape[-1]), dim=-1).values[:, -1:]
    room = k - (scores > kth).sum(dim=-1, keepdim=True)
    tied = scores == kth
    dropped = (scores < kth) | (tied & (tied.cumsum(dim=-1) > room))
    return scores.masked_fill(dropped, float("-inf"))


def keep_top_p(scores: Tensor, p: float) -> Tensor:
    """Keep the smallest set of tokens whose probabilities reach p (Holtzman et al., 2020).

    A token is dropped if the tokens ranked above it already reach p, so the first one always stays.
    Equal scores are ranked by id, lowest first, since the sort is stable.
    """
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    probabilities = ranked.softmax(dim=-1)
    above = probabilities.cumsum(dim=-1) - probabilities
    dropped = (above >= p) & (above > 0.0)  # the first stays even if p is 0 in fp32
    ranked = ranked.masked_fill(dropped, float("-inf"))
    return torch.empty_like(scores).scatter_(-1, order, ranked)


class Sampler:
    """Picks token ids (B,) from logits (B, V). Call ``reset`` at the start of each text.

    Sampling never waits for the device. A row whose logits have no finite maximum sets a flag on
    the device, which ``check`` reads after the last token.
    """

    def __init__(self, config: SamplerConfig, batch: int, seed: int, device: torch.device) -> None:
        self._batch, self._device = batch, device
        self._tracks_history = config.repetition_penalty != 1.0
        self._seen: Tensor | None = None
        self._transforms = self._resolve(config)
        self._pick = self._argmax if config.temperature == 0.0 else self._race
        self._finite = torch.ones(batch, dtype=torch.bool, device=device)
        self._seeds = [row_seed("sample", seed, row) for row in range(batch)]
        self._generators = [torch.Generator() for _ in range(batch)]

    def _resolve(self, config: SamplerConfig) -> list[Transform]:
        steps: list[Transform] = []
        if self._tracks_history:
            steps.append(lambda s: penalise(s, self._history(s), config.repetition_penalty))
        if config.temperature > 0.0:
            steps.append(lambda s: scale(s, config.temperature))
            if config.top_k > 0:
                steps.append(lambda s: keep_top_k(s, config.top_k))
            if config.top_p < 1.0:
                steps.append(lambda s: keep_top_p(s, config.top_p))
        return steps

    def reset(self, prompt: Tensor, vocab_size: int) -> None:
        """Start a text after ``prompt`` (B, P): set the history, and seed every row again."""
        if self._tracks_history:
            seen = torch.zeros(self._batch, vocab_size, dtype=torch.bool, device=self._device)
            self._seen = seen.scatter_(-1, prompt, True)
        self._finite.fill_(True)
        for generator, seed in zip(self._generators, self._seeds, strict=True):
            generator.manual_seed(seed)

    def scores(self, logits: Tensor) -> Tensor:
        """The fp32 scores (B, V) that the draw is made from."""
        scores = logits.float()
        for transform in self._transforms:
            scores = transform(scores)
        return scores

    def __call__(self, logits: Tensor) -> Tensor:
        """Pick the next ids (B,) from ``logits`` (B, V)."""
        ids = self._pick(self.scores(logits))
        if self._seen is not None:
            self._seen.scatter_(-1, ids[:, None], True)
        return ids

    def check(self) -> None:
        """Raise ValueError for rows whose logits had no finite maximum since ``reset``."""
        bad = (~self._finite).nonzero().flatten().tolist()
        if bad:
            raise ValueError(
                f"row {', '.join(map(str, bad))}: the logits were NaN or infinite, so there is "
                "nothing to draw from; look at the weights and the precision"
            )

    def _history(self, scores: Tensor) -> Tensor:
        assert self._seen is not None, "reset() comes before the first token"
        return self._seen

    def _argmax(self, scores: Tensor) -> Tensor:
        highest, ids = scores.max(dim=-1)  # torch documents the lowest of equal ids
        self._finite.logical_and_(highest.isfinite())
        return ids

    def _race(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(dim=-1)
        self._finite.logical_and_(weights[:, 0].isfinite())
        # Each step needs a new buffer: the copy of the last one to the GPU may not be finished.
        noise = torch.empty(weights.shape, pin_memory=self._device.type == "cuda")
        for row, generator in zip(noise, self._generators, strict=True):
            row.uniform_(generator=generator)
        # The exponential noise is computed from uniform draws: exponential_ gives other values if
        # torch has MKL, so the text would depend on the processor. The draws are moved up by half
        # a step, since noise of zero would always win.
        noise = noise.add_(2**-25).neg_().log1p_().neg_()
        return (weights / noise.to(self._device, non_blocking=True)).argmax(dim=-1)


def make_sampler(config: SamplerConfig, *, batch: int, seed: int, device: torch.device) -> Sampler:
    """The sampler that ``config`` describes, for ``batch`` rows whose draws come from ``seed``."""
    return Sampler(config, batch, seed, device)
