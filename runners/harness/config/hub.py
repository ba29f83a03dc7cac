"""Checkpoints by their Hugging Face id: ``org/name``, or ``org/name@REVISION``.

huggingface_hub fetches them into its own cache, as its settings say (``HF_ENDPOINT``, ``HF_HOME``,
``HF_TOKEN``, ``HF_HUB_OFFLINE``), and finds them there again without a network.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from runners.harness.errors import first_line
from runners.harness.terminal import complain, console, three_digits
from tinygpt.weights import open_checkpoint
from tinygpt.weights.hf_folder import INDEX, HFFolder

_PART = r"\w(?:[\w.-]{0,94}\w)?"
_ID = re.compile(
    rf"(?!.*\.\.)(?![^@]*--)({_PART}/{_PART})(?<!\.git)(?<!\.gguf)(?:@(\w[\w./+-]*))?", re.ASCII
)
_BESIDE_WEIGHTS = [
    "config.json",
    "generation_config.json",
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
"""What is fetched before the weights, if a repository has it. Pickles never are."""


def is_id(word: str) -> bool:
    """Whether ``word`` has the form of an id. One that ends in .gguf is a path with a typo."""
    return _ID.fullmatch(word) is not None


def shown(word: str) -> str:
    """What tables and runs call a checkpoint: an id without revision, the last part of a path."""
    found = _ID.fullmatch(word)
    return found[1] if found else Path(word).name


def pinned(word: str) -> str:
    """The id with the commit that it means now, so that a config always means the same weights.

    Raises what ``folder`` raises.
    """
    return f"{_parts(word)[0]}@{folder(word).name}"


@cache
def folder(word: str) -> Path:
    """The folder of the checkpoint ``word``, fetched if need be. The folder's name is the commit.

    Raises ValueError, one line, if it cannot be fetched or is not supported. A model that is not
    supported is refused before its weights are fetched.
    """
    repository, revision = _parts(word)
    with _one_line(repository, revision):
        found = _fetched(repository, revision, _BESIDE_WEIGHTS)
        commit = found.name
        if not (found / "config.json").is_file():
            raise _lacks("config.json", _sizes(repository, commit))
    if revision != commit:
        return folder(f"{repository}@{commit}")
    _ = open_checkpoint(found).model  # raises if it is not supported
    missing = [name for name in HFFolder(found).expected if not (found / name).is_file()]
    if missing:
        with _one_line(repository, commit):
            sizes = _sizes(repository, commit)
            for name in missing:
                if name not in sizes:
                    raise _lacks(name, sizes)
            total = sum(sizes[name] for name in missing) / 1e6
            complain(f"{repository}: fetching its weights from {_host()}, {three_digits(total)} MB")
            _fetched(repository, commit, missing, progress=console.is_terminal)
    return found


def _fetched(
    repository: str, revision: str | None, names: list[str], progress: bool = False
) -> Path:
    """The folder of a revision, with those of the files ``names`` that the repository has."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils.logging import set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    set_verbosity(logging.ERROR)  # what goes wrong is told in one line, by us
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        (enable_progress_bars if progress else disable_progress_bars)()
    return Path(snapshot_download(repository, revision=revision, allow_patterns=names))


def _parts(word: str) -> tuple[str, str | None]:
    """Repository and revision of an id; None means the repository's own default."""
    found = _ID.fullmatch(word)
    assert found is not None
    return found[1], found[2]


def _host() -> str:
    """The server that is asked, without what a URL may hold of passwords."""
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2]


def _sizes(repository: str, revision: str | None) -> dict[str, int]:
    """Names and bytes of the repository's own files, without those in folders of it."""
    from huggingface_hub import list_repo_tree
    from huggingface_hub.hf_api import RepoFile

    entries = list_repo_tree(repository, revision=revision)
    return {entry.path: entry.size for entry in entries if isinstance(entry, RepoFile)}


class _RefusedError(ValueError):
    """A repository without what a checkpoint needs; one line, to be put behind its id."""


def _lacks(name: str, sizes: dict[str, int]) -> _RefusedError:
    """The reason why a repository without the file ``name`` cannot be used."""
    for ending, why in (
        (".gguf", "has .gguf files instead: download one of them, and give its path"),
        (".bin", "has pickles instead, which can run code when they are loaded"),
    ):
        others = sorted(other for other in sizes if other.endswith(ending))
        if others:
            return _RefusedError(f"has no {name}; it {why} ({', '.join(others[:3])})")
    return _RefusedError(f"has no {name}, and is no checkpoint that transformers saved")


@contextmanager
def _one_line(repository: str, revision: str | None) -> Iterator[None]:
    """Turn whatever goes wrong in the block into ValueError, one line, without a URL or a token."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise ValueError(
            "no such path, and to fetch it from the Hugging Face hub needs the package "
            "huggingface_hub; pip install 'tinygpt[hf]'"
        ) from None
    host = _host()
    try:
        yield
    except _RefusedError as refused:
        raise ValueError(f"no such path, and the repository at {host} {refused}") from None
    except errors.GatedRepoError:
        why = (
            f"the repository at {host} is gated; accept its terms at {host}/{repository}, then log "
            "in (hf auth login, or HF_TOKEN)"
        )
    except errors.RepositoryNotFoundError:
        why = (
            f"{host} has no such repository, or a private one; for that log in (hf auth login, or "
            "HF_TOKEN)"
        )
    except errors.RevisionNotFoundError:
        why = (
            f"the repository at {host} has no revision {revision}; give one of its branches, tags "
            "or commits"
        )
    except errors.LocalEntryNotFoundError as error:
        why = (
            f"{host} did not give it ({_reason(error.__cause__ or error)}), nor is it in the cache "
            "of huggingface_hub; try again, or give a path"
        )
    except Exception as error:  # each version of the package raises others of its network's errors
        why = f"{host} did not give it ({_reason(error)}); try again, or give a path"
    else:
        return
    raise ValueError(f"no such path, and {why}") from None


def _reason(error: BaseException) -> str:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, HfHubHTTPError):  # whose text has a URL
        return f"HTTP status {error.response.status_code}"
    return first_line(error)
