"""Checks what a training run needs from the file system, before anything runs."""

from pathlib import Path

from runners.harness.config.commands import command
from runners.harness.config.paths import absolute
from runners.harness.config.schema import TrainConfig
from runners.harness.errors import UsageError
from runners.harness.launch.entry import Sweep
from runners.harness.train import corpus
from tinygpt.tokenizer import Tokenizer


def check(config: TrainConfig) -> None:
    """Raise UsageError if the text, the run to resume or the folder ``out`` cannot be used.

    All that can be known before a job runs is checked here, so that no sweep fails midway for it.
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
    refused = why_not_published(checkpoints(config) / config.out) if config.out else ""
    if refused:
        raise UsageError(f"out={config.out}: {refused}")


def checkpoints(config: TrainConfig) -> Path:
    """The folder that holds the weights of every run."""
    return absolute(config.tracking.dir) / "checkpoints"


def resumed_from(config: TrainConfig) -> Path | None:
    """The folder of the run to resume, given as a path, an id or the beginning of an id."""
    if config.resume is None:
        return None
    state = Path("last") / "state.safetensors"
    if (absolute(config.resume) / state).is_file():
        return absolute(config.resume)
    folder = checkpoints(config)
    known = sorted(path.parents[1].name for path in folder.glob(f"*/{state.as_posix()}"))
    found = [name for name in known if name.startswith(config.resume)]
    if len(found) != 1:
        how = "is the beginning of several ids" if found else "no such run"
        raise ValueError(
            f"resume={config.resume}: {how}; give the id of one of: "
            f"{', '.join(found or known) or f'(none has its state in {folder})'}"
        )
    return folder / found[0]


def prepared(sweep: Sweep) -> Sweep:
    """The sweep unchanged; UsageError if its jobs would replace weights that are not theirs."""
    for n, config in enumerate(sweep.configs):
        run_id = sweep.folder.name if sweep.lone else f"{sweep.folder.name}-{n}"
        if (folder := checkpoints(config) / run_id).exists():
            raise UsageError(
                f"{folder}: is there already, and not of this run; nothing is replaced"
            )
    if not sweep.lone and any(config.out for config in sweep.configs):
        raise UsageError(
            f"out={sweep.configs[0].out}: the {len(sweep.configs)} runs of a sweep would replace "
            "each other; leave it out, each run's weights are found by its id"
        )
    return sweep


def trained_here(folder: Path) -> bool:
    """Whether a checkpoint was written by a training run of ours, as its README.md says."""
    try:
        return command("train") in (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def why_not_published(folder: Path) -> str:
    """Why a training run may not put its weights into ``folder``; empty if it may."""
    if (
        not folder.exists()
        or trained_here(folder)
        or (folder.is_dir() and not any(folder.iterdir()))
    ):
        return ""
    return (
        f"{folder} is not the checkpoint of a training run (its README.md does not say so) and is "
        "not replaced; choose another name, or move it away"
    )
