"""Other people's architectures compute what transformers computes, from folders it saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tinygpt.cache import CACHES
from tinygpt.checkpoint import load_model, save_model
from tinygpt.config import CacheConfig, EngineConfig, PrecisionConfig
from tinygpt.engines import make_engine, unsupported
from tinygpt.generation import never_stop
from tinygpt.model import GPT
from tinygpt.weights import hf_config, open_checkpoint

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama, linear scaling": ("Llama", {"rope_parameters": LINEAR}),
    "llama, llama3 scaling": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral, a window as long as the context": ("Mistral", {"sliding_window": 128}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "smollm3": ("SmolLM3", {}),
}
TOLERANCE = 1e-4


class Saved:
    """A small model of random weights that transformers has saved, and how it computes."""

    def __init__(
        self, name: str, folder: Path, dtype: torch.dtype = torch.float32, **sizes: int
    ) -> None:
        kind, changes = ARCHITECTURES[name]
        self.folder = folder
        config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes, **sizes})
        torch.manual_seed(0)
        self.theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        with torch.no_grad():
            for key, parameter in self.theirs.named_parameters():
                random = torch.randn_like(parameter) * (0.1 if "bias" in key else 0.15)
                parameter.copy_(torch.rand_like(parameter) + 0.5 if "norm" in key else random)
        self.theirs.to(dtype).save_pretrained(folder, max_shard_size="60KB")
        if dtype != torch.float32:  # whose table of angles was rounded as well
            load = transformers.AutoModelForCausalLM.from_pretrained
            self.theirs = load(folder, dtype=torch.float32).eval()

    @property
    def ours(self) -> GPT:
        return load_model(self.folder, open_checkpoint(self.folder).model)

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.theirs(ids).logits
        return logits

    def greedy(self, prompt: Tensor, n: int) -> Tensor:
        """The prompt and ``n`` likeliest tokens after it, without a cache."""
        ids = prompt
        for _ in range(n):
            ids = torch.cat([ids, self.logits(ids)[:, -1:].argmax(-1)], dim=1)
        return ids


@pytest.fixture(params=ARCHITECTURES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    return Saved(request.param, tmp_path)


def prompt(batch: int, tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(SIZES["vocab_size"], (batch, tokens), generator=generator)


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_are_those_of_transformers(saved: Saved, batch: int) -> None:
    assert len(list(saved.folder.glob("*.safetensors"))) > 5  # in shards, with an index
    ids = prompt(batch, 100)
    difference = (saved.ours(ids) - saved.logits(ids)).abs().max()
    assert difference < TOLERANCE


@pytest.mark.parametrize("cache", CACHES)
def test_greedy_ids_are_those_of_transformers(saved: Saved, cache: str) -> None:
    for batch in (1, 3):
        start = prompt(batch, 5)
        engine = make_engine(
            EngineConfig(),
            saved.ours,
            CacheConfig(kind=cache),
            batch=batch,
            max_positions=45,
            precision=PrecisionConfig(),
        )
        made = engine.generate(start, 40, lambda logits: logits.argmax(-1), never_stop)
        assert made.tolist() == saved.greedy(start, 40).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_compiled_logits_are_those_of_transformers(saved: Saved, batch: int) -> None:
    ours, cache = saved.ours, CacheConfig(kind="static")
    if unsupported(EngineConfig(kind="compiled"), ours.config, cache, "cpu"):
        pytest.skip("no compiler here")
    engine = make_engine(
        EngineConfig(kind="compiled"),
        ours,
        cache,
        batch=batch,
        max_positions=45,
        precision=PrecisionConfig(),
    )
    logits: list[Tensor] = []

    def pick(step: Tensor) -> Tensor:
        logits.append(step.clone())
        return step.argmax(-1)

    made = engine.generate(prompt(batch, 5), 40, pick, never_stop)
    wanted = saved.logits(made[:, :-1])[:, 4:]
    assert (torch.stack(logits, dim=1) - wanted).abs().max() < TOLERANCE
    assert made.tolist() == saved.greedy(prompt(batch, 5), 40).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_files_of_half_precision_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    found = Saved("llama", tmp_path, dtype)
    ids = prompt(1, 50)
    assert (found.ours(ids) - found.logits(ids)).abs().max() < TOLERANCE


def test_what_is_saved_is_what_transformers_loads(saved: Saved, tmp_path: Path) -> None:
    ours = saved.ours
    save_model(ours, tmp_path / "again")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    ids = prompt(2, 60)
    with torch.no_grad():
        assert (theirs(ids).logits - saved.logits(ids)).abs().max() < TOLERANCE
    written = json.loads((tmp_path / "again" / "config.json").read_text(encoding="utf-8"))
    assert hf_config.read(written) == ours.config


# what is refused


def refused(folder: Path, check: bool = True) -> str:
    """The one line with which a folder is refused."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011, PT012
        found = open_checkpoint(folder)
        assert found.model
        if check:
            found.check()
    assert "\n" not in str(raised.value)
    return str(raised.value)


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("llama", lambda c: c.update(model_type="gemma"), "model_type=gemma: is not supported"),
        ("llama", lambda c: c.update(model_type=["x"]), "model_type=['x']: is not supported"),
        ("llama", lambda c: c.update(attention_bias=True), "attention_bias=True: only attention"),
        ("llama", lambda c: c.update(rope_scaling={"rope_type": "yarn"}), "rope_type=yarn: is not"),
        (
            "llama",
            lambda c: c.update(rope_scaling={"rope_type": "llama3", "factor": 8.0}),
            "rope_scaling.low_freq_factor: missing",
        ),
        ("mistral", lambda c: c.update(sliding_window=64), "sliding_window=64: is below"),
        ("qwen2", lambda c: c.update(use_sliding_window=True), "use_sliding_window=True: only"),
        (
            "qwen3",
            lambda c: c.update(layer_types=["full_attention", "sliding_attention"] * 2),
            "layer_types: sliding_attention is not supported",
        ),
        ("qwen3", lambda c: c.update(attention_bias=True), "attention_bias=True: only"),
        ("smollm3", lambda c: c.update(no_rope_layers=[1, 0, 0, 1]), "no_rope_layers=[1, 0, 0, 1]"),
        ("llama", lambda c: c.pop("hidden_size"), "hidden_size: missing from config.json"),
        ("llama", lambda c: c.update(hidden_size="64"), "hidden_size='64': must be a whole number"),
    ],
)
def test_a_config_that_is_not_supported_is_named(
    name: str, edit: Edit, message: str, tmp_path: Path
) -> None:
    Saved(name, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    edit(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    assert message in refused(tmp_path, check=False)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return Saved("llama", tmp_path).folder


def test_a_shard_that_is_cut_short_is_named(shards: Path) -> None:
    path = sorted(shards.glob("*.safetensors"))[2]
    path.write_bytes(path.read_bytes()[:-40])
    assert f"{path}: cannot be read (" in refused(shards)


def test_a_shard_that_is_missing_is_named(shards: Path) -> None:
    path = sorted(shards.glob("*.safetensors"))[2]
    path.unlink()
    assert refused(shards).startswith(f"{path}: no such file, and model.safetensors.index.json")


def test_an_index_that_leads_elsewhere_is_refused(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    assert "names the shard '../../etc/passwd', which is no file name" in refused(shards)
    index.write_text('{"weight_map": 3}')
    assert "cannot be read (AttributeError" in refused(shards)


def test_tensors_of_another_model_are_named(shards: Path) -> None:
    path = shards / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"intermediate_size": 100}))
    told = refused(shards)
    assert "model.layers.0.mlp.gate_proj.weight is [96, 64], the model has [100, 64]" in told
    path.write_text(json.dumps(config | {"num_hidden_layers": 5}))
    assert "missing model.layers.4.self_attn.q_proj.weight [64, 64]" in refused(shards)
    path.write_text(json.dumps(config | {"num_hidden_layers": 3}))
    assert "unknown model.layers.3." in refused(shards)


def test_a_folder_of_pickles_only_is_refused(shards: Path) -> None:
    for path in shards.glob("*.safetensors*"):
        path.unlink()
    assert "has no model.safetensors.index.json of shards either" in refused(shards)
    (shards / "pytorch_model.bin").write_bytes(b"")
    assert "as pickles only (pytorch_model.bin), which can run code" in refused(shards)
