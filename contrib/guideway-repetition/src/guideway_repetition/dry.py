"""DRY: tokens that extend a repeated sequence become less likely, exponentially in its length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range
from numpy.typing import NDArray

from guideway_repetition.hearing import Repetition, State

MAX_LENGTH = 50
"""Matches longer than this many tokens count as this long, as in the original, so that penalties stay finite."""
MAX_PLACES = 64
"""The nearest earlier places of a token sequence that count, so that the cost of a token has a bound."""
NUM_CHARACTERS = 0x110000
"""The number of values of a character."""
NO_TOKEN = chr(NUM_CHARACTERS - 1)
NONE: Mapping[str, int] = {}


@dataclass(frozen=True)
class NoOptions:
    """The operator has none."""


@dataclass(frozen=True)
class DryWish:
    """A wish: a token that extends a repeat of n tokens loses ``multiplier * base**(n - allowed_length)``.
    No match contains a token with a text of `breakers`."""

    multiplier: Annotated[float, Range(0, 100)] = 0.8
    base: Annotated[float, Range(1, 4)] = 1.75
    allowed_length: Annotated[int, Range(1, MAX_LENGTH)] = 2
    breakers: tuple[str, ...] = ("\n", ":", '"', "*")


@dataclass(slots=True)
class DryState(State):
    """`places` holds three characters for each of the `MAX_PLACES` nearest earlier occurrences: the token before it,
    the token after it, and the index of that token, modulo the number of characters."""

    penalties: Sequence[bytes] = ()
    """The value of the token that extends a match, by the match's length, in float32."""
    breakers: frozenset[int] = frozenset()
    """Token ids that no match contains."""
    num_tokens: int = 0
    before: str = NO_TOKEN
    """The token before `last`, or `NO_TOKEN` if no match contains both."""
    longer: Mapping[str, int] = field(default_factory=dict)
    """The length of each match of more than `size` tokens, by the index of the token that followed it."""
    next_values: bytes = b""
    """The values of `next_ids`, in float32."""

    def hear(self, token_id: int) -> None:
        last, places, size = self.last, self.places, self.size
        index, self.num_tokens = self.num_tokens, self.num_tokens + 1
        self.next_ids = ""
        if token_id in self.breakers:
            self.last, self.before = "", NO_TOKEN
            return
        token = chr(token_id)
        if len(last) == size:
            place = self.before + token + chr(index % NUM_CHARACTERS)
            places[last] = (places[last] + place)[-3 * MAX_PLACES :] if last in places else place
            self.before, last = last[0], last[1:]
        self.last = last = last + token
        found = places.get(last)
        if found is not None:
            self.look(found)

    def look(self, found: str) -> None:
        """Compute what the matches at the places in `found` change."""
        before, size, penalties = self.before, self.size, self.penalties
        befores, followers = found[::3], found[1::3]
        longest = dict.fromkeys(followers, size)
        self.next_ids = "".join(longest)
        if before not in befores or before == NO_TOKEN:
            self.longer = NONE
            self.next_values = penalties[size] * len(longest)
            return
        lengths, self.longer = self.longer, {}
        place = befores.find(before)
        while place >= 0:
            index, follower = found[3 * place + 2], followers[place]
            length = min(lengths.get(chr((ord(index) - 1) % NUM_CHARACTERS), size) + 1, MAX_LENGTH)
            self.longer[index] = length
            if length > longest[follower]:
                longest[follower] = length
            place = befores.find(before, place + 1)
        self.next_values = b"".join([penalties[length] for length in longest.values()])


class Dry(Repetition):
    """Lowers each token that would extend a repeated sequence, exponentially in its length."""

    contract, name, stage = "1.0", "dry", api.Stage.PRE_WARP
    examples = (
        api.Example({}, prompt_token_ids=(97, 98, 99, 100, 97, 98, 99), generated=(100, 97)),
        api.Example({"multiplier": 5.0, "allowed_length": 1, "breakers": []}, prompt_token_ids=(97, 98, 97)),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        api.parse_options(NoOptions, options, where="modifier.dry")
        self.breaking = lru_cache(maxsize=64)(self.find_breaking)

    def find_breaking(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Return the tokens that contain one of these texts."""
        parts, tokens = [text.encode(errors="surrogatepass") for text in texts], self.context.vocabulary.tokens
        return frozenset(i for i, token in enumerate(tokens) if any(part in token for part in parts))

    def begin(self, options: Mapping[str, Any]) -> State:
        wish = api.parse_options(DryWish, options, where="modifiers.dry")
        if "" in wish.breakers or len(wish.breakers) > 100:
            raise api.InvalidRequest("breakers must be at most 100 texts, none empty", field="modifiers.dry.breakers")
        beyond = [max(0, length - wish.allowed_length) for length in range(MAX_LENGTH + 1)]
        penalties = [np.float32(-wish.multiplier * wish.base**n).tobytes() for n in beyond]
        return DryState(wish.allowed_length, penalties=penalties, breakers=self.breaking(wish.breakers))

    def values(self, states: Sequence[DryState], width: int) -> NDArray[np.float32]:
        joined = b"".join([state.next_values.ljust(4 * width, b"\0") for state in states])
        return np.frombuffer(bytearray(joined), np.float32).reshape(-1, width)
