"""Weights on disk: what is refused and how it is said, and that nothing in a file can run."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tinygpt.checkpoint
from tinygpt.checkpoint import (
    DTYPES,
    cast,
    load_model,
    random_model,
    save_model,
    to_llama,
    weights_sha256,
)
from tinygpt.config import PRECISION_KINDS, ModelConfig, PrecisionConfig
from tinygpt.model import GPT
from tinygpt.weights import hf_config

SMALL = ModelConfig(
    vocab_size=300,
    context_length=32,
    n_layers=2,
    d_model=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    d_ff=96,
)
SHAPES = [SMALL, replace(SMALL, tie_embeddings=False), replace(SMALL, head_dim=8, n_kv_heads=4)]
CPU = torch.device("cpu")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with SMALL's weights of seed 1."""
    save_model(random_model(SMALL, seed=1), tmp_path)
    return tmp_path


def edit(folder: Path, change: Any) -> None:
    """Put the tensors that ``change`` makes of the file's into it."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(change(tensors), path)


def one_line(raised: pytest.ExceptionInfo[ValueError], *parts: object) -> None:
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


@pytest.mark.parametrize("config", SHAPES)
def test_a_saved_model_is_the_same_model(config: ModelConfig, tmp_path: Path) -> None:
    model = random_model(config, seed=1)
    save_model(model, tmp_path / "new" / "folder")
    loaded = load_model(tmp_path / "new" / "folder", config)
    assert weights_sha256(loaded) == weights_sha256(model)
    ids = torch.arange(9)[None]
    assert torch.equal(loaded(ids), model(ids))
    assert not loaded.training
    written = json.loads((tmp_path / "new" / "folder" / "config.json").read_text(encoding="utf-8"))
    assert hf_config.read(written) == config


def test_bf16_is_kept_in_the_file_and_read_as_fp32(tmp_path: Path) -> None:
    model = cast(random_model(SMALL, seed=1), PrecisionConfig(kind="bf16"), CPU)
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    loaded = load_model(tmp_path, SMALL)
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded.emb.weight, model.emb.weight.float())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file") as raised:
        load_model(tmp_path, SMALL)
    one_line(raised, tmp_path / "model.safetensors")


@pytest.mark.parametrize("size", [0, 7, 1000, 2**20])
def test_c6_a_cut_file_is_one_line_with_the_path(size: int, tmp_path: Path) -> None:
    config = replace(SMALL, vocab_size=4096)
    save_model(random_model(config, seed=1), tmp_path)
    path = tmp_path / "model.safetensors"
    assert path.stat().st_size > 2**20
    os.truncate(path, size)
    with pytest.raises(ValueError, match="cut short or not a safetensors file") as raised:
        load_model(tmp_path, config)
    one_line(raised, path)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f'echo gone > "{self.target}"',)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.pt"])
def test_c4_a_pickle_is_never_executed(name: str, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    bomb = pickle.dumps({"model.embed_tokens.weight": Bomb(proof)})
    (tmp_path / name).write_bytes(bomb)
    with pytest.raises(ValueError, match=r"model\.safetensors") as raised:
        load_model(tmp_path, SMALL)
    one_line(raised)
    assert not proof.exists()
    pickle.loads(bomb)
    assert proof.exists(), "the bomb has to work, or this test shows nothing"


def test_c4_a_torch_save_is_refused(tmp_path: Path) -> None:
    torch.save(to_llama(random_model(SMALL, seed=1)), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_model(tmp_path, SMALL)


def test_c5_layers_that_are_missing_or_too_many_are_all_named(tmp_path: Path) -> None:
    four, six = replace(SMALL, n_layers=4), replace(SMALL, n_layers=6)
    for stored, wanted, word in ((four, six, "missing"), (six, four, "unknown")):
        save_model(random_model(stored, seed=1), tmp_path)
        with pytest.raises(ValueError, match="does not fit the model") as raised:
            load_model(tmp_path, wanted)
        names = set(to_llama(GPT(six))) - set(to_llama(GPT(four)))
        assert len(names) == 2 * 9
        one_line(raised, *(f"{word} {name} [" for name in names))
        assert str(raised.value).count(word) == len(names)


def test_c5_a_wrong_shape_is_named_with_both(saved: Path) -> None:
    with pytest.raises(ValueError, match="does not fit") as raised:
        load_model(saved, replace(SMALL, d_ff=100))
    for layer in range(2):
        one_line(
            raised,
            f"model.layers.{layer}.mlp.gate_proj.weight is [96, 64], the model has [100, 64]",
            f"model.layers.{layer}.mlp.up_proj.weight is [96, 64], the model has [100, 64]",
            f"model.layers.{layer}.mlp.down_proj.weight is [64, 96], the model has [64, 100]",
        )


def test_c5_a_compiled_model_s_prefix_is_dropped(saved: Path) -> None:
    before = load_model(saved, SMALL)
    edit(saved, lambda tensors: {f"_orig_mod.{name}": value for name, value in tensors.items()})
    ids = torch.arange(9)[None]
    assert torch.equal(load_model(saved, SMALL)(ids), before(ids))


def test_a_head_that_repeats_the_embedding_is_accepted(saved: Path) -> None:
    edit(saved, lambda ts: ts | {"lm_head.weight": ts["model.embed_tokens.weight"].clone()})
    assert weights_sha256(load_model(saved, SMALL)) == weights_sha256(random_model(SMALL, seed=1))


def test_a_head_of_its_own_does_not_fit_a_tied_model(tmp_path: Path) -> None:
    """Dropping it would give other logits than the file's model, and no error."""
    untied = replace(SMALL, tie_embeddings=False)
    save_model(random_model(untied, seed=1), tmp_path)
    with pytest.raises(ValueError, match=r"lm_head\.weight.*tie_embeddings"):
        load_model(tmp_path, SMALL)


