"""Put recursive definitions in the place of references to them that stand beside other keywords."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from guideway.json_schema.rewriting.joining import Written, all_of, parts_of
from guideway.json_schema.walking import Schema

__all__ = ["inline"]

START = "#/$defs/"


def inline(schema: Mapping[str, Any], definitions: Mapping[str, Schema], most: int) -> Schema:
    """Return a written schema with its definitions. No reference to a recursive one stands beside other keywords of
    the same value: engines would combine both without an end. `most` references are replaced; more stay as they are."""
    inliner = _Inliner(definitions, most)
    if not inliner.recursive:
        return {**schema, "$defs": definitions}
    out = inliner.visit(schema)
    written = {name: inliner.visit(body) for name, body in definitions.items()}
    while inliner.pending:
        name, both = inliner.pending.pop()
        written[name] = inliner.visit(both)
    if isinstance(out, bool):
        return out
    return {**out, "$defs": written}


class _Inliner:
    def __init__(self, definitions: Mapping[str, Schema], most: int) -> None:
        self._definitions = definitions
        self._left = most
        self._names: dict[str, str] = {}
        self.recursive = {name for name in definitions if _reaches(definitions, name)}
        self.pending: list[tuple[str, Schema]] = []
        """New definitions: names, and schemas that have references beside other keywords."""

    def visit(self, schema: Schema, beside: bool = False, around: tuple[str, ...] = ()) -> Schema:
        """Return a subschema, which applies `beside` others or alone, within the definitions `around` it that apply to
        the same value."""
        if not isinstance(schema, Mapping):
            return schema
        beside |= len(schema) > 1
        parts: list[Schema] = []
        out: Written = {}
        for keyword, value in schema.items():
            if keyword == "$ref" and beside and (name := self._name(value)) and name not in around and self._left:
                self._left -= 1
                parts += [out, self.visit(self._definitions[name], True, (*around, name))]
                out = {}
            elif keyword in ("allOf", "anyOf"):
                out[keyword] = [self.visit(each, beside or keyword == "allOf", around) for each in value]
            elif keyword in ("properties", "patternProperties"):
                out[keyword] = {name: self._at(each) for name, each in value.items()}
            elif keyword == "prefixItems":
                out[keyword] = [self._at(each) for each in value]
            elif keyword in ("items", "additionalProperties", "contains", "propertyNames"):
                out[keyword] = self._at(value)
            else:
                out[keyword] = value
        if not parts:
            return out
        parts.append(out)
        if any(isinstance(part, Mapping) and part.keys() == {"anyOf"} for part in parts):
            return {"allOf": [part for part in parts if part != {}]}  # properties keep their order
        return all_of(parts)

    def _at(self, schema: Schema) -> Schema:
        """Return the schema of a part of a value."""
        if not self._combines(schema, False):
            return self.visit(schema)
        text = json.dumps(schema)
        if text not in self._names:
            self._names[text] = f"both{len(self._names)}"
            self.pending.append((self._names[text], schema))
        return {"$ref": START + self._names[text]}

    def _combines(self, schema: Schema, beside: bool) -> bool:
        """Return whether a schema has a reference to replace."""
        if not isinstance(schema, Mapping):
            return False
        beside |= len(schema) > 1
        if beside and "$ref" in schema and self._name(schema["$ref"]):
            return True
        return any(
            self._combines(part, beside or keyword == "allOf")
            for keyword in ("allOf", "anyOf")
            for part in schema.get(keyword, ())
        )

    def _name(self, reference: str) -> str | None:
        """Return the name of the recursive definition that a reference leads to."""
        name = reference.removeprefix(START)
        return name if name in self.recursive else None


def _reaches(definitions: Mapping[str, Schema], name: str) -> bool:
    """Return whether a definition refers to itself, perhaps through others."""
    seen: set[str] = set()
    pending = list(_references(definitions[name]))
    while pending:
        each = pending.pop()
        if each == name:
            return True
        if each not in seen:
            seen.add(each)
            pending += _references(definitions[each])
    return False


def _references(schema: Schema) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    for part in (schema, *parts_of(schema)):
        if isinstance(part, Mapping) and "$ref" in part:
            yield part["$ref"].removeprefix(START)
