"""Functions that write each keyword into a random schema, by its name in `guideway.json_schema.keywords`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tests.fuzz.values import NUMBERS

if TYPE_CHECKING:
    from tests.fuzz.schemas import SchemaWriter

__all__ = ["DRAFTS", "HOLDERS", "WRITERS", "Node", "is_of"]

Node: TypeAlias = dict[str, Any]
Write: TypeAlias = "Callable[[SchemaWriter, Node, int], None]"

DRAFTS = {
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
    "7": "http://json-schema.org/draft-07/schema#",
    "4": "http://json-schema.org/draft-04/schema#",
}

PATTERNS = (
    *("^a", "b$", "^[ab]*$", "^a?b+$", "a", "^(a|ab)(c|bcd)?$", "^.$", "^[^a]", "", "^a{2,3}$", "^[0-9]{1,3}$", "é"),
    *("^(é|😀)*$", "a|b$", "^(?:a|b){2}", "^/", r"^a\$", "^[ -~]*$", r"^\d+$", r"^\w*$", "^a.b", "^[^b]*$", "^$"),
)
NAME_PATTERNS = ("^a", "b", "^k$", "^[ab]+$", "", "^.$", "é", "c$", "^[^a]", '"', r"^\\", r"\n", "^é|.$")


class Writer(NamedTuple):
    """A function that writes a keyword into a schema, the types that the keyword is for (empty: all), and its
    drafts."""

    write: Write
    kinds: tuple[str, ...]
    drafts: frozenset[str]


def is_of(value: Any, kind: str) -> bool:
    """Return whether a value is of a type."""
    match value:
        case bool():
            return kind == "boolean"
        case int() | float():
            return kind == "number" or (kind == "integer" and value == int(value))
        case None:
            return kind == "null"
    return {str: "string", list: "array", dict: "object"}[type(value)] == kind


WRITERS: dict[str, Writer] = {}

HOLDERS = frozenset(
    {"$ref", "allOf", "allOf:several", "anyOf", "oneOf", "oneOf:disjoint", "not", "if", "properties", "required"}
    | {
        "patternProperties",
        "patternProperties:several",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "propertyNames:untyped",
        "dependentSchemas",
    }
    | {"dependencies", "items", "items:list", "additionalItems", "prefixItems", "unevaluatedItems", "contains"}
)
"""Keywords whose schemas have subschemas."""

_ALL, _NEW, _OLD = frozenset(DRAFTS), frozenset({"2020-12"}), frozenset({"7", "4"})
_SINCE_6 = frozenset({"2020-12", "7"})
_NUMERIC = ("integer", "number")


def _writer(*names: str, kinds: tuple[str, ...] = (), drafts: frozenset[str] = _ALL) -> Callable[[Write], Write]:
    def register(write: Write) -> Write:
        WRITERS.update({name: Writer(write, kinds, drafts) for name in names})
        return write

    return register


def _counts(keyword: str, kind: str) -> None:
    @_writer(keyword, kinds=(kind,))
    def write(writer: SchemaWriter, node: Node, depth: int) -> None:
        node[keyword] = writer.pick(0, 1, 1, 2, 2, 3, 5, 2.0)


for _keyword, _kind in (
    *(("minLength", "string"), ("maxLength", "string"), ("minItems", "array"), ("maxItems", "array")),
    *(("minProperties", "object"), ("maxProperties", "object")),
):
    _counts(_keyword, _kind)


def _bounds(keyword: str, drafts: frozenset[str]) -> None:
    @_writer(keyword, kinds=_NUMERIC, drafts=drafts)
    def write(writer: SchemaWriter, node: Node, depth: int) -> None:
        node[keyword] = writer.pick(*NUMBERS)


for _keyword in ("minimum", "maximum"):
    _bounds(_keyword, _ALL)
for _keyword in ("exclusiveMinimum", "exclusiveMaximum"):
    _bounds(_keyword, _SINCE_6)


@_writer("exclusiveMinimum:draft4", kinds=_NUMERIC, drafts=frozenset({"4"}))
def exclusive_minimum(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["exclusiveMinimum"] = writer.pick(True, True, False)
    node.setdefault("minimum", writer.pick(*NUMBERS))


@_writer("exclusiveMaximum:draft4", kinds=_NUMERIC, drafts=frozenset({"4"}))
def exclusive_maximum(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["exclusiveMaximum"] = writer.pick(True, True, False)
    node.setdefault("maximum", writer.pick(*NUMBERS))


@_writer("multipleOf", kinds=("integer",))
def multiple_of(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["multipleOf"] = writer.pick(1, 2, 3, 4, 5, 7, 10, 100, 2.0, 1.5)


@_writer("multipleOf:number", kinds=("number",))
def multiple_of_number(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["multipleOf"] = writer.pick(1, 2, 3, 5, 10, 0.5, 0.1, 0.25, 1.5, 0.01)


@_writer("type")
def type_(writer: SchemaWriter, node: Node, depth: int) -> None:
    node.setdefault("type", writer.kind)


@_writer("pattern", kinds=("string",))
def pattern(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["pattern"] = writer.pick(*PATTERNS)


@_writer("enum")
def enum(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["enum"] = [writer.value() for _ in range(writer.random.randint(1, 4))]


@_writer("const", drafts=_SINCE_6)
def const(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["const"] = writer.value()


@_writer("$ref")
def reference(writer: SchemaWriter, node: Node, depth: int) -> None:
    if writer.definitions and not writer.inside and writer.chance(0.4):
        name = writer.pick(*writer.definitions)
    else:
        name = f"d{len(writer.definitions)}"
        writer.definitions[name] = {}  # its content may refer to it
        writer.definitions[name] = writer.child(depth, like=True)
    node["$ref"] = "#" if depth > 1 and writer.chance(0.05) else f"#/{writer.container}/{name}"


@_writer("allOf")
def all_of(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["allOf"] = [writer.child(depth, like=True)]


@_writer("allOf:several")
def all_of_several(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["allOf"] = writer.children(depth, 2, 3)


@_writer("anyOf")
def any_of(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["anyOf"] = writer.children(depth, 1, 3)


@_writer("oneOf")
def one_of(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["oneOf"] = writer.children(depth, 1, 3)


@_writer("oneOf:disjoint")
def one_of_disjoint(writer: SchemaWriter, node: Node, depth: int) -> None:
    outer = writer.kind
    if outer == "object" and writer.random.random() < 0.5:
        node["oneOf"] = _write_disjoint(writer, depth)
        return
    kinds = writer.random.sample(("string", "integer", "object", "array", "null", "boolean"), 2)
    branches = []
    for kind in {outer if outer in _DISJOINT else kinds[0]: None, kinds[1]: None}:
        writer.kind = kind
        branch = writer.child(depth, like=True)
        branches.append({**(branch if isinstance(branch, dict) and "$ref" not in branch else {}), "type": kind})
    writer.kind = outer
    node["oneOf"] = branches


def _write_disjoint(writer: SchemaWriter, depth: int) -> list[Any]:
    """Return objects that differ by a constant property, or by required and forbidden properties."""
    branches: list[Any] = []
    for name in ("a", "b"):
        told = {"required": [name], "properties": {name: writer.child(depth)}, "additionalProperties": False}
        if writer.random.random() < 0.7:
            told = {"required": ["k"], "properties": {"k": {"enum": [name]}, "a": writer.child(depth)}}
        branches.append({"type": "object", **told})
    return branches


_DISJOINT = ("string", "integer", "object", "array", "null", "boolean")


@_writer("not")
def not_(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["not"] = writer.child(depth, like=True)


@_writer("if", drafts=_SINCE_6)
def if_(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["if"] = writer.child(depth, like=True)
    branches = writer.pick(("then",), ("else",), ("then", "else"))
    node.update({branch: writer.child(depth, like=True) for branch in branches})


@_writer("properties", kinds=("object",))
def properties(writer: SchemaWriter, node: Node, depth: int) -> None:
    declared = node.setdefault("properties", {})
    for name in writer.names():
        declared.setdefault(name, writer.child(depth))


@_writer("patternProperties", kinds=("object",))
def pattern_properties(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["patternProperties"] = {writer.pick(*NAME_PATTERNS): writer.child(depth)}


@_writer("patternProperties:several", kinds=("object",))
def several_pattern_properties(writer: SchemaWriter, node: Node, depth: int) -> None:
    patterns = writer.random.sample(NAME_PATTERNS, writer.random.randint(2, 3))
    node["patternProperties"] = {pattern: writer.child(depth) for pattern in patterns}


@_writer("additionalProperties", kinds=("object",))
def additional_properties(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["additionalProperties"] = False if not writer.inside and writer.chance(0.6) else writer.child(depth)


@_writer("unevaluatedProperties", kinds=("object",), drafts=_NEW)
def unevaluated_properties(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["unevaluatedProperties"] = False if not writer.inside and writer.chance(0.6) else writer.child(depth)


@_writer("propertyNames", "propertyNames:untyped", kinds=("object",), drafts=_SINCE_6)
def property_names(writer: SchemaWriter, node: Node, depth: int) -> None:
    outer, writer.kind = writer.kind, "string"
    node["propertyNames"] = writer.child(depth, like=True)
    writer.kind = outer
    if writer.chance(0.8) and isinstance(node["propertyNames"], dict):
        node["propertyNames"].pop("$ref", None)
        node["propertyNames"]["type"] = "string"


@_writer("required", kinds=("object",))
def required(writer: SchemaWriter, node: Node, depth: int) -> None:
    if not node.get("properties"):
        properties(writer, node, depth)
    declared = list(node["properties"])
    node["required"] = writer.random.sample(declared, writer.random.randint(1, len(declared)))


@_writer("required:undeclared", kinds=("object",))
def required_undeclared(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["required"] = writer.names()


def _optional_properties(keyword: str) -> None:
    @_writer(f"{keyword}:optional", kinds=("object",))
    def write(writer: SchemaWriter, node: Node, depth: int) -> None:
        if not node.get("properties"):
            properties(writer, node, depth)
        node[keyword] = writer.pick(0, 1, 1, 2, 3)


_optional_properties("minProperties")
_optional_properties("maxProperties")


@_writer("dependentRequired", kinds=("object",), drafts=_NEW)
def dependent_required(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["dependentRequired"] = {name: writer.names() for name in writer.names(1, 2)}


@_writer("dependentSchemas", kinds=("object",), drafts=_NEW)
def dependent_schemas(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["dependentSchemas"] = {name: writer.child(depth, like=True) for name in writer.names(1, 2)}


@_writer("dependencies", kinds=("object",), drafts=_OLD)
def dependencies(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["dependencies"] = {
        name: writer.child(depth, like=True) if writer.inside or writer.chance(0.5) else writer.names()
        for name in writer.names(1, 2)
    }


@_writer("items", kinds=("array",))
def items(writer: SchemaWriter, node: Node, depth: int) -> None:
    if "additionalItems" not in node:
        node["items"] = writer.child(depth)


@_writer("items:false", kinds=("array",), drafts=_SINCE_6)
def items_false(writer: SchemaWriter, node: Node, depth: int) -> None:
    if "additionalItems" not in node:
        node["items"] = False


@_writer("items:list", kinds=("array",), drafts=_OLD)
def items_list(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["items"] = writer.children(depth, 1, 3, like=False)


@_writer("additionalItems", kinds=("array",), drafts=_OLD)
def additional_items(writer: SchemaWriter, node: Node, depth: int) -> None:
    if not isinstance(node.get("items"), list):
        items_list(writer, node, depth)
    node["additionalItems"] = False if not writer.inside and writer.chance(0.5) else writer.child(depth)


@_writer("prefixItems", kinds=("array",), drafts=_NEW)
def prefix_items(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["prefixItems"] = writer.children(depth, 1, 3, like=False)


@_writer("unevaluatedItems", kinds=("array",), drafts=_NEW)
def unevaluated_items(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["unevaluatedItems"] = False if not writer.inside and writer.chance(0.6) else writer.child(depth)


@_writer("contains", kinds=("array",), drafts=_SINCE_6)
def contains(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["contains"] = writer.child(depth)


def _bound_contains(keyword: str) -> None:
    @_writer(keyword, kinds=("array",), drafts=_NEW)
    def write(writer: SchemaWriter, node: Node, depth: int) -> None:
        node.setdefault("contains", writer.child(depth))
        node[keyword] = writer.pick(0, 1, 1, 2, 3)


_bound_contains("minContains")
_bound_contains("maxContains")


@_writer("uniqueItems", kinds=("array",))
def unique_items(writer: SchemaWriter, node: Node, depth: int) -> None:
    node["uniqueItems"] = True


def _detailed_pattern(detail: str, *patterns: str) -> None:
    @_writer(f"pattern:{detail}", kinds=("string",))
    def write(writer: SchemaWriter, node: Node, depth: int) -> None:
        node["pattern"] = writer.pick(*patterns)


_detailed_pattern("escaped", '"', r"\\", r"^[\n\r]$", '^a"', r"^\x22|a$", r'^["a]*$', "\n")
_detailed_pattern("unescaped", '^[^"]*$', r"^[^\\]*$", r"[^\n]", '^[^a"]{1,2}$')
_detailed_pattern("repeat>128", "^.{1,129}$", r"^[^\n\r]{1,150}$", "[^<>]{1,255}$", r"^\S{0,300}$", "^[ -~]{130,}$")
_detailed_pattern("class>127", "^[^é]$", "^[^é]*$", "[ -é]+$", "^[!-~ü]{1,9}$")
_detailed_pattern("property", r"^\p{L}$", r"\p{Lu}", r"^[\p{N}a]*$")
