"""The compiled engine writes what the eager one writes, and says in one line what it cannot do.

A compile takes ten seconds and more: the default run makes a few shapes, the rest is marked slow.
"""

import gc
import os
import re
import subprocess
import sys
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runners.harness.config.schema import BatchConfig
from runners.harness.measure import gate, memory
from runners.harness.measure.cell import run_cell
from runners.harness.sweep.plan_report import obstacle
from tests.measure.test_cell import config
from tests.small_model import BF16, CPU, EXACT, FP32, INT8, NANO, engine_for, greedy, random_ids
from tinygpt import cost
from tinygpt.checkpoint import DTYPES, cast, random_model
from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig, SamplerConfig
from tinygpt.engines import Engine, EnginePlan, engine_class, toolchain, unsupported
from tinygpt.engines.compiled import packages
from tinygpt.engines.compiled.step import LANES, Products, WindowPass, pack
from tinygpt.generation import never_stop
from tinygpt.model import GPT
from tinygpt.sampling import make_sampler

GROUPED = replace(NANO, n_kv_heads=2)
UNTIED = replace(NANO, tie_embeddings=False)
COMPILED, STATIC = EngineConfig(kind="compiled"), CacheConfig(kind="static")
WINDOW = NANO.context_length


def weights(model: ModelConfig, precision: PrecisionConfig) -> GPT:
    return cast(random_model(model, seed=1), precision, CPU)


def compiled(
    model: ModelConfig = GROUPED,
    *,
    batch: int = 2,
    precision: PrecisionConfig = FP32,
    cache: str = "static",
) -> tuple[Engine, GPT]:
    model_ = weights(model, precision)
    engine = engine_for(
        cache, model_, batch=batch, max_positions=200, engine="compiled", precision=precision
    )
    return engine, model_


@pytest.fixture(scope="module")
def pair() -> tuple[Engine, GPT]:
    """Two rows with grouped queries in fp32, over a ring."""
    return compiled()


def forced(engine: Engine, prompt: Tensor, follow: Tensor) -> Tensor:
    """Logits (N, B, V) after ``prompt`` (B, P) and each but the last of ``follow`` (B, N)."""
    seen: list[Tensor] = []

    def pick(logits: Tensor) -> Tensor:
        seen.append(logits.float().clone())
        return follow[:, len(seen) - 1]

    engine.generate(prompt, follow.shape[1], pick, never_stop)
    return torch.stack(seen)


def differences(
    engine: Engine, model: GPT, *, batch: int, cache: str = "static", prompt: int = 8
) -> tuple[float, float]:
    """Largest difference of a logit from the eager engine's, past the wrap; the largest logit."""
    eager = engine_for(cache, model, batch=batch, max_positions=200)
    start, follow = random_ids(model, batch, prompt), random_ids(model, batch, 100)
    wanted = forced(eager, start, follow)
    return float((forced(engine, start, follow) - wanted).abs().max()), float(wanted.abs().max())


def test_logits_are_the_eager_ones_past_the_wrap(pair: tuple[Engine, GPT]) -> None:
    engine, model = pair
    for prompt in (1, 2, 8, 63, 64):
        off, _ = differences(engine, model, batch=2, prompt=prompt)
        assert off < 1e-5, prompt


