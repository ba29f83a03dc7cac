"""GGUF files hold the same weights as the folder they were made from, in every number format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from tests.tinygpt.test_architectures import TOLERANCE, Saved, prompt, refused
from tinygpt.checkpoint import load_model, random_model, to_llama
from tinygpt.config import ModelConfig, RopeScalingConfig
from tinygpt.model import GPT
from tinygpt.rope import frequencies
from tinygpt.weights import open_checkpoint
from tinygpt.weights.gguf_file import ROPE_FACTORS

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers.": "blk.",
}
QUANTISED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""The formats that the package can write as well as read."""


def neighbours(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of queries or keys as llama.cpp's converter writes them for a llama."""
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write(
    path: Path,
    model: GPT,
    kind: str,
    types: tuple[str, ...] = ("F32",),
    extra: dict[str, np.ndarray[Any, Any]] | None = None,
    given: dict[str, tuple[np.ndarray[Any, Any], Type]] | None = None,
    also: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    **metadata: int | float | str,
) -> Path:
    """Write ``model`` as llama.cpp's converter does; its matrices take ``types`` in turn.

    ``extra`` are tensors beside those of the model, and ``given`` are blocks of quantised weights
    that take the place of a tensor of the model.
    """
    config, writer = model.config, gguf.GGUFWriter(path, kind)
    facts: dict[str, int | float | str] = {
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope_base,
        "rope.dimension_count": config.head_dim,
        **metadata,
    }
    for key, value in facts.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{kind}.{key}", value)  # type: ignore[operator]
    heads = {"q_proj": config.n_heads, "k_proj": config.n_kv_heads}
    for n, (name, weight) in enumerate(to_llama(model).items()):
        values = weight.float().numpy()
        for part, count in heads.items():
            if kind in ("llama", "smollm3") and part in name:
                values = neighbours(values, count)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        wanted = Type[types[n % len(types)] if values.ndim == 2 else "F32"]
        if name in (given or {}):
            blocks, wanted = given[name]  # type: ignore[index]
            writer.add_tensor(name, blocks, raw_dtype=wanted)
        elif wanted is Type.F32:
            writer.add_tensor(name, values.astype(np.float32))
        else:
            writer.add_tensor(name, gguf.quantize(values, wanted), raw_dtype=wanted)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    also(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def loaded(path: Path) -> GPT:
    return load_model(path, open_checkpoint(path).model)


KINDS = {
    "llama": "llama",
    "llama, tied": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}


@pytest.mark.parametrize("name", KINDS)
def test_it_is_the_model_of_the_folder_that_it_was_made_from(name: str, tmp_path: Path) -> None:
    saved = Saved(name, tmp_path / "folder")
    path = write(tmp_path / "a.gguf", saved.ours, KINDS[name])
    found = loaded(path)
    assert found.config == saved.ours.config
    for (ours, one), (theirs, other) in zip(
        found.state_dict().items(), saved.ours.state_dict().items(), strict=True
    ):
        assert ours == theirs
        assert torch.equal(one, other), ours


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_transformers_reads_the_same_from_it(name: str, tmp_path: Path) -> None:
    """Of models without RoPE scaling: transformers (5.24) reads neither ``rope_freqs.weight`` nor
    ``rope.scaling`` of these architectures. What they mean is compared in test_llama_cpp.py.
    """
    saved = Saved(name, tmp_path / "folder")
    write(tmp_path / "a.gguf", saved.ours, KINDS[name], ("Q8_0", "F16"))
    # Of a qwen3 it does not read the width of a head, which the file says.
    config = {"config": saved.theirs.config} if name == "qwen3" else {}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="a.gguf", dtype=torch.float32, **config
    ).eval()
    ids = prompt(2, 60)
    with torch.no_grad():
        difference = (loaded(tmp_path / "a.gguf")(ids) - theirs(ids).logits).abs().max()
    assert difference < TOLERANCE


@pytest.mark.parametrize("format", QUANTISED)
def test_each_format_is_read_to_its_own_precision(format: str, tmp_path: Path) -> None:
    saved = Saved("qwen3", tmp_path / "folder")
    found = loaded(write(tmp_path / "a.gguf", saved.ours, "qwen3", (format,)))
    bits = {"F32": 30, "F16": 10, "BF16": 7, "Q8_0": 6, "Q5_0": 3, "Q5_1": 3, "Q4_0": 2, "Q4_1": 2}
    for one, other in zip(found.parameters(), saved.ours.parameters(), strict=True):
        assert (one - other).abs().max() <= other.abs().max() * 2.0 ** -bits[format]


def test_a_file_mixes_formats_tensor_by_tensor(tmp_path: Path) -> None:
    saved = Saved("llama", tmp_path / "folder")
    found = loaded(write(tmp_path / "a.gguf", saved.ours, "llama", QUANTISED))
    assert found.config == saved.ours.config
    assert torch.isfinite(found(prompt(1, 20))).all()


WIDTH = 256
"""Of a square matrix that is given block by block."""
BLOCKS = {
    "Q8_0": (32, 34, slice(2)),
    "Q4_0": (32, 18, slice(2)),
    "Q4_1": (32, 20, slice(4)),
    "Q5_0": (32, 22, slice(2)),
    "Q5_1": (32, 24, slice(4)),
    "Q4_K": (256, 144, slice(4)),
    "Q5_K": (256, 176, slice(4)),
    "Q6_K": (256, 210, slice(208, 210)),
}
"""Weights in a block, its bytes, and where in it are its one or two scales, which are halves."""


def random_blocks(format: str) -> np.ndarray[Any, Any]:
    """A matrix of ``WIDTH`` by ``WIDTH`` in a quantised format: any bytes, and scales near 0.01."""
    weights, size, scales = BLOCKS[format]
    draw = np.random.default_rng(1)
    blocks = draw.integers(0, 256, (WIDTH, WIDTH // weights, size), dtype=np.uint8)
    n_scales = len(range(size)[scales]) // 2
    halves = draw.uniform(0.005, 0.02, (WIDTH, WIDTH // weights, n_scales)).astype(np.float16)
    blocks[:, :, scales] = halves.view(np.uint8)
    return blocks.reshape(WIDTH, -1)


def read_blocks(format: str, blocks: np.ndarray[Any, Any], folder: Path) -> np.ndarray[Any, Any]:
    """What a model has as its weights whose file has ``blocks`` of a quantised format."""
    model = ModelConfig(
        vocab_size=300,
        d_model=WIDTH,
        n_layers=1,
        n_heads=4,
        n_kv_heads=4,
        head_dim=64,
        d_ff=WIDTH,
        tie_embeddings=True,
    )
    given = {"blk.0.ffn_down.weight": (blocks, Type[format])}
    path = write(folder / "a.gguf", random_model(model, 1), "llama", given=given)
    return to_llama(loaded(path))["model.layers.0.mlp.down_proj.weight"].numpy()


@pytest.mark.parametrize("format", BLOCKS)
def test_quantised_weights_are_those_of_the_package(format: str, tmp_path: Path) -> None:
    blocks = random_blocks(format)
    found = read_blocks(format, blocks, tmp_path)
    assert found.std() > 0
    assert np.array_equal(found, gguf.dequantize(blocks, Type[format]))


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_weights_are_those_of_the_definition(format: str, tmp_path: Path) -> None:
    """32 integers q with a scale d: d q, or d q + m where the format has a minimum m.

    In a block come d, m, the fifth bits of the integers in one number, and the integers. Of 4 bits
    each, the low halves of 16 bytes are the first 16 integers and the high halves the other 16.
    """
    blocks = random_blocks(format)
    wanted = []
    for block in blocks.reshape(-1, BLOCKS[format][1]):
        scales, rest = block[BLOCKS[format][2]].view(np.float16).astype(np.float32), block[2:]
        if format == "Q8_0":
            integers = rest.view(np.int8).astype(np.float32)
        else:
            packed = block[-16:].astype(np.int32)
            integers = np.concatenate([packed & 15, packed >> 4])
            if format.startswith("Q5"):
                fifth = int.from_bytes(block[-20:-16].tobytes(), "little")
                integers = integers + 16 * np.array([fifth >> n & 1 for n in range(32)])
        middle = {"Q4_0": -8, "Q5_0": -16}.get(format, 0)
        minimum = scales[1] if len(scales) == 2 else np.float32(0)
        wanted.append(scales[0] * (integers + middle).astype(np.float32) + minimum)
    assert np.allclose(
        read_blocks(format, blocks, tmp_path), np.reshape(wanted, (WIDTH, WIDTH)), 1e-6, 1e-7
    )


def test_the_factors_of_llama3_are_its_scaling(tmp_path: Path) -> None:
    saved = Saved("llama", tmp_path / "folder").ours
    base = saved.config.rope
    scaled = base._replace(kind="llama3", factor=8.0)
    factors = (frequencies(base) / frequencies(scaled)).numpy()
    found = loaded(write(tmp_path / "a.gguf", saved, "llama", extra={ROPE_FACTORS: factors}))
    assert found.config.rope_scaling == RopeScalingConfig(kind="llama3", factor=8.0)
    wrong = write(tmp_path / "b.gguf", saved, "llama", extra={ROPE_FACTORS: factors * 1.5 + 1})
    assert f"{ROPE_FACTORS}: is no llama3 scaling" in refused(wrong)

    metadata: dict[str, Any] = {"rope.scaling.factor": 2.0}
    both = write(tmp_path / "c.gguf", saved, "llama", extra={ROPE_FACTORS: factors}, **metadata)
    assert f"llama.rope.scaling.factor=2: only 1 is supported beside {ROPE_FACTORS}" in refused(
        both
    )


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, 2.0),
        ({"rope.scaling.factor": 2.0}, 2.0),
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 0.0}, 1.0),
        ({"rope.scaling.type": "linear"}, 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, 1.0),
    ],
)
def test_a_factor_is_a_linear_scaling(
    metadata: dict[str, Any], factor: float, tmp_path: Path
) -> None:
    """llama.cpp scales linearly unless a type says otherwise; 0 is its word for no factor."""
    saved = Saved("llama", tmp_path / "folder").ours
    found = loaded(write(tmp_path / "a.gguf", saved, "llama", **metadata)).config.rope_scaling
    kind = "default" if factor == 1.0 else "linear"
    assert found == RopeScalingConfig(kind=kind, factor=factor)


