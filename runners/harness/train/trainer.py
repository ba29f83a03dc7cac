"""Learning in plain torch: the training step, the held-out loss, and what determines both.

Everything random is a function of (seed, step): the order of windows, dropout, first weights. So a
run that resumes from its saved weights and AdamW's memory needs no generator's state to give the
same result, bit for bit on the same machine.

Shapes: B windows, T tokens (context_length), V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runners.harness.config.schema import LearningConfig
from tinygpt.cache import CacheShape, NoCache
from tinygpt.checkpoint import random_model
from tinygpt.config import ModelConfig
from tinygpt.engines import toolchain
from tinygpt.model import GPT
from tinygpt.seeds import row_seed

Row = dict[str, float]
"""Figures of one step, by name; ``step`` is how many were done."""


class NonFiniteError(ValueError):
    """A loss or gradient is NaN or infinite: going on would spoil the weights."""


def first_weights(config: ModelConfig, seed: int) -> GPT:
    """The model that training starts from, on the CPU: random, but with zeros in the matrices that
    join a branch to the residual stream, so that no layer disturbs it before it has learnt.
    """
    model = random_model(config, row_seed("weights", seed, 0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.down.weight")):
                parameter.zero_()
    return model


def learning_rate(train: LearningConfig, step: int) -> float:
    """The learning rate after ``step`` updates: a linear warm-up, then a fall along a cosine."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    falling = train.steps - train.warmup_steps
    progress = (step - train.warmup_steps) / max(1, falling - 1)
    return train.min_lr + (train.lr - train.min_lr) * (1 + math.cos(math.pi * progress)) / 2


