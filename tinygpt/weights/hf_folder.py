"""A Hugging Face folder: config.json, and safetensors in one file or in shards with an index.

Weights are read from safetensors files only, since loading these cannot run code.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from tinygpt.chat import ChatTemplate
from tinygpt.config import ModelConfig
from tinygpt.weights import hf_config
from tinygpt.weights.names import plain_name, require_shapes

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
TOKENIZER_CONFIG = "tokenizer_config.json"
INDEX = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
"""The number formats of safetensors in which weights can be read."""


class HFFolder:
    """A folder in the layout of ``save_pretrained``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def model(self) -> ModelConfig:
        """What config.json says; raises ValueError, one line, for a model that is not supported."""
        file = self.path / "config.json"
        try:
            return hf_config.read(json.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(
                f"{file}: cannot be read ({error.strerror}); a checkpoint is a folder with "
                "config.json and safetensors, or a .gguf file"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}: not the config of a supported model ({error})") from None

    @property
    def files(self) -> list[Path]:
        """The files of weights. Raises ValueError, one line, if there are none that can be read."""
        single, index = self.path / WEIGHTS, self.path / INDEX
        if single.is_file():
            return [single]
        if index.is_file():
            return [self.path / name for name in self._shards(index)]
        pickled = sorted(p.name for p in self.path.glob("*.bin")) or sorted(
            p.name for p in self.path.glob("*.pt*")
        )
        if pickled:
            raise ValueError(
                f"{self.path}: has its weights as pickles only ({pickled[0]}), which can run code "
                f"when they are loaded; convert them to {WEIGHTS}"
            )
        raise ValueError(f"{single}: no such file, and {self.path} has no {INDEX} of shards either")

    @property
    def weights_path(self) -> Path:
        """The file of weights; the folder if there are several."""
        files = self.files
        return files[0] if len(files) == 1 else self.path

    @property
    def expected(self) -> list[str]:
        """The names of the files that the weights should be in, whether they are there or not.

        Raises ValueError, one line, for an index that cannot be read.
        """
        index = self.path / INDEX
        return self._named(index) if index.is_file() else [WEIGHTS]

    def _shards(self, index: Path) -> list[str]:
        names = self._named(index)
        for name in names:
            if not (self.path / name).is_file():
                raise ValueError(
                    f"{self.path / name}: no such file, and {INDEX} says that weights are in it; "
                    "fetch it again"
                )
        return names

    def _named(self, index: Path) -> list[str]:
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{index}: cannot be read ({type(error).__name__}: {error}); fetch it again"
            ) from None
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"{index}: names the shard {name!r:.60}, which is no file name")
        return sorted(names)

    def check(self, model: ModelConfig | None = None) -> None:
        """Raise ValueError, one line, for files that are damaged or do not fit the model.

        The message names all tensors whose name or shape is wrong, or the number formats that
        cannot be read. A tied output head may be in the file as well.
        """
        found: dict[str, list[int]] = {}
        for file in self.files:
            shapes, formats = _header(file)
            twice = sorted(found.keys() & shapes)
            if twice:
                raise ValueError(f"{file}: has {twice[0]}, which is in another shard as well")
            unread = sorted(formats - {*FLOATS})
            if unread:
                raise ValueError(
                    f"{file}: has weights in {', '.join(unread)}; only {', '.join(FLOATS)} are read"
                )
            found |= shapes
        require_shapes(model or self.model, found, self.weights_path)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end tokens that config.json and generation_config.json name."""
        ids: list[int] = []
        for name in ("config.json", "generation_config.json"):
            try:
                told = json.loads((self.path / name).read_text(encoding="utf-8"))["eos_token_id"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            ids += [n for n in (told if isinstance(told, list) else [told]) if type(n) is int]
        return tuple(dict.fromkeys(ids))

    def tokenizer_metadata(self) -> None:
        """None: the tokenizer is in a file of its own."""
        return

    def chat_template(self) -> ChatTemplate | None:
        """The template in a file of its own, or in tokenizer_config.json."""
        own, config = self.path / "chat_template.jinja", self._tokenizer_config()
        if own.is_file():
            try:
                source = own.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ValueError(f"{own}: cannot be read ({error}); fetch it again") from None
            return ChatTemplate(source, _special_tokens(config), own)
        found = config.get("chat_template")
        if isinstance(found, list):  # several, by name
            named = {entry.get("name"): entry for entry in found if isinstance(entry, dict)}
            found = named.get("default", {}).get("template")
        if not isinstance(found, str):
            return None
        return ChatTemplate(found, _special_tokens(config), self.path / TOKENIZER_CONFIG)

    def _tokenizer_config(self) -> dict[str, Any]:
        file = self.path / TOKENIZER_CONFIG
        if not file.is_file():
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{file}: cannot be read ({error}); fetch it again") from None
        return found if isinstance(found, dict) else {}

    def tensors(self) -> Iterator[tuple[str, "Tensor"]]:
        """Each tensor as it is in its file."""
        for path in self.files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    yield plain_name(name), file.get_tensor(name)


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens of a tokenizer_config.json, such as ``bos_token``."""
    found = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {key: v.get("content") if isinstance(v, dict) else v for key, v in found.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _header(path: Path) -> tuple[dict[str, list[int]], set[str]]:
    """Shapes by name and number formats of a file. Raises ValueError, one line."""
    try:
        with safe_open(path, framework="numpy") as file:
            parts = {plain_name(name): file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: part.get_shape() for name, part in parts.items()}
            return shapes, {part.get_dtype() for part in parts.values()}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); it is cut short or not a safetensors file: "
            "fetch or save it again"
        ) from None