@pytest.mark.parametrize("written", [0, 100])
def test_c6_a_save_that_fails_leaves_the_old_file(
    written: int, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        Path(path).write_bytes(b"\0" * written)
        raise OSError("No space left on device")

    monkeypatch.setattr(tinygpt.checkpoint, "save_file", disk_full)
    with pytest.raises(OSError, match="No space"):
        save_model(random_model(SMALL, seed=2), saved)
    assert weights_sha256(load_model(saved, SMALL)) == weights_sha256(random_model(SMALL, seed=1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named_as_such(value: float, tmp_path: Path) -> None:
    model = random_model(SMALL, seed=1)
    with torch.no_grad():
        model.norm.weight[3] = value
        model.blocks[1].mlp.down.weight[0, :2] = value
    save_model(model, tmp_path)
    said = (
        rf"model\.safetensors: 3 of {SMALL.n_parameters:,} weights are NaN or infinite, first in "
        r"model\.layers\.1\.mlp\.down_proj\.weight; the file is damaged, or training went wrong"
    )
    with pytest.raises(ValueError, match=said):
        load_model(tmp_path, SMALL)


def test_a_save_leaves_two_files(saved: Path) -> None:
    save_model(random_model(SMALL, seed=2), saved)
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    assert weights_sha256(load_model(saved, SMALL)) == weights_sha256(random_model(SMALL, seed=2))


def test_a_seed_is_its_weights() -> None:
    one, again, two = (random_model(SMALL, seed=seed) for seed in (1, 1, 2))
    assert weights_sha256(one) == weights_sha256(again) != weights_sha256(two)
    for name, parameter in two.named_parameters():
        if parameter.dim() > 1:
            assert not torch.equal(parameter, dict(one.named_parameters())[name]), name


def test_the_whole_seed_counts() -> None:
    """Of a seed that torch's generator would cut to 32 bits, too; below, weights are what they
    were.
    """
    seeds = [1, 2**32 - 1, 2**32, 2**32 + 1, 2**33 + 1, 2**63 - 1]
    found = [weights_sha256(random_model(SMALL, seed)) for seed in seeds]
    assert len(set(found)) == len(seeds)
    for seed in seeds[:2]:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(SMALL.vocab_size, SMALL.d_model, generator=generator)
        ours = random_model(SMALL, seed).emb.weight
        assert torch.equal(ours, (2.0 * drawn - 1.0) * (3.0**0.5 * 0.02))


def test_random_weights_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    random_model(SMALL, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.random.set_rng_state(before)


@pytest.mark.parametrize("config", SHAPES)
def test_every_parameter_is_initialised(config: ModelConfig) -> None:
    """The model is built without values: one that is forgotten is whatever lay in memory."""
    for name, parameter in random_model(config, seed=1).named_parameters():
        assert parameter.device.type == "cpu"
        assert parameter.isfinite().all()
        assert (
            (parameter == 1).all() if parameter.dim() == 1 else parameter.detach().std() > 0.01
        ), name


def test_the_digest_sees_one_changed_bit_and_the_precision() -> None:
    model = random_model(SMALL, seed=1)
    digest = weights_sha256(model)
    with torch.no_grad():
        weight = model.blocks[1].mlp.down.weight
        weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))
    changed = weights_sha256(model)
    assert (
        len({digest, changed, weights_sha256(cast(model, PrecisionConfig(kind="bf16"), CPU))}) == 3
    )


@pytest.mark.parametrize("kind", PRECISION_KINDS)
def test_precisions_have_the_stated_size(kind: str) -> None:
    model = cast(random_model(SMALL, seed=1), PrecisionConfig(kind=kind), CPU)
    assert {parameter.dtype for parameter in model.parameters()} == {DTYPES[kind]}
    assert DTYPES[kind].itemsize == PrecisionConfig(kind=kind).bytes_per_value
