"""A `.pt` of the post's becomes a checkpoint; what is another kind, or no weights, is one line."""

import importlib.util
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.small_text import MODEL, text
from tinygpt.checkpoint import load_model, random_model, weights_sha256
from tinygpt.config import ModelConfig
from tinygpt.model import GPT
from tinygpt.tokenizer import Tokenizer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "convert_checkpoint.py"
spec = importlib.util.spec_from_file_location("convert_checkpoint", SCRIPT)
assert spec is not None
assert spec.loader is not None
convert_checkpoint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert_checkpoint)

SHAPE = ["--heads=2", "--context=16"]
Weights = dict[str, Tensor]


@pytest.fixture
def model() -> GPT:
    return random_model(MODEL, seed=1)


def state(model: GPT) -> Weights:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def convert(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Save something as a .pt and convert it: status, and the one line that was printed."""

    def call(content: Any, *arguments: str) -> tuple[int, str]:
        path = tmp_path / "weights.pt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            torch.save(content, path)
        capfd.readouterr()
        words = [str(path), f"--out={tmp_path / 'out'}", *SHAPE, *arguments]
        status = convert_checkpoint.main(words)
        out, err = capfd.readouterr()
        [line] = (out + err).strip().splitlines()
        assert (out if status == 0 else err).strip() == line
        return status, line

    return call


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize(
    "names",
    [None, ("gate", "up", "down"), ("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")],
)
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@pytest.mark.parametrize("nested", [None, "model"])
def test_c5_the_post_s_names_become_the_same_logits(
    names: tuple[str, str, str] | None,
    prefix: str,
    nested: str | None,
    convert: Callable[..., tuple[int, str]],
    model: GPT,
    out: Path,
) -> None:
    weights = state(model)
    if names:
        gate, up, down = names
        for layer in range(MODEL.n_layers):
            mlp = f"blocks.{layer}.mlp"
            both = weights.pop(f"{mlp}.gate_up.weight").chunk(2)
            weights[f"{mlp}.{gate}.weight"], weights[f"{mlp}.{up}.weight"] = both
            weights[f"{mlp}.{down}.weight"] = weights.pop(f"{mlp}.down.weight")
    content: Any = {prefix + name: tensor for name, tensor in weights.items()}
    content = {nested: content, "step": 1500, "config": {"n": 6}} if nested else content
    status, line = convert(content)
    assert (status, line) == (
        0,
        f"{out}: {MODEL.n_parameters:,} parameters, 2 layers of width 32, 2 heads, window 16",
    )
    loaded = load_model(out, MODEL)
    assert weights_sha256(loaded) == weights_sha256(model)
    ids = torch.arange(16)[None]
    assert torch.equal(loaded(ids), model(ids))


def test_widths_come_from_the_shapes(convert: Callable[..., tuple[int, str]], out: Path) -> None:
    config = ModelConfig(
        vocab_size=270,
        context_length=16,
        n_layers=3,
        d_model=48,
        n_heads=6,
        n_kv_heads=2,
        head_dim=16,
        d_ff=80,
        rope_base=500.0,
        norm_eps=1e-6,
        tie_embeddings=False,
    )
    model = random_model(config, seed=2)
    options = ["--heads=6", "--rope-base=500", "--norm-eps=1e-6"]
    assert convert(state(model), *options)[0] == 0
    assert weights_sha256(load_model(out, config)) == weights_sha256(model)


def test_rope_on_neighbours_is_put_in_halves(
    convert: Callable[..., tuple[int, str]], model: GPT, out: Path
) -> None:
    """An attention that rotates elements (0, 1), (2, 3) of each head scores the same pairs."""
    weights = state(model)
    for layer in range(2):
        name = f"blocks.{layer}.attn.qkv.weight"
        rows = weights[name][: 4 * 16].view(4, 2, 8, 32)  # heads of q and k, half, pair, width
        weights[name][: 4 * 16] = rows.transpose(1, 2).reshape(64, 32)
        assert not torch.equal(weights[name], model.state_dict()[name])
    assert convert(weights, "--rope=neighbours")[0] == 0
    assert weights_sha256(load_model(out, MODEL)) == weights_sha256(model)


def test_precision_and_tokenizer(
    convert: Callable[..., tuple[int, str]], model: GPT, out: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.train(text(), 300)
    tokenizer.save(tmp_path / "tokenizer.json")
    option = f"--tokenizer={tmp_path / 'tokenizer.json'}"
    assert convert(state(model), option, "--precision=bf16")[0] == 0
    assert Tokenizer.load(out / "tokenizer.json").sha256 == tokenizer.sha256
    assert torch.equal(load_model(out, MODEL).norm.weight, model.norm.weight)
    assert (out / "model.safetensors").stat().st_size < 2.2 * MODEL.n_parameters + 10_000
    Tokenizer.train(text(), 290).save(tmp_path / "tokenizer.json")
    status, line = convert(state(model), option)
    assert status == 2
    assert "has 290 entries and the model 300" in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks.0.norm1.bias": 32}, "LayerNorm with a bias"),
        ({"pos_emb.weight": 32}, "learned positions"),
        ({"blocks.0.mlp.0.weight": 32}, "two linears, not SwiGLU"),
        ({"blocks.1.mlp.fc1.weight": 32}, "two linears, not SwiGLU"),
        ({"blocks.0.attn.qkv.bias": 96}, "linears have biases"),
        ({"blocks.0.attn.q_proj.weight": 32}, "attention is not one qkv and one out"),
        ({"blocks.0.attn.mask": 9}, "unknown blocks.0.attn.mask"),
        ({"blocks.0.norm1.weight": None}, "blocks.0.norm1.weight is missing"),
        ({"emb.weight": None}, "missing emb"),
        ({"blocks.0.attn.out.weight": None}, "missing blocks.0.attn.out"),
        ({"blocks.1.norm2.weight": 31}, "blocks.1.norm2.weight is [31], not [32]"),
    ],
)
def test_another_kind_of_block_is_one_line(
    change: dict[str, int | None],
    said: str,
    convert: Callable[..., tuple[int, str]],
    model: GPT,
    out: Path,
) -> None:
    weights = state(model)
    for name, size in change.items():
        if size is None:
            del weights[name]
        else:
            weights[name] = torch.ones(size)
    status, line = convert(weights)
    assert status == 2
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--heads=3", "--heads=3: must divide the attention's width of 32"),
        ("--heads=0", "--heads=0: must divide"),
        ("--context=0", "context_length=0: must be at least 1"),
        ("--tokenizer=gone.json", "gone.json: cannot be read"),
    ],
)
def test_an_option_that_does_not_fit_is_one_line(
    option: str, said: str, convert: Callable[..., tuple[int, str]], model: GPT
) -> None:
    status, line = convert(state(model), option)
    assert status == 2
    assert said in line


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f'echo gone > "{self.target}"',)


def test_c4_a_pickle_that_calls_os_system_is_refused_and_not_executed(
    convert: Callable[..., tuple[int, str]], model: GPT, tmp_path: Path, out: Path
) -> None:
    proof = tmp_path / "proof"
    bomb = state(model) | {"norm.weight": Bomb(proof)}
    status, line = convert(bomb)
    assert (status, "refused and not executed" in line, "system" in line) == (2, True, True)
    assert not proof.exists()
    assert convert(pickle.dumps(bomb))[0] == 2
    assert not any(path.exists() for path in (proof, out))
    pickle.loads(pickle.dumps(Bomb(proof)))
    assert proof.exists(), "the bomb has to work, or this test shows nothing"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (b"hello, this is text", "cannot be read"),
        ([1, 2], "no state dict"),
        ({}, "missing emb"),
    ],
)
def test_what_is_no_state_dict_is_one_line(
    content: Any, said: str, convert: Callable[..., tuple[int, str]]
) -> None:
    status, line = convert(content)
    assert (status, said in line) == (2, True), line


@pytest.mark.parametrize("size", [10, 5000, 40_000])
def test_c6_a_file_cut_short_is_one_line_with_the_path(
    size: int, convert: Callable[..., tuple[int, str]], model: GPT, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    torch.save(state(model), path)
    status, line = convert(path.read_bytes()[:size])
    assert status == 2
    assert str(path) in line
    assert "cannot be read" in line or "refused" in line


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_files_of_others_are_not_replaced(
    convert: Callable[..., tuple[int, str]], model: GPT, out: Path, name: str
) -> None:
    out.mkdir()
    (out / name).write_text("theirs")
    status, line = convert(state(model))
    assert status == 2
    assert line.endswith(
        f"--out={out}: has a {name}, and nothing is replaced; name a new folder, or move that one "
        "away"
    )
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, "theirs")]
