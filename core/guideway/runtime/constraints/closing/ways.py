"""Texts that complete an output, and the check that an output may still follow them in other tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from guideway.json_schema.cursor import JsonCursor, Place
from guideway.runtime.constraints.closing.positions import Position

if TYPE_CHECKING:
    from guideway.api.grammar import Matcher
    from guideway.runtime.constraints.closing.lexicon import Lexicon

__all__ = ["Prover", "Way", "continuations", "joints"]

MOST_JOINTS = 2
"""Most bytes of a way from which to try to continue, for one kind and depth of place in JSON."""
IN_STRING = (Place.STRING, Place.KEY)


class Way:
    """A text that completes an output, and for each byte the fewest tokens that write the rest of it.

    Dynamic programming from the end finds them. The stop token is not included.
    """

    def __init__(
        self,
        text: bytes,
        begin: Position,
        lexicon: Lexicon,
        allowed: NDArray[np.bool_] | None = None,
        avoid: Collection[tuple[int, int]] = (),
    ) -> None:
        """`begin` is the position at which the text begins.

        The tokens are `allowed` (``bool[num_tokens]``; None: all), and none writes exactly the bytes between the two
        positions of a pair in `avoid`.
        """
        self.text = text
        self._begin = begin
        self._lexicon = lexicon
        self._costs, self._lengths = lexicon.spell_from_each_byte(text, allowed, avoid)
        self._places: list[tuple[Place | None, int]] = []
        """The kind of place before each byte, and the number of objects and arrays that are open there; or empty. None
        and 0 outside JSON."""
        self._joints: dict[tuple[Place | None, int], list[int]] = {}

    def cost(self, at: int = 0) -> int:
        """Return the number of tokens of the text from byte `at` on; at least `lexicon.MOST` if no tokens write it."""
        return self._costs[at]

    def path(self, at: int = 0) -> list[int]:
        """Return the fewest tokens that write the text from byte `at` on; an empty list if no tokens write it."""
        return self._lexicon.cut(self.text, self._lengths, at)

    def first_tokens(self) -> Iterator[tuple[int, int]]:
        """Yield the tokens that are prefixes of the text, each with its number of bytes."""
        for end in range(1, min(len(self.text), self._lexicon.longest) + 1):
            if (token_id := self._lexicon.ids.get(self.text[:end])) is not None:
                yield token_id, end

    def rest(self, at: int, position: Position) -> Way:
        """Return the way from byte `at` on, which is at `position`."""
        found = copy(self)
        found.text, found._costs, found._lengths = self.text[at:], self._costs[at:], self._lengths[at:]
        found._begin, found._places, found._joints = position, self._places[at:], {}
        return found

    def follow(self, written: bytes) -> int | None:
        """Return the byte of the way at which an output is that wrote `written` since the way's beginning.

        Return None if the output left the way.
        """
        return len(written) if self.text.startswith(written) else None

    def joints(self, written: bytes, cursor: JsonCursor | None) -> Iterator[int]:
        """Yield the bytes from which the way may complete an output that left the way. Only the matcher can prove it.

        The output wrote `written` since the way's beginning and is now at `cursor`. In JSON, the bytes are at the same
        kind of place and the same depth as `cursor`; in a string, the last byte of the string is chosen.
        """
        size = len(self.text)
        if cursor is None:
            later = self.text.find(written) + len(written)  # the output may have begun the end of free text
            end = max(0, self.text.find(b"<"))  # most text ends before an element or a mark
            yield from dict.fromkeys(i for i in (end, 0, later, len(written)) if i <= size)
            return
        self._find_places()
        wanted = _kind(cursor)
        yield from self._joints.get(wanted, ())
        if wanted[0] in IN_STRING and self._places[0] == wanted:  # skip as many bytes, or characters, as are written
            counts = dict.fromkeys((len(written), len(written.decode(errors="ignore"))))
            yield from (count for count in counts if 0 < count <= size)

    def _find_places(self) -> None:
        """Find the place before each byte, and the bytes to join at each place."""
        position, places = self._begin, self._places
        if not places:
            places.append(_kind(position.json))
            for i in range(len(self.text)):
                position = position.after(self.text[i : i + 1])
                places.append(_kind(position.json))
        if not self._joints:
            for i, place in enumerate(places):
                is_last = place[0] not in IN_STRING or places[i + 1 : i + 2] != [place]
                if is_last and len(found := self._joints.setdefault(place, [])) < MOST_JOINTS:
                    found.append(i)


def _kind(cursor: JsonCursor | None) -> tuple[Place | None, int]:
    """Return the kind of a place in JSON and the number of open objects and arrays; None and 0 outside JSON.

    The kind of `SCALAR` is `AFTER`, because a number may have ended and the same may follow.
    """
    if cursor is None:
        return None, 0
    return Place.AFTER if cursor.place is Place.SCALAR else cursor.place, len(cursor.open)


def continuations(ways: Sequence[Way], written: bytes, cursor: JsonCursor | None) -> Iterator[tuple[Way, int]]:
    """Yield ways with the byte from which each may complete an output, in the order in which to try them.

    The output wrote `written` since the beginning of the ways and is now at `cursor`. Ways that it is on come first,
    then the shortest rests.
    """
    on_way = [(way.cost(at), i, at) for i, way in enumerate(ways) if (at := way.follow(written)) is not None]
    yield from ((ways[i], at) for _, i, at in sorted(on_way))
    yield from joints(ways, written, cursor)


def joints(ways: Sequence[Way], written: bytes, cursor: JsonCursor | None) -> Iterator[tuple[Way, int]]:
    """Yield ways with the byte from which each may complete an output that left all of them, as `Way.joints` finds it.
    Of ways with the same rest, yield the first."""
    found = [
        (order, way.cost(at), i, at)
        for i, way in enumerate(ways)
        for order, at in enumerate(way.joints(written, cursor))
    ]
    rests: dict[bytes, tuple[Way, int]] = {}
    for _, _, i, at in sorted(found):
        rests.setdefault(ways[i].text[at:], (ways[i], at))
    yield from rests.values()


class Prover:
    """Tries on a matcher, for a limited number of tokens."""

    def __init__(self, matcher: Matcher, stop_token_ids: Collection[int], num_left: int) -> None:
        """`num_left` limits the tokens of all tries. After that, nothing counts as proved."""
        self.matcher = matcher
        self.stop_token_ids = sorted(stop_token_ids)
        self.num_left = num_left

    def end(self, path: Sequence[int]) -> list[int] | None:
        """Return a path with a stop token if it completes the output, else None."""
        for stop in self.stop_token_ids if self.num_left > len(path) else ():
            num_valid = self.matcher.validate((*path, stop))
            self.num_left -= max(1, num_valid)
            if num_valid > len(path):
                return [*path, stop]
            if num_valid < len(path):
                break
        return None
