"""How weights are learnt: order of windows, rates, held-out loss, state. All on a tiny model."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.exc import CppCompileError, InductorError

from runners.harness.config.schema import LearningConfig
from runners.harness.train import trainer as training
from runners.harness.train.trainer import (
    Batches,
    NonFiniteError,
    Trainer,
    first_weights,
    held_out_nats,
    learning_rate,
    least_bytes,
    mean_held_out_nats,
)
from tests.live_bytes import LiveBytes
from tests.small_text import MODEL, ids
from tinygpt.engines import toolchain

QUICK = LearningConfig(steps=10, batch=4, warmup_steps=2, lr=1e-2, min_lr=1e-3)


def trainer(options: LearningConfig = QUICK, seed: int = 1) -> Trainer:
    return Trainer(first_weights(MODEL, seed), options, *ids(), seed)


def losses(of: Trainer, steps: int) -> list[float]:
    return [of.step()["loss_nats"] for _ in range(steps)]


# the order of windows


@pytest.mark.parametrize(("n_ids", "window", "batch"), [(1000, 16, 4), (17, 16, 3), (40, 16, 5)])
def test_batches_are_windows_of_the_text_with_their_next_tokens(
    n_ids: int, window: int, batch: int
) -> None:
    batches = Batches(torch.arange(n_ids), window, batch, seed=1)
    for step in range(50):
        inputs, targets = batches(step)
        assert inputs.shape == targets.shape == (batch, window)
        assert torch.equal(inputs + 1, targets)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(window))


def test_an_epoch_is_every_window_once_and_the_next_one_is_cut_elsewhere() -> None:
    batches = Batches(torch.arange(1000), 16, 4, seed=1)
    assert batches.per_epoch == 61
    starts = [start for step in range(61) for start in batches.starts(step)]
    epochs = [starts[n * 61 : (n + 1) * 61] for n in range(4)]
    for epoch in epochs:
        first = min(epoch)
        assert sorted(epoch) == [first + 16 * n for n in range(61)]
        assert epoch != sorted(epoch)
    assert len({min(epoch) for epoch in epochs}) > 1
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_every_token_is_a_target_sooner_or_later() -> None:
    batches = Batches(torch.arange(100), 16, 5, seed=3)
    seen = {int(target) for step in range(60) for target in batches(step)[1].flatten()}
    assert seen == set(range(1, 100))


def test_a_batch_depends_on_seed_and_step_only() -> None:
    one, again, other = (Batches(torch.arange(500), 16, 4, seed) for seed in (1, 1, 2))
    later = [again.starts(step) for step in (7, 3)]
    assert [one.starts(3), one.starts(7)] == later[::-1]
    assert one.starts(3) != other.starts(3)


# the learning rate


def test_rates_by_hand() -> None:
    options = LearningConfig(steps=7, warmup_steps=2, lr=1.0, min_lr=0.2)
    rates = [learning_rate(options, step) for step in range(7)]
    half = 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2
    assert rates == pytest.approx([0.5, 1.0, 1.0, half, 0.6, 1.2 - half, 0.2])


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_rates_with_no_and_with_nothing_but_warm_up(warmup: int) -> None:
    options = LearningConfig(steps=5, warmup_steps=warmup, lr=1.0, min_lr=0.0)
    rates = [learning_rate(options, step) for step in range(5)]
    assert max(rates) == 1.0
    assert all(0 <= rate <= 1 for rate in rates)


# the held-out loss


def test_each_held_out_token_is_predicted_once_from_its_own_window() -> None:
    """Logits that bet on what they saw: the loss tells which tokens were asked after which."""
    seen: list[list[int]] = []

    def logits(rows: Tensor) -> Tensor:
        seen.extend(rows.tolist())
        return torch.zeros(*rows.shape, 8)

    total = held_out_nats(logits, torch.arange(8), window=3, batch=2)
    assert total == pytest.approx(7 * math.log(8))
    assert seen == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("n_ids", [2, 16, 17, 18, 100])
def test_the_held_out_loss_is_that_of_one_window_at_a_time(n_ids: int) -> None:
    model = first_weights(MODEL, 1).eval()
    ids = torch.randint(300, (n_ids,), generator=torch.Generator().manual_seed(1))
    total = 0.0
    with torch.no_grad():
        for start in range(0, n_ids - 1, 16):
            rows = ids[None, start : start + 17]
            scores = model(rows[:, :-1])[0]
            total += float(F.cross_entropy(scores, rows[0, 1:], reduction="sum"))
        found = mean_held_out_nats(model, ids, batch=3)
    assert found == pytest.approx(total / (n_ids - 1), rel=1e-5)


# learning


def test_first_weights_know_nothing_and_no_layer_is_in_the_way() -> None:
    model = first_weights(MODEL, 1)
    ids = torch.arange(16)[None]
    loss = F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
    assert loss.item() == pytest.approx(math.log(300), rel=0.02)
    assert not model.blocks[1].mlp.down.weight.any()
    assert not model.blocks[1].attn.out.weight.any()
    assert model.blocks[1].attn.qkv.weight.std() > 0.1


def test_it_learns() -> None:
    of = trainer(replace(QUICK, steps=40))
    before = of.held_out_loss()
    found = losses(of, 40)
    assert found[0] > 5.5
    assert found[-1] < 4.6
    assert of.held_out_loss() < before - 1.0


def test_the_same_seed_gives_the_same_losses() -> None:
    assert losses(trainer(), 4) == losses(trainer(), 4) != losses(trainer(seed=2), 4)


def test_only_matrices_decay() -> None:
    groups = trainer().optimizer.param_groups
    decays = {group["weight_decay"]: {p.dim() for p in group["params"]} for group in groups}
    assert decays == {0.1: {2}, 0.0: {1}}
    assert sum(len(g["params"]) for g in groups) == len(list(first_weights(MODEL, 1).parameters()))


def test_the_gradient_is_clipped() -> None:
    """AdamW divides a small gradient's size out again: look at what it was given."""
    for clip, longest in ((0.1, 0.1), (0.0, math.inf)):
        of = trainer(replace(QUICK, grad_clip=clip))
        given: list[float] = []
        step = of.optimizer.step
        parameters = list(of.model.parameters())

        def spy(given: list[float] = given, step: Any = step, of: Any = parameters) -> Any:
            given.append(math.sqrt(sum(float(p.grad.square().sum()) for p in of)))
            return step()

        of.optimizer.step = spy  # type: ignore[method-assign]
        row = of.step()
        assert row["grad_norm"] > 0.2
        assert given[0] == pytest.approx(min(longest, row["grad_norm"]), rel=1e-4)


