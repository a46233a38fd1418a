"""Languages of byte strings, and what is left of one after a byte (its Brzozowski derivative).

=============  =================================================  ==============================================
expression     language                                           after byte b
=============  =================================================  ==============================================
``NOTHING``    no string                                          NOTHING
``EMPTY``      the empty string                                   NOTHING
``one_of``     each single byte of a set                          EMPTY if b is in the set, else NOTHING
``sequence``   x of the first, then y of the second               (D first) second | D second if first has ""
``either``     x of any of them                                   either of all D
``repeat``     low to high times x                                (D x) repeat(x, low - 1, high - 1)
``reference``  what the named definition says, looked up late     D definition
=============  =================================================  ==============================================

No constructor builds an expression without strings other than NOTHING, so a state is alive exactly if it is not
NOTHING. Equal expressions are one object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Expression", "Language"]


@dataclass(frozen=True, eq=False, slots=True)
class Expression:
    """A node; built by `Language` only."""

    kind: str
    parts: tuple[Any, ...]
    has_empty: bool
    """True if the empty string belongs to it."""


_Key: TypeAlias = tuple[str, tuple[Any, ...]]


class Language:
    """Builds expressions and derives them. `definitions` may be filled in after references to them were built, but
    before they are derived; every definition must have a string, and none may start with a reference to itself."""

    def __init__(self) -> None:
        self.definitions: dict[str, Expression] = {}
        self._known: dict[_Key, Expression] = {}
        self._derivatives: dict[tuple[Expression, int], Expression] = {}
        self.NOTHING = self._node("nothing", (), False)
        self.EMPTY = self._node("empty", (), True)

    def __len__(self) -> int:
        return len(self._known) + len(self._derivatives)

    def _node(self, kind: str, parts: tuple[Any, ...], has_empty: bool) -> Expression:
        return self._known.setdefault((kind, parts), Expression(kind, parts, has_empty))

    def one_of(self, values: Iterable[int]) -> Expression:
        """A single byte, one of `values`."""
        chosen = frozenset(values)
        return self._node("one_of", (chosen,), False) if chosen else self.NOTHING

    def text(self, value: bytes) -> Expression:
        """Exactly `value`."""
        return self.sequence(*(self.one_of([byte]) for byte in value))

    def sequence(self, *parts: Expression) -> Expression:
        """One after the other."""
        rest = self.EMPTY
        for part in reversed(parts):
            if part is self.NOTHING or rest is self.NOTHING:
                return self.NOTHING
            if part is self.EMPTY:
                continue
            if rest is self.EMPTY:
                rest = part
            elif part.kind == "sequence":  # keep them leaning to the right, so that equal ones look equal
                rest = self.sequence(part.parts[0], self.sequence(part.parts[1], rest))
            else:
                rest = self._node("sequence", (part, rest), part.has_empty and rest.has_empty)
        return rest

    def either(self, *choices: Expression) -> Expression:
        """Any of them."""
        flat: set[Expression] = set()
        for choice in choices:
            flat |= choice.parts[0] if choice.kind == "either" else {choice}
        flat.discard(self.NOTHING)
        if len(flat) < 2:
            return flat.pop() if flat else self.NOTHING
        return self._node("either", (frozenset(flat),), any(choice.has_empty for choice in flat))

    def optional(self, part: Expression) -> Expression:
        """Once or not at all."""
        return self.either(self.EMPTY, part)

    def repeat(self, part: Expression, low: int = 0, high: int | None = None) -> Expression:
        """`low` to `high` times; `high` None: any number above."""
        if high is not None and high < low:
            return self.NOTHING
        if part is self.NOTHING:
            return self.EMPTY if low == 0 else self.NOTHING
        if high == 0 or part is self.EMPTY:
            return self.EMPTY
        return self._node("repeat", (part, low, high), low == 0 or part.has_empty)

    def reference(self, name: str) -> Expression:
        """Refer to what ``definitions[name]`` says; it must not have the empty string."""
        return self._node("reference", (name,), False)

    def derive(self, state: Expression, byte: int) -> Expression:
        """Return what may follow `byte`; NOTHING if it is not allowed."""
        found = self._derivatives.get((state, byte))
        if found is None:
            found = self._derivatives[state, byte] = self._derive(state, byte)
        return found

    def _derive(self, state: Expression, byte: int) -> Expression:
        match state.kind:
            case "one_of":
                return self.EMPTY if byte in state.parts[0] else self.NOTHING
            case "sequence":
                first, second = state.parts
                after = self.sequence(self.derive(first, byte), second)
                return self.either(after, self.derive(second, byte)) if first.has_empty else after
            case "either":
                return self.either(*(self.derive(choice, byte) for choice in state.parts[0]))
            case "repeat":
                part, low, high = state.parts
                rest = self.repeat(part, max(low - 1, 0), None if high is None else high - 1)
                return self.sequence(self.derive(part, byte), rest)
            case "reference":
                return self.derive(self.definitions[state.parts[0]], byte)
        return self.NOTHING
