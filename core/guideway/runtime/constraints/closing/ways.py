"""Texts that complete an output, and the check that an output may still follow them in other tokens."""

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
"""Most bytes of a way from which to try to continue, for one kind and depth of place in JSON."""
IN_STRING = (Place.STRING, Place.KEY)


class Way:
    """A text that completes an output, and for each byte the fewest tokens that write the rest of it.

    Dynamic programming from the end finds them. The stop token is not included.
    """

    __slots__ = ("_begin", "_costs", "_ends", "_joints", "_lexicon", "_places", "text")

    def __init__(
        self,
        text: bytes,
        begin: JsonCursor | None,
        lexicon: Lexicon,
        bans: Bans | None = None,
        avoid: Collection[tuple[int, int]] = (),
    ) -> None:
        """`begin` is the position in JSON at which the text begins; None if the text is not JSON.

        The tokens are not banned at every position by `bans`, and none writes exactly the bytes between the two
        positions of a pair in `avoid`.
        """
        self.text = text
        self._begin = begin
        self._lexicon = lexicon
        self._costs, self._ends = lexicon.spell_from_each_byte(text, bans, avoid)
        self._places: list[tuple[Place, int]] | None = None
        self._joints: dict[tuple[Place, int], list[int]] | None = None

    def cost(self, at: int = 0) -> int:
        """Return the number of tokens of the text from byte `at` on; at least `lexicon.MOST` if no tokens write it."""
        return self._costs[at]

    def path(self, at: int = 0) -> list[int]:
        """Return the fewest tokens that write the text from byte `at` on; an empty list if no tokens write it."""
        found: list[int] = []
        while at < len(self.text) and self._ends[at]:
            found.append(self._lexicon.ids[self.text[at : at + self._ends[at]]])
            at += self._ends[at]
        return found

    def first_tokens(self) -> Iterator[tuple[int, int]]:
        """Yield the tokens that are prefixes of the text, each with its number of bytes."""
        for end in range(1, min(len(self.text), self._lexicon.longest) + 1):
            if (token_id := self._lexicon.ids.get(self.text[:end])) is not None:
                yield token_id, end

    def follow(self, written: bytes) -> int | None:
        """Return the byte of the way at which an output is that wrote `written` since the way's beginning.

        Return None if the output left the way. White space between tokens of JSON may be missing in either text.
        """
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
        """Yield the bytes from which the way may complete an output that left the way. Only the matcher can prove it.

        The output wrote `written` since the way's beginning and is now at `cursor`. In JSON, the bytes are at the same
        kind of place and the same depth as `cursor`; in a string, the last byte of the string is chosen.
        """
        size = len(self.text)
        if cursor is None or self._begin is None:
            shared = next((i for i, byte in enumerate(written) if self.text[i : i + 1] != bytes([byte])), 0)
            later = self.text.find(written) + len(written)  # the output may have begun the end of free text
            yield from dict.fromkeys(i for i in (0, later, len(written), shared) if i <= size)
            return
        places, wanted = self._all_places(), (_kind(cursor.place), len(cursor.open))
        if self._joints is None:
            self._joints = {}
            for i, place in enumerate(places):
                is_last = place[0] not in IN_STRING or places[i + 1 : i + 2] != [place]
                if is_last and len(found := self._joints.setdefault(place, [])) < MOST_JOINTS:
                    found.append(i)
        yield from self._joints.get(wanted, ())
        if wanted[0] in IN_STRING and places[0] == wanted:  # try to skip as many bytes, or characters, as are written
            counts = dict.fromkeys((len(written), len(written.decode(errors="ignore"))))
            yield from (count for count in counts if 0 < count <= size)

    def _is_in_string(self, at: int) -> bool:
        return self._all_places()[at][0] in IN_STRING

    def _all_places(self) -> Sequence[tuple[Place, int]]:
        """Return the kind of place before each byte, and the number of objects and arrays that are open there."""
        if self._places is None:
            assert self._begin is not None
            cursor, found = self._begin, []
            for i in range(len(self.text)):
                found.append((_kind(cursor.place), len(cursor.open)))
                cursor = cursor.after(self.text[i : i + 1])
            self._places = [*found, (_kind(cursor.place), len(cursor.open))]
        return self._places


def _kind(place: Place) -> Place:
    """Return the kind of a place: `AFTER` for `SCALAR`, because a number may have ended and the same may follow."""
    return Place.AFTER if place is Place.SCALAR else place


class Prover:
    """Validation of ways with a matcher, for a limited number of tokens."""

    def __init__(self, matcher: Matcher, stop_token_ids: Collection[int], most_tokens: int) -> None:
        """`most_tokens` limits the tokens of all validations. After that, no way counts as proved."""
        self._matcher = matcher
        self._stop_token_ids = stop_token_ids
        self.num_left = most_tokens

    def proves(self, way: Way, at: int, before: Sequence[int] = ()) -> bool:
        """Return whether the tokens `before` and then the way from byte `at` on complete the output."""
        path = (*before, *way.path(at))
        self.num_left -= len(path)
        return self.num_left >= 0 and any(
            self._matcher.validate((*path, stop)) > len(path) for stop in self._stop_token_ids
        )