def test_a_prompt_longer_than_the_window_counts_by_its_end(pair: tuple[Engine, GPT]) -> None:
    engine, model = pair
    eager = engine_for("static", model, batch=2, max_positions=200)
    prompt, follow = random_ids(model, 2, WINDOW + 9), random_ids(model, 2, 20)
    torch.testing.assert_close(
        forced(engine, prompt, follow), forced(eager, prompt, follow), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("model", [UNTIED, GROUPED], ids=["untied", "tied"])
def test_int8_is_held_as_integers_alone(model: ModelConfig) -> None:
    held = random_model(model, seed=1, dtype=torch.int8)
    engine = engine_for(
        "static", held, batch=1, max_positions=200, engine="compiled", precision=INT8
    )
    assert differences(engine, weights(model, INT8), batch=1)[0] < 1e-5
    assert engine.weights_bytes == cost.weights_bytes(model, INT8)


def test_int8_is_read_as_integers_from_a_model_of_floats() -> None:
    engine, model = compiled(UNTIED, batch=1, precision=INT8)
    assert differences(engine, model, batch=1)[0] < 1e-5
    both = sum(p.nbytes + (p.numel() + 4 * len(p)) * (p.dim() == 2) for p in model.parameters())
    assert engine.weights_bytes == both


def test_without_a_cache_a_window_is_one_call() -> None:
    engine, model = compiled(NANO, batch=2, cache="none")
    assert engine.kv_cache_bytes == 0
    assert differences(engine, model, batch=2, cache="none")[0] < 1e-5
    assert differences(engine, model, batch=2, cache="none", prompt=1)[0] < 1e-5


@pytest.mark.parametrize("new_tokens", [0, 1, 2, 70])
@pytest.mark.parametrize(
    "sampler",
    [
        SamplerConfig(),
        SamplerConfig(temperature=1.0),
        SamplerConfig(temperature=0.8, top_p=0.9, top_k=50),
        SamplerConfig(repetition_penalty=1.3),
    ],
    ids=["greedy", "t1.0", "topp", "penalty"],
)
def test_every_sampler_writes_the_same_text(
    pair: tuple[Engine, GPT], sampler: SamplerConfig, new_tokens: int
) -> None:
    engine, model = pair
    prompt, texts = random_ids(model, 2, 8), []
    for each in (engine, engine_for("rolling", model, batch=2, max_positions=200), engine):
        pick = make_sampler(sampler, batch=2, seed=1, device=CPU)
        pick.reset(prompt, NANO.vocab_size)
        texts.append(each.generate(prompt, new_tokens, pick, never_stop).tolist())
    assert texts[0] == texts[2], "a second text begins anew"
    if new_tokens <= WINDOW - 8:  # past the window a rolling cache holds the same, in other order
        assert texts[0] == texts[1]


def test_a_text_ends_where_it_is_told_to(pair: tuple[Engine, GPT]) -> None:
    engine, model = pair
    prompt, left = random_ids(model, 2, 8), [False, False, True]
    whole = engine.generate(prompt, 20, greedy, never_stop)
    cut = engine.generate(prompt, 20, greedy, lambda ids: left.pop(0))
    assert torch.equal(cut, whole[:, : 8 + 3])


def test_the_gate_passes_it_and_catches_it(pair: tuple[Engine, GPT]) -> None:
    engine, model = pair
    prompt = random_ids(model, 2, 8)
    assert gate.check(engine, model, prompt, 50, FP32, EXACT).reason == ""
    held: Any = engine
    right = held._steps._run
    held._steps._run = lambda inputs: right([inputs[0], -inputs[1], *inputs[2:]])
    found = gate.check(engine, model, prompt, 50, FP32, EXACT)
    held._steps._run = right
    assert "the cache, mask or positions are wrong" in found.reason


def test_other_threads_than_it_was_made_for_are_refused(pair: tuple[Engine, GPT]) -> None:
    engine, model = pair
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(ValueError, match=f"^{threads + 1} threads: .* for {threads};"):
            engine.generate(random_ids(model, 2, 8), 2, greedy, never_stop)
    finally:
        torch.set_num_threads(threads)


def test_a_cell_is_measured_like_any_other() -> None:
    phases: list[str] = []
    shape: dict[str, Any] = {"model": GROUPED, "batch": BatchConfig(size=2), "cache": STATIC}
    cell = config(engine=COMPILED, **shape)
    run_cell(cell)  # compiles, unless that was done in an earlier test run
    measured = run_cell(cell, phases.append)
    assert measured.outcome == "ok", measured.reason
    assert measured.generations == run_cell(config(**shape)).generations
    assert measured.metrics["compile_s"] == 0
    assert measured.metrics["gate_max_difference"] < 1e-5
    assert measured.metrics["limit_share"] > 0
    assert "compile" not in phases
    assert "limit" in phases, "measured beside each cell"
    assert measured.metrics["weights_bytes"] == GROUPED.n_parameters * 4


def test_what_it_needs_is_a_ring_for_the_text_and_int8_once() -> None:
    cell = config(engine=COMPILED, cache=STATIC, precision=INT8)
    needed, eager = memory.needed_bytes(cell), memory.needed_bytes(config(precision=INT8))
    text = cell.prompt.tokens + cell.length.new_tokens
    assert text < WINDOW
    assert needed.cache == 2 * 2 * text * 4 * 16 * 4
    assert eager.weights * 0.25 < needed.weights < eager.weights * 0.3


def test_an_engine_leaves_no_weights_behind() -> None:
    model = weights(GROUPED, FP32)
    engine = engine_for("static", model, batch=2, max_positions=20, engine="compiled")
    engine.generate(random_ids(model, 2, 8), 8, greedy, never_stop)
    storages = [weakref.ref(p.untyped_storage()) for p in model.parameters()]
    held: Any = engine
    storages += [weakref.ref(tensor.untyped_storage()) for tensor in held._steps.cache.k]
    del engine, held, model
    gc.collect()
    assert [storage() for storage in storages] == [None] * len(storages)


def test_texts_of_two_lengths_share_one_compile(pair: tuple[Engine, GPT]) -> None:
    _, model = pair
    for most in (20, 45, WINDOW, 200):
        engine = engine_for("static", model, batch=2, max_positions=most, engine="compiled")
        eager = engine_for("static", model, batch=2, max_positions=most)
        prompt, follow = random_ids(model, 2, 8), random_ids(model, 2, most - 8)
        assert engine.kv_cache_bytes == eager.kv_cache_bytes == 1024 * min(most, WINDOW)
        assert engine.compile_s == 0
        off = forced(engine, prompt, follow) - forced(eager, prompt, follow)
        assert off.abs().max() < 1e-5, most


def test_what_cannot_run_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    rolling = config(engine=COMPILED)
    skipped = run_cell(rolling)
    assert (skipped.outcome, skipped.metrics) == ("skipped", {})
    assert skipped.reason.startswith("engine=compiled: does not run cache=rolling; choose ")
    assert obstacle(rolling) == skipped.reason
    assert obstacle(config(engine=COMPILED, cache=STATIC)) == ""
    with pytest.raises(ValueError, match=r"^engine=compiled: does not run cache=rolling"):
        engine_for("rolling", weights(NANO, FP32), batch=1, max_positions=9, engine="compiled")
    assert "no code for mps" in unsupported(COMPILED, NANO, STATIC, "mps")
    short = replace(NANO, context_length=3)
    assert "context_length=3 is below 4" in unsupported(COMPILED, short, STATIC, "cpu")
    monkeypatch.setattr(toolchain, "compiler", str)
    assert "install g++" in run_cell(config(engine=COMPILED, cache=STATIC)).reason
    assert run_cell(config()).outcome == "ok"


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_a_package_is_made_once_and_again_when_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYGPT_CACHE", str(tmp_path / "kept"))
    x, told = torch.ones(3), []
    for damage, made in ((False, 1), (False, 1), (True, 2)):
        if damage:
            packages.path_of(Twice(), [x]).write_bytes(b"nothing")
        loaded = packages.load(Twice(), [x], report=told.append)
        assert loaded.run([x])[0].tolist() == [2.0, 2.0, 2.0]
        assert told == ["compile"] * made
    assert loaded.compile_s > 0
    assert packages.load(Twice(), [x]).compile_s == 0
    assert list(toolchain.cache_folder().glob("*.pt2")) == [packages.path_of(Twice(), [x])]


def test_a_package_is_named_by_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(model: ModelConfig = NANO, precision: PrecisionConfig = FP32, batch: int = 1) -> Path:
        module = Products(weights(model, precision), precision, batch, "cpu")
        rows = [torch.zeros(batch, module.shapes[name][1]) for name in module.matrices()]
        return packages.path_of(module, rows)

    plain = path()
    seen = {plain, path(UNTIED), path(GROUPED), path(batch=2), path(precision=BF16)}
    seen |= {path(precision=INT8), path(replace(NANO, norm_eps=1e-6))}
    for target, name, value in (
        (torch, "__version__", "9.9"),
        (torch, "get_num_threads", lambda: 77),
        (toolchain, "compiler", lambda: "g++ 99"),
        (toolchain, "machine", lambda device: "another"),
        (toolchain, "has_tiles", lambda: None),
        (packages, "OPTIONS", {}),
        (packages, "_sources", lambda module: "edited"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            seen.add(path())
    assert len(seen) == 14
    assert path() == plain, "weights of the same shape share it"
    assert "class DecodeStep" in packages._sources(Products(weights(NANO, FP32), FP32, 1, "cpu"))
    assert "def rotate" in packages._sources(WindowPass(weights(NANO, FP32)))


class NotLoadedError(Exception):
    """Stands for loading, which would compile."""


@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=["fp32", "bf16", "int8"])
@pytest.mark.parametrize("model", [GROUPED, UNTIED], ids=["grouped", "untied"])
@pytest.mark.parametrize("cache", ["static", "none"])
def test_it_is_foreseen_which_code_it_needs_and_whether_that_is_kept(
    cache: str,
    model: ModelConfig,
    precision: PrecisionConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINYGPT_CACHE", str(tmp_path))
    paths: list[Path] = []

    def load(module: nn.Module, example: Any, *_: Any, **__: Any) -> None:
        paths.append(packages.path_of(module, example))
        raise NotLoadedError

    monkeypatch.setattr(packages, "load", load)
    with pytest.raises(NotLoadedError):
        compiled(model, batch=5, precision=precision, cache=cache)
    if cache == "static":
        ways = engine_class("compiled").products(
            weights(model, precision), precision, 5, may_compile=True, report=lambda phase: None
        )
        with pytest.raises(NotLoadedError):
            list(ways)
    plan = EnginePlan(
        model=model,
        cache=CacheConfig(kind=cache),
        batch=5,
        max_positions=200,
        precision=precision,
        device="cpu",
        threads=torch.get_num_threads(),
    )
    foreseen = engine_class("compiled").code(plan)
    assert [code.key for code in foreseen] == [path.name for path in paths]
    assert not any(code.kept for code in foreseen)
    paths[0].touch()
    again = engine_class("compiled").code(plan)
    assert [code.kept for code in again] == [True, False][: len(paths)]
    other = engine_class("compiled").code(replace(plan, threads=plan.threads + 1))
    assert not {code.key for code in other} & {code.key for code in foreseen}
    assert engine_class("eager").code(plan) == ()


def test_a_folder_with_a_space_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one g++'s command line breaks; package and cache may have them."""
    spaced = tmp_path / "my temporary files"
    spaced.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spaced))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(spaced / "torch"))
    monkeypatch.setenv("TINYGPT_CACHE", str(tmp_path / "our packages"))
    x = torch.arange(6.0)
    loaded = packages.load(Twice(), [x])
    assert loaded.compile_s > 0
    assert torch.equal(loaded.run([x])[0], 2 * x)
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.parent in (Path("/tmp"), Path("/var/tmp"))
    assert toolchain.options()["aot_inductor.precompile_headers"] is False
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "aot_inductor.precompile_headers" not in toolchain.options()


