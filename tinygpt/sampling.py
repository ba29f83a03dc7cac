"""Sampling: the post's four knobs in its order, then one seeded draw per row.

The draw is an exponential race, argmax(p / q) with q ~ Exp(1), as torch.multinomial's for one draw.
q comes from a CPU generator seeded by (seed, row), one draw over the vocabulary a step. So row 0 is
the same text at any batch size and on any device, and two settings that keep the same likely tokens
share an opening.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tinygpt.config import SamplerConfig
from tinygpt.seeds import row_seed

Transform = Callable[[Tensor], Tensor]
"""Scores (B, V) in fp32 to scores (B, V); a dropped token's score is -inf."""

_MIN_TEMPERATURE = 1e-30
"""Below it 1 / temperature overflows fp32; at it every distinct pair of scores is decided."""


def penalise(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Push down the tokens of ``seen`` (B, V booleans): once each, however often they occurred.

    Positive scores are divided and negative ones multiplied (CTRL, Keskar et al., 2019).
    """
    return torch.where(seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)


def scale(scores: Tensor, temperature: float) -> Tensor:
    """Scores over temperature; the maximum is subtracted first, so that none overflows."""
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    return shifted / max(temperature, _MIN_TEMPERATURE)


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Keep the k highest scores; of those that tie with the last of them, the lowest ids.

    Which of equal scores ``torch.topk`` returns is not defined, so it tells the value only. NaN
    stays, for ``Sampler.check`` to find.
    """
    kth = scores.topk(min(k, scores.shape[-1]), dim=-1).values[:, -1:]
    room = k - (scores > kth).sum(dim=-1, keepdim=True)
    tied = scores == kth
    dropped = (scores < kth) | (tied & (tied.cumsum(dim=-1) > room))
    return scores.masked_fill(dropped, float("-inf"))


def keep_top_p(scores: Tensor, p: float) -> Tensor:
    """Keep the smallest set whose probabilities reach p (nucleus; Holtzman et al., 2020).

    A token goes when those ranked above it already reach p, so the first one always stays. Equal
    scores rank by id, the lowest first: the sort is stable.
    """
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    probabilities = ranked.softmax(dim=-1)
    above = probabilities.cumsum(dim=-1) - probabilities
    dropped = (above >= p) & (above > 0.0)  # the first stays, also where p is 0 in fp32
    ranked = ranked.masked_fill(dropped, float("-inf"))
    return torch.empty_like(scores).scatter_(-1, order, ranked)


class Sampler:
    """Logits (B, V) to token ids (B,). Make one with ``make_sampler``; ``reset`` starts a text.

    Nothing here waits for the device: a row without a finite maximum sets a flag there, which
    ``check`` reads after the last token.
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
        """Start a text after ``prompt`` (B, P): its history, and every row's draws anew."""
        if self._tracks_history:
            seen = torch.zeros(self._batch, vocab_size, dtype=torch.bool, device=self._device)
            self._seen = seen.scatter_(-1, prompt, True)
        self._finite.fill_(True)
        for generator, seed in zip(self._generators, self._seeds, strict=True):
            generator.manual_seed(seed)

    def scores(self, logits: Tensor) -> Tensor:
        """The fp32 scores (B, V) that the draw sees."""
        scores = logits.float()
        for transform in self._transforms:
            scores = transform(scores)
        return scores

    def __call__(self, logits: Tensor) -> Tensor:
        """Next ids (B,) for ``logits`` (B, V)."""
        ids = self._pick(self.scores(logits))
        if self._seen is not None:
            self._seen.scatter_(-1, ids[:, None], True)
        return ids

    def check(self) -> None:
        """Raise ValueError naming the rows that had no finite maximum since ``reset``."""
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
        highest, ids = scores.max(dim=-1)  # of equal scores the lowest id, as torch documents
        self._finite.logical_and_(highest.isfinite())
        return ids

    def _race(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(dim=-1)
        self._finite.logical_and_(weights[:, 0].isfinite())
        # A new buffer a step: the copy of the last one to a GPU may still be under way.
        noise = torch.empty(weights.shape, pin_memory=self._device.type == "cuda")
        for row, generator in zip(noise, self._generators, strict=True):
            row.uniform_(generator=generator)
        # By inversion: exponential_ draws from another stream where torch has MKL, so the text
        # would depend on the processor. Half a step up, since a zero would win every race.
        noise = noise.add_(2**-25).neg_().log1p_().neg_()
        return (weights / noise.to(self._device, non_blocking=True)).argmax(dim=-1)


def make_sampler(config: SamplerConfig, *, batch: int, seed: int, device: torch.device) -> Sampler:
    """The sampler that ``config`` describes, for ``batch`` rows whose draws come from ``seed``."""
    return Sampler(config, batch, seed, device)
