"""What a training run leaves for people to read: loss curve, samples of text, model card."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import torch

from runners.harness.config.commands import command as command_line
from runners.harness.config.schema import TrainConfig
from runners.harness.launch.run import JobResult
from runners.harness.train.corpus import Corpus
from runners.harness.train.state import checkpoint_folder
from runners.harness.train.trainer import Row
from tinygpt.cache import make_cache
from tinygpt.config import CacheConfig
from tinygpt.generation import generate
from tinygpt.model import GPT
from tinygpt.sampling import make_sampler
from tinygpt.tokenizer import Tokenizer

_PRIVATE = ("tracking.", "device.", "resume", "hydra.", "train.stop_after")
"""Beginnings of keys that say where or how far a run goes, not what it computes."""


def bits_per_byte(nats: float, tokens: int, size_bytes: int) -> float:
    """Nats per token as bits per byte, which do not depend on the tokenizer."""
    return nats * tokens / size_bytes / log(2)


@dataclass(frozen=True)
class Score:
    """A loss on the held-out text."""

    name: str
    nats: float
    """Nats per token."""
    bits: float
    """Bits per byte."""


def scores(losses: dict[str, float], corpus: Corpus) -> list[Score]:
    """Scores of ``losses``, in nats per token by name, with their bits per byte."""
    tokens, size = len(corpus.held_out_ids) - 1, corpus.target_bytes
    return [Score(n, nats, bits_per_byte(nats, tokens, size)) for n, nats in losses.items()]


def command(overrides: Sequence[str], private: bool = False) -> str:
    """The command of a run, quoted for a shell. Unless ``private``, what belongs to one machine is
    left out.
    """
    words = []
    for word in overrides:
        key, _, value = word.partition("=")
        if not private and key == "corpus.path":
            word = f"corpus.path={Path(value).name}"
        if private or not key.startswith(_PRIVATE):
            words.append(word)
    return command_line("train", *words)


def model_card(
    config: TrainConfig, corpus: Corpus, step: int, found: list[Score], overrides: Sequence[str]
) -> str:
    """The README.md of a checkpoint: data, steps, losses, command."""
    model, train = config.model, config.train
    tokens_a_step = train.batch * model.context_length
    seen = step * tokens_a_step
    epochs = seen / max(1, len(corpus.train_ids))
    rows = "\n".join(f"| {score.name} | {score.nats:.3f} | {score.bits:.3f} |" for score in found)
    return f"""\
# {config.out or "A small language model"}

{model.n_parameters:,} parameters: a Llama-shaped decoder of {model.n_layers} layers, width \
{model.d_model}, {model.n_heads} heads, a window of {model.context_length} tokens and a vocabulary \
of {model.vocab_size:,}. `model.safetensors` holds it in bf16; transformers reads the folder as \
`LlamaForCausalLM`, and `tokenizer.json` is a byte-level BPE.

**Data.** `{corpus.name}`, {corpus.text_bytes:,} bytes, sha256 `{corpus.sha256}`. The first \
{corpus.train_bytes:,} bytes, {len(corpus.train_ids):,} tokens, were learnt from; the rest, \
{len(corpus.held_out_ids):,} tokens, was held out from model and tokenizer.

**Training.** Step {step:,} of {train.steps:,}, {train.batch} windows a step: {seen:,} tokens, \
{epochs:.1f} times the text. AdamW, learning rate {train.lr:g} falling to {train.min_lr:g}, \
dropout {train.dropout:g}, seed {config.seed}.

**Loss on the held-out text.** The baselines count on the training part and are judged on the same \
tokens.

| | nats a token | bits a byte |
| --- | --- | --- |
{rows}

**Command.** `{command(overrides)}`

It continues text in the manner of its corpus and invents words; it knows nothing else.
"""


def sample(model: GPT, tokenizer: Tokenizer, config: TrainConfig) -> dict[str, Any]:
    """A text that the model writes after ``train.sample_prompt``, as one row of generations."""
    train = config.train
    ids = tokenizer.encode(train.sample_prompt)[-config.model.context_length :]
    prompt = torch.tensor([ids], device=model.device)
    sampler = make_sampler(config.sampler, batch=1, seed=config.seed, device=model.device)
    sampler.reset(prompt, config.model.vocab_size)
    cache = make_cache(
        CacheConfig(kind="rolling"),
        config.model,
        batch=1,
        max_positions=len(ids) + train.sample_tokens,
        device=model.device,
        dtype=model.dtype,
    )
    model.eval()
    row = generate(model, prompt, train.sample_tokens, cache=cache, pick=sampler)[0].tolist()
    return {"prompt_ids": ids, "new_ids": row[len(ids) :], "text": tokenizer.decode(row)}


def draw_losses(rows: Sequence[Row], baselines: list[Score], path: Path) -> None:
    """Write the loss curves as a picture: training, held out, and the baselines as lines."""
    from matplotlib.figure import Figure  # not pyplot: no global state, no window

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, label, style in (
        ("loss_nats", "training, each step", {"linewidth": 0.6, "alpha": 0.6}),
        ("held_out_loss_nats", "held out", {"marker": "o", "markersize": 3.0}),
    ):
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
    for number, score in enumerate(baselines):
        label = f"{score.name}, {score.nats:.2f}"
        axes.axhline(score.nats, linestyle="--", linewidth=1, color=f"C{2 + number}", label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("nats a token")
    axes.legend()
    figure.savefig(path, dpi=120)


def tell(trained: JobResult) -> None:
    """Print the result of the run, where its weights are, and how to continue it."""
    config, place, figures = trained.config, trained.place, trained.result.metrics
    if "val_loss_nats" in figures:
        for label, loss, bits in (
            ("held out", "val_loss_nats", "bits_per_byte"),
            ("unigram", "unigram_loss_nats", "unigram_bits_per_byte"),
            ("trigram", "trigram_loss_nats", "trigram_bits_per_byte"),
        ):
            print(f"{label}: {figures[loss]:.3f} nats a token, {figures[bits]:.3f} bits a byte")
        print(f"checkpoint={place.cell}: {checkpoint_folder(config, place.cell)}")
    done, outcome = int(figures.get("steps_done", 0)), trained.result.outcome
    if done == config.train.steps and outcome == "ok":
        if config.out:
            print(f"checkpoint={config.out}: the same weights")
    elif done and outcome in ("ok", "interrupted"):
        words = [w for w in place.overrides if not w.startswith(("resume=", "train.stop_after="))]
        print(f"stopped after step {done} of {config.train.steps}; this goes on from there:")
        print(command([*words, f"resume={place.cell}"], private=True))
