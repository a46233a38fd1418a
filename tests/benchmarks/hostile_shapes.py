# ruff: noqa: ARG005, E501 - one family per line, all with the same parameters
"""Hostile constraints of shapes that are in no corpus: each family in several sizes, with random details."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from guideway.api import Choice, Constraint, Grammar, JsonSchema, Regex, StructuralTag

Family = Callable[[Random, int], Any]

LEAF = '{"type":"string"}'
PRIMES = (97, 997, 9973, 99_991, 999_983, 15_485_863, 179_424_673)


def _objects(names: list[str], required: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": {n: {"type": "integer"} for n in names}}
    return found | ({"required": names} if required else {})


def _nest(before: str, after: str, count: int, leaf: str = LEAF) -> str:
    return before * count + leaf + after * count


def _chain(count: int, step: Callable[[str], Any], home: str = "$defs") -> Any:
    schemas = {f"x{i}": step(f"#/{home}/x{i + 1}") for i in range(count)}
    return {home: {**schemas, f"x{count}": {"type": "null"}}, "$ref": f"#/{home}/x0"}


def _both(first: Any, second: Any) -> Any:
    return {"allOf": [first, second]}


SCHEMAS: dict[str, tuple[Family, tuple[int, ...]]] = {
    "chain-items": (lambda r, n: _chain(n, lambda t: {"type": "array", "items": {"$ref": t}}), (200, 1500, 9000)),
    "chain-allOf": (lambda r, n: _chain(n, lambda t: {"allOf": [{"$ref": t}]}, "definitions"), (200, 1500, 9000)),
    "chain-anyOf": (lambda r, n: _chain(n, lambda t: {"anyOf": [{"$ref": t}, {"type": "null"}]}), (200, 1500, 9000)),
    "chain-props": (
        lambda r, n: _chain(n, lambda t: {"type": "object", "properties": {"n": {"$ref": t}}, "required": ["n"]}),
        (200, 1500, 9000),
    ),
    "chain-optional": (
        lambda r, n: _chain(n, lambda t: {"type": "object", "properties": {"n": {"$ref": t}}}),
        (60, 200, 1500),
    ),
    "chain-not": (lambda r, n: _chain(n, lambda t: {"not": {"$ref": t}}), (50, 1500)),
    "chain-in-properties": (
        lambda r, n: {
            "type": "object",
            "properties": {f"p{i}": {"$ref": f"#/properties/p{i + 1}"} for i in range(n)} | {f"p{n}": {"const": 1}},
        },
        (40, 400, 4000),
    ),
    "chain-deep": (
        lambda r, n: _chain(n, lambda t: json.loads(_nest('{"items":{"prefixItems":[', "]}}", 20, f'{{"$ref":"{t}"}}'))),
        (5, 40, 250),
    ),
    "fan-out": (
        lambda r, n: _chain(n, lambda t: {"type": "object", "properties": {k: {"$ref": t} for k in "abc"}}),
        (4, 8, 14, 40),
    ),
    "fan-anyOf": (lambda r, n: _chain(n, lambda t: {"anyOf": [{"items": {"$ref": t}}, {"$ref": t}]}), (6, 12, 24, 60)),
    "fan-allOf": (lambda r, n: _chain(n, lambda t: {"allOf": [{"$ref": t}, {"$ref": t}]}), (6, 12, 24, 60)),
    "all-to-all": (
        lambda r, n: {
            "$defs": {f"x{i}": {"properties": {f"k{j}": {"$ref": f"#/$defs/x{j}"} for j in range(n)}} for i in range(n)},
            "$ref": "#/$defs/x0",
        },
        (5, 20, 60),
    ),
    "unknown-keyword-deep": (lambda r, n: _nest('{"x-deep":[', "]}", n), (50, 3000, 40_000)),
    "default-deep": (lambda r, n: '{"type":"string","default":' + "[" * n + "]" * n + "}", (50, 3000, 100_000)),
    "enum-deep": (lambda r, n: '{"enum":[' + '{"a":' * n + "1" + "}" * n + "]}", (40, 100, 900)),
    "if-then": (lambda r, n: _nest('{"if":{"type":"string"},"then":', "}", n), (30, 60, 900)),
    "nested-maxItems": (lambda r, n: _nest(f'{{"type":"array","maxItems":{n},"items":', "}", 5), (3, 12, 60, 300)),
    "nested-minItems": (lambda r, n: _nest(f'{{"type":"array","minItems":{n},"items":', "}", 4), (3, 12, 60, 300)),
    "maxItems-of-objects": (
        lambda r, n: {"type": "array", "maxItems": n, "items": _objects([f"k{i}" for i in range(30)])},
        (50, 500, 5000, 50_000),
    ),
    "minItems-of-strings": (
        lambda r, n: {"type": "array", "minItems": n, "items": {"type": "string", "maxLength": n}},
        (50, 500, 5000, 50_000),
    ),
    "refs-multiply": (
        lambda r, n: _chain(5, lambda t: {"type": "array", "items": {"$ref": t}, "minItems": n, "maxItems": n + 1}),
        (3, 12, 60),
    ),
    "many-maxLength": (
        lambda r, n: {"type": "object", "properties": {f"s{i}": {"type": "string", "maxLength": n + i} for i in range(40)}},
        (100, 1000, 10_000),
    ),
    "minLength": (lambda r, n: {"type": "string", "minLength": n}, (300, 3000, 30_000, 300_000)),
    "between-lengths": (lambda r, n: {"type": "string", "minLength": n, "maxLength": 2 * n}, (300, 3000, 30_000)),
    "maxProperties": (
        lambda r, n: {"type": "object", "minProperties": n // 2, "maxProperties": n, "additionalProperties": {"type": "integer"}},
        (20, 300, 5000),
    ),
    "contains": (
        lambda r, n: {"type": "array", "contains": {"const": 1}, "minContains": n, "maxContains": 2 * n},
        (10, 300, 5000),
    ),
    "multipleOf": (lambda r, n: {"type": "integer", "multipleOf": PRIMES[n]}, tuple(range(7))),
    "multipleOf-both": (
        lambda r, n: _both({"type": "integer", "multipleOf": PRIMES[n]}, {"multipleOf": PRIMES[n + 1]}),
        tuple(range(6)),
    ),
    "multipleOf-decimal": (lambda r, n: {"type": "number", "multipleOf": PRIMES[n] * 1e-7}, tuple(range(7))),
    "multipleOf-power": (lambda r, n: {"type": "integer", "multipleOf": 2**n}, (8, 13, 20, 40, 60)),
    "multipleOf-bounded": (
        lambda r, n: {"type": "integer", "multipleOf": PRIMES[n], "minimum": 10**9 + 7, "maximum": 10**15 + 3},
        (1, 3, 5),
    ),
    "bounds-long": (
        lambda r, n: f'{{"type":"integer","minimum":{r.randrange(1, 10)}{"7" * n},"maximum":9{"8" * n}1}}',
        (15, 18, 35, 300, 4000),
    ),
    "bounds-decimal": (
        lambda r, n: f'{{"type":"number","minimum":0.{"1" * n},"maximum":0.{"1" * n}9}}',
        (8, 15, 60),
    ),
    "bounds-exponent": (lambda r, n: f'{{"type":"number","minimum":1e-{n},"maximum":1e{n}}}', (5, 20, 300)),
    "many-branches": (lambda r, n: {"anyOf": [_objects([f"k{i}", "same"]) for i in range(n)]}, (40, 400, 3000)),
    "same-branches": (
        lambda r, n: {"oneOf": [{"type": "object", "properties": {"kind": {"enum": [i, 0]}, "v": {}}} for i in range(n)]},
        (40, 400, 3000),
    ),
    "allOf-of-anyOf": (
        lambda r, n: {"allOf": [{"anyOf": [{"required": [f"{i}{c}"]} for c in "abcde"]} for i in range(n)]},
        (3, 6, 12, 100),
    ),
    "allOf-objects": (lambda r, n: {"allOf": [_objects([f"k{i}", f"k{i + 1}"]) for i in range(n)]}, (20, 100, 1000)),
    "allOf-nested-anyOf": (
        lambda r, n: {"allOf": [{"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": i + 50}]}]} for i in range(n)]},
        (4, 8, 16, 40),
    ),
    "allOf-patterns": (
        lambda r, n: {"type": "string", "allOf": [{"pattern": f"^.*{chr(97 + i)}.{{{i}}}.*$"} for i in range(n)]},
        (3, 6, 10, 20),
    ),
    "optional-properties": (lambda r, n: _objects([f"k{i}" for i in range(n)], False), (50, 300, 1900)),
    "optional-patterned": (
        lambda r, n: {"properties": {f"k{i}": {"pattern": f"^[a-z]{{1,{i + 1}}}$"} for i in range(n)}},
        (20, 120, 600),
    ),
    "required-undeclared": (lambda r, n: {"type": "object", "required": [f"k{i}" for i in range(n)]}, (30, 300, 3000)),
    "patternProperties": (
        lambda r, n: {"type": "object", "patternProperties": {f"^(.*){i}(.*)$": {"type": "integer"} for i in range(n)}},
        (3, 12, 60),
    ),
    "propertyNames": (
        lambda r, n: {"type": "object", "propertyNames": {"pattern": f"^([a-z]{{1,{n}}}_)*$"}, "additionalProperties": {}},
        (5, 100, 1000),
    ),
    "enum-prefixes": (lambda r, n: {"enum": ["ab" * i for i in range(n)]}, (50, 300, 900)),
    "enum-numbers": (lambda r, n: {"enum": [r.random() for _ in range(n)]}, (100, 1500, 12_000)),
    "enum-objects": (lambda r, n: {"enum": [{"a": i, "b": [i, str(i)]} for i in range(n)]}, (50, 600, 2500)),
    "enums": (
        lambda r, n: {"properties": {f"k{i}": {"enum": [f"{i}-{j}" for j in range(n)]} for i in range(40)}},
        (10, 100, 400),
    ),
    "const-long": (lambda r, n: {"const": "x\n\"" * n}, (300, 3000, 60_000)),
    "name-long": (lambda r, n: _objects(["k" * n, "k" * (n - 1) + "l"]), (300, 3000, 60_000)),
    "pattern-names": (lambda r, n: {"type": "string", "pattern": "^(" + "|".join(f"n{i}" for i in range(n)) + ")$"}, (50, 900, 9000)),
    "pattern-unicode": (lambda r, n: {"type": "string", "pattern": f"^[\\u4e00-\\u9fff\\U00020000]{{1,{n}}}$".replace("\\U00020000", "é")}, (20, 120, 900)),
    "pattern-any": (lambda r, n: {"type": "string", "pattern": f"^.{{{n},{2 * n}}}$"}, (50, 120, 130, 1500, 15_000)),
    "pattern-nul": (lambda r, n: {"type": "string", "pattern": "\x00" * n + "a"}, (1, 50)),
    "pattern-length": (
        lambda r, n: {"type": "string", "pattern": "^([a-z]+ )+[0-9]$", "minLength": n, "maxLength": 2 * n},
        (20, 300, 3000),
    ),
    "names-with-nul": (lambda r, n: _objects(["a\x00" * n, "\x00"]), (1, 40)),
    "formats": (lambda r, n: {"properties": {f"k{i}": {"type": "string", "format": r.choice(["date-time", "email", "uri", "uuid", "ipv6", "hostname"])} for i in range(n)}}, (20, 100, 600)),
    "unevaluated": (lambda r, n: {"allOf": [{"properties": {f"k{i}": {}}} for i in range(n)], "unevaluatedProperties": False}, (20, 200)),
    "unique": (lambda r, n: {"type": "array", "uniqueItems": True, "maxItems": n, "items": {"enum": list(range(n))}}, (8, 100, 1500)),
    "tuple": (lambda r, n: {"type": "array", "prefixItems": [{"type": "integer"}] * n, "items": False}, (50, 900, 9000)),
    "circle": (lambda r, n: {"$defs": {f"x{i}": {"type": "object", "properties": {"n": {"$ref": f"#/$defs/x{(i + 1) % n}"}}, "required": ["n"]} for i in range(n)}, "$ref": "#/$defs/x0"}, (1, 2, 40, 900)),
    "circle-anyOf": (lambda r, n: {"$defs": {f"x{i}": {"anyOf": [{"$ref": f"#/$defs/x{(i + k) % n}"} for k in (1, 2)]} for i in range(n)}, "$ref": "#/$defs/x0"}, (3, 40)),
    "circle-escaped": (lambda r, n: {"$defs": {"a~b/c %": {"allOf": [{"$ref": "#/$defs/a~0b~1c%20%25"}]}}, "$ref": "#/$defs/a~0b~1c%20%25"}, (1,)),
    "circle-minItems": (lambda r, n: {"type": "array", "minItems": n, "items": {"$ref": "#"}}, (1, 40)),
}  # fmt: skip

PATTERNS: dict[str, tuple[Family, tuple[int, ...]]] = {
    "counted-class": (lambda r, n: f"[^a-f]{{{n}}}", (100, 129, 1000, 10_000)),
    "counted-any": (lambda r, n: f".{{0,{n}}}x", (100, 1000, 10_000)),
    "counted-words": (lambda r, n: rf"(\w+ ){{1,{n}}}\.", (20, 200, 2000)),
    "counted-group": (lambda r, n: f"(ab?c*|d[e-g]{{2,5}}){{{n}}}", (20, 200, 2000)),
    "counted-letters": (lambda r, n: rf"\p{{Lu}}\p{{L}}{{1,{n}}}", (20, 200, 2000)),
    "optionals": (lambda r, n: f"(a?b?c?){{{n}}}", (20, 200, 2000)),
    "counted-thrice": (lambda r, n: f"((a{{{n}}}b){{{n}}}c){{{n}}}", (3, 12, 30, 90)),
    "counted-stacked": (lambda r, n: "a" + "{9}" * n, (2, 3, 4, 6, 30)),
    "nth-from-end": (lambda r, n: f"[ab]*a[ab]{{{n}}}", (8, 13, 17, 22)),
    "nth-words": (lambda r, n: rf".*\d.{{{n}}}", (8, 13, 17, 22)),
    "two-of-them": (lambda r, n: f"(.*a.{{{n}}}|.*b.{{{n}}})", (6, 9, 13)),
    "stars-nested": (lambda r, n: "(" * n + "a" + ")*" * n, (3, 20, 60, 240)),
    "plus-nested": (lambda r, n: "(?:" * n + "a|b" + "+c?)+" * n, (3, 20, 60, 240)),
    "stars-beside": (lambda r, n: "".join(f"[a-{c}]*" for c in "bcdefghijk") * n, (2, 20, 60)),
    "words-star": (lambda r, n: "(" + "|".join("a" * i + "b" for i in range(1, n)) + ")*", (20, 150, 900)),
    "alternatives": (lambda r, n: "|".join(f"{i:x}.{i:o}" for i in range(n)), (50, 900, 9000)),
    "alternatives-classes": (lambda r, n: "|".join(f"[a-z{i % 10}]{{{1 + i % 7}}}" for i in range(n)), (20, 200, 2000)),
    "groups": (lambda r, n: "(a" * n + ")" * n, (30, 100, 1000)),
    "groups-alternatives": (lambda r, n: "(a|b" * n + ")" * n, (30, 100, 1000)),
    "classes-nested": (lambda r, n: "[a" * n + "]" * n, (10, 100, 1000)),
    "class-wide": (lambda r, n: "[" + "".join(chr(0x100 + 2 * i) for i in range(n)) + "]{1,50}", (50, 900, 9000)),
    "flags": (lambda r, n: f"(?i)(select|insert|[a-zé]{{{n}}})", (20, 200)),
    "nul": (lambda r, n: "a\x00" * n, (1, 30)),
    "literal": (lambda r, n: "lorem ipsum " * n, (20, 300, 3000, 30_000)),
    "unicode-any": (lambda r, n: f"[^\\n]{{1,{n}}}é[^\\n]{{1,{n}}}", (30, 120, 900)),
    "random": (lambda r, n: "".join(r.choice(["a", "[b-d]", "(", ")", "|", "*", "{2,5}", "?", ".", "+"]) for _ in range(n)), (30, 60, 90, 300)),
}  # fmt: skip

EBNF: dict[str, tuple[Family, tuple[int, ...]]] = {
    "chain": (lambda r, n: "root ::= x0\n" + "".join(f'x{i} ::= "a" x{i + 1} | x{i + 1}\n' for i in range(n)) + f'x{n} ::= "b"', (50, 250, 900, 9000)),
    "circle": (lambda r, n: "root ::= x0\n" + "".join(f"x{i} ::= x{(i + 1) % n}\n" for i in range(n)), (1, 3, 90)),
    "doubling": (lambda r, n: "root ::= x0\n" + "".join(f"x{i} ::= x{i + 1} x{i + 1}\n" for i in range(n)) + f'x{n} ::= "b"?', (8, 16, 40)),
    "nullable": (lambda r, n: "root ::= " + "x " * n + '\nx ::= "a"* | ""', (10, 60, 300)),
    "stars": (lambda r, n: "root ::= " + "(" * n + "[a-c]" + ")*" * n, (3, 20, 60, 240)),
    "star-rules": (lambda r, n: "root ::= x0*\n" + "".join(f"x{i} ::= x{i + 1}*\n" for i in range(n)) + f'x{n} ::= "b"*', (4, 20, 60)),
    "ambiguous": (lambda r, n: "root ::= root root" + " root" * n + ' | "a" | ""', (1, 4, 12)),
    "groups": (lambda r, n: "root ::= " + '("x" ' * n + ")?" * n, (20, 100, 1000)),
    "counted": (lambda r, n: f'root ::= ("ab" [0-9]{{1,{n}}}){{1,{n}}}', (10, 100, 1000, 100_000)),
    "counted-rules": (lambda r, n: "root ::= x0\n" + "".join(f"x{i} ::= x{i + 1}{{{n}}}\n" for i in range(5)) + 'x5 ::= "b"', (3, 12, 60)),
    "alternatives": (lambda r, n: "root ::= " + " | ".join(f'"{i}" [a-z]*' for i in range(n)), (50, 900, 9000)),
    "rules": (lambda r, n: "root ::= " + " | ".join(f"x{i}" for i in range(n)) + "\n" + "".join(f'x{i} ::= "{i}" root?\n' for i in range(n)), (50, 400, 2000)),
    "literal": (lambda r, n: f'root ::= "{"lorem ipsum " * n}"', (20, 300, 3000, 30_000)),
    "nul": (lambda r, n: f'root ::= "a{chr(0) * n}b" [{chr(0)}-b]', (1,)),
    "left": (lambda r, n: "root ::= x0\n" + "".join(f'x{i} ::= x{(i + 1) % n} "{i}" | "z"\n' for i in range(n)), (2, 30, 300)),
    "optionals": (lambda r, n: "root ::= " + '("a"? [b-d]?) ' * n, (20, 200, 2000)),
}  # fmt: skip

LARK: dict[str, tuple[Family, tuple[int, ...]]] = {
    "chain": (lambda r, n: "start: x0\n" + "".join(f'x{i}: "a" x{i + 1} | x{i + 1}\n' for i in range(n)) + f'x{n}: "b"\n', (50, 250, 900, 9000)),
    "terminals": (lambda r, n: "start: X0\n" + "".join(f'X{i}: "a" X{i + 1}\n' for i in range(n)) + f'X{n}: "b"\n', (50, 250, 900, 9000)),
    "terminals-doubling": (lambda r, n: "start: X0\n" + "".join(f"X{i}: X{i + 1} X{i + 1}\n" for i in range(n)) + f"X{n}: /[a-z]/\n", (6, 10, 16, 40)),
    "terminals-counted": (lambda r, n: f'start: X0\nX0: X1~1..{n}\nX1: X2~1..{n}\nX2: "a"~1..{n}\n', (8, 30, 120)),
    "many-terminals": (lambda r, n: "start: (" + " | ".join(f"X{i}" for i in range(n)) + ")*\n" + "".join(f"X{i}: /[a-z]+{i}/\n" for i in range(n)), (20, 100, 700)),
    "groups": (lambda r, n: "start: " + "(" * n + '"x"' + ")*" * n + "\n", (10, 60, 400)),
    "brackets": (lambda r, n: "start: " + '["x" ' * n + "]" * n + "\n", (10, 60, 400)),
    "counted": (lambda r, n: f'start: ("a" /[0-9]{{1,{n}}}/){{1,{n}}}\n', (10, 100, 1000)),
    "json-chain": (lambda r, n: "start: %json " + json.dumps(_chain(n, lambda t: {"items": {"$ref": t}})) + "\n", (50, 1500, 9000)),
    "json-multipleOf": (lambda r, n: "start: %json " + json.dumps({"type": "integer", "multipleOf": PRIMES[n]}) + "\n", (1, 3, 5, 6)),
    "json-deep": (lambda r, n: "start: %json " + _nest('{"items":', "}", n) + "\n", (20, 100, 2000)),
    "alternatives": (lambda r, n: "start: " + " | ".join(f'"{i}"' for i in range(n)) + "\n", (50, 900, 9000)),
    "regex": (lambda r, n: f"start: /(.*a.{{{n}}})+/\n", (6, 12, 18)),
    "left": (lambda r, n: "start: x0\n" + "".join(f'x{i}: x{(i + 1) % n} "{i}" | "z"\n' for i in range(n)), (2, 30, 300)),
    "nullable": (lambda r, n: "start: " + "x " * n + '\nx: "a"* | ""\n', (10, 60, 300)),
}  # fmt: skip

CHOICES: dict[str, tuple[Family, tuple[int, ...]]] = {
    "many": (lambda r, n: [f"{r.random()}" for _ in range(n)], (50, 900, 4000, 20_000)),
    "prefixes": (lambda r, n: ["ab" * i for i in range(1, n)], (50, 300, 900)),
    "long": (lambda r, n: ["é" * n, "x" * n], (100, 3000, 60_000)),
    "nul": (lambda r, n: ["\x00" * n, "a\x00b"], (1, 50)),
}

TAGS: dict[str, tuple[Family, tuple[int, ...]]] = {
    "schema": (lambda r, n: {"type": "json_schema", "json_schema": _chain(n, lambda t: {"items": {"$ref": t}})}, (50, 1500, 9000)),
    "regex": (lambda r, n: {"type": "regex", "pattern": f"([a-z]{{1,{n}}} ){{1,{n}}}"}, (8, 60, 600)),
    "grammar": (lambda r, n: {"type": "grammar", "grammar": EBNF["chain"][0](r, n)}, (20, 900, 9000)),
    "sequence": (lambda r, n: {"type": "sequence", "elements": [{"type": "const_string", "value": str(i)} for i in range(n)]}, (20, 600, 6000)),
    "or": (lambda r, n: {"type": "or", "elements": [{"type": "json_schema", "json_schema": {"maxLength": i + 1, "type": "string"}} for i in range(n)]}, (20, 300, 3000)),
    "triggers": (lambda r, n: {"type": "triggered_tags", "triggers": [f"<{i}" for i in range(n)], "tags": [{"type": "tag", "begin": f"<{i}>", "content": {"type": "any_text"}, "end": "</>"} for i in range(n)]}, (10, 200, 3000)),
    "separated": (lambda r, n: {"type": "tags_with_separator", "separator": ",", "tags": [{"type": "tag", "begin": f"<{i}>", "content": {"type": "any_text"}, "end": "</>"} for i in range(n)]}, (10, 200, 2000)),
    "tags-nested": (lambda r, n: json.loads(_nest('{"type":"tag","begin":"<a>","content":', ',"end":"</a>"}', n, '{"type":"any_text"}')), (10, 50, 90, 400)),
}  # fmt: skip


def shapes(seed: int) -> Iterator[tuple[str, Constraint]]:
    """Yield constraints by name, the same for one seed; from the second seed on their sizes differ too."""
    random = Random(seed)

    def drawn(kind: str, families: dict[str, tuple[Family, tuple[int, ...]]]) -> Iterator[tuple[str, Any]]:
        for name, (family, sizes) in families.items():
            for size in sizes:
                varied = size if size < 8 or seed == 1 else int(size * random.uniform(0.6, 1.7))
                yield f"{kind} {name} {varied}", family(random, varied)

    for name, schema in drawn("json_schema", SCHEMAS):
        yield name, JsonSchema(schema if isinstance(schema, str) else json.dumps(schema))
    for name, pattern in drawn("regex", PATTERNS):
        yield name, Regex(pattern)
    for name, text in drawn("ebnf", EBNF):
        yield name, Grammar(text, "ebnf")
    for name, text in drawn("lark", LARK):
        yield name, Grammar(text, "lark")
    for name, choices in drawn("choice", CHOICES):
        yield name, Choice(choices)
    for name, form in drawn("structural_tag", TAGS):
        yield name, StructuralTag(json.dumps({"type": "structural_tag", "format": form}))