@pytest.mark.parametrize(("avx2", "knows"), [(True, True), (True, False), (False, True)])
def test_whole_copies_are_asked_for_where_they_help(
    avx2: bool, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "is_avx2", lambda: avx2)
    monkeypatch.setattr(toolchain, "_accepts", lambda command, *flags: knows)
    wanted = "native -mmove-max=256" if avx2 and knows else None
    assert toolchain.options().get("cpp.march") == wanted


def test_a_folder_that_cannot_be_written_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "torch"))
    monkeypatch.setenv("TINYGPT_CACHE", str(tmp_path))
    assert toolchain.choose_folder() == ""
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    monkeypatch.setattr(toolchain, "unwritable", lambda path: "Read-only file system")
    assert toolchain.cannot_compile() == toolchain.choose_folder() != ""
    assert "set TORCHINDUCTOR_CACHE_DIR to one" in toolchain.choose_folder()


def test_packages_that_cannot_be_kept_are_said_with_path_and_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINYGPT_CACHE", str(tmp_path / "file" / "x"))
    said = re.escape(f"{tmp_path / 'file' / 'x'}: compiled code cannot be kept there (Not a dir")
    with pytest.raises(ValueError, match=f"^{said}.*set TINYGPT_CACHE"):
        packages.load(Twice(), [torch.arange(3.0)])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", denied)
        assert not packages.kept(tmp_path / "x.pt2")


