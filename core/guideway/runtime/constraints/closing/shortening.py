"""A completion in fewer tokens: the same text spelt with fewest, without the members it can do without."""

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
"""Members that are left out, to see whether the matcher takes the rest."""
LONGEST = 8192
"""Bytes of a text that is looked at."""


def shortened(
    matcher: Matcher,
    lexicon: Lexicon,
    found: Sequence[int],
    *,
    limit: int,
    cursor: JsonCursor | None,
    is_free: Callable[[Sequence[int]], bool],
) -> list[int]:
    """Return a completion of at most as many tokens as `found`, which completes the text that ends at `cursor` too;
    that is None where the text is no JSON. It is the same text unless that has more than `limit` tokens. `is_free` says
    whether tokens do without what is banned. The matcher proves what is returned."""
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
    """Yield where members of objects begin and end in a text that goes on at a cursor, those first that begin first."""
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
    """Leave out a member, and the comma after it or else the one before."""
    before, after = text[:begin], text[end:]
    if after.startswith(b","):
        return before + after[1:].lstrip(b" ")
    return before.rstrip(b" ").removesuffix(b",") + after
