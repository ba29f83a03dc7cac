"""Prove that a cache changes nothing: greedy text with and without, and the sampler's properties.

What must match is checked and an exit status of 1 says that it does not; where the texts part past
the window is told. With a fault the cache is broken on purpose, to see what finds it and how soon.
"""

from typing import NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.presets import with_groups
from runners.harness.config.schema import VerifyConfig
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint, Finished
from runners.harness.launch.kinds import KINDS
from runners.harness.launch.run import run_job

USAGE = """\
usage: python -m runners.verify [-m] [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.verify                            600 tokens with each cache, and the sampler
  python -m runners.verify check=sampler              the sampler's properties alone, no model
  python -m runners.verify fault=rope                 a broken cache: found how soon, and by what
  python -m runners.verify -m fault=rope,mask,window
  python -m runners.verify prompt.file=opening.txt length.new_tokens=300

groups:
keys: check (all, cache, sampler), fault (none, rope, mask, window), checkpoint (holmes; a name, a
training run's id, a folder, a .gguf file, a Hugging Face id), prompt.text|file, seed,
tracking.dir|uri, and every field of a group by value; `--cfg job` prints the config that a command
composes to.
exit status: 0 everything holds, 1 something that must match does not, 2 the command is wrong
"""


def job(cfg: DictConfig) -> Finished:
    """Verify once and keep what came of it."""
    return run_job(KINDS["verify"], to_config(cfg, VerifyConfig))


VERIFY = EntryPoint(
    "verify",
    job,
    VerifyConfig,
    lambda: with_groups(USAGE.rstrip(), "verify", VerifyConfig),
    check=KINDS["verify"].check,
    around="runners.harness.launch.tracked:named_sweep",
    keeps=True,
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.verify`` and ``tinygpt-verify``."""
    app.run_cells(VERIFY)


if __name__ == "__main__":
    from runners import verify  # the job has to be importable by name in a launcher's workers

    verify.main()
