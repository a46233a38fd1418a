"""The parts of a structural tag: expressions of one Lark grammar, and which of them may be adjacent.

llguidance first cuts text into lexemes, each the longest possible, and then parses those. Where it could read a text
differently from the tag's own definition (a number before digits, one alternative the beginning of another) the parts
are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from guideway.api import InvalidGrammar, UnsupportedGrammar

if TYPE_CHECKING:
    from guideway.json_schema import Schema

EMPTY = '""'
"""The empty text in Lark."""

TERMINALS = (r"TEXT: /(?s:.)*/", r"NEVER: /[^\s\S]/")
"""The lexemes that parts refer to: free text, and a lexeme that nothing matches, as an alternative to every schema.
Without it llguidance 1.9 would allow white space before schemas where several of them, and nothing else, can follow."""

DIGITS = "-0123456789"
_FIRST = {
    "object": "{",
    "array": "[",
    "string": '"',
    "boolean": "tf",
    "null": "n",
    "integer": DIGITS,
    "number": DIGITS,
}
_NUMBER_GOES_ON = frozenset("0123456789.eE+-")

# Begins the name of a special token among `Part.heads`; no text holds a lone surrogate.
SPECIAL = "\udfff"


@dataclass(frozen=True)
class Part:
    """A part of the grammar, with the properties that decide which neighbors it may have."""

    lark: str
    """An expression; empty for the empty text."""
    heads: tuple[str, ...]
    """Texts that it may begin with; contains ``""`` if it may begin with anything."""
    free: bool = False
    """True if it ends in free text without an end."""
    number: bool = False
    """True if it may end in a number."""
    begins_json: bool = False
    ends_json: bool = False
    is_json: bool = False
    """True if it may begin with, may end with, and is nothing but one schema's text."""
    goes_on: tuple[str, ...] = ()
    """Texts that may continue it where it could end; contains ``""`` if anything may."""


FREE = Part("TEXT", ("",), free=True)
"""Free text."""


def sequence(parts: Iterable[Part], path: str) -> Part:
    """Return the parts in sequence; refuse, naming `path`, parts that may not be adjacent."""
    kept = [part for part in parts if part.lark]
    for part, after in pairwise(kept):
        if part.free:
            unsupported(path, "nothing may follow free text that is not the whole content of a tag", "any_text")
        if part.number and any(not head or head[0] in _NUMBER_GOES_ON for head in after.heads):
            unsupported(path, "a number may not be followed by text that could continue it", "json_schema")
        if part.ends_json and after.begins_json:
            unsupported(
                path,
                "a schema may not directly follow a schema, because llguidance would allow white space in between",
                "json_schema",
            )
        if any(_alike(text, head) for text in part.goes_on for head in after.heads):
            unsupported(
                path, "tags may not be followed by a text that could be another one of them", "tags_with_separator"
            )
    if not kept:
        return Part("", ("",))
    first, last = kept[0], kept[-1]
    if first is last:
        return first
    return Part(
        " ".join(part.lark for part in kept),
        first.heads,
        free=last.free,
        number=last.number,
        begins_json=first.begins_json,
        ends_json=last.ends_json,
        goes_on=last.goes_on,
    )


def separated(item: Part, separator: Part, path: str, *, optional: bool, once: bool) -> Part:
    """Return occurrences of `item` with `separator` between them: one if `once`, zero or more if `optional`."""
    if item.free:
        unsupported(path, "a tag needs an end, or nothing could follow it", "any_text")
    lark, goes_on = item.lark, item.goes_on
    if not once:
        sequence([item, separator, item], path)  # refuses parts that may not be adjacent
        more = " ".join(filter(None, [separator.lark, item.lark]))
        lark = f"{item.lark} ({more})*"
        goes_on += separator.heads if separator.lark else item.heads
    if not optional:
        return replace(item, lark=lark, goes_on=goes_on, is_json=False)
    # if it is empty, its neighbors are adjacent to each other
    return Part(
        f"({lark})?",
        (*item.heads, ""),
        number=item.number,
        begins_json=True,
        ends_json=True,
        goes_on=(*goes_on, *item.heads),
    )


def either(parts: Iterable[Part], path: str) -> Part:
    """Return an alternative of the parts. Two schemas may begin alike, because together they act like ``anyOf``."""
    kept = list({part.lark: part for part in parts}.values())
    if len(kept) == 1:
        return kept[0]
    heads = sorted((head, i) for i, part in enumerate(kept) for head in part.heads)
    # a head that begins any other one also begins the next in order
    for (head, i), (next_head, j) in pairwise(heads):
        if i != j and next_head.startswith(head) and not (kept[i].is_json and kept[j].is_json):
            what = repr(head.strip(SPECIAL)) if head else "any text or the empty text"
            unsupported(path, f"alternatives may not have the same beginning, here {what}", "or")
    return Part(
        alternatives([part.lark for part in kept]),
        tuple(sorted({head for head, _ in heads})),
        free=any(part.free for part in kept),
        number=any(part.number for part in kept),
        begins_json=any(part.begins_json for part in kept),
        ends_json=any(part.ends_json for part in kept),
        is_json=all(part.is_json for part in kept),
        goes_on=tuple(text for part in kept for text in part.goes_on),
    )


def _alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def alternatives(larks: Sequence[str]) -> str:
    return f"({' | '.join(larks)})"


def json_heads(schema: Schema) -> frozenset[str]:
    """Return the characters that an instance may begin with."""
    if isinstance(schema, Mapping):
        if "const" in schema:
            return frozenset(json.dumps(schema["const"])[0])
        if "enum" in schema:
            return frozenset(json.dumps(value)[0] for value in schema["enum"])
        types = schema.get("type", list(_FIRST))
        return frozenset("".join(_FIRST[t] for t in ([types] if isinstance(types, str) else types)))
    return frozenset("".join(_FIRST.values()))


def join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def malformed(path: str, what: str, value: object) -> NoReturn:
    raise InvalidGrammar(f"{named(path)} {what}, not {shown(value)}", field=field_of(path))


def unsupported(path: str, what: str, feature: str) -> NoReturn:
    raise UnsupportedGrammar(f"{named(path)}: {what}", feature=f"structural_tag:{feature}", field=field_of(path))


def named(path: str) -> str:
    return f"`{path}` of the structural tag" if path else "the structural tag"


def field_of(path: str) -> str:
    return f"constraint.tag.{path}" if path else "constraint.tag"
