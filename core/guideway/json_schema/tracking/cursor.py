"""The state of a JSON text: where it ends, and the finished values that later ones must differ from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import inf
from typing import NamedTuple, TypeAlias

from guideway.json_schema.cursor import COLON, KEY, KEY_START, SCALAR, STRING, VALUE, Cursor, Reader
from guideway.json_schema.kinds import ARRAY, NUMBER, OBJECT
from guideway.json_schema.kinds import STRING as TEXT
from guideway.json_schema.tracking.places import NOWHERE, UniqueArrays
from guideway.json_schema.tracking.places import Place as Subschemas
from guideway.json_schema.tracking.values import (
    Array,
    Number,
    Object,
    Value,
    literal_or_number,
    may_become,
    num_integers,
    text_of,
    usual_spelling,
)

__all__ = ["START", "Container", "TrackedText", "UniqueReader"]

ZEROS = b"0" * 8
ZERO = b"0", b"-0"
"""Numbers that no digit can follow."""
NONE_SEEN: frozenset[Value] = frozenset()


class Container(NamedTuple):
    """An open array or object."""

    is_array: bool
    at: Subschemas = NOWHERE
    is_unique: bool = False
    """True for an array whose items must differ."""
    is_kept: bool = False
    """True if its value is compared with others later."""
    values: tuple[Value, ...] = ()
    """The finished items, or the values of finished properties, if it is unique or kept."""
    seen: frozenset[Value] = NONE_SEEN
    """The finished items of a unique array."""
    strings: tuple[str, ...] = ()
    """The strings among them, sorted: a list of many strings is searched at each token."""
    names: tuple[str, ...] = ()
    """The names of the properties before, if it is kept."""
    name: str = ""
    """The last name, if it is kept or leads to unique arrays."""

    def with_prefix(self, prefix: str) -> Iterator[str]:
        """Yield the finished items that are strings with a prefix."""
        for i in range(bisect_left(self.strings, prefix), len(self.strings)):
            if not self.strings[i].startswith(prefix):
                return
            yield self.strings[i]

    def inside(self, arrays: UniqueArrays) -> Subschemas:
        """Return the place of the value that is next or begun."""
        return arrays.inside(self.at, None if self.is_array else self.name)


Containers: TypeAlias = tuple[Container, ...]
PLAIN = Container(True), Container(False)


class TrackedText(Cursor[Container]):
    """A position in a text of which the values are kept that others must differ from."""

    __slots__ = ()

    @property
    def keeps(self) -> bool:
        """True if a value at the end of the text is compared with others."""
        return _keeps(self.open)

    def may_repeat(self, arrays: UniqueArrays) -> bool:
        """Return whether every continuation may lead to an item that the array already has."""
        if not self.keeps or self._may_differ(arrays):
            return False
        for depth, container in enumerate(self.open):
            if not container.is_unique or not container.seen:
                continue
            items = container.inside(arrays)
            if depth + 1 < len(self.open):
                kind = ARRAY if self.open[depth + 1].is_array else OBJECT
                if arrays.endless(items) & kind:
                    continue
            elif self.is_due:
                if len(container.seen) >= arrays.num_values(items):
                    return True
                continue
            elif self.place is not STRING and self.place is not SCALAR:
                continue
            if any(self._may_become(each, depth + 1) for each in container.seen):
                return True
        return False

    def is_free(self, arrays: UniqueArrays) -> bool:
        """Return whether the text ends in a string that may surely become another one, whatever continues it."""
        is_string = self.place is STRING and self.keeps
        return is_string and arrays.max_length(self.open[-1].inside(arrays)) == inf and self._may_differ(arrays)

    def _may_differ(self, arrays: UniqueArrays) -> bool:
        """Return whether the value at the end of the text can surely become one that no item equals."""
        last = self.open[-1]
        if not all(arrays.is_plain(each.at, ARRAY if each.is_array else OBJECT) for each in self.open if each.is_kept):
            return False
        if self.place is STRING or self.place is SCALAR:
            inside = last.inside(arrays)
            endless = arrays.endless(inside)
            if self.place is STRING:
                return endless & TEXT != 0 and len(self.text) + 2 <= arrays.max_length(inside)
            if self.text[:1] in b"tfn" or self.text in ZERO:
                return False
            bounds = None if endless & NUMBER else arrays.bounds(inside)
            if bounds is None:
                return endless & NUMBER != 0
            num_seen = sum(len(each.seen) for each in self.open[:-1])
            num_seen += sum(may_become(self.text, each) for each in last.seen)
            return num_integers(self.text, *bounds) > num_seen
        is_next = self.place is COLON or (self.place is VALUE and (self.is_due or not last.is_array))
        if not is_next or last.is_unique:
            return False
        inside = last.inside(arrays)
        return arrays.endless(inside) != 0 and arrays.max_length(inside) > 1

    def shortened(self) -> TrackedText:
        """Return a state that stands for all that differ only in many zeros at the end of a number."""
        if self.place is not SCALAR or not self.text.endswith(ZEROS):
            return self
        return self._replace(text=self.text.rstrip(b"0") + ZEROS)

    def strings(self, arrays: UniqueArrays) -> Iterator[str]:
        """Yield the rest of the current string or name, or the next one with its first quote, for an item that an array
        has already. Yield no next string where another one may always follow."""
        own = text_of(self.text) if self.in_string else ""
        quote = "" if self.in_string else '"'
        for depth, container in enumerate(self.open):
            if not container.is_unique or not container.seen:
                continue
            if depth + 1 < len(self.open):
                found: Iterator[str] = (each for item in container.seen for each in self._strings(item, depth + 1, own))
            elif self.place is STRING or not arrays.endless(container.inside(arrays)) & TEXT:
                found = container.with_prefix(own)
            else:
                continue
            for each in found:
                if each.startswith(own):
                    yield quote + each[len(own) :]

    def numbers(self) -> Iterator[str]:
        """Yield the rest of the current number, or the next one, in its usual spelling, for an item that an array has
        already."""
        own = self.text.decode() if self.place is SCALAR else ""
        for depth, container in enumerate(self.open):
            for item in container.seen if container.is_unique else ():
                for each in self._numbers(item, depth + 1):
                    if (text := usual_spelling(each)).startswith(own):
                        yield text[len(own) :]

    def _may_become(self, value: Value, depth: int) -> bool:
        """Return whether the value that begins at a depth may be equal to `value`."""
        if depth == len(self.open):
            if self.place is STRING:
                return isinstance(value, str) and value.startswith(text_of(self.text))
            return self.place is not SCALAR or may_become(self.text, value)
        inner = self._inner(value, depth)
        if inner is None:
            return False
        if self.place is KEY and depth + 1 == len(self.open):
            own = text_of(self.text)
            return any(name.startswith(own) for name, _ in inner)
        return not self._has_value(depth) or any(self._may_become(each, depth + 1) for _, each in inner)

    def _strings(self, value: Value, depth: int, own: str) -> Iterator[str]:
        if depth == len(self.open):
            if isinstance(value, str) and self.place in (STRING, VALUE):
                yield value
            return
        for name, each in self._inner(value, depth) or ():
            if self.place in (KEY, KEY_START) and depth + 1 == len(self.open):
                yield name
            else:
                yield from self._strings(each, depth + 1, own)

    def _numbers(self, value: Value, depth: int) -> Iterator[Number]:
        if depth < len(self.open):
            for _, each in self._inner(value, depth) or ():
                yield from self._numbers(each, depth + 1)
        elif isinstance(value, Number):
            yield value

    def _has_value(self, depth: int) -> bool:
        """Return whether the container at a depth has a value that is not finished."""
        return depth + 1 < len(self.open) or self.place in (STRING, SCALAR) or self.is_due or self.place is COLON

    def _inner(self, value: Value, depth: int) -> list[tuple[str, Value]] | None:
        """Return the parts of `value` that the unfinished value of the container at a depth may be equal to, with
        their names; None if its finished values differ already."""
        container = self.open[depth]
        number = len(container.values)
        if container.is_array:
            if not isinstance(value, Array) or value.items[:number] != container.values:
                return None
            rest = value.items[number : number + 1]
            if not rest and self._has_value(depth):
                return None
            return [("", each) for each in rest]
        if not isinstance(value, Object):
            return None
        members = dict(value.members)
        written = dict(zip(container.names, container.values, strict=False))
        if any(name not in members or members[name] != each for name, each in written.items()):
            return None
        if len(container.names) > number:
            name = container.names[-1]
            return [(name, members[name])] if name in members else None
        return [(name, each) for name, each in members.items() if name not in written]


START = TrackedText()


def _keeps(opened: Containers) -> bool:
    return bool(opened) and (opened[-1].is_unique or opened[-1].is_kept)


class UniqueReader(Reader[Container]):
    """Allows no two equal items where they must differ."""

    def __init__(self, arrays: UniqueArrays) -> None:
        self._arrays = arrays

    def in_array(self, opened: Containers) -> bool:
        return not opened or opened[-1].is_array

    def keeps(self, opened: Containers, is_name: bool) -> bool:
        return _keeps(opened) or (is_name and bool(opened) and bool(opened[-1].at))

    def name(self, opened: Containers, text: bytes) -> Containers:
        if not self.keeps(opened, is_name=True):
            return opened
        name, last = text_of(text), opened[-1]
        names = (*last.names, name) if last.is_kept else ()
        return (*opened[:-1], last._replace(names=names, name=name))

    def scalar(self, opened: Containers, text: bytes, is_string: bool) -> Containers | None:
        if not _keeps(opened):
            return opened
        return self._with_value(opened, text_of(text) if is_string else literal_or_number(text))

    def begin(self, opened: Containers, is_array: bool) -> Containers:
        arrays, is_kept = self._arrays, _keeps(opened)
        at = opened[-1].inside(arrays) if opened else arrays.root
        if not is_kept:
            at = arrays.kept(at)
        if not at and not is_kept:
            return (*opened, PLAIN[not is_array])
        return (*opened, Container(is_array, at, bool(at) and is_array and arrays.is_unique(at), is_kept))

    def end(self, opened: Containers) -> Containers | None:
        *rest, last = opened or PLAIN
        around = tuple(rest)
        return self._with_value(around, _value(last)) if last.is_kept else around

    def _with_value(self, opened: Containers, value: Value) -> Containers | None:
        """Return the containers after a value in the innermost one; None if the value is a repeated item."""
        last = opened[-1]
        if last.is_unique:
            if value in last.seen:
                return None
            last = last._replace(seen=last.seen | {value})
            if isinstance(value, str):
                at = bisect_left(last.strings, value)
                last = last._replace(strings=(*last.strings[:at], value, *last.strings[at:]))
        if last.is_kept:
            last = last._replace(values=(*last.values, value))
        return (*opened[:-1], last)


def _value(container: Container) -> Value:
    if container.is_array:
        return Array(container.values)
    return Object(frozenset(dict(zip(container.names, container.values, strict=False)).items()))