def denied(path: Path) -> bool:
    raise PermissionError(13, "Permission denied")


def test_what_a_compiler_says_is_told_in_one_line() -> None:
    from torch._inductor.exc import CppCompileError, InductorError

    said = CppCompileError(["g++", "x.cpp"], "In file included\nx.cpp:3: fatal error: no luck\nend")
    for error in (said, InductorError(said, None)):
        with (
            pytest.raises(ValueError, match=r"fatal error: no luck\); set CXX") as told,
            toolchain.readable_errors("train.compile=true"),
        ):
            raise error
        assert str(told.value).startswith("train.compile=true: ")
        assert "\n" not in str(told.value)
    with pytest.raises(MemoryError), toolchain.readable_errors("train.compile=true"):
        raise InductorError(MemoryError(), None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("/bin/false", "CXX=/bin/false is not a working C++ compiler"),
        (None, "there is no C++ comp"),
    ],
)
def test_without_a_compiler_it_is_said_why(
    given: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "compiler", str)
    if given:
        monkeypatch.setenv("CXX", given)
    else:
        monkeypatch.delenv("CXX", raising=False)
    assert toolchain.cannot_compile().startswith(said)


def test_packages_lie_where_users_keep_what_can_be_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TINYGPT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert toolchain.cache_folder() == Path.home() / ".cache" / "tinygpt"
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert toolchain.cache_folder() == Path("/b/tinygpt")
    monkeypatch.setenv("TINYGPT_CACHE", "a")
    assert toolchain.cache_folder() == Path("a").absolute()


