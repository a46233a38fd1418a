"""Real and realistic tokenizers of every supported family, without downloads."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import guideway_demo_model
import mistral_common
import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

CORPUS = [
    "hello world, hello worlds and the other words of the world",
    '{"name": "Zoë", "city": "東京", "tags": ["a", "b"], "price": 12.50, "ok": true}',
    "naïve café, ünïcödé; tabs\tand  double  spaces\nand new lines",
] * 20


@cache
def demo() -> PreTrainedTokenizerBase:
    """Return the demo model's tokenizer: byte-level BPE."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(guideway_demo_model.DemoModel().path())
    return tokenizer


def byte_level_backend() -> Tokenizer:
    """Return a small byte-level BPE like GPT-2's, with the special tokens <s> = 0 and </s> = 1."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
        ),
    )
    return backend


def byte_level_with_added_tokens() -> PreTrainedTokenizerFast:
    """Return a tokenizer with added tokens that are not special: words, a double space, characters outside the byte
    alphabet."""
    backend = byte_level_backend()
    backend.add_tokens(["<think>", AddedToken("  ", normalized=False), "東", AddedToken("<tool é>", lstrip=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def llama2_backend() -> Tokenizer:
    """Return a SentencePiece-style BPE with byte fallback, with a ``tokenizer.json`` like Llama 2's."""
    return _sentencepiece(
        normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), None
    )


def llama2() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=llama2_backend(), eos_token="</s>", unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerFast:
    """Return the same with a newer description: no normalizer, and a pre-tokenizer that adds the dummy prefix."""
    backend = _sentencepiece(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def _sentencepiece(
    normalizer: normalizers.Normalizer | None, pre_tokenizer: pre_tokenizers.PreTokenizer | None
) -> Tokenizer:
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    # trained with a word splitter, so that merges do not cross spaces; used without, like Llama 2
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(CORPUS, trainer)
    model = backend.model
    # byte tokens belong to the model and are not added tokens
    backend = Tokenizer(model)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


@cache
def small_tiktoken() -> tiktoken.Encoding:
    """Return an encoding with GPT-2's splitting pattern, all bytes and some merges."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in (b"he", b"ll", b"hell", b"hello", b" w", b"or", b" wor", b'":', b'{"', b"\xc3\xab", b"\xe6\x9d"):
        ranks[word] = len(ranks)
    return tiktoken.Encoding(
        "small",
        pat_str=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": len(ranks), "<|pad|>": len(ranks) + 3},
    )


def tekken_path() -> str:
    """Return Mistral's tokenizer with 131072 tokens, included in mistral_common."""
    return str(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json")


@cache
def tekken() -> Tekkenizer:
    return Tekkenizer.from_file(tekken_path())
