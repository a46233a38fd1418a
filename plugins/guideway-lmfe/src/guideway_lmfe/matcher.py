"""lm-format-enforcer's parsers under guideway's contract.

Its own `TokenEnforcer` is not used: it keeps a state for every prefix of an output, allows stop tokens where it failed,
and accepts any token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from guideway.api import CompiledGrammar, DeadEnd, Matcher
from guideway.api.bitmask import num_words

from guideway_lmfe.places import Language, Place
from guideway_lmfe.tokens import Ids

if TYPE_CHECKING:
    from guideway.api import Vocabulary
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema import JsonCursor, WritingRule
    from numpy.typing import NDArray


MASK_NBYTES = 500
"""Bytes of a cached mask's key, about."""
MAX_MASKS = 1024
"""Maximum cached masks of a pattern; 16 MB with a vocabulary of 131072 tokens."""


class LmfeCompiled(CompiledGrammar):
    """A language, with the search for the tokens that are legal at a place in it."""

    def __init__(
        self,
        language: Language,
        vocabulary: Vocabulary,
        legal: Callable[[Place], Iterator[Ids]],
        nbytes: int,
        rule: WritingRule | None,
    ) -> None:
        self.language = language
        self.vocabulary = vocabulary
        self.rule = rule
        """The rule for writing JSON, if the output is JSON."""
        if rule is not None:
            rule.prepare()
        self._legal = legal
        self._nbytes = nbytes
        self._masks: dict[Hashable, NDArray[np.int32]] = {}

    def matcher(self, stop_token_ids: frozenset[int]) -> LmfeMatcher:
        return LmfeMatcher(self, stop_token_ids, [self.language.start], [] if self.rule is None else [self.rule.start])

    @property
    def nbytes(self) -> int:
        masks = list(self._masks.values())  # a copy, as other threads add to them
        return self._nbytes + sum(MASK_NBYTES + mask.nbytes for mask in masks)

    def mask(self, place: Place) -> NDArray[np.int32]:
        """Return the legal tokens at `place`, without stop tokens."""
        state = place.parser.cache_key()  # of a pattern; other places do not recur
        mask = None if state is None else self._masks.get((state, place.pending))
        if mask is not None:
            return mask
        bits = np.zeros(num_words(len(self.vocabulary)) * 32, dtype=np.uint8)
        with self.language.lock:
            for ids in self._legal(place):
                bits[ids] = 1
        mask = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
        if state is not None and len(self._masks) < MAX_MASKS:
            self._masks[state, place.pending] = mask
        return mask


class LmfeMatcher(Matcher):
    """A matcher that keeps the place before the output and after each token, None after a stop token, and the mask of
    the last place. `cursors` are the same places in JSON, if there is a rule."""

    def __init__(
        self,
        compiled: LmfeCompiled,
        stop_token_ids: frozenset[int],
        places: list[Place | None],
        cursors: list[JsonCursor],
    ) -> None:
        self._compiled = compiled
        self._stop_token_ids = stop_token_ids
        self._places = places
        self._cursors = cursors
        self._mask: tuple[Place | None, NDArray[np.int32]] | None = None

    def accept(self, token_ids: Sequence[int]) -> int:
        return self._walk(token_ids, self._places, self._cursors)

    def validate(self, token_ids: Sequence[int]) -> int:
        return self._walk(token_ids, self._places[-1:], self._cursors[-1:])

    def _walk(self, token_ids: Sequence[int], places: list[Place | None], cursors: list[JsonCursor]) -> int:
        language, tokens, rule = self._compiled.language, self._compiled.vocabulary.tokens, self._compiled.rule
        with language.lock:
            for count, token_id in enumerate(token_ids):
                place = places[-1]
                if place is None:
                    return count
                if token_id in self._stop_token_ids:
                    if not language.ends(place):
                        return count
                    places.append(None)
                    cursors.extend(cursors[-1:])
                    continue
                text = tokens[token_id] if 0 <= token_id < len(tokens) else b""
                after = language.walk(place, text) if text else None
                if after is None:
                    return count
                if rule is not None:
                    cursor = rule.after(cursors[-1], token_id)
                    if cursor is None:
                        return count
                    cursors.append(cursor)
                places.append(after)
        return len(token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        place = self._places[-1]
        assert place is not None  # never called once terminated
        if self._mask is None or self._mask[0] is not place:
            self._mask = place, self._compiled.mask(place)
        mask, rule = self._mask[1], self._compiled.rule
        if rule is not None and (allowed := rule.allowed(self._cursors[-1])) is not None:
            mask = mask & allowed
        accepting = self.is_accepting()
        if not accepting and not mask.any():
            raise DeadEnd("the grammar allows no token of this vocabulary here")
        words = bitmask[row]
        words[: mask.size] = mask
        words[mask.size :] = 0
        if accepting:
            for token_id in self._stop_token_ids:
                words.view(np.uint32)[token_id >> 5] |= np.uint32(1 << (token_id & 31))

    def is_terminated(self) -> bool:
        return self._places[-1] is None

    def is_accepting(self) -> bool:
        place = self._places[-1]
        with self._compiled.language.lock:
            return place is not None and self._compiled.language.ends(place)

    def rollback(self, num_tokens: int) -> None:
        num_accepted = len(self._places) - 1
        if not 0 <= num_tokens <= num_accepted:
            raise ValueError(f"cannot roll back {num_tokens} tokens, only {num_accepted} were accepted")
        del self._places[len(self._places) - num_tokens :]
        del self._cursors[len(self._places) :]

    def fork(self) -> LmfeMatcher:
        return LmfeMatcher(self._compiled, self._stop_token_ids, self._places.copy(), self._cursors.copy())
