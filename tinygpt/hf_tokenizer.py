"""Other people's tokenizers, run by the library ``tokenizers``.

They come as a tokenizer.json, or as the vocabulary in a GGUF file. Two families are known:
byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), whose entries spell each byte as a letter, and
SentencePiece's BPE (Llama 2, Mistral), whose entries are text, with ``▁`` for a space and
``<0x0A>`` for a lone byte.
"""

import hashlib
import json
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tinygpt.chat import ChatTemplate
from tinygpt.tokenizer import Decoder, Tokenizer

if TYPE_CHECKING:
    import tokenizers

PRE_TOKENIZERS = {
    "gpt-2": None,
    "smollm": r"\p{N}",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""How a text is split before it is encoded, by ``tokenizer.ggml.pre`` of a GGUF file. ``gpt-2``
splits as GPT-2 does, ``smollm`` does so after it has set every digit apart."""
_BEGINNING = ("llama-bpe",)
"""Of ``PRE_TOKENIZERS``, those that llama.cpp begins a text with where a file does not say so."""
_UNKNOWN, _CONTROL, _USER = 2, 3, 4
"""Values of ``tokenizer.ggml.token_type``: the token for what has no other, tokens with a meaning,
and text that is never split. The first two are special tokens."""


class HFTokenizer(Decoder):
    """A tokenizer of the library; it never changes."""

    chat: ChatTemplate | None = None
    """The checkpoint's chat template, if it has one."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", path: Path, bos_id: int | None = None):
        """Take a tokenizer of the library, read from ``path``.

        ``bos_id`` is put in front of a text in addition to what the tokenizer's own post-processor
        adds. Raises ValueError for a tokenizer of another family.
        """
        tokenizer.encode_special_tokens = True  # what looks like a special token stays text
        self._plain, self._bos_id = tokenizer, bos_id
        text = tokenizer.to_str()
        self._special = type(tokenizer).from_str(text)
        document = json.loads(text)
        decoder = json.dumps(document.get("decoder"), ensure_ascii=False)
        self._is_byte_level = '"ByteLevel"' in decoder
        if not (self._is_byte_level or "\u2581" in decoder or '"Metaspace"' in decoder):
            kind = (document.get("decoder") or {}).get("type")
            raise ValueError(
                f"{path}: its decoder is {kind}; only byte-level BPE and SentencePiece's BPE "
                "are supported"
            )
        self._added: dict[int, bytes] = {
            entry["id"]: entry["content"].encode() for entry in document.get("added_tokens") or []
        }
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._names = {token_id: name for name, token_id in vocabulary.items()}
        self.vocab_size = self.n_ids = max(self._names) + 1
        self.sha256 = hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a tokenizer.json. Raises ValueError, one line, for one that cannot be read."""
        import tokenizers

        try:
            found = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a plain Exception
            raise ValueError(
                f"{path}: cannot be read ({str(error)[:160]}); fetch it again"
            ) from None
        found.no_padding()
        found.no_truncation()
        return cls(found, path)

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any], path: Path) -> Self:
        """Make the tokenizer that a GGUF file's metadata describes, without ``tokenizer.ggml.``.

        Raises ValueError, one line, for a kind that is not supported.
        """
        kind = metadata.get("model")
        if kind == "gpt2":
            found = _gpt2(metadata, path)
        elif kind == "llama":
            found = _llama(metadata)
        else:
            raise ValueError(
                f"{path}: tokenizer.ggml.model={kind}: is not supported; supported are gpt2, llama"
            )
        begins = kind == "llama" or metadata.get("pre") in _BEGINNING
        puts_bos = metadata.get("add_bos_token", begins)
        return cls(found, path, metadata.get("bos_token_id") if puts_bos else None)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text, with a token for its beginning if the tokenizer has that.

        Special tokens in the text stay text unless ``allow_special``.
        """
        ids: list[int] = (self._special if allow_special else self._plain).encode(text).ids
        if self._bos_id is not None and ids[:1] != [self._bos_id]:
            return [self._bos_id, *ids]
        return ids

    def encode_chat(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text as a user's turn in the checkpoint's chat template.

        A token for the beginning is there if the template puts one. Special tokens in the text stay
        text unless ``allow_special``. Raises ValueError, one line, for a checkpoint without a
        template and for one that cannot be used.
        """
        if self.chat is None:
            return super().encode_chat(text)
        parts = [(self._special, self.chat.prompt(text))]
        if not allow_special and any(token.decode() in text for token in self._added.values()):
            before, after = self.chat.around_a_prompt
            parts = [(self._special, before), (self._plain, text), (self._special, after)]
        return [
            token_id
            for tokenizer, part in parts
            for token_id in tokenizer.encode(part, add_special_tokens=False).ids
        ]

    @property
    def end_of_turn_ids(self) -> frozenset[int]:
        """The special token that ends an answer in the chat template; none if it has none."""
        after = self.chat.after_an_answer if self.chat else ""
        ids = self._special.encode(after, add_special_tokens=False).ids
        special = [token_id for token_id in ids if token_id in self._added]
        return frozenset(special[:1])

    def of_checkpoint(self, end_ids: Iterable[int], chat: ChatTemplate | None) -> Self:
        """The same tokenizer, with the tokens at which a text ends and the chat template."""
        other = copy(self)
        other.end_ids, other.chat = frozenset(end_ids), chat
        return other

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        name = self._names.get(token_id)
        if name is None:
            return b""
        return _byte_level(name) if self._is_byte_level else _sentence_piece(name)


def _letters() -> dict[str, int]:
    """The bytes by the letters that byte-level BPE writes them as (GPT-2's bytes_to_unicode)."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return {chr(value if value in visible else next(hidden)): value for value in range(256)}


_LETTERS = _letters()


def _byte_level(name: str) -> bytes:
    return bytes(_LETTERS[letter] for letter in name)


def _sentence_piece(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("\u2581", " ").encode()


def _gpt2(metadata: dict[str, Any], path: Path) -> "tokenizers.Tokenizer":
    """Byte-level BPE from tokens and merges."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre = metadata.get("pre")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"{path}: tokenizer.ggml.pre={pre}: is not supported; supported are "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    vocabulary = {name: token_id for token_id, name in enumerate(metadata["tokens"])}
    merges = [tuple(pair.split(" ")) for pair in metadata["merges"]]
    ignores = pre == "llama-bpe"  # a piece that is an entry is not taken apart
    found = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignores))
    pattern = PRE_TOKENIZERS[pre]
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=pattern is None or pre == "smollm"
    )
    if pattern is None:
        found.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        found.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    found.decoder = decoders.ByteLevel()
    _add(found, metadata)
    return found


def _llama(metadata: dict[str, Any]) -> "tokenizers.Tokenizer":
    """SentencePiece's BPE: an entry's score says how early two pieces are merged to it."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    names, scores = metadata["tokens"], metadata["scores"]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    merges = []
    for name, token_id in vocabulary.items():
        parts = [(name[:at], name[at:]) for at in range(1, len(name))]
        known = [(a, b) for a, b in parts if a in vocabulary and b in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(-scores[token_id], pair) for pair in known]
    merges.sort(key=lambda merge: merge[0])
    unknown = names[metadata.get("unknown_token_id", 0)]
    found = Tokenizer(
        models.BPE(
            vocabulary, [m for _, m in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    space = [normalizers.Prepend("\u2581")] if metadata.get("add_space_prefix", True) else []
    found.normalizer = normalizers.Sequence([*space, normalizers.Replace(" ", "\u2581")])
    found.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    _add(found, metadata)
    return found


def _add(tokenizer: "tokenizers.Tokenizer", metadata: dict[str, Any]) -> None:
    """Add the entries that are matched in a text as a whole."""
    from tokenizers import AddedToken

    kinds = metadata.get("token_type") or []
    for name, kind in zip(metadata["tokens"], kinds, strict=False):
        if kind in (_UNKNOWN, _CONTROL, _USER):
            tokenizer.add_tokens([AddedToken(name, normalized=False, special=kind != _USER)])


AnyTokenizer = Tokenizer | HFTokenizer
"""Either kind: both encode, decode, and tell which bytes an id stands for."""
