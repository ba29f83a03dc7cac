"""Where things are: conf/ and results/ in a checkout, or their counterparts in a wheel."""

import re
import tempfile
from pathlib import Path

from runners.harness.config import hub

_PACKAGE = Path(__file__).resolve().parents[2]
_CHECKOUT = _PACKAGE.parent


def in_checkout() -> bool:
    """Whether the code is running from a checkout of the project."""
    return all((_CHECKOUT / name).is_file() for name in ("conf/bench.yaml", "pyproject.toml"))


def conf_dir() -> Path:
    """The folder of the YAML groups. In a wheel it is inside the package."""
    return _CHECKOUT / "conf" if in_checkout() else _PACKAGE / "conf"


def results_dir() -> Path:
    """The default of ``tracking.dir``, absolute: results/ of the checkout, otherwise ./results."""
    return _CHECKOUT / "results" if in_checkout() else absolute("results")


def absolute(path: str) -> Path:
    """A path as its user meant it.

    A leading ``~`` is the home folder. Other paths are relative to the folder in which the command
    was typed, even if Hydra has changed the working directory since. Raises ValueError for the home
    of a user who does not exist.
    """
    from hydra.utils import to_absolute_path  # here, so that schemas load without Hydra

    try:
        # Expand only a ``~`` that was typed, since Path turns ``./~`` into ``~``.
        return Path(to_absolute_path(str(Path(path).expanduser() if path[:1] == "~" else path)))
    except RuntimeError:
        raise ValueError(f"no user has the home {path}; for a file write ./{path}") from None


def settled(path: str, holds: str = "") -> str:
    """A path as a config stores it: absolute, so that it is found from every folder.

    With ``holds`` the key also takes a name: a single word stays a name unless it is a file, or a
    folder that has the file ``holds``. Raises ValueError for an empty path.
    """
    if not path:
        raise ValueError("it is empty; give a path")
    if holds and re.fullmatch(r"[\w.-]+", path):
        found = absolute(path)
        is_name = path == "none" or not (found.is_file() or (found / holds).is_file())
        return path if is_name else str(found)
    return str(absolute(path))


def on_hub(word: str) -> bool:
    """Whether a checkpoint is meant by its Hugging Face id: a path of that name would be meant."""
    return hub.is_id(word) and not absolute(word).exists()


def unwritable(folder: Path) -> str:
    """Why no file can be made in an existing folder; empty if one can. Nothing is left behind."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def config_groups() -> set[str]:
    """The names of the config groups, which are the folders of conf/."""
    return {path.name for path in conf_dir().iterdir() if path.is_dir()}


def group_options(group: str) -> list[str]:
    """The options of a config group; numbers are in numerical order."""
    names = (path.stem for path in (conf_dir() / group).glob("*.yaml"))
    return sorted(names, key=lambda name: (int(name), "") if name.isdigit() else (0, name))


def checkpoint_dirs(tracking_dir: str) -> list[Path]:
    """The folders in which a checkpoint is looked up by its name, trained here or shipped."""
    found = [absolute(tracking_dir), results_dir(), _PACKAGE]
    return list(dict.fromkeys(folder / "checkpoints" for folder in found))


def find_checkpoint(name: str, tracking_dir: str) -> Path:
    """The folder or file of the checkpoint ``name``: a path, a name, or a Hugging Face id.

    Raises ValueError, with the names that exist, if there is none, or with the reason if one is not
    fetched.
    """
    path = absolute(name)
    if path.is_file() or (path / "config.json").is_file():
        return path
    if re.fullmatch(r"[\w.-]+", name):
        for folder in checkpoint_dirs(tracking_dir):
            if (folder / name / "config.json").is_file():
                return folder / name
    if on_hub(name):
        try:
            return hub.folder(name)
        except ValueError as error:
            raise ValueError(f"checkpoint={name}: {error}") from None
    known = sorted(
        path.parent.name
        for folder in checkpoint_dirs(tracking_dir)
        for path in folder.glob("*/config.json")
    )
    raise ValueError(
        f"checkpoint={name}: no such checkpoint; give none, a folder with config.json and "
        "model.safetensors, a .gguf file, a Hugging Face id (org/name), or one of: "
        f"{', '.join(known) or '(none are here by name)'}"
    )
