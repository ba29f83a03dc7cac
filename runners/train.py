"""Train a model on a text: tokenizer, weights, loss curve, samples, and a checkpoint that ships.

The job's way: the text becomes tokens, ``train_run`` learns from them and keeps everything on disk,
MLflow gets the figures as they come, and the best weights get a name once all steps are done.
"""

from typing import NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.presets import with_groups
from runners.harness.config.schema import TrainConfig
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint, Finished
from runners.harness.launch.kinds import KINDS
from runners.harness.launch.run import run_job

USAGE = """\
usage: python -m runners.train [-m] corpus.path=FILE [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.train corpus.path=book.txt                any UTF-8 text
  python -m runners.train experiment=holmes out=holmes        the model that ships
  python -m runners.train experiment=holmes resume=ID         go on where run ID stopped
  python -m runners.train -m experiment=holmes train.lr=1e-3,3e-3

groups:
keys: train.steps|batch|lr|min_lr|warmup_steps|weight_decay|grad_clip|dropout|eval_every|
sample_every|sample_prompt|autocast|compile|stop_after, corpus.path|held_out, seed, out, resume,
tracking.dir|uri; `--cfg job` prints the config that a command composes to.
exit status: 0 trained, up to train.stop_after if that is set; 1 it failed or did not reach MLflow;
2 the command is wrong, and nothing was run; 130 Ctrl-C; 143 SIGTERM (both go on with resume=ID)
"""


def job(cfg: DictConfig) -> Finished:
    """Train once and keep what came of it."""
    return run_job(KINDS["train"], to_config(cfg, TrainConfig))


TRAIN = EntryPoint(
    "train",
    job,
    TrainConfig,
    lambda: with_groups(USAGE.rstrip(), "train", TrainConfig),
    check=KINDS["train"].check,
    prepare="runners.harness.train.inputs:prepared",
    around="runners.harness.launch.tracked:named_sweep",
    keeps=True,
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.train`` and ``tinygpt-train``."""
    app.run_cells(TRAIN)


if __name__ == "__main__":
    from runners import train  # the job has to be importable by name in a launcher's workers

    train.main()
