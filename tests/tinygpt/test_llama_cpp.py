"""GGUF files mean what llama.cpp takes them to mean: logits, greedy ids, tokens, weights.

llama.cpp rounds activations to 8 bits before it multiplies them with quantised weights, and keeps
its cache in fp16 unless told otherwise. It computes what an fp32 model computes only with weights
and a cache in fp32, so that is what it gets here.
"""

import ctypes
import random
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from scripts.fetch_smollm2 import OUT as SMOLLM2
from tests.tinygpt.test_architectures import Saved, prompt
from tests.tinygpt.test_gguf import BLOCKS, KINDS, WIDTH, loaded, random_blocks, read_blocks, write
from tests.tinygpt.test_hf_tokenizer import byte_level, metadata, sentence_piece
from tinygpt.checkpoint import random_model
from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig
from tinygpt.engines import make_engine
from tinygpt.generation import never_stop
from tinygpt.hf_tokenizer import PRE_TOKENIZERS, HFTokenizer
from tinygpt.model import GPT
from tinygpt.rope import frequencies
from tinygpt.weights import open_checkpoint
from tinygpt.weights.gguf_file import ROPE_FACTORS

llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python is not installed; pip compiles it, which takes minutes"
)

TOLERANCE = 1e-4
"""Of logits that reach 6: both sides sum fp32 products, in other orders. Seen are 1e-5 to 3e-5."""
SMOLLM2_TOLERANCE = 3e-4
"""Of logits that reach 32, after 30 layers. Seen is 7e-5."""
CONTEXT = 256
needs_smollm2 = pytest.mark.skipif(
    not SMOLLM2.exists(), reason=f"no {SMOLLM2.name}: python scripts/fetch_smollm2.py fetches it"
)


