"""What a training run resumes from: weights and AdamW's memory in fp32, and facts as JSON.

It is one safetensors file with the JSON in its header, so it is replaced as a whole and reading it
cannot run code. No generator's state is kept: trainer.py draws everything from (seed, step).
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from runners.harness.config.nested import flatten
from runners.harness.config.paths import absolute
from runners.harness.config.schema import TrainConfig
from runners.harness.train.inputs import why_not_published
from runners.harness.train.trainer import Row, Trainer
from tinygpt import checkpoint

FILE = "state.safetensors"
_MEMORY = ("exp_avg", "exp_avg_sq")
_OF_NO_CONSEQUENCE = {"eval_every", "sample_every", "sample_prompt", "sample_tokens", "stop_after"}


@dataclass
class State:
    """A run's state as read from its folder."""

    done: int
    """Steps done."""
    history: list[Row]
    """The figures of every step and look so far."""
    tensors: dict[str, Tensor]


def identity(config: TrainConfig, text_sha256: str) -> dict[str, Any]:
    """The settings that must be unchanged for a run to be resumed."""
    train = {k: v for k, v in asdict(config.train).items() if k not in _OF_NO_CONSEQUENCE}
    corpus = {"held_out": config.corpus.held_out, "sha256": text_sha256}
    nested = {"model": asdict(config.model), "train": train, "corpus": corpus}
    return flatten(nested) | {"seed": config.seed}


def save(folder: Path, trainer: Trainer, facts: dict[str, Any], history: list[Row]) -> None:
    """Write the state; an older one is replaced only by a complete one."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in trainer.model.named_parameters():
        memory = trainer.optimizer.state[parameter]
        tensors[f"weight.{name}"] = parameter.detach()
        tensors |= {f"{part}.{name}": memory[part] for part in _MEMORY}
    header = {"done": trainer.done, "identity": facts, "history": history}
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{FILE}.tmp"
    whole = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, temporary, metadata={"format": "pt", "training": json.dumps(header)})
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(folder / FILE)


def require_same(folder: Path, facts: dict[str, Any]) -> None:
    """Raise ValueError of one line if a run of ``facts`` cannot continue from the state in
    ``folder``; it names every difference. Only the header of the file is read.
    """
    _read(folder, facts, tensors=False)


def read(folder: Path, facts: dict[str, Any]) -> State:
    """The state in ``folder``. Raises ValueError as ``require_same`` does."""
    return _read(folder, facts, tensors=True)


def _read(folder: Path, facts: dict[str, Any], *, tensors: bool) -> State:
    path = folder / FILE
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["training"])
            names = file.keys() if tensors else []
            state = State(
                header["done"], header["history"], {name: file.get_tensor(name) for name in names}
            )
        theirs = header["identity"]
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; resume takes the id of a training run") from None
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); it is cut short or no state of a training run"
        ) from None
    differences = [
        f"{key} is {theirs.get(key)} in it and {facts.get(key)} here"
        for key in sorted({*theirs, *facts})
        if theirs.get(key) != facts.get(key)
    ]
    if differences:
        raise ValueError(
            f"resume: {folder.parent.name} is another run: {'; '.join(differences)}; repeat its "
            "command and add resume"
        )
    return state


def restore(state: State, trainer: Trainer) -> None:
    """Put a state into a trainer of the same model."""
    trainer.done = state.done
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(state.tensors[f"weight.{name}"])
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    order = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    memory = {
        number: {
            "step": torch.tensor(float(state.done)),
            **{part: state.tensors[f"{part}.{names[parameter]}"] for part in _MEMORY},
        }
        for number, parameter in enumerate(order)
    }
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": memory, "param_groups": groups})


def checkpoint_folder(config: TrainConfig, name: str) -> Path:
    """The folder of the weights of a run, or of those published under a name."""
    return absolute(config.tracking.dir) / "checkpoints" / name


def publish(folder: Path, target: Path) -> None:
    """Replace ``target`` with the checkpoint in ``folder``; all files are copied before that.

    Raises FileExistsError if ``target`` holds something else than a training run's checkpoint.
    """
    refused = why_not_published(target)
    if refused:
        raise FileExistsError(refused)
    target.mkdir(parents=True, exist_ok=True)
    names = [name for name in checkpoint.FILES if (folder / name).is_file()]
    for name in names:
        shutil.copyfile(folder / name, target / f"{name}.tmp")
    for name in names:
        (target / f"{name}.tmp").replace(target / name)
