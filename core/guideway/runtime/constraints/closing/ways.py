"""Texts that complete an output, which the output may follow in tokens of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from guideway.json_schema.cursor import BLANKS, JsonCursor, Place

if TYPE_CHECKING:
    from guideway.api.grammar import Matcher
    from guideway.runtime.constraints.bans import Bans
    from guideway.runtime.constraints.closing.lexicon import Lexicon

__all__ = ["Prover", "Way"]

MOST_JOINTS = 2
"""Places of one way from which it is tried to go on."""
MOST_BYTES = 1024
"""Bytes of a way in which such places are looked for."""
IN_STRING = (Place.STRING, Place.KEY)


class Way:
    """A text that completes an output, and the fewest tokens that write what is left of it from each byte on, found by
    dynamic programming from its end. The stop token is not included."""

    __slots__ = ("_begin", "_costs", "_ends", "_joints", "_lexicon", "_places", "text")

    def __init__(
        self,
        text: bytes,
        begin: JsonCursor | None,
        lexicon: Lexicon,
        bans: Bans | None = None,
        avoid: Collection[tuple[int, int]] = (),
    ) -> None:
        """`begin` is the position in JSON at which the text begins; None where it is no JSON. No token is banned
        everywhere, or writes the text between two of its bytes that are in `avoid`."""
        self.text = text
        self._begin = begin
        self._lexicon = lexicon
        self._costs, self._ends = lexicon.spell_from_each_byte(text, bans, avoid)
        self._places: list[tuple[Place, int]] | None = None
        self._joints: dict[tuple[Place, int], list[int]] | None = None

    def cost(self, at: int = 0) -> int:
        """Count the tokens of the text from byte `at` on; very many if no tokens write it."""
        return self._costs[at]

    def path(self, at: int = 0) -> list[int]:
        """Return the fewest tokens of the text from byte `at` on; an empty list if none write it."""
        found: list[int] = []
        while at < len(self.text) and self._ends[at]:
            found.append(self._lexicon.ids[self.text[at : at + self._ends[at]]])
            at += self._ends[at]
        return found

    def rest(self, at: int, begin: JsonCursor | None) -> Way:
        """Return the way from byte `at` on, where the output stands at `begin`."""
        way = Way.__new__(Way)
        way.text, way._begin, way._lexicon = self.text[at:], begin, self._lexicon
        way._costs, way._ends = self._costs[at:], self._ends[at:]
        way._places, way._joints = None if self._places is None else self._places[at:], None
        return way

    def first_tokens(self) -> Iterator[tuple[int, int]]:
        """Yield the tokens that the text begins with, and the bytes of each."""
        for end in range(1, min(len(self.text), self._lexicon.longest) + 1):
            if (token_id := self._lexicon.ids.get(self.text[:end])) is not None:
                yield token_id, end

    def follow(self, written: bytes) -> int | None:
        """Return the byte that an output has reached that wrote this from the way's beginning; None if it left the
        way. White space between tokens of JSON may be missing in either."""
        text, size = self.text, len(self.text)
        if text.startswith(written):
            return len(written)
        if self._begin is None:
            return None
        at = 0
        for byte in written:
            while at < size and text[at] != byte and text[at] in BLANKS and not self._is_in_string(at):
                at += 1
            if at < size and text[at] == byte:
                at += 1
            elif byte not in BLANKS or self._is_in_string(at):
                return None
        return at

    def joints(self, written: bytes, cursor: JsonCursor | None) -> Iterator[int]:
        """Yield the bytes from which the way may complete an output that left it, wrote this since the way's beginning,
        and now stands at `cursor`: those of the same place at the same depth, of a string the last byte. Only the
        matcher proves it."""
        size = len(self.text)
        if cursor is None or self._begin is None:
            shared = next((i for i, byte in enumerate(written) if self.text[i : i + 1] != bytes([byte])), 0)
            later = self.text.find(written) + len(written)  # it may have begun what ends free text
            yield from dict.fromkeys(i for i in (0, later, len(written), shared) if i <= size)
            return
        places, wanted = self._all_places(), (_kind(cursor.place), len(cursor.open))
        if self._joints is None:
            self._joints = {}
            for i, place in enumerate(places[:MOST_BYTES]):
                is_last = place[0] not in IN_STRING or places[i + 1 : i + 2] != [place]
                if is_last and len(found := self._joints.setdefault(place, [])) < MOST_JOINTS:
                    found.append(i)
        yield from self._joints.get(wanted, ())
        if wanted[0] in IN_STRING and places[0] == wanted:  # as many bytes, or characters, of it are written
            counts = dict.fromkeys((len(written), len(written.decode(errors="ignore"))))
            yield from (count for count in counts if 0 < count <= size)

    def _is_in_string(self, at: int) -> bool:
        return self._all_places()[at][0] in IN_STRING

    def _all_places(self) -> Sequence[tuple[Place, int]]:
        """The kind of place before each byte, and the number of objects and arrays that are open there."""
        if self._places is None:
            assert self._begin is not None
            cursor, found = self._begin, []
            for i in range(len(self.text)):
                found.append((_kind(cursor.place), len(cursor.open)))
                cursor = cursor.after(self.text[i : i + 1])
            self._places = [*found, (_kind(cursor.place), len(cursor.open))]
        return self._places


def _kind(place: Place) -> Place:
    """A number may have ended, as any value has: the same may follow."""
    return Place.AFTER if place is Place.SCALAR else place


class Prover:
    """Asks a matcher whether ways complete its output. The work is bounded."""

    def __init__(self, matcher: Matcher, stop_token_ids: Collection[int], most_tokens: int) -> None:
        """`most_tokens` are validated in all; what has more is not proved."""
        self._matcher = matcher
        self._stop_token_ids = stop_token_ids
        self.num_left = most_tokens

    def proves(self, way: Way, at: int, before: Sequence[int] = ()) -> bool:
        """Return whether the way completes the output from byte `at` on, once it goes on with the tokens `before`."""
        path = (*before, *way.path(at))
        self.num_left -= len(path)
        return self.num_left >= 0 and any(
            self._matcher.validate((*path, stop)) > len(path) for stop in self._stop_token_ids
        )
