"""The state of a JSON text: where it ends, and the finished values that later ones must differ from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
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
    rivals: frozenset[Value] = NONE_SEEN
    """The finished items elsewhere that it may still be equal to, of its kind."""

    def with_prefix(self, prefix: str) -> Iterator[str]:
        """Yield the finished items that are strings with a prefix."""
        for i in range(bisect_left(self.strings, prefix), len(self.strings)):
            if not self.strings[i].startswith(prefix):
                return
            yield self.strings[i]

    def parts(self) -> Iterator[Value]:
        """Yield the values that the item or property which is next or begun would have in `rivals`."""
        number = len(self.values)
        for each in self.rivals:
            if isinstance(each, Array):
                yield from each.items[number : number + 1]
            elif isinstance(each, Object) and len(self.names) > number:
                yield from (value for name, value in each.members if name == self.name)

    def other_names(self) -> Iterator[str]:
        """Yield the names in `rivals` that are not written."""
        for each in self.rivals:
            if isinstance(each, Object):
                yield from (name for name, _ in each.members if name not in self.names)

    def inside(self, arrays: UniqueArrays) -> Subschemas:
        """Return the place of the value that is next or begun."""
        return arrays.inside(self.at, None if self.is_array else self.name)


Containers: TypeAlias = tuple[Container, ...]
PLAIN = Container(True), Container(False)
KINDS: Mapping[type[Array | Object], int] = {Array: ARRAY, Object: OBJECT}


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
        last = self.open[-1]
        is_scalar = self.place is STRING or self.place is SCALAR
        if last.is_unique and last.seen:
            if self.is_due and len(last.seen) >= arrays.num_values(last.inside(arrays)):
                return True
            if self.place is STRING and next(last.with_prefix(text_of(self.text)), None) is not None:
                return True
            if self.place is SCALAR and any(may_become(self.text, each) for each in last.seen):
                return True
        if self.place is KEY or (self.place is KEY_START and self.is_due):
            return any(name.startswith(text_of(self.text)) for name in last.other_names())
        if is_scalar or self.is_due or self.place is COLON:
            return any(map(self._may_become, last.parts()))
        return bool(last.rivals)

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
            return endless & NUMBER != 0
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
        own, quote = (text_of(self.text), "") if self.in_string else ("", '"')
        last = self.open[-1]
        found: list[Value] = []
        if self.place is KEY or self.place is KEY_START:
            found += last.other_names()
        elif self.place is STRING or self.place is VALUE:
            found += last.parts()
        if last.is_unique and (self.place is STRING or not arrays.endless(last.inside(arrays)) & TEXT):
            found += last.with_prefix(own)
        return (quote + each[len(own) :] for each in found if isinstance(each, str) and each.startswith(own))

    def numbers(self) -> Iterator[str]:
        """Yield the rest of the current number, or the next one, in its usual spelling, for an item that an array has
        already."""
        own = self.text.decode() if self.place is SCALAR else ""
        last = self.open[-1]
        for each in (*last.parts(), *(last.seen if last.is_unique else ())):
            if isinstance(each, Number) and (text := usual_spelling(each)).startswith(own):
                yield text[len(own) :]

    def _may_become(self, value: Value) -> bool:
        """Return whether the value that is next or begun may be equal to `value`."""
        if self.place is STRING:
            return isinstance(value, str) and value.startswith(text_of(self.text))
        return self.place is not SCALAR or may_become(self.text, value)


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
        rivals = self._rivals(opened[-1], Array if is_array else Object) if is_kept else NONE_SEEN
        if not is_kept:
            at = arrays.kept(at)
        if not at and not is_kept:
            return (*opened, PLAIN[not is_array])
        is_unique = bool(at) and is_array and arrays.is_unique(at)
        return (*opened, Container(is_array, at, is_unique, is_kept, rivals=rivals))

    def _rivals(self, around: Container, kind: type[Array | Object]) -> frozenset[Value]:
        """Return the values that an array or object may be equal to, unless it can always become another one."""
        found = [*around.parts()]
        if around.is_unique and not self._arrays.endless(around.inside(self._arrays)) & KINDS[kind]:
            found += around.seen
        return frozenset(each for each in found if isinstance(each, kind))

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
            rivals = frozenset(each for each in last.rivals if _has(each, last, value)) if last.rivals else NONE_SEEN
            last = last._replace(values=(*last.values, value), rivals=rivals)
        return (*opened[:-1], last)


def _value(container: Container) -> Value:
    if container.is_array:
        return Array(container.values)
    return Object(frozenset(dict(zip(container.names, container.values, strict=False)).items()))


def _has(whole: Value, container: Container, value: Value) -> bool:
    """Return whether the next part of a container is equal to the same part of another value of its kind."""
    if isinstance(whole, Array):
        number = len(container.values)
        return whole.items[number : number + 1] == (value,)
    return isinstance(whole, Object) and (container.name, value) in whole.members
