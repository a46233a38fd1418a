"""Vocabularies: byte-level ones with everything that tokenizers do to text, in the sizes at which masks go wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

from guideway.api import Vocabulary

__all__ = [
    "GreedyEncoder",
    "ids_of",
    "large",
    "long_tokens",
    "longest_tokens",
    "show",
    "sized",
    "spelling",
    "standard",
    "standard_without",
    "wide",
    "with_long_tokens",
]

STANDARD_SIZE = 1000
LARGE_SIZE = 131_072

_BYTES = tuple(bytes([byte]) for byte in range(256))

_MERGES: tuple[bytes, ...] = (
    *(b"true", b"false", b"null", b"yes", b"no", b"name", b"age", b"abc", b"foo", b"bar", b"red", b"green", b"</f>"),
    # JSON punctuation, and tokens that run over the end of a value
    *(
        b'{"',
        b'":',
        b'": ',
        b'","',
        b'", "',
        b'"}',
        b'"]',
        b"[[",
        b"]]",
        b"[{",
        b"}]",
        b"},",
        b"],",
        b"{}",
        b"[]",
        b', "',
    ),
    *(b'{"a":', b'{"name":', b'"age":', b"null,", b"1}", b"1,", b"1]", b"true}", b"12", b"1.", b".5", b"-1", b"00"),
    *(b"  ", b"    ", b"\n\n", b"\n  ", b" \n", b",\n", b"{\n", b" a", b" the", b" {", b": "),
    # whole characters, characters split over tokens in several ways, and bytes that no text holds
    *("é".encode(), "中".encode(), "中文".encode(), "\U0001f600".encode(), "è".encode()),
    *(b"\xe4\xb8", b"\xb8\xad", b"\xa9x", b"a\xc3", b"\xad\xc3", b"\xf0\x9f", b"\x98\x80", b"\x9f\x98", b"\xff\xfe"),
    # longer than a word of 16, 32 or 64 bytes
    *(40 * b"a", 24 * b"ab" + b"b", 70 * b" ", 9 * b"foo,"),
    # the same bytes under a second id
    *(b"a", b"ab", b'"', b'{"', b"1", b"true", "é".encode()),
)


@dataclass(frozen=True)
class GreedyEncoder:
    """The longest token at each place, the first of equal ones; nothing for bytes that are not UTF-8."""

    tokens: tuple[bytes, ...]

    @property
    def identity(self) -> bytes:
        return b"greedy " + hashlib.sha256(repr(self.tokens).encode()).digest()

    def encode(self, text: bytes) -> list[int] | None:
        try:
            text.decode()
        except UnicodeDecodeError:
            return None
        return self.cut(text)

    def cut(self, text: bytes) -> list[int] | None:
        """The tokens of `text`, UTF-8 or not; None if no token begins as it goes on somewhere."""
        found, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                return None
            found.append(self._ids[text[start:end]])
            start = end
        return found

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: i for i, token in reversed(list(enumerate(self.tokens))) if token}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.tokens))


@cache
def standard() -> Vocabulary:
    """1,000 tokens: every byte, words, punctuation, parts of characters, equal tokens, special tokens at both ends,
    three of which stop, ids without text in between; logits that are wider by more than a word."""
    middle = [*_BYTES, b"", *_MERGES, b""]
    tokens = [b"", b"", b"", *middle]
    tokens += [text for text, _ in zip(_combinations(b"aebndo1,", 2), range(STANDARD_SIZE), strict=False)]
    tokens = [*tokens[: STANDARD_SIZE - 2], b"", b""]
    specials = {0: "<unk>", 1: "</s>", 2: "<|eot|>", STANDARD_SIZE - 2: "<|tool|>", STANDARD_SIZE - 1: "<|end|>"}
    return Vocabulary(
        tokens, frozenset({1, 2, STANDARD_SIZE - 1}), specials, STANDARD_SIZE + 88, GreedyEncoder(tuple(tokens))
    )


def standard_without(byte: bytes) -> Vocabulary:
    """The standard one, where no token has `byte`: some texts cannot be spelled."""
    usual = standard()
    tokens = [b"" if byte in token else token for token in usual.tokens]
    return Vocabulary(tokens, usual.stop_token_ids, usual.special_tokens, usual.logits_width)


def sized(size: int, alphabet: bytes, padding: int = 0) -> Vocabulary:
    """`size` tokens that spell texts over `alphabet`, as far as there is room; the last one stops. Without encoder."""
    letters = bytes(dict.fromkeys(alphabet))
    texts = _combinations(letters, 1)
    tokens = [text for text, _ in zip(texts, range(size - 1), strict=False)]
    return Vocabulary([*tokens, b""], frozenset({size - 1}), {size - 1: "</s>"}, size + padding)


def spelling(letters: bytes) -> Vocabulary:
    """Each byte of `letters` and none besides, a special token at both ends, one of which stops."""
    tokens = [bytes([byte]) for byte in dict.fromkeys(letters)]
    last = len(tokens) + 1
    return Vocabulary([b"", *tokens, b""], frozenset({last}), {0: "<s>", last: "</s>"}, last + 40)


def with_long_tokens(texts: Iterable[bytes], most: int = 200, over: Iterable[bytes] = ()) -> Vocabulary:
    """Each byte, runs of what ends or begins something, and pieces of five to eight bytes of `texts`, up to `most`; and
    of `over` pieces of ten to fifty bytes of the second half."""
    runs = [bytes([byte]) * n for byte in b'[]{}()"' for n in range(2, 9)]
    pieces = [text[i : i + n] for n in (8, 7, 6, 5) for text in texts for i in range(len(text) - n + 1)]
    places = [(text, i) for text in over for i in range(len(text) // 2, len(text))]
    ends = [text[i : i + n] for n in (10, 16, 24, 36, 50) for text, i in places if i + n <= len(text)]
    tokens = list(dict.fromkeys([*list(dict.fromkeys([*runs, *pieces]))[:most], *ends]))
    return Vocabulary(
        [b"", *_BYTES, *tokens, b""], frozenset({len(tokens) + 257}), {0: "<s>", len(tokens) + 257: "</s>"}
    )


def long_tokens(vocabulary: Vocabulary) -> list[int]:
    """The tokens of more than one byte."""
    return [i for i, token in enumerate(vocabulary.tokens) if len(token) > 1]


@cache
def large() -> Vocabulary:
    """131,072 tokens, as many as the models of the day have."""
    texts = _combinations(b"etaoinshrdlcumwfgypbvk01,\xc3\xa9", 2)
    tokens = [b"", *_BYTES, *_MERGES]
    tokens += [text for text, _ in zip(texts, range(LARGE_SIZE - 1 - len(tokens)), strict=False)]
    return Vocabulary([*tokens, b""], frozenset({0, LARGE_SIZE - 1}), {0: "</s>", LARGE_SIZE - 1: "<|end|>"})


@cache
def wide() -> Vocabulary:
    """As many ids as `large`, of which those of `standard` alone stand for text: masks are as long, and soon found."""
    usual = standard()
    tokens = [*usual.tokens, *([b""] * (LARGE_SIZE - len(usual)))]
    return Vocabulary(tokens, usual.stop_token_ids, usual.special_tokens)


def _combinations(letters: bytes, shortest: int) -> Iterator[bytes]:
    length = shortest
    while True:
        yield from map(bytes, product(letters, repeat=length))
        length += 1


def ids_of(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """`text`, a token for each byte."""
    return [vocabulary.tokens.index(text[i : i + 1]) for i in range(len(text))]


def longest_tokens(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """`text`, the longest token at each place."""
    return GreedyEncoder(tuple(vocabulary.tokens)).cut(text) or []


def show(vocabulary: Vocabulary, token_ids: Iterable[int]) -> str:
    """Tokens as messages name them: id and text."""
    ids = list(token_ids)
    named = ", ".join(f"{i} {vocabulary.special_tokens.get(i) or vocabulary.tokens[i]!r}" for i in ids[:8])
    return f"[{named}{f', and {len(ids) - 8} more' if len(ids) > 8 else ''}]"