@pytest.mark.parametrize(
    ("kind", "metadata", "message"),
    [
        ("gemma", {}, "general.architecture=gemma: is not supported"),
        ("llama", {"expert_count": 8}, "llama.expert_count=8: only dense models"),
        ("llama", {"rope.scaling.type": "yarn"}, "llama.rope.scaling.type=yarn: only linear"),
        ("llama", {"rope.scaling.attn_factor": 2.0}, "llama.rope.scaling.attn_factor=2: only 1"),
        ("llama", {"attention.value_length": 8}, "llama.attention.value_length=8: only 16"),
        ("qwen2", {"attention.sliding_window": 4}, "only full attention is supported"),
        ("qwen2", {}, "missing model.layers.0.self_attn.q_proj.bias"),
        ("llama", {"block_count": 5}, "missing model.layers.4."),
    ],
)
def test_what_is_not_supported_is_named(
    kind: str, metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved = Saved("llama", tmp_path / "folder").ours
    path = write(tmp_path / "a.gguf", saved, kind, **metadata)
    told = refused(path)
    assert message in told
    assert told.startswith(str(path))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_a_file_that_is_cut_short_is_one_line(share: float, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", Saved("llama", tmp_path / "folder").ours, "llama")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "it is cut short or not a GGUF file" in refused(path)
