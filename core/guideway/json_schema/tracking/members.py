"""The state of a JSON text whose objects have their names in any order: what may be, and what is still required."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias

from guideway.json_schema.cursor import AFTER, KEY, KEY_START, SCALAR, STRING, VALUE, Cursor, Reader
from guideway.json_schema.kinds import ARRAY, OBJECT
from guideway.json_schema.tracking.alternatives import Alternative, Alternatives, Place
from guideway.json_schema.tracking.values import text_of

__all__ = ["Members", "MembersReader"]

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


Levels: TypeAlias = tuple[Level, ...]


class Members(Cursor[Level]):
    """A position in a text. The first of `open` is around the whole value."""

    __slots__ = ()

    def leads_on(self, schema: Alternatives) -> bool:
        """Return whether an alternative that is alive allows the end of the text, and a continuation."""
        level = self.open[-1]
        if not level.differs:
            return True
        return any(self._leads_on(level, alternative, schema) for alternative, _ in level.alive)

    def takes_any_string(self, schema: Alternatives) -> bool:
        """Return whether the text ends in a string that anything may continue."""
        level = self.open[-1]
        if self.place is not STRING:
            return False
        inside = (_inside(self.open, alternative, schema) for alternative, _ in level.alive)
        return any(each is not None and schema.takes_any_string(each) for each in inside)

    def _leads_on(self, level: Level, alternative: Alternative, schema: Alternatives) -> bool:
        place = self.place
        may_end = not self.is_due and (place is AFTER or place is KEY_START or (place is VALUE and level.is_array))
        if may_end and _is_complete(level, alternative, schema):
            return True
        if place is KEY or (not level.is_array and (place is KEY_START or place is AFTER)):
            return schema.has_name(alternative, level.names, self.text if place is KEY else b"")
        inside = _inside(self.open, alternative, schema)
        if inside is None:
            return False
        if place is STRING:
            return schema.may_become(inside, self.text, is_string=True)
        return place is not SCALAR or schema.may_become(inside, self.text, is_string=False)


def _inside(levels: Levels, alternative: Alternative, schema: Alternatives) -> Place | None:
    """Return the place of the value that is next or begun."""
    if len(levels) == 1:
        return schema.root
    level = levels[-1]
    return schema.item(alternative, level.length) if level.is_array else schema.member(alternative, level.name)


class MembersReader(Reader[Level]):
    """Allows texts that an alternative allows."""

    def __init__(self, schema: Alternatives) -> None:
        self._schema = schema

    def start(self) -> Members:
        """Return the position before a text."""
        schema = self._schema
        return Members(open=(Level(True, ((frozenset(), 0),), differs=schema.hides(schema.root)),))

    def in_array(self, opened: Levels) -> bool:
        return opened[-1].is_array

    def keeps(self, opened: Levels, is_name: bool) -> bool:
        return is_name or not opened[-1].is_sure

    def name(self, opened: Levels, text: bytes) -> Levels | None:
        level, name = opened[-1], text_of(text)
        alive = tuple(each for each in level.alive if self._schema.may_have(each[0], level.names, name))
        return (*opened[:-1], level._replace(alive=alive, names=level.names | {name}, name=name)) if alive else None

    def scalar(self, opened: Levels, text: bytes, is_string: bool) -> Levels | None:
        level, alive = opened[-1], opened[-1].alive
        if not level.is_sure:
            value = text_of(text) if is_string else _literal_or_number(text)
            places = [_inside(opened, alternative, self._schema) for alternative, _ in alive]
            taken = [place is not None and self._schema.takes(place, value) for place in places]
            alive = tuple(each for each, is_taken in zip(alive, taken, strict=True) if is_taken)
        return (*opened[:-1], level._replace(alive=alive, length=level.length + 1)) if alive else None

    def begin(self, opened: Levels, is_array: bool) -> Levels | None:
        schema, level, kind = self._schema, opened[-1], ARRAY if is_array else OBJECT
        found: dict[Alternative, int] = {}
        around, differs = 0, level.differs
        for i, (alternative, _) in enumerate(level.alive):
            place = _inside(opened, alternative, schema)
            if place is None:
                continue
            for each in schema.of_kind(place, kind):
                found[each] = found.get(each, 0) | 1 << i
                around |= 1 << i
            differs = differs or schema.are_fewer(place, kind)
        return (*opened, Level(is_array, tuple(found.items()), around, differs)) if found else None

    def end(self, opened: Levels) -> Levels | None:
        if len(opened) == 1:
            return None
        *_, outer, level = opened
        bits, other = 0, 0
        for alternative, around in level.alive:
            if _is_complete(level, alternative, self._schema):
                bits |= around
            else:
                other |= around
        alive = tuple(each for i, each in enumerate(outer.alive) if bits & 1 << i)
        if not alive:
            return None
        differs = outer.differs or (bits != level.around and (level.differs or other & ~bits != 0))
        return (*opened[:-2], outer._replace(alive=alive, differs=differs, length=outer.length + 1))


def _is_complete(level: Level, alternative: Alternative, schema: Alternatives) -> bool:
    """Return whether an array or object may end, as far as one alternative says."""
    if level.is_array:
        return level.length >= schema.min_items(alternative)
    keywords = schema.members(alternative)
    return keywords.required.keys() <= level.names and keywords.least <= len(level.names)


def _literal_or_number(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # no JSON; a grammar refuses it
        return None
