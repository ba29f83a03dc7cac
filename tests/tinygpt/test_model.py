"""The model against transformers' Llama on the same weights: logits, size, tie, first weights."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tinygpt.checkpoint import cast, load_model, random_model, save_model
from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.model import GPT
from tinygpt.weights import hf_config

SMALL = {
    "vocab_size": 300,
    "context_length": 64,
    "n_layers": 2,
    "d_model": 64,
    "n_heads": 4,
    "n_kv_heads": 4,
    "head_dim": 16,
    "d_ff": 96,
}


def random_ids(config: ModelConfig, batch: int, tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (batch, tokens), generator=generator)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="small"),
        pytest.param({"n_kv_heads": 2}, id="grouped"),
        pytest.param({"n_kv_heads": 1}, id="multi-query"),
        pytest.param({"tie_embeddings": False}, id="untied"),
        pytest.param({"head_dim": 24}, id="heads wider than d_model"),
        pytest.param({"rope_base": 500.0}, id="rope_base"),
        pytest.param({"norm_eps": 0.1}, id="norm_eps"),
        pytest.param(
            {"d_model": 48, "n_heads": 6, "n_kv_heads": 3, "tie_embeddings": False}, id="all"
        ),
        pytest.param({**vars(ModelConfig())}, id="tiny"),
    ],
)
def test_logits_are_those_of_llama(change: dict[str, object], tmp_path: Path) -> None:
    config = ModelConfig(**(SMALL | change))
    model = random_model(config, seed=1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # norms of ones would hide one that is left out or exchanged
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=generator)
    save_model(model, tmp_path)
    llama, report = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert llama.dtype == torch.float32
    ids = random_ids(config, 2, config.context_length)
    with torch.inference_mode():
        torch.testing.assert_close(model(ids), llama(ids).logits, atol=1e-4, rtol=0)


_LINEAR = {"rope_type": "linear", "factor": 8.0}
_THETA = {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"rope_parameters": None, "rope_theta": 500.0}, ""),
        ({"rope_parameters": _THETA, "rope_theta": 70.0}, ""),
        ({"rope_parameters": _THETA, "rope_scaling": {}}, ""),
        ({"rope_parameters": _THETA, "rope_scaling": {"type": "default"}, "rope_theta": 70.0}, ""),
        ({"rope_parameters": _THETA, "rope_scaling": _LINEAR}, ""),
        ({"rope_parameters": _LINEAR}, ""),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, ""),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, "rope_type=dynamic"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_type=yarn"),
        ({"rope_parameters": {**_LINEAR, "type": "default"}}, ""),
        ({"rope_parameters": {**_THETA, "type": "linear", "factor": 8.0}}, ""),
        ({"rope_parameters": {**_THETA, "partial_rotary_factor": 0.5}}, ""),
        ({"partial_rotary_factor": 0.5}, ""),
        ({"rope_parameters": {"full_attention": _LINEAR}}, "rope_parameters.full_attention="),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "rope_theta=None"),
        ({"rope_scaling": "linear"}, "rope_scaling=linear: must be an object"),
        ({"sliding_window": 4, "pretraining_tp": 2, "attention_dropout": 0.5}, ""),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"is_causal": False}, "is_causal=False"),
        ({"per_layer_config": {"0": {"intermediate_size": 8}}}, "per_layer_config="),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config="),
    ],
)
def test_a_config_json_is_read_as_transformers_reads_it_or_refused(
    change: dict[str, object], refused: str, tmp_path: Path
) -> None:
    save_model(random_model(ModelConfig(**SMALL), seed=1), tmp_path)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    del written["rope_theta"]  # which change has, where it is about it
    path.write_text(json.dumps(written | change), encoding="utf-8")
    if refused:
        with pytest.raises(ValueError, match=refused):
            hf_config.read(json.loads(path.read_text(encoding="utf-8")))
        return
    config = hf_config.read(json.loads(path.read_text(encoding="utf-8")))
    llama = LlamaForCausalLM.from_pretrained(tmp_path)
    ids = random_ids(config, 2, config.context_length)
    with torch.inference_mode():
        ours, theirs = load_model(tmp_path, config)(ids), llama(ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_loads_what_llama_saves(tmp_path: Path) -> None:
    config = ModelConfig(**SMALL)
    save_model(random_model(config, seed=1), tmp_path / "ours")
    LlamaForCausalLM.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    ids = random_ids(config, 2, 9)
    assert torch.equal(
        load_model(tmp_path / "theirs", config)(ids), load_model(tmp_path / "ours", config)(ids)
    )


def test_k8_size_of_the_post_s_model() -> None:
    model = GPT(ModelConfig())
    parameters = {p.data_ptr(): p for p in model.parameters()}.values()
    assert sum(p.numel() for p in parameters) == ModelConfig().n_parameters == 5_795_072
    assert sum(p.nbytes for p in parameters) / 1e6 == pytest.approx(23.2, abs=0.05)


def test_k8_embedding_and_head_stay_one(tmp_path: Path) -> None:
    def one(model: GPT) -> bool:
        return (
            model.head.weight is model.emb.weight
            and model.head.weight.data_ptr() == model.emb.weight.data_ptr()
        )

    config = ModelConfig()
    model = random_model(config, seed=1)
    assert one(model)
    save_model(model, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size == pytest.approx(23.2e6, rel=0.01)
    model = load_model(tmp_path, config)
    assert one(model)
    ids = random_ids(config, 2, 8)
    before = model.emb.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    assert one(model)
    assert not torch.equal(model.emb.weight, before)
    assert one(cast(model, PrecisionConfig(kind="bf16"), torch.device("cpu")))


def test_an_untied_head_is_its_own() -> None:
    model = random_model(ModelConfig(**SMALL, tie_embeddings=False), seed=1)
    assert model.head.weight.data_ptr() != model.emb.weight.data_ptr()
    assert not torch.equal(model.head.weight, model.emb.weight)


def test_no_token_sees_a_later_one() -> None:
    config = ModelConfig(**SMALL)
    model, ids = random_model(config, seed=1), random_ids(config, 1, 20)
    changed = ids.clone()
    changed[:, 10] = (ids[:, 10] + 1) % config.vocab_size
    same = torch.isclose(model(ids), model(changed), atol=1e-6).all(dim=-1)[0]
    assert same.tolist() == [True] * 10 + [False] * 10


def test_more_than_the_window_is_refused() -> None:
    config = ModelConfig(**SMALL)
    model = random_model(config, seed=1)
    assert model(random_ids(config, 1, 64)).shape == (1, 64, 300)
    with pytest.raises(ValueError, match="65 tokens: the window is context_length=64"):
        model(random_ids(config, 1, 65))


def test_first_weights_have_the_stated_deviations() -> None:
    model = random_model(ModelConfig(), seed=1).requires_grad_(False)
    block = model.blocks[0]
    for weight, deviation in (
        (model.emb.weight, 0.02),
        (block.attn.qkv.weight, 256**-0.5),
        (block.attn.out.weight, 256**-0.5),
        (block.mlp.gate_up.weight, 256**-0.5),
        (block.mlp.down.weight, 688**-0.5),
    ):
        assert float(weight.std()) == pytest.approx(deviation, rel=0.02)
        assert float(weight.mean()) == pytest.approx(0, abs=deviation / 50)
    assert set(model.norm.weight.tolist()) == {1.0}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_greedy_text_of_random_weights_varies(seed: int) -> None:
    """A constant text would hide both classic cache bugs."""
    config = ModelConfig(**SMALL)
    model, ids = random_model(config, seed=seed), random_ids(config, 1, 8)
    with torch.inference_mode():
        for _ in range(56):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(dim=-1)], dim=1)
    assert len(set(ids[0, 8:].tolist())) > 10
