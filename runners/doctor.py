"""Tell, and with fix=true mend, what a crash or a move left behind."""

import sys
from typing import NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.schema import DoctorConfig
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint

USAGE = """\
usage: python -m runners.doctor [fix=true] [prune=30d] [gone=HOST]

  python -m runners.doctor                    tells what is wrong, and changes nothing
  python -m runners.doctor fix=true           mends it; a second time changes nothing
  python -m runners.doctor prune=30d fix=true removes what ended more than 30 days ago as well (12h
                                              for hours); never what runs, nor checkpoints/
  python -m runners.doctor gone=HOST fix=true ends what ran on another machine that will not come
                                              back; without it, what runs there is left alone

It finds cells and sweeps whose process is gone, results on disk that never reached MLflow, a store
that was moved or deleted, and a database that the installed MLflow cannot open.
  tracking.dir, tracking.uri    where to look
Exit status: 0 if nothing is left to mend, 1 if something is, 2 if the command is wrong.
"""


def job(cfg: DictConfig) -> int:
    """Look, and mend if asked to; returns how much is left."""
    from runners.harness.doctor import run as doctor

    return doctor.run(to_config(cfg, DoctorConfig))


DOCTOR = EntryPoint(
    "doctor",
    job,
    DoctorConfig,
    lambda: USAGE.rstrip(),
    alone="the doctor looks at one results folder at a time; leave it out",
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.doctor`` and ``tinygpt-doctor``."""
    status = app.run(DOCTOR)
    sys.exit(status or int(any(DOCTOR.returned)))


if __name__ == "__main__":
    from runners import doctor

    doctor.main()
