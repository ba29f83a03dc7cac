"""One training run: what it stores and when, and what its result is. MLflow is not used here.

``checkpoints/ID`` holds the best weights so far as an ordinary checkpoint. Its folder ``last``
holds the newest weights with the state to resume from. The job's own folder holds the figures of
every step and the samples. Both are complete after every held-out loss, whatever happens later.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from runners.harness import stats
from runners.harness.config.schema import TrainConfig
from runners.harness.launch.tracked import Delivery
from runners.harness.machine import system
from runners.harness.measure.guard import guarded
from runners.harness.measure.result import CellResult
from runners.harness.store.disk import LOSSES, SAMPLES, STEPS, Place
from runners.harness.train import baselines
from runners.harness.train import report as train_report
from runners.harness.train import state as train_state
from runners.harness.train.corpus import Corpus, load, read_text, sha256
from runners.harness.train.inputs import resumed_from
from runners.harness.train.progress import TrainProgress
from runners.harness.train.report import Score
from runners.harness.train.stopping import stop_requests
from runners.harness.train.trainer import (
    NonFiniteError,
    Row,
    Trainer,
    first_weights,
    least_bytes,
    mean_held_out_nats,
)
from tinygpt.checkpoint import load_model, save_model, weights_sha256
from tinygpt.config import PrecisionConfig
from tinygpt.tokenizer import Tokenizer


@dataclass
class Resumed:
    """The run that this one continues."""

    folder: Path
    """The folder of its checkpoint."""
    state: train_state.State
    tokenizer: Tokenizer

    @classmethod
    def read(cls, folder: Path, config: TrainConfig) -> Self:
        """Read it from ``folder``; ValueError of one line if ``config`` describes another run."""
        last, digest = folder / "last", sha256(read_text(config.corpus.path))
        state = train_state.read(last, train_state.identity(config, digest))
        return cls(folder, state, Tokenizer.load(last / "tokenizer.json"))


BF16 = PrecisionConfig(kind="bf16")
Deliver = Callable[[Sequence[Row], Sequence[Path]], None]
"""Called with the figures since the last call, and files that are new or changed."""


def train_job(config: TrainConfig, delivery: Delivery) -> CellResult:
    """Run the training of a job, whose figures and files go to ``delivery``."""
    return train(config, resumed_from(config), delivery.place, delivery)


def train(config: TrainConfig, resume: Path | None, place: Place, deliver: Deliver) -> CellResult:
    """Train as ``config`` says, continuing the run in the folder ``resume`` if one is given. Errors
    of the run become its outcome and are not raised.
    """

    def run(result: CellResult) -> None:
        shortage = _memory_shortage(config)
        if shortage:
            result.outcome, result.reason = "oom", shortage
            return
        new = train_state.checkpoint_folder(config, place.cell)
        if new.exists():
            raise FileExistsError(f"{new} is there already, not of this run; nothing is replaced")
        resumed = Resumed.read(resume, config) if resume else None
        corpus = load(config, resumed.tokenizer if resumed else None)
        try:
            with stop_requests() as stop:
                _Training(config, corpus, place, result, deliver).go(resumed, stop)
        except KeyboardInterrupt:  # the second request, possibly during a step
            result.outcome = "interrupted"
            result.reason = "Ctrl-C twice, the last look's state is kept"

    return guarded(config.device, run)


def _memory_shortage(config: TrainConfig) -> str:
    """Why training will not fit into CPU memory, which would kill the process; empty if it will."""
    if config.device.kind != "cpu":
        return ""
    needed, free = least_bytes(config.model, config.train), system.available_bytes()
    if needed <= free:
        return ""
    return (
        f"train.batch={config.train.batch}: needs at least {needed / 1e9:.1f} GB and "
        f"{free / 1e9:.1f} GB are free; lower train.batch or model.context_length, or choose a "
        "smaller model"
    )


class _Training:
    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        place: Place,
        result: CellResult,
        deliver: Deliver,
    ) -> None:
        self.config, self.corpus, self.place = config, corpus, place
        self.result, self.deliver = result, deliver
        self.folder = train_state.checkpoint_folder(config, place.cell)
        self.show = TrainProgress()
        self.facts = train_state.identity(config, corpus.sha256)
        self.history: list[Row] = []
        self.undelivered: list[Row] = []
        self.baselines = self._count()

    def go(self, resumed: Resumed | None, stop: Callable[[], str]) -> None:
        """Run all steps that are asked for, then put together the result."""
        options = self.config.train
        trainer = self._make_trainer(resumed)
        last = min(options.steps, options.stop_after or options.steps)
        try:
            with self.show.steps(trainer.done, last):
                while trainer.done < last and not stop():
                    self._step(trainer, last)
        except NonFiniteError as error:
            best = self._best()
            kept = f"the weights of step {best['step']:.0f} are kept" if best else "none were kept"
            self.result.outcome, self.result.reason = "failed", f"{error}; {kept}"
        if stop() and trainer.done < last:
            self._save_last(trainer)
            self.result.outcome, self.result.reason = "interrupted", stop()
        self._finish(trainer)

    def _step(self, trainer: Trainer, last: int) -> None:
        options = self.config.train
        self._keep(trainer.step())
        self.show.step(self.history[-1])
        if trainer.done % options.eval_every == 0 or trainer.done == last:
            self._look(trainer)
        if options.sample_every and trainer.done % options.sample_every == 0:
            self._sample(trainer)

    def _count(self) -> list[Score]:
        train_ids, held_out = self.corpus.train_ids, self.corpus.held_out_ids
        size = self.config.model.vocab_size
        losses = {
            "unigram": baselines.unigram_nats(train_ids, held_out, size),
            "trigram (Kneser-Ney)": baselines.trigram_nats(train_ids, held_out, size),
        }
        return train_report.scores(losses, self.corpus)

    def _make_trainer(self, resumed: Resumed | None) -> Trainer:
        config = self.config
        model = first_weights(config.model, config.seed).to(config.device.kind)
        ids, held_out = self.corpus.train_ids, self.corpus.held_out_ids
        trainer = Trainer(model, config.train, ids, held_out, config.seed)
        if resumed:
            train_state.restore(resumed.state, trainer)
            for row in resumed.state.history:
                self._keep(row)
            shutil.copytree(resumed.folder, self.folder)
            self.result.tags["tinygpt.resumed_from"] = resumed.folder.name
        return trainer

    def _keep(self, row: Row) -> None:
        self.history.append(row)
        self.undelivered.append(row)

    def _best(self) -> Row | None:
        looks = [row for row in self.history if "held_out_loss_nats" in row]
        return min(looks, key=lambda row: row["held_out_loss_nats"]) if looks else None

    def _look(self, trainer: Trainer) -> None:
        """Compute the held-out loss, and write all to disk before it is shown or delivered."""
        [score] = train_report.scores({"": trainer.held_out_loss()}, self.corpus)
        rates = [row["tok_per_s"] for row in self.history if "tok_per_s" in row]
        row: Row = {"step": trainer.done, "held_out_loss_nats": score.nats}
        row["held_out_bits_per_byte"] = score.bits
        self._keep(row)
        self._save_last(trainer)
        if self._best() is row:
            self._save_checkpoint(trainer, self.folder, row)
        self.show.looked(row, stats.median_rate(rates[-self.config.train.eval_every :]))
        self._deliver()

    def _save_last(self, trainer: Trainer) -> None:
        if trainer.done == 0:
            return
        train_state.save(self.folder / "last", trainer, self.facts, self.history)
        self._save_checkpoint(trainer, self.folder / "last", self.history[-1])
        lines = "".join(json.dumps(row) + "\n" for row in self.history)
        (self.place.folder / STEPS).write_text(lines, encoding="utf-8")

    def _save_checkpoint(self, trainer: Trainer, folder: Path, row: Row) -> None:
        tokenizer, found = self.corpus.tokenizer, []
        if "held_out_loss_nats" in row:
            found = train_report.scores({"this model": row["held_out_loss_nats"]}, self.corpus)
        card = self._card(trainer.done, found)
        save_model(trainer.model, folder, precision=BF16, tokenizer=tokenizer, card=card)

    def _card(self, step: int, found: list[Score]) -> str:
        found = found + self.baselines
        return train_report.model_card(self.config, self.corpus, step, found, self.place.overrides)

    def _deliver(self, *files: Path) -> None:
        self.deliver(self.undelivered, files)
        self.undelivered = []

    def _sample(self, trainer: Trainer) -> None:
        sample = train_report.sample(trainer.model, self.corpus.tokenizer, self.config)
        self.result.generations.append({"step": trainer.done, **sample})
        path = self.place.folder / SAMPLES
        with path.open("a", encoding="utf-8") as file:
            file.write(f"--- step {trainer.done}\n{sample['text']}\n\n")
        self._deliver(path)

    def _finish(self, trainer: Trainer) -> None:
        """Put together the result. The checkpoint's loss is that of its rounded weights."""
        result, best = self.result, self._best()
        rates = [row["tok_per_s"] for row in self.history if "tok_per_s" in row]
        result.timings["tok_per_s"] = rates
        unigram, trigram = self.baselines
        result.metrics |= {
            "steps_done": trainer.done,
            "train_tokens": len(self.corpus.train_ids),
            "held_out_tokens": len(self.corpus.held_out_ids),
            "unigram_loss_nats": unigram.nats,
            "unigram_bits_per_byte": unigram.bits,
            "trigram_loss_nats": trigram.nats,
            "trigram_bits_per_byte": trigram.bits,
        }
        if rates:
            result.metrics["train_tok_per_s"] = stats.median_rate(rates)
        if best:
            model = load_model(self.folder, self.config.model).to(trainer.device)
            loss = mean_held_out_nats(model, trainer.held_out, self.config.train.batch)
            [score] = train_report.scores({"this model": loss}, self.corpus)
            result.metrics |= {"val_loss_nats": score.nats, "bits_per_byte": score.bits}
            result.metrics["best_step"] = best["step"]
            result.tags["tinygpt.weights_sha256"] = weights_sha256(model)
            card = self._card(int(best["step"]), [score])
            (self.folder / "README.md").write_text(card, encoding="utf-8")
            if self.config.out and trainer.done == self.config.train.steps:
                out = train_state.checkpoint_folder(self.config, self.config.out)
                train_state.publish(self.folder, out)
        train_report.draw_losses(self.history, self.baselines, self.place.folder / LOSSES)
        self._deliver()
