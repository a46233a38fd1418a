"""Enforce one way of writing JSON, for libraries that do not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from guideway.api.bitmask import num_words
from guideway.api.types import Whitespace
from guideway.json_schema.cursor import (
    BEGINNING,
    BETWEEN,
    BLANKS,
    COLON,
    KEY,
    KEY_START,
    NO_NAMES,
    REFUSED,
    START,
    STRING,
    VALUE,
    JsonCursor,
    Names,
    Place,
    after_blanks,
)
from guideway.json_schema.naming import NamesAhead, clear

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from guideway.api.bitmask import Bitmask

__all__ = ["WritingRule", "in_a_row", "restrict"]

_WITHIN = re.compile(rb'"[^"]*["\\]')
"""A pattern of tokens that may contain a whole name, or the beginning of one with an escape."""
_NAMES = {
    KEY: re.compile(rb'((?:[^"\\]|\\.)*?")', re.DOTALL),
    KEY_START: re.compile(rb'[ \t\n\r]*"((?:[^"\\]|\\.)*?")', re.DOTALL),
}
"""Patterns of tokens that end a name or begin with a whole one; more bytes may follow."""
_BETWEEN_STRINGS = re.compile(BETWEEN.pattern + rb"|[ \t\n\r,:]")
"""Bytes in tokens that the rule may forbid."""


class _EveryName(Names):
    """The names of an object that has every name."""

    def __contains__(self, name: object) -> bool:
        return True


_DEEP = 8
_OBJECTS, _FULL, _ARRAYS = ((one,) * _DEEP for one in (NO_NAMES, _EveryName(), None))
"""Possible contexts of a text: nested objects without names or with every name, and nested arrays."""

_NAMED = ((KEY, b""), (KEY_START, b""))

_Kind: TypeAlias = tuple[Place, bytes, int]
"""The part of a state that decides about most tokens: its place, simplified, the written part of an escape, and the
state of white space."""


MOST_STEPS = 1 << 14
"""Steps that a rule remembers, and states whose rows it remembers."""


class WritingRule:
    """A rule for the next tokens: white space is as `whitespace` says, names have no unnecessary escapes (so equal
    names have equal bytes) and are unique in an object, no escape is a surrogate, and all text is valid UTF-8. The rest
    of JSON's syntax is not checked: a matcher's library does that."""

    start = START
    """The state before the first token."""

    def __init__(self, tokens: Sequence[bytes], whitespace: Whitespace) -> None:
        self.whitespace = whitespace
        self._tokens = tokens
        self._allowed: dict[_Kind, Bitmask | None] = {}
        self._by_name: dict[Place, dict[bytes, list[int]]] = {place: {} for place in _NAMES}
        """Tokens by place and the name that `_NAMES` finds in them."""
        self._open: dict[_Kind, list[int]] = {}
        """Other tokens that depend on the open objects and arrays and their names."""
        self._steps: dict[tuple[int, int], tuple[JsonCursor, JsonCursor | None]] = {}
        """By the identity of a state and a token: that state, and the one after the token. Equal states become one
        object, so sequences at equal places look up the same steps."""
        self._states: dict[JsonCursor, JsonCursor] = {}
        """Each of the states in `_steps`."""
        self._rows: dict[int, tuple[JsonCursor, Bitmask | None]] = {}
        """By the identity of a state: that state, and `allowed` of it, if that is of its kind."""
        self._lock = Lock()
        self._is_prepared = False
        self._ahead: NamesAhead | None = None

    def prepare(self) -> None:
        """Examine all tokens, once. Slow."""
        with self._lock:
            if self._is_prepared:
                return
            size = num_words(len(self._tokens)) * 32
            self._leading = np.zeros(size, dtype=np.int32)
            """For each token, the index in `_runs` of the white space that it begins with."""
            self._runs: dict[tuple[bytes, bool], int] = {(b"", False): 0}
            """Each white space that tokens begin with, and whether more bytes follow."""
            for token_id, token in enumerate(self._tokens):
                rest = token.lstrip(BLANKS)
                run = token[: len(token) - len(rest)], bool(rest)
                self._leading[token_id] = self._runs.setdefault(run, len(self._runs))
            self._special = [i for i, token in enumerate(self._tokens) if BETWEEN.search(token)]
            for token_id in self._special:
                for place, pattern in _NAMES.items():
                    if name := pattern.match(self._tokens[token_id]):
                        self._by_name[place].setdefault(name[1], []).append(token_id)
            between = [i for i, token in enumerate(self._tokens) if _BETWEEN_STRINGS.search(token.lstrip(BLANKS))]
            self._rest = {place: self._judge(JsonCursor(place, _OBJECTS), between) for place in (KEY_START, VALUE)}
            """For places outside strings, the verdicts on tokens without the white space that they begin with, and the
            tokens that depend on the open objects and arrays."""
            for place in (STRING, KEY, KEY_START, VALUE):
                self._find((place, b"", BEGINNING))
            self._is_prepared = True

    def ahead(self) -> NamesAhead:
        """Return the search ahead for constraints whose names may run out (`names_may_run_out`)."""
        with self._lock:
            if self._ahead is None:
                self._ahead = NamesAhead(self.after, self._tokens)
            return self._ahead

    def allowed(self, state: JsonCursor) -> Bitmask | None:
        """Return the allowed tokens as a row of a bitmask; None: all."""
        known = self._rows.get(id(state))
        if known is not None and known[0] is state:
            return known[1]
        if not self._is_prepared:
            self.prepare()
        kind = self._kind(state)
        if kind not in self._allowed:
            with self._lock:
                if kind not in self._allowed:
                    self._find(kind)
        refused = [i for i in self._open[kind] if state.within(self._tokens[i], self.whitespace) is None]
        if kind[:2] in _NAMED:
            tokens, begun = self._by_name[state.place], state.text
            for name in state.open[-1] or ():
                if name.startswith(begun):
                    refused += tokens.get(name[len(begun) :], ())
        allowed = self._allowed[kind]
        if not refused:
            if len(self._rows) >= MOST_STEPS:
                self._rows.clear()
            self._rows[id(state)] = (state, allowed)
            return allowed
        row = np.full(num_words(len(self._tokens)), -1, dtype=np.int32) if allowed is None else allowed.copy()
        clear(row, refused)
        return row

    def after(self, state: JsonCursor, token_id: int) -> JsonCursor | None:
        """Return the state after a token; None if the token is not allowed."""
        key = (id(state), token_id)
        known = self._steps.get(key)
        if known is not None and known[0] is state:
            return known[1]
        after = state.within(self._tokens[token_id], self.whitespace)
        if after is state:  # inside a string, where this is quick
            return state
        if len(self._steps) >= MOST_STEPS:
            self._steps.clear()
            self._states.clear()
        if after is not None:
            after = self._states.setdefault(after, after)
        self._steps[key] = (state, after)
        return after

    def takes(self, state: JsonCursor, token_ids: Sequence[int]) -> bool:
        """Return whether all of these tokens are allowed, one after another."""
        return state.within(b"".join([self._tokens[i] for i in token_ids]), self.whitespace) is not None

    def _kind(self, state: JsonCursor) -> _Kind:
        place = state.place
        if place is STRING or place is KEY:
            return place, state.escape, BEGINNING
        return place if place is KEY_START else VALUE, b"", state.blanks

    def _find(self, kind: _Kind) -> None:
        """Find the allowed tokens in states of a kind, and the tokens that depend on the open objects and arrays."""
        place, escape, blanks = kind
        if place in self._rest:
            found, undecided = self._rest[place]
            found = (
                found & np.array([self._may_begin(*run, blanks) for run in self._runs], dtype=np.bool_)[self._leading]
            )
        else:
            found, undecided = self._judge(JsonCursor(place, _OBJECTS, b"", escape), self._in_strings(place, escape))
        self._open[kind] = undecided
        self._allowed[kind] = _pack(found)  # set last: `allowed` then reads `_open` without the lock

    def _judge(self, state: JsonCursor, candidates: Iterable[int]) -> tuple[NDArray[np.bool_], list[int]]:
        """Return whether each token is allowed, where other tokens than the candidates are, and the tokens that depend
        on the open objects and arrays. White space that tokens begin with is ignored outside strings."""
        found = np.ones(self._leading.size, dtype=np.bool_)
        undecided = []
        for token_id in candidates:
            token = self._tokens[token_id]
            if not state.in_string:
                token = token.lstrip(BLANKS)
            if _depends_on_what_is_open(state, token):
                undecided.append(token_id)
            elif state.within(token, self.whitespace) is None:
                found[token_id] = False
        return found, undecided

    def _may_begin(self, text: bytes, goes_on: bool, blanks: int) -> bool:
        """Return whether tokens that begin with the white space `text` may follow, alone or before more bytes."""
        after = after_blanks(blanks, text, self.whitespace)
        return after >= BEGINNING or (after != REFUSED and not goes_on)

    def _in_strings(self, place: Place, escape: bytes) -> Iterable[int]:
        """Return the tokens that the rule may forbid in a string."""
        if not escape:
            return self._special
        state = JsonCursor(place, _OBJECTS, b"", escape)
        after = [state.within(bytes((byte,)), self.whitespace) for byte in range(256)]
        more = {byte for byte, found in enumerate(after) if found is None or found.escape}
        return {*self._special, *(i for i, token in enumerate(self._tokens) if token and token[0] in more)}


def _depends_on_what_is_open(state: JsonCursor, token: bytes) -> bool:
    """Return whether `token` is allowed with some open objects, arrays and names but not with others, not considering
    a leading name, which `allowed` looks up."""
    place, escape = state.place, state.escape
    if place is KEY and escape:
        return b'"' in token[1:]
    if place in _NAMES and (name := _NAMES[place].match(token)):
        place, token = COLON, token[name.end() :]
    if not _WITHIN.search(token):
        return False
    verdicts = {
        JsonCursor(place, opened, b"", escape).within(token, "any") is None for opened in (_OBJECTS, _FULL, _ARRAYS)
    }
    return len(verdicts) > 1


def _pack(allowed: NDArray[np.bool_]) -> Bitmask | None:
    """Return `allowed` as a row of a bitmask; None if all are True."""
    return None if allowed.all() else np.packbits(allowed, bitorder="little").view(np.int32)


class _Rule(Protocol):
    def allowed(self, state: Any) -> Bitmask | None: ...


def restrict(bitmask: Bitmask, rows: Sequence[int], states: Sequence[tuple[_Rule, Any]]) -> None:
    """Clear in each of the `rows` the tokens that a rule does not allow in its state. Most sequences are in one of a
    few states, and these have one of a few masks, so all rows are changed in one operation."""
    known: dict[tuple[_Rule, int], int] = {}
    kinds: list[Bitmask | None] = []
    number_of: dict[int, int] = {}
    numbers = []
    for rule, state in states:
        key = rule, id(state)
        if (number := known.get(key)) is None:
            words = rule.allowed(state)
            number = known[key] = number_of.setdefault(id(words), len(kinds))
            if number == len(kinds):
                kinds.append(words)
        numbers.append(number)
    if len(kinds) == 1 and kinds[0] is None:
        return
    table = np.full((len(kinds), bitmask.shape[1]), -1, dtype=np.int32)
    for number, words in enumerate(kinds):
        if words is not None:
            table[number, : words.size] = words
    bitmask[in_a_row(rows)] &= table.take(numbers, axis=0)


def in_a_row(rows: Sequence[int]) -> slice | Sequence[int]:
    """Return the rows as a slice if they are adjacent, which NumPy reads in a fraction of the time."""
    adjacent = len(rows) > 0 and list(rows) == list(range(rows[0], rows[0] + len(rows)))
    return slice(rows[0], rows[0] + len(rows)) if adjacent else rows