@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=["fp32", "bf16", "int8"])
@pytest.mark.parametrize("batch", [1, 4, 5, 16, 17, 40])
@pytest.mark.parametrize("tiles", [False, True])
def test_a_product_is_the_matrix_product(
    tiles: bool, precision: PrecisionConfig, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "has_tiles", lambda: tiles)
    model = weights(replace(UNTIED, vocab_size=509), precision)  # no multiple of the lanes
    module = Products(model, precision, batch, "cpu")
    names = module.matrices()
    assert "emb_weight" not in names
    rows = [torch.randn(batch, module.shapes[name][1]) for name in names]
    plain = {name.replace(".", "_"): p.float() for name, p in model.named_parameters()}
    tolerance = 0.05 if precision is BF16 else 1e-4
    for name, x, y in zip(names, rows, module(*rows), strict=True):
        torch.testing.assert_close(y, x @ plain[name].T, atol=tolerance, rtol=0.02)


def test_a_packed_matrix_has_its_outputs_side_by_side() -> None:
    weight = torch.arange(18 * 3.0).view(18, 3)
    packed = pack(weight)
    assert packed.shape == (2, 3, LANES)
    assert packed.is_contiguous()
    assert packed[0, :, 0].tolist() == weight[0].tolist()
    assert packed[1, :, 1].tolist() == weight[17].tolist()
    assert packed[1, :, 2:].count_nonzero() == 0


@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=["fp32", "bf16", "int8"])
@pytest.mark.parametrize("batch", [1, 4, 5, 16, 17])
def test_the_copies_that_a_step_reads_are_foreseen(
    precision: PrecisionConfig, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "has_tiles", lambda: False)  # their copies: test_tiles.py
    cell = config(engine=COMPILED, cache=STATIC, precision=precision, batch=BatchConfig(size=batch))
    dtype = torch.int8 if precision is INT8 else DTYPES[precision.kind]
    model = random_model(cell.model, seed=1, dtype=dtype)
    own = {parameter.data_ptr(): parameter.nbytes for parameter in model.parameters()}
    buffers = Products(model, precision, batch, "cpu").buffers()
    copies = sum(tensor.nbytes for tensor in buffers if tensor.data_ptr() not in own)
    whole = memory.needed_bytes(cell).weights
    assert sum(own.values()) + copies == pytest.approx(whole, rel=0.02)  # norms are not copied


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 17])
@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=["fp32", "bf16", "int8"])
@pytest.mark.parametrize("model", [NANO, GROUPED], ids=["nano", "grouped"])
def test_every_batch_and_precision(
    model: ModelConfig, precision: PrecisionConfig, batch: int
) -> None:
    engine, eager = compiled(model, batch=batch, precision=precision)
    off, largest = differences(engine, eager, batch=batch)
    assert off < gate.tolerance(precision, largest)
    assert gate.check(engine, eager, random_ids(eager, batch, 8), 50, precision, EXACT).reason == ""


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8, 17])
def test_bf16_without_tiles(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "has_tiles", lambda: False)
    engine, eager = compiled(batch=batch, precision=BF16)
    off, largest = differences(engine, eager, batch=batch)
    assert off < gate.tolerance(BF16, largest)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [BF16, INT8], ids=["bf16", "int8"])
def test_every_precision_without_a_cache(precision: PrecisionConfig) -> None:
    engine, eager = compiled(NANO, batch=1, precision=precision, cache="none")
    assert gate.check(engine, eager, random_ids(eager, 1, 8), 50, precision, EXACT).reason == ""


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["static", "none"])
def test_the_smallest_window(cache: str) -> None:
    engine, eager = compiled(replace(NANO, context_length=4), batch=1, cache=cache)
    for prompt in (1, 2, 3, 4):
        assert differences(engine, eager, batch=1, cache=cache, prompt=prompt)[0] < 1e-5


@pytest.mark.slow
def test_two_processes_that_compile_the_same_do_not_clash(tmp_path: Path) -> None:
    code = (
        "import torch; from tinygpt.engines.compiled import packages;"
        "from tests.tinygpt.test_compiled import Twice;"
        "x = torch.ones(3); print(packages.load(Twice(), [x]).run([x])[0].tolist())"
    )
    there = os.environ | {"TINYGPT_CACHE": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    both = [subprocess.Popen(command, env=there, stdout=subprocess.PIPE, text=True) for _ in "12"]
    assert [process.communicate()[0].strip() for process in both] == ["[2.0, 2.0, 2.0]"] * 2
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".pt2"]  # no leftovers
