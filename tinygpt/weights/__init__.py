"""Checkpoints on disk: what model they are, whether their files fit it, and their tensors.

Nothing here needs torch before ``tensors`` is called, so that a checkpoint that does not fit is
refused before anything slow is loaded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tinygpt.chat import ChatTemplate
from tinygpt.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor


class Checkpoint(Protocol):
    """A checkpoint on disk, in any of the formats that ``open_checkpoint`` knows."""

    path: Path
    """Its folder or file."""

    @property
    def model(self) -> ModelConfig:
        """The model that it says it is. Raises ValueError, one line, if that is not supported."""
        ...

    @property
    def weights_path(self) -> Path:
        """The file or folder that messages about weights name."""
        ...

    def check(self, model: ModelConfig | None = None) -> None:
        """Raise ValueError, one line, if its tensors do not fit ``model``, by default its own.

        The message names all tensors whose name or shape is wrong, or the number formats that
        cannot be read.
        """
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens at which a text ends."""
        ...

    def tokenizer_metadata(self) -> dict[str, Any] | None:
        """The tokenizer as metadata of the file; None if a tokenizer.json stands beside it."""
        ...

    def chat_template(self) -> ChatTemplate | None:
        """How a conversation is written; None if the checkpoint does not say.

        Raises ValueError, one line, for a file that cannot be read.
        """
        ...

    def tensors(self) -> Iterator[tuple[str, "Tensor"]]:
        """Each tensor under its name in transformers' ``LlamaForCausalLM``, one at a time."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path``: a folder with a config.json, or a .gguf file.

    Raises ValueError, with a message of one line, for anything else and for a model that is not
    supported. Reads no weights.
    """
    if path.is_file():
        from tinygpt.weights.gguf_file import GGUFFile

        return GGUFFile(path)
    from tinygpt.weights.hf_folder import HFFolder

    return HFFolder(path)
