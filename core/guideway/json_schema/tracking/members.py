"""The state of a JSON text whose objects have their names in any order: what may be, and what is still required."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias

from guideway.json_schema.cursor import AFTER, BLANKS, COLON, KEY, KEY_START, SCALAR, STRING, VALUE
from guideway.json_schema.cursor import Place as Position
from guideway.json_schema.kinds import ARRAY, OBJECT
from guideway.json_schema.tracking.alternatives import Alternative, Alternatives, Place
from guideway.json_schema.tracking.values import text_of

__all__ = ["Members", "opening"]

QUOTE, BACKSLASH = b'"\\'
NO_NAMES: frozenset[str] = frozenset()
Alive: TypeAlias = "tuple[tuple[Alternative, int], ...]"


class Level(NamedTuple):
    """An open array or object, or the whole text."""

    is_array: bool
    alive: Alive
    """The alternatives that the text satisfies so far, each with bits for those around it that it belongs to."""
    around: int = 0
    """The bits of all alternatives around it when it began."""
    differs: bool = False
    """True if the grammar may follow alternatives that are not alive, here or around it."""
    names: frozenset[str] = NO_NAMES
    length: int = 0
    """The number of finished items."""
    name: str = ""
    """The last name."""

    @property
    def is_sure(self) -> bool:
        """True if everything that the grammar allows, except an end, is allowed."""
        return len(self.alive) == 1 and not self.differs


def opening(schema: Alternatives) -> Members:
    """Return the state before a text."""
    return Members(levels=(Level(True, ((frozenset(), 0),), differs=schema.hides(schema.root)),))


class Members(NamedTuple):
    """The end of a JSON text. Arbitrary for a text that is not JSON."""

    place: Position = VALUE
    levels: tuple[Level, ...] = ()
    """The first is around the whole value."""
    text: bytes = b""
    """The bytes of the current name, and of a string, literal or number that decides between alternatives."""
    escapes: bool = False
    """True after a backslash in a string."""
    is_due: bool = False
    """True after a comma, and before the next name or item."""

    def after(self, text: bytes, schema: Alternatives) -> Members | None:
        """Return the state after more text; None if no alternative allows it."""
        place, levels, written, escapes, is_due = self
        for byte in text:
            if place is STRING or place is KEY:
                if escapes:
                    escapes = False
                elif byte == BACKSLASH:
                    escapes = True
                elif byte == QUOTE:
                    found = (_named if place is KEY else _finished)(levels, text_of(written), schema)
                    if found is None:
                        return None
                    place, levels, written = COLON if place is KEY else AFTER, found, b""
                    continue
                if place is KEY or not levels[-1].is_sure:
                    written += bytes((byte,))
                continue
            if place is SCALAR and (byte in BLANKS or byte in b",]}"):
                found = _finished(levels, _scalar(written) if not levels[-1].is_sure else None, schema)
                if found is None:
                    return None
                place, levels, written = AFTER, found, b""
            if byte in BLANKS:
                continue
            if byte == QUOTE:
                place, is_due = (KEY if place is KEY_START else STRING), False
            elif byte == 0x7B or byte == 0x5B:
                found = _opened(levels, byte == 0x5B, schema)
                if found is None:
                    return None
                place, levels, is_due = (VALUE if byte == 0x5B else KEY_START), found, False
            elif byte == 0x7D or byte == 0x5D:
                if len(levels) == 1:
                    return self  # no JSON
                found = _closed(levels, schema)
                if found is None:
                    return None
                place, levels, is_due = AFTER, found, False
            elif byte == 0x2C:
                place, is_due = (VALUE if levels[-1].is_array else KEY_START), True
            elif byte == 0x3A:
                place = VALUE
            else:
                if place is not SCALAR:
                    place, written, is_due = SCALAR, b"", False
                if not levels[-1].is_sure:
                    written += bytes((byte,))
        return Members(place, levels, written, escapes, is_due)

    def leads_on(self, schema: Alternatives) -> bool:
        """Return whether an alternative that is alive allows what the text ends with, and a continuation."""
        level = self.levels[-1]
        if not level.differs:
            return True
        return any(self._leads_on(level, alternative, schema) for alternative, _ in level.alive)

    def takes_any_string(self, schema: Alternatives) -> bool:
        """Return whether the text ends in a string that anything may continue."""
        level = self.levels[-1]
        if self.place is not STRING:
            return False
        inside = (_inside(self.levels, alternative, schema) for alternative, _ in level.alive)
        return any(each is not None and schema.takes_any_string(each) for each in inside)

    def missing_names(self, schema: Alternatives) -> list[str]:
        """Return the names that the last object still requires, in the alternative that requires the fewest."""
        level = self.levels[-1]
        if level.is_array:
            return []
        missing = ([each for each in schema.members(a).required if each not in level.names] for a, _ in level.alive)
        return min(missing, key=len)

    def _leads_on(self, level: Level, alternative: Alternative, schema: Alternatives) -> bool:
        place = self.place
        may_end = not self.is_due and (place is AFTER or place is KEY_START or (place is VALUE and level.is_array))
        if may_end and _is_complete(level, alternative, schema):
            return True
        if place is KEY or (not level.is_array and (place is KEY_START or place is AFTER)):
            return schema.has_name(alternative, level.names, self.text if place is KEY else b"")
        inside = _inside(self.levels, alternative, schema)
        if inside is None:
            return False
        if place is STRING:
            return schema.may_become(inside, self.text, is_string=True)
        return place is not SCALAR or schema.may_become(inside, self.text, is_string=False)


def _inside(levels: tuple[Level, ...], alternative: Alternative, schema: Alternatives) -> Place | None:
    """Return the place of the value that is next or begun."""
    if len(levels) == 1:
        return schema.root
    level = levels[-1]
    return schema.item(alternative, level.length) if level.is_array else schema.member(alternative, level.name)


def _named(levels: tuple[Level, ...], name: str, schema: Alternatives) -> tuple[Level, ...] | None:
    """Return the levels after a name."""
    level = levels[-1]
    alive = tuple(each for each in level.alive if schema.may_have(each[0], level.names, name))
    return (*levels[:-1], level._replace(alive=alive, names=level.names | {name}, name=name)) if alive else None


def _finished(levels: tuple[Level, ...], value: Any, schema: Alternatives) -> tuple[Level, ...] | None:
    """Return the levels after a value that is no array and no object. The value is arbitrary if the level is sure."""
    level, alive = levels[-1], levels[-1].alive
    if not level.is_sure:
        places = [_inside(levels, alternative, schema) for alternative, _ in alive]
        taken = [place is not None and schema.takes(place, value) for place in places]
        alive = tuple(each for each, is_taken in zip(alive, taken, strict=True) if is_taken)
    return (*levels[:-1], level._replace(alive=alive, length=level.length + 1)) if alive else None


def _opened(levels: tuple[Level, ...], is_array: bool, schema: Alternatives) -> tuple[Level, ...] | None:
    level, kind = levels[-1], ARRAY if is_array else OBJECT
    found: dict[Alternative, int] = {}
    around, differs = 0, level.differs
    for i, (alternative, _) in enumerate(level.alive):
        place = _inside(levels, alternative, schema)
        if place is None:
            continue
        for each in schema.of_kind(place, kind):
            found[each] = found.get(each, 0) | 1 << i
            around |= 1 << i
        differs = differs or schema.are_fewer(place, kind)
    return (*levels, Level(is_array, tuple(found.items()), around, differs)) if found else None


def _closed(levels: tuple[Level, ...], schema: Alternatives) -> tuple[Level, ...] | None:
    *_, outer, level = levels
    bits, other = 0, 0
    for alternative, around in level.alive:
        if _is_complete(level, alternative, schema):
            bits |= around
        else:
            other |= around
    alive = tuple(each for i, each in enumerate(outer.alive) if bits & 1 << i)
    if not alive:
        return None
    differs = outer.differs or (bits != level.around and (level.differs or other & ~bits != 0))
    return (*levels[:-2], outer._replace(alive=alive, differs=differs, length=outer.length + 1))


def _is_complete(level: Level, alternative: Alternative, schema: Alternatives) -> bool:
    """Return whether an array or object may end, as far as one alternative says."""
    if level.is_array:
        return level.length >= schema.min_items(alternative)
    keywords = schema.members(alternative)
    return keywords.required.keys() <= level.names and keywords.least <= len(level.names)


def _scalar(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # no JSON; a grammar refuses it
        return None
