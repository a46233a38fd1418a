"""Shorten a completion: spell its text with the fewest tokens, and leave out optional members of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from guideway.json_schema.cursor import JsonCursor, Place
from guideway.runtime.constraints.closing.ways import Way

if TYPE_CHECKING:
    from guideway.api.grammar import Matcher
    from guideway.runtime.constraints.closing.lexicon import Lexicon

__all__ = ["shortened"]

MOST_TRIED = 32
"""Most members to try to leave out. The matcher validates each try."""
LONGEST = 8192
"""Most bytes of a text to shorten, which limits the time."""


def shortened(
    matcher: Matcher,
    lexicon: Lexicon,
    found: Sequence[int],
    *,
    limit: int,
    cursor: JsonCursor | None,
    is_free: Callable[[Sequence[int]], bool],
) -> list[int]:
    """Return a completion of at most as many tokens as `found`, for the same output. The matcher has validated it.

    Its text is the same, unless that text needs more than `limit` tokens: then members of objects may be left out.

    - `found`: token ids, a stop token last.
    - `cursor`: the position in JSON where the completion begins; None if the output is not JSON.
    - `is_free`: returns whether tokens contain no banned tokens or texts.
    """
    stop = found[-1]
    tokens = [lexicon.tokens[i] for i in found[:-1]]
    text = b"".join(tokens)
    if not all(tokens) or len(text) > LONGEST:
        return list(found)

    def takes(token_ids: Sequence[int] | None) -> bool:
        return (
            token_ids is not None and matcher.validate((*token_ids, stop)) == len(token_ids) + 1 and is_free(token_ids)
        )

    def spell(text: bytes) -> list[int]:
        return Way(text, None, lexicon).path()

    fewest = spell(text)
    best = [*fewest, stop] if len(fewest) + 1 < len(found) and takes(fewest) else list(found)
    index = num_tried = 0
    while cursor is not None and len(best) > limit and num_tried < MOST_TRIED:
        if index >= len(spans := list(_members(text, cursor))):
            break
        rest = _without(text, *spans[index])
        num_tried += 1
        if takes(token_ids := spell(rest)) and len(token_ids) + 1 < len(best):
            text, best = rest, [*token_ids, stop]
        else:
            index += 1
    return best


def _members(text: bytes, cursor: JsonCursor) -> Iterator[tuple[int, int]]:
    """Yield where each member of an object begins and ends in a text that begins at `cursor`, in order."""
    found: list[tuple[int, int]] = []
    begun: list[tuple[int, int]] = []
    for at in range(len(text)):
        byte, depth = text[at : at + 1], len(cursor.open)
        if cursor.place is Place.KEY_START and byte == b'"':
            begun.append((at, depth))
        elif cursor.place in (Place.AFTER, Place.SCALAR) and byte in b",}" and begun and begun[-1][1] == depth:
            found.append((begun.pop()[0], at))
        cursor = cursor.after(byte)
    yield from sorted(found)


def _without(text: bytes, begin: int, end: int) -> bytes:
    """Return the text without a member, and without the comma after it or, if there is none, before it."""
    before, after = text[:begin], text[end:]
    if after.startswith(b","):
        return before + after[1:].lstrip(b" ")
    return before.rstrip(b" ").removesuffix(b",") + after