@llama_cpp.llama_log_callback
def _no_log(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Takes llama.cpp's log, of which ``verbose=False`` leaves the warnings."""


llama_cpp.llama_log_set(_no_log, ctypes.c_void_p(0))


def llama(path: Path, **options: Any) -> Any:
    """The model of a file in llama.cpp, with a cache in fp32, as a context that closes it."""
    return closing(
        llama_cpp.Llama(
            str(path),
            n_ctx=CONTEXT,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            flash_attn=False,
            verbose=False,
            **options,
        )
    )


def logits(theirs: Any, ids: list[int]) -> Tensor:
    """llama.cpp's logits after each of ``ids``, in one pass."""
    theirs.reset()
    theirs.eval(ids)
    return torch.from_numpy(theirs.scores[: len(ids)].copy())


def greedy(theirs: Any, ids: list[int], n: int) -> list[int]:
    """``ids`` and llama.cpp's ``n`` likeliest tokens after them, step by step on its cache."""
    made = [*ids, int(logits(theirs, ids)[-1].argmax())]
    for _ in range(n - 1):
        theirs.eval(made[-1:])
        made.append(int(theirs.scores[len(made) - 1].argmax()))
    return made


def our_greedy(ours: GPT, ids: list[int], n: int) -> list[int]:
    engine = make_engine(
        EngineConfig(),
        ours,
        CacheConfig(kind="static"),
        batch=1,
        max_positions=len(ids) + n,
        precision=PrecisionConfig(),
    )
    made = engine.generate(torch.tensor([ids]), n, lambda step: step.argmax(-1), never_stop)
    return [int(token_id) for token_id in made[0]]


def no_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("no_vocab")


LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
MODELS: dict[str, tuple[str, float, dict[str, Any]]] = {
    **{name: (name, 1.0, {}) for name in KINDS},
    "llama, llama3 scaling": ("llama", 8.0, {}),
    "llama, tied, llama3 scaling": ("llama, tied", 32.0, {}),
    "llama, linear scaling": ("llama", 1.0, LINEAR),
    "llama, a factor without a type": ("llama", 1.0, {"rope.scaling.factor": 2.0}),
    "llama, a factor by its old name": ("llama", 1.0, {"rope.scale_linear": 2.0}),
    "llama, a factor of 0": ("llama", 1.0, {"rope.scaling.factor": 0.0}),
    "llama, a factor that is off": ("llama", 1.0, LINEAR | {"rope.scaling.type": "none"}),
}
"""By name: the model, the factor of its llama3 scaling, and metadata."""


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_ids_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    kind, factor, facts = MODELS[name]
    saved = Saved(kind, tmp_path / "folder", max_position_embeddings=CONTEXT).ours
    extra = {}
    if factor != 1.0:
        rope = saved.config.rope
        scaled = frequencies(rope._replace(kind="llama3", factor=factor))
        extra[ROPE_FACTORS] = (frequencies(rope) / scaled).numpy()
    path = write(tmp_path / "a.gguf", saved, KINDS[kind], extra=extra, also=no_tokenizer, **facts)
    ours, ids = loaded(path), prompt(1, CONTEXT - 20)
    start = ids[0].tolist()
    with llama(path) as theirs, torch.no_grad():
        difference = (ours(ids)[0] - logits(theirs, start)).abs().max()
        assert difference < TOLERANCE
        assert our_greedy(ours, start, 20) == greedy(theirs, start, 20)


@pytest.mark.parametrize("format", BLOCKS)
def test_weights_are_dequantised_as_in_llama_cpp(format: str, tmp_path: Path) -> None:
    blocks = random_blocks(format)
    wanted = np.empty((WIDTH, WIDTH), dtype=np.float32)
    library = import_module("llama_cpp._ggml").libggml
    dequantize = getattr(library, f"dequantize_row_q{format[1:]}")
    dequantize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    dequantize.restype = None
    dequantize(blocks.ctypes.data, wanted.ctypes.data, wanted.size)
    assert wanted.std() > 0
    # To fp32's precision: the compiler may contract a product and a sum.
    assert np.allclose(read_blocks(format, blocks, tmp_path), wanted, rtol=1e-6, atol=1e-6)


# tokens

TEXTS = (
    "Sherlock Holmes was a",
    "It was 1984: 3.14159, 1,000,000, 12345678901 ½ ²³ ٣٤ ２０ 1a2b3c",
    "don't WON'T we'll I'D they’re 's 'S 'll a'b'c ''s",
    "a  b   c    d ",
    "   ",
    "\n\n\n  x\n \n\ty\r\n\r\n",
    "🙂 👩‍👩‍👧👩‍👩‍👧 🇩🇪🏳️‍🌈",
    "漢字かな交じり文。東京都の橋、東京都の川。 나는 강을",
    "नमस्ते สวัสดี العربية עברית Три моста",
    "a <|end|> <|im_start|>user\n<|endoftext|><|im_end|> <unk><0x0A></s>",
    "naïve café e\u0301e\u0301 1\u0301 \u00a0\u2003\u200b\ufeff x",
    "!!!???...---___ def f(x):\n    return x**2  # ok\n",
    "\x01\x1f\x7f\x85 ▁a▁▁b",
)
UNMERGED = "zebra"
"""An entry that no merges lead to: only a tokenizer that looks for whole pieces first finds it."""
# None begins with the token for the beginning, of which llama.cpp would put a second one in front.
PIECES = [*" \n\r\t\u00a0'’sSdtTlLverabAB19½_.!<|>é東👩\u200d\u0301\x1f\x85٣²ªϒZ字\u2003-▁"]
PIECES += ["the", "bridge", "  ", "'s", "'S", "12345", "It was", "<|end|>", "<unk>", "<0x0A>"]


def check_ids(path: Path) -> None:
    """The tokenizer in a file gives llama.cpp's ids, whether or not special tokens are special."""
    facts = open_checkpoint(path).tokenizer_metadata()
    assert facts
    ours = HFTokenizer.from_gguf(facts, path)
    draw = random.Random(1)
    texts = ["".join(draw.choices(PIECES, k=draw.randint(1, 8))) for _ in range(1000)]
    with llama(path, vocab_only=True) as theirs:
        for text in (*TEXTS, UNMERGED, f"{UNMERGED}s", *texts):
            for special in (False, True):
                wanted = theirs.tokenize(text.encode(), add_bos=True, special=special)
                assert ours.encode(text, special) == wanted, text


def with_tokenizer(facts: dict[str, Any]) -> Callable[[gguf.GGUFWriter], None]:
    """Writes what a file has of its tokenizer."""

    def add(writer: gguf.GGUFWriter) -> None:
        by_type = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            str: writer.add_string,
            list: writer.add_array,
        }
        for key, value in facts.items():
            by_type[type(value)](f"tokenizer.ggml.{key}", value)  # type: ignore[operator]

    return add


