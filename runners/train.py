"""Train a model on a text: tokenizer, weights, loss curve, samples, and a checkpoint that ships.

The job's way: the text becomes tokens, ``train_run`` learns from them and keeps everything on disk,
MLflow gets the figures as they come, and the best weights get a name once all steps are done.
"""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config, to_dict
from runners.harness.config.paths import absolute
from runners.harness.config.schema import TrainConfig
from runners.harness.errors import UsageError
from runners.harness.launch import app
from runners.harness.train import corpus
from tinygpt.tokenizer import Tokenizer

if TYPE_CHECKING:
    from runners.harness.measure.result import CellResult
    from runners.harness.store.disk import Place

USAGE = """\
usage: python -m runners.train [-m] corpus.path=FILE [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.train corpus.path=book.txt                any UTF-8 text
  python -m runners.train experiment=holmes out=holmes        the model that ships
  python -m runners.train experiment=holmes resume=ID         go on where run ID stopped
  python -m runners.train -m experiment=holmes train.lr=1e-3,3e-3

groups: model, device, sampler (of the samples of text)
keys: train.steps|batch|lr|min_lr|warmup_steps|weight_decay|grad_clip|dropout|eval_every|
sample_every|sample_prompt|autocast|compile|stop_after, corpus.path|held_out, seed, out, resume,
tracking.dir|uri; `--cfg job` prints the config that a command composes to.
"""


def check(config: TrainConfig) -> None:
    """The text will do, and what to go on from is there and is the same run; UsageError otherwise.

    All that can be known before a job runs, so that no sweep ends in its middle for it.
    """
    try:
        folder = resumed_from(config)
        tokenizer = None
        if folder:
            from runners.harness.train import state as train_state

            digest = corpus.sha256(corpus.read_text(config.corpus.path))
            train_state.require_same(folder / "last", train_state.identity(config, digest))
            tokenizer = Tokenizer.load(folder / "last" / "tokenizer.json")
        corpus.load(config, tokenizer)
    except ValueError as error:
        raise UsageError(str(error)) from None


def resumed_from(config: TrainConfig) -> Path | None:
    """The folder of the run to go on from: a path, or its id, of which a prefix is enough."""
    if config.resume is None:
        return None
    state = Path("last") / "state.safetensors"
    if (absolute(config.resume) / state).is_file():
        return absolute(config.resume)
    folder = absolute(config.tracking.dir) / "checkpoints"
    known = sorted(path.parents[1].name for path in folder.glob(f"*/{state.as_posix()}"))
    found = [name for name in known if name.startswith(config.resume)]
    if len(found) != 1:
        how = "is the beginning of several ids" if found else "no such run"
        raise ValueError(
            f"resume={config.resume}: {how}; give the id of one of: "
            f"{', '.join(found or known) or f'(none has its state in {folder})'}"
        )
    return folder / found[0]


def job(cfg: DictConfig) -> app.Finished:
    """Train once and keep what came of it: on disk first, in MLflow second."""
    from runners.harness.launch.tracked import Delivery
    from runners.harness.measure import subject
    from runners.harness.measure.result import CellResult
    from runners.harness.store import disk
    from runners.harness.store.tracking import TrackingError
    from runners.harness.train import run as train_run

    config = to_config(cfg, TrainConfig)
    place = disk.Place.of_job()
    with subject.threads(config.device, []):
        disk.begin(place, "train", to_dict(config))
    try:
        delivery = Delivery(config.tracking, place)
    except TrackingError as error:
        reason = f"tracking: {error}; nothing was run"
        if place.sweep is None:
            disk.discard(place)
            raise UsageError(reason) from None
        disk.finish(place, CellResult("failed", reason))
        return app.Finished(place.cell, "failed", reason, tracked=False)
    measured = train_run.train(config, resumed_from(config), place, delivery)
    disk.finish(place, measured)
    delivery.finish()
    _tell(config, place, measured)
    if measured.outcome == "interrupted":
        raise app.Terminated if measured.reason == "SIGTERM" else KeyboardInterrupt
    return app.Finished(place.cell, measured.outcome, measured.reason, delivery.complete)


def _tell(config: TrainConfig, place: "Place", measured: "CellResult") -> None:
    """What the run came to, where its weights are, and how to go on."""
    from runners.harness.train import report as train_report
    from runners.harness.train import state as train_state

    figures = measured.metrics
    if "val_loss_nats" in figures:
        for label, loss, bits in (
            ("held out", "val_loss_nats", "bits_per_byte"),
            ("unigram", "unigram_loss_nats", "unigram_bits_per_byte"),
            ("trigram", "trigram_loss_nats", "trigram_bits_per_byte"),
        ):
            print(f"{label}: {figures[loss]:.3f} nats a token, {figures[bits]:.3f} bits a byte")
        print(f"checkpoint={place.cell}: {train_state.checkpoint_folder(config, place.cell)}")
    done = int(figures.get("steps_done", 0))
    if done == config.train.steps and measured.outcome == "ok":
        if config.out:
            print(f"checkpoint={config.out}: the same weights")
    elif done and measured.outcome in ("ok", "interrupted"):
        words = [w for w in place.overrides if not w.startswith(("resume=", "train.stop_after="))]
        print(f"stopped after step {done} of {config.train.steps}; this goes on from there:")
        print(train_report.command([*words, f"resume={place.cell}"], private=True))
    for note in measured.notes:
        print(f"note: {note}", file=sys.stderr)


def _around_sweep(sweep: app.Sweep) -> AbstractContextManager[None]:
    from runners.harness.launch.tracked import tracked_sweep

    if any(config.out for config in sweep.configs):
        raise UsageError(
            f"out={sweep.configs[0].out}: the {len(sweep.configs)} runs of a sweep would replace "
            "each other; leave it out, each run's weights are found by its id"
        )
    return tracked_sweep("train", sweep)


TRAIN = app.App("train", job, TrainConfig, check, _around_sweep, lambda: USAGE.rstrip())


def main() -> NoReturn:
    """Entry point of ``python -m runners.train`` and ``tinygpt-train``."""
    app.run_cells(TRAIN)


if __name__ == "__main__":
    from runners import train  # the job has to be importable by name in a launcher's workers

    train.main()
