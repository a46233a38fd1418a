"""The tokens of a vocabulary, sorted so that common prefixes are tried once."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from guideway.api import Vocabulary
from numpy.typing import NDArray

from guideway_lmfe.places import Language, Place, decoded

Ids = NDArray[np.int64]


class Tokens:
    """Texts, each with the ids of the tokens that have it."""

    def __init__(self, texts: Iterable[tuple[bytes, int]]) -> None:
        ids: dict[bytes, list[int]] = defaultdict(list)
        for text, token_id in texts:
            ids[text].append(token_id)
        self.texts: Sequence[bytes] = sorted(ids)
        self.ids: Sequence[Ids] = [np.array(ids[text], dtype=np.int64) for text in self.texts]

    def legal(self, language: Language, place: Place) -> Iterator[Ids]:
        """Yield the ids of the texts that are legal at `place`."""
        texts, i, before = self.texts, 0, b""
        places = [place]  # after each byte of the common prefix
        while i < len(texts):
            text = texts[i]
            depth = 0
            while depth < len(places) - 1 and depth < len(text) and text[depth] == before[depth]:
                depth += 1
            del places[depth + 1 :]
            for at in range(depth, len(text)):
                after = language.step(places[-1], text[at])
                if after is None:
                    i = self._past(text[: at + 1], i)
                    break
                places.append(after)
            else:
                yield self.ids[i]
                i += 1
            before = text

    def _past(self, prefix: bytes, i: int) -> int:
        """Return the index of the first text from `i` that does not begin with `prefix`."""
        stem = prefix.rstrip(b"\xff")
        return bisect_left(self.texts, stem[:-1] + bytes([stem[-1] + 1]), i) if stem else len(self.texts)


class JsonTokens:
    """All tokens, and the tokens for the inside of JSON strings by the number of plain characters they begin with."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = [(token, i) for i, token in enumerate(vocabulary.tokens) if token]
        self.all = Tokens(texts)
        self.begun = Tokens((token, i) for token, i in texts if 0x80 <= token[0] < 0xC0)
        plain: dict[int, list[int]] = defaultdict(list)
        rest: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for token, token_id in texts:
            cut = next((at for at, byte in enumerate(token) if byte < 32 or byte in b'"\\'), len(token))
            count = count_characters(token[:cut], complete=cut < len(token))
            if count is None:
                continue  # not UTF-8, nor the beginning of it
            if cut == len(token):
                plain[count].append(token_id)
            elif token[cut] >= 32:
                rest[count].append((token[cut:], token_id))
        self.plain = {count: np.array(ids, dtype=np.int64) for count, ids in sorted(plain.items())}
        self.rest = {count: Tokens(pairs) for count, pairs in sorted(rest.items())}
        self.rest_of_any = Tokens(pair for pairs in rest.values() for pair in pairs)
        self.longest = max((*plain, *rest), default=0)


def count_characters(text: bytes, *, complete: bool) -> int | None:
    """Count the characters of `text`, including an incomplete last one unless `complete`; None if it is not UTF-8."""
    try:
        return len(text.decode())
    except UnicodeDecodeError as error:
        tail = text[error.start :]
        if complete or decoded(tail) != "":
            return None
        return len(text[: error.start].decode()) + 1