def test_dropout_is_for_training_only_and_repeats() -> None:
    options = replace(QUICK, dropout=0.3)
    plain, one, again = trainer(), trainer(options), trainer(options)
    assert plain.held_out_loss() == one.held_out_loss()
    state = torch.random.get_rng_state()
    found = losses(one, 4)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator is not ours"
    assert one.held_out_loss() == one.held_out_loss()
    with torch.random.fork_rng():
        torch.manual_seed(99)  # ... and has no say
        assert found == losses(again, 4) != losses(plain, 4)
    assert one.model.state_dict().keys() == plain.model.state_dict().keys()


def test_dropout_hits_the_embedding_and_every_branch() -> None:
    model = first_weights(MODEL, 1)
    training.add_dropout(model, 0.5)
    hooked = {name for name, module in model.named_modules() if module._forward_hooks}
    assert hooked == {"emb", *(f"blocks.{n}.{part}" for n in (0, 1) for part in ("attn", "mlp"))}
    bare = first_weights(MODEL, 1)
    training.add_dropout(bare, 0.0)
    assert not any(module._forward_hooks for module in bare.modules())


def test_bf16_autocast_rounds_products_and_keeps_the_weights() -> None:
    plain, rounded = trainer(), trainer(replace(QUICK, autocast="bf16"))
    a, b = losses(plain, 6), losses(rounded, 6)
    assert a != b
    assert a == pytest.approx(b, abs=0.05)
    assert rounded.model.dtype == torch.float32


def test_compile_compiles_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: compiled.append(function) or function
    )
    trainer()
    assert not compiled
    of = trainer(replace(QUICK, compile=True))
    assert compiled == [of._plain_loss]


def test_no_compiler_is_said_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "compiler", str)
    monkeypatch.setenv("CXX", "none-such")
    with pytest.raises(ValueError, match=r"^train\.compile=true: CXX=none-such is not a work"):
        trainer(replace(QUICK, compile=True))


def test_a_compiler_that_fails_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise InductorError(CppCompileError(["g++"], "x.cpp:1: error: no luck"), None)

    monkeypatch.setattr(torch, "compile", lambda function, **_: broken)
    with pytest.raises(ValueError, match=r"^train\.compile=true: .*error: no luck\); set CXX"):
        trainer(replace(QUICK, compile=True)).step()


def test_the_least_that_training_takes_is_less_than_it_takes() -> None:
    of = trainer(QUICK)
    with LiveBytes() as counted:
        of.step()
    held = 12 * MODEL.n_parameters  # weights and AdamW's memories, which were there before
    least = least_bytes(MODEL, QUICK)
    assert least < counted.peak + held < 6 * least


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # Inductor's own imports
def test_a_compiled_step_is_the_same_step() -> None:
    plain, compiled = trainer(), trainer(replace(QUICK, compile=True, dropout=0.0))
    assert losses(plain, 3) == pytest.approx(losses(compiled, 3), abs=1e-4)


def test_c2_a_loss_that_is_not_finite_stops_before_the_weights_are_spoilt() -> None:
    of = trainer(replace(QUICK, lr=1e6, steps=100))
    with pytest.raises(NonFiniteError, match=r"step \d+: the loss is .*lower train\.lr=1e\+06"):
        losses(of, 100)
    assert all(bool(p.isfinite().all()) for p in of.model.parameters())


def test_a_held_out_loss_that_is_not_finite_is_an_error() -> None:
    of = trainer()
    with torch.no_grad():
        of.model.emb.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="step 0: the held-out loss is nan"):
        of.held_out_loss()
