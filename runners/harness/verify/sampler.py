"""Checks what the post's self-check asserts of a sampler, by drawing from the real sampler.

Shapes: B rows, V vocabulary, S steps.
"""

import torch
from torch import Tensor

from runners.harness.verify.report import Check, judged
from tinygpt.config import SamplerConfig
from tinygpt.sampling import make_sampler
from tinygpt.seeds import whole_seed

_ROWS, _STEPS, _VOCAB = 16, 64, 1000
_DRAWS = f"{_ROWS * _STEPS:,} draws"


def check_sampler(seed: int, device: torch.device) -> list[Check]:
    """Check every property with draws that come from ``seed``; takes a fraction of a second."""
    generator = torch.Generator().manual_seed(whole_seed("checks", seed))
    logits = torch.randn(_ROWS, _VOCAB, generator=generator).to(device)
    tied = logits.round()  # a few values, each shared by many tokens: the lowest ids must win
    return [
        _argmax("temperature 0", SamplerConfig(), tied, seed),
        _argmax("top_k 1", SamplerConfig(temperature=1.0, top_k=1), tied, seed),
        _argmax("top_p 1e-8", SamplerConfig(temperature=1.0, top_p=1e-8), logits, seed),
        _top_k(tied, seed),
        _top_p(device, seed),
        _penalty(device, seed),
        _seed(logits, seed),
        _row_0(logits, seed),
    ]


def _draw(
    config: SamplerConfig, logits: Tensor, seed: int, *, steps: int = _STEPS, prompt: int = 0
) -> Tensor:
    """Ids (S, B) drawn from the same ``logits`` (B, V) at every step, after a prompt of one id."""
    batch, vocab_size = logits.shape
    sampler = make_sampler(config, batch=batch, seed=seed, device=logits.device)
    sampler.reset(torch.full((batch, 1), prompt, device=logits.device), vocab_size)
    drawn = torch.stack([sampler(logits) for _ in range(steps)])
    sampler.check()
    return drawn.cpu()


def _argmax(what: str, config: SamplerConfig, logits: Tensor, seed: int) -> Check:
    likeliest = _ranked(logits)[:, 0]
    others = int((_draw(config, logits, seed) != likeliest).sum())
    return judged(f"sampler {what}", others == 0, _count(others, "the likeliest token"))


def _top_k(logits: Tensor, seed: int) -> Check:
    drawn = _draw(SamplerConfig(temperature=1.0, top_k=5), logits, seed)
    top = _ranked(logits)[:, :5]
    others = int((drawn[..., None] != top).all(dim=-1).sum())
    return judged("sampler top_k 5", others == 0, _count(others, "among the 5 likeliest tokens"))


def _ranked(logits: Tensor) -> Tensor:
    """Ids (B, V) from the likeliest to the least likely; among equals the lowest id comes first."""
    return logits.cpu().sort(dim=-1, descending=True, stable=True).indices


def _top_p(device: torch.device, seed: int) -> Check:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], device=device).log().repeat(_ROWS, 1)
    drawn = _draw(SamplerConfig(temperature=1.0, top_p=0.75), logits, seed)
    picked = sorted(set(drawn.flatten().tolist()))
    seen = f"{_DRAWS} from 0.5, 0.3, 0.15, 0.05 picked {_listed(picked)}"
    return judged(
        "sampler top_p 0.75", picked == [0, 1], _or_else(seen, picked == [0, 1], "0 and 1, both")
    )


def _penalty(device: torch.device, seed: int) -> Check:
    """Positive scores in one row, negative ones in the other; token 0 leads, then token 1."""
    logits = torch.tensor([[4.0, 3.0, 0.0, -1.0], [-1.0, -1.5, -3.0, -4.0]], device=device)
    config = SamplerConfig(repetition_penalty=2.0)
    fresh = _draw(config, logits, seed, steps=2, prompt=3).tolist()
    prompted = _draw(config, logits, seed, steps=1, prompt=0).tolist()
    ok = [*fresh, *prompted] == [[0, 0], [1, 1], [1, 1]]
    first, second, third = map(_listed, [*fresh, *prompted])
    seen = f"two rows picked {first}, then {second}; with 0 in the prompt {third}"
    right = "the top token 0, once it has occurred its runner-up 1"
    return judged("sampler penalty 2", ok, _or_else(seen, ok, right))


def _seed(logits: Tensor, seed: int) -> Check:
    config = SamplerConfig(temperature=1.0)
    first, again = (_draw(config, logits, seed) for _ in range(2))
    other = _draw(config, logits, seed + 1)
    ok = torch.equal(first, again) and not torch.equal(first, other)
    same, changed = int((first == again).sum()), int((first != other).sum())
    seen = f"{same:,} of {_DRAWS} are the same again, {changed:,} others under another seed"
    return judged("sampler seed", ok, seen)


def _row_0(logits: Tensor, seed: int) -> Check:
    config = SamplerConfig(temperature=1.0)
    alone = _draw(config, logits[:1], seed)[:, 0]
    rows = _draw(config, logits[:1].repeat(_ROWS, 1), seed)
    same, own = int((rows[:, 0] == alone).sum()), bool((rows != rows[:, :1]).any())
    seen = (
        f"{same} of {_STEPS} draws are the same at batch 1 and {_ROWS}, "
        f"whose rows {'differ' if own else 'are all the same'}"
    )
    return judged("sampler row 0", same == _STEPS and own, seen)


def _count(others: int, what: str) -> str:
    return f"{others:,} of {_DRAWS} are not {what}" if others else f"all {_DRAWS} are {what}"


def _or_else(seen: str, ok: bool, right: str) -> str:
    return seen if ok else f"{seen}; right is {right}"


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
