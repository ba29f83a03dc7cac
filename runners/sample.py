"""Write text: one setting of the sampler, streamed as it comes, or with -m several side by side.

A cell's way: the prompt's ids go through the engine, the sampler picks, the text comes out while it
is made; what came of it is kept as any other cell is.
"""

from pkgutil import resolve_name
from typing import NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.presets import with_groups
from runners.harness.config.schema import SampleConfig
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint, Finished
from runners.harness.launch.kinds import KINDS
from runners.harness.launch.run import run_job

USAGE = """\
usage: python -m runners.sample [-m] [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.sample                                        60 tokens after "Holmes"
  python -m runners.sample prompt.text='It was a' seed=2 length.new_tokens=200
  python -m runners.sample prompt.file=opening.txt                a text exact to the byte
  python -m runners.sample prompt.jsonl=prompts.jsonl             several; a line is {"prompt": "…"}
  python -m runners.sample -m experiment=sampling                 eight settings side by side
  python -m runners.sample -m sampler=greedy,t0.7 seed=1,2,3

groups:
keys: checkpoint (holmes; a name, a training run's id, a folder, a .gguf file, a Hugging Face id),
prompt.text|file|jsonl, prompt.chat=true (in the checkpoint's chat template), prompt.special=true
(special tokens that are spelt out in it count as such), stop (a string that ends the text; $'\\n'
is a line feed in bash and zsh, null is none), seed, tracking.dir|uri, and every field of a group by
value; `--cfg job` prints the config that a command composes to.
exit status: 0 every text is written; 1 one failed or did not reach MLflow; 2 the command is wrong,
and nothing was run; 130 Ctrl-C; 143 SIGTERM
"""


def job(cfg: DictConfig) -> Finished:
    """Write the texts of one setting and keep them."""
    on_screen = resolve_name("runners.harness.text.sample:on_screen")
    return run_job(KINDS["sample"], to_config(cfg, SampleConfig), on_screen)


SAMPLE = EntryPoint(
    "sample",
    job,
    SampleConfig,
    lambda: with_groups(USAGE.rstrip(), "sample", SampleConfig),
    check=KINDS["sample"].check,
    around="runners.harness.text.grid:tracked",
    keeps=True,
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.sample`` and ``tinygpt-sample``."""
    app.run_cells(SAMPLE)


if __name__ == "__main__":
    from runners import sample  # the job has to be importable by name in a launcher's workers

    sample.main()