class Batches:
    """Windows of a text. Each epoch cuts them at a new offset, and uses each once, shuffled."""

    def __init__(self, ids: Tensor, window: int, batch: int, seed: int) -> None:
        self.ids, self.window, self.batch, self.seed = ids, window, batch, seed
        self.per_epoch = max(1, (len(ids) - window) // window)

    def starts(self, step: int) -> list[int]:
        """Where the windows of batch number ``step`` begin."""
        found: list[int] = []
        number = step * self.batch
        while len(found) < self.batch:
            epoch, at = divmod(number + len(found), self.per_epoch)
            order = self._epoch(epoch)
            found += order[at : at + self.batch - len(found)]
        return found

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (B, T) each, of batch number ``step``."""
        starts = self.starts(step)
        rows = torch.stack([self.ids[start : start + self.window + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    def _epoch(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(row_seed("epoch", self.seed, epoch))
        slack = len(self.ids) - self.per_epoch * self.window
        offset = int(torch.randint(slack, (1,), generator=generator))
        order = torch.randperm(self.per_epoch, generator=generator)
        return [offset + self.window * number for number in order.tolist()]


@torch.no_grad()
def held_out_nats(
    logits: Callable[[Tensor], Tensor], ids: Tensor, window: int, batch: int
) -> float:
    """Total nats of all tokens of ``ids`` (N,) but the first, each predicted once. Windows do not
    overlap, so a token sees only those before it in its own window.
    """
    whole = (len(ids) - 1) // window
    pieces = [ids[n * window : (n + 1) * window + 1] for n in range(whole)]
    stacks = [torch.stack(pieces[n : n + batch]) for n in range(0, whole, batch)]
    if (len(ids) - 1) % window:
        stacks.append(ids[None, whole * window :])
    total = 0.0
    for rows in stacks:
        scores = logits(rows[:, :-1]).float()
        total += float(
            F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
        )
    return total


def add_dropout(model: GPT, share: float) -> None:
    """Drop activations after the embedding and every branch, in training only. Hooks do it, so that
    the code of the model, which also generates, has no dropout.
    """

    def drop(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return F.dropout(output, share, module.training)

    if share > 0.0:
        for name, module in model.named_modules():
            if name == "emb" or name.endswith((".attn", ".mlp")):
                module.register_forward_hook(drop)


class Trainer:
    """Trains a model on ``ids``, and counts the steps done."""

    def __init__(
        self,
        model: GPT,
        train: LearningConfig,
        ids: Sequence[int],
        held_out_ids: Sequence[int],
        seed: int,
    ) -> None:
        self.model, self.train, self.seed = model, train, seed
        self.done = 0
        """Steps done."""
        self.device, config = model.device, model.config
        self.batches = Batches(torch.tensor(ids), config.context_length, train.batch, seed)
        self.held_out = torch.tensor(held_out_ids, device=self.device)
        self.optimizer = make_optimizer(model, train)
        add_dropout(model, train.dropout)
        self._autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=train.autocast == "bf16"
        )
        self._cache = _no_cache(config, train.batch, self.device)
        self._loss = self._plain_loss
        self._compiling: Callable[[], AbstractContextManager[None]] = nullcontext
        if train.compile:
            self._compile()

    def step(self) -> Row:
        """Update the weights once; NonFiniteError if that cannot be, with the weights unchanged."""
        start, number = perf_counter(), self.done + 1
        rate = learning_rate(self.train, self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = (part.to(self.device) for part in self.batches(self.done))
        self.model.train()
        dropping = self.train.dropout > 0.0
        with torch.random.fork_rng(enabled=dropping):
            if dropping:
                torch.manual_seed(row_seed("dropout", self.seed, self.done))
            with self._compiling():
                with self._autocast:
                    loss = self._loss(inputs, targets)
                loss.backward()  # type: ignore[no-untyped-call]
        clip = self.train.grad_clip or math.inf
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), clip))
        value = loss.item()
        if not math.isfinite(value) or not math.isfinite(norm):
            raise NonFiniteError(
                f"step {number}: the loss is {value:g} and its gradient's norm {norm:g}, at a "
                f"learning rate of {rate:g}; lower train.lr={self.train.lr:g}, or raise "
                f"train.warmup_steps={self.train.warmup_steps}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done = number
        return {
            "step": number,
            "loss_nats": value,
            "learning_rate": rate,
            "grad_norm": norm,
            "tok_per_s": targets.numel() / (perf_counter() - start),
        }

    def held_out_loss(self) -> float:
        """Nats per token on the held-out text; NonFiniteError if that is NaN or infinite."""
        with self._autocast:
            loss = mean_held_out_nats(self.model, self.held_out, self.train.batch)
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"step {self.done}: the held-out loss is {loss:g}; lower train.lr={self.train.lr:g}"
            )
        return loss

    def _compile(self) -> None:
        """Have the loss compiled when it is first computed; ValueError if it cannot be compiled."""
        what = "train.compile=true"
        on_cpu = self.device.type == "cpu"
        if reason := toolchain.cannot_compile() if on_cpu else toolchain.choose_folder():
            raise ValueError(f"{what}: {reason}, or give train.compile=false")
        self._loss = torch.compile(self._plain_loss, options=toolchain.options() or None)
        self._compiling = partial(toolchain.readable_errors, what)

    def _plain_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(inputs, self._cache)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def least_bytes(model: ModelConfig, train: LearningConfig) -> int:
    """Bytes that training takes at the least: weights, gradients and AdamW's two memories; logits
    with their gradient; and what each layer keeps of each token for the backward pass.
    """
    values = 2 if train.autocast == "bf16" else 4
    kept = values * model.n_layers * (2 * model.d_model + 3 * model.d_ff)
    tokens = train.batch * model.context_length
    return 16 * model.n_parameters + tokens * (kept + 2 * 4 * model.vocab_size)


def make_optimizer(model: GPT, train: LearningConfig) -> torch.optim.AdamW:
    """AdamW over the model's parameters, with weight decay for the matrices only."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=train.lr, betas=(train.beta1, train.beta2), fused=True)


def mean_held_out_nats(model: GPT, ids: Tensor, batch: int) -> float:
    """Nats per token of ``model`` on ``ids`` (N,), without dropout."""
    model.eval()
    cache = _no_cache(model.config, batch, model.device)
    total = held_out_nats(
        lambda rows: model.forward(rows, cache), ids, model.config.context_length, batch
    )
    return total / (len(ids) - 1)


def _no_cache(config: ModelConfig, batch: int, device: torch.device) -> NoCache:
    return NoCache(CacheShape(config, batch, config.context_length, device, torch.float32))