def sentence_piece_facts(path: Path) -> dict[str, Any]:
    """What a file has of a SentencePiece tokenizer, whose merges are scores of its entries.

    The entries that merges make stand in no order, so that only their scores can tell it.
    """
    facts = metadata(path, model="llama", bos_token_id=1)
    first = 3 + 256  # special tokens and bytes
    merged = facts["tokens"][first:]
    random.Random(1).shuffle(merged)
    facts["tokens"][first:] = merged
    ranks = {pair.replace(" ", ""): n for n, pair in enumerate(facts["merges"])}
    facts["scores"] = [-float(ranks.get(token, 0)) for token in facts["tokens"]]
    kinds = {"<unk>": 2, **{f"<0x{value:02X}>": 6 for value in range(256)}}
    pairs = zip(facts["tokens"], facts["token_type"], strict=True)
    facts["token_type"] = [kinds.get(token, kind) for token, kind in pairs]
    del facts["merges"], facts["pre"]
    return facts


TOKENIZERS: dict[str, dict[str, Any]] = {
    **{pre: {"pre": pre} for pre in PRE_TOKENIZERS},
    "llama-bpe, no beginning": {"pre": "llama-bpe", "add_bos_token": False},
    "gpt-2, a beginning": {"pre": "gpt-2", "add_bos_token": True},
    "SentencePiece": {},
    "SentencePiece, no space in front": {"add_space_prefix": False},
    "SentencePiece, no beginning": {"add_bos_token": False},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    if name.startswith("SentencePiece"):
        facts = sentence_piece_facts(sentence_piece(tmp_path, 1000, TEXTS * 3))
    else:
        facts = metadata(byte_level(tmp_path, False, 1000, TEXTS * 3))
        facts["tokens"].append(UNMERGED)
        facts["token_type"].append(1)
    model = random_model(ModelConfig(vocab_size=len(facts["tokens"]), n_layers=1), 1)
    also = with_tokenizer({**facts, **TOKENIZERS[name]})
    check_ids(write(tmp_path / "a.gguf", model, "llama", also=also))


# a real model


@needs_smollm2
def test_ids_of_smollm2_are_those_of_llama_cpp() -> None:
    check_ids(SMOLLM2)


@pytest.mark.slow
@needs_smollm2
def test_smollm2_computes_what_llama_cpp_computes() -> None:
    checkpoint = open_checkpoint(SMOLLM2)
    facts = checkpoint.tokenizer_metadata()
    assert facts
    ours = loaded(SMOLLM2)
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.gguf", ours, "llama", also=with_tokenizer(facts))
        with llama(path) as theirs, torch.no_grad():
            ids = theirs.tokenize(b"Sherlock Holmes was a")
            assert ids == [47415, 8343, 26306, 436, 253]
            made = our_greedy(ours, ids, 30)
            assert made == greedy(theirs, ids, 30)
            difference = (ours(torch.tensor([made]))[0] - logits(theirs, made)).abs().max()
            assert difference < SMOLLM2_TOLERANCE
