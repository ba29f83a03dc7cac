"""Runs an entry point under Hydra: all checks come first, and each error is one line.

Exit statuses: 0, every cell is ok or skipped; 1, a cell failed, ran out of memory or mismatched; 2,
the command or config is wrong, and nothing was run; 3, a comparison cannot be judged; 130, Ctrl-C;
143, SIGTERM.

Importing this module registers Hydra's extended parser, our schemas and our resolvers. The module
of every job imports it, so a worker process of a launcher, which imports the job by name, can
compose its config.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import hydra

from runners.harness.config import conversion, presets
from runners.harness.config.paths import conf_dir
from runners.harness.errors import UsageError, require_utf8
from runners.harness.launch import entry as entries
from runners.harness.launch import sweeper
from runners.harness.launch.entry import EntryPoint, Terminated

conversion.register()


def run(entry: EntryPoint) -> int:
    """Run ``entry`` on sys.argv. Returns the exit status; results of cells do not count in it."""
    entries.begin(entry)
    try:
        for word in sys.argv[1:]:
            require_utf8(word)
    except ValueError as error:
        print(f"{entry.name}: {error}", file=sys.stderr)
        return 2
    if "--version" in sys.argv[1:]:
        from tinygpt import __version__

        print(f"tinygpt {__version__}")
        return 0
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(entry.usage())
        return 0
    misplaced = presets.misplaced(entry.name, entry.schema, sys.argv[1:])
    misplaced = misplaced or _looks_and_sweeps(sys.argv[1:])
    if misplaced:
        print(f"{entry.name}: {misplaced}", file=sys.stderr)
        return 2
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors and does not print them
    conversion.register()  # forgets the id that an older sweep left behind
    sweeper.register()
    typed = sys.argv
    entry.words = [word for word in typed[1:] if entry.leaves(word)]
    ours = [word for word in typed[1:] if word not in entry.words]
    ours.sort(key=lambda word: word not in ("-m", "--multirun"))  # argparse wants it in front
    sys.argv = [typed[0], *ours]
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=entry.name)
    try:
        main(entry.job)()
    except UsageError as error:
        if os.environ.get("TINYGPT_DEBUG"):
            traceback.print_exception(error)
        print(f"{entry.name}: {error}", file=sys.stderr)
        return 2
    except conversion.CONFIG_ERRORS as error:
        print(f"{entry.name}: {conversion.one_line(error)}", file=sys.stderr)
        return 2
    except Terminated:
        return 143
    except KeyboardInterrupt:
        return 130
    finally:
        sys.argv = typed
    return 0


def _looks_and_sweeps(words: Sequence[str]) -> str:
    """Why ``--cfg`` or ``--info`` cannot be used with ``-m``; empty if they are not."""
    shows = {"--cfg": "--cfg", "-c": "--cfg", "--info": "--info", "-i": "--info"}
    found = [shows[head] for word in words if (head := word.partition("=")[0]) in shows]
    if found and {"-m", "--multirun"} & set(words):
        return f"{found[0]}: shows the config of one job; leave -m out, and give one value a key"
    return ""


def run_cells(entry: EntryPoint) -> NoReturn:
    """Run ``entry``, whose jobs return ``Finished``; print which cells went wrong, and exit."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # the console may lack a text's characters
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        status = run(entry)
    finally:
        signal.signal(signal.SIGTERM, before)
    wrong = [cell for cell in entry.returned if cell.outcome not in ("ok", "skipped")]
    for cell in wrong:
        print(f"{cell.cell} {cell.outcome}: {cell.reason}", file=sys.stderr)
    lost = not all(cell.tracked for cell in entry.returned)
    gc.freeze()  # collecting all of torch and MLflow once more at exit would take two seconds
    sys.exit(status or int(bool(wrong) or lost))


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated
