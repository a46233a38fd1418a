"""Measure which JSON Schema keywords a grammar strategy enforces, by offering it instances byte by byte.

``cases.json`` has labeled schemas, and schemas of each keyword by type of instance, which `cases` combines in pairs.
`guideway.json_schema.support.SupportTable` stores the result for each version of a library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import combinations, product
from typing import Any, TypeAlias

from guideway.api.grammar import CompiledGrammar, GrammarStrategy
from guideway.api.types import WHITESPACE, JsonSchema, Regex, Whitespace
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema import Schema, combine, keywords
from guideway.json_schema.assertions import LARGE
from guideway.json_schema.dialects import pattern_cases, regex_cases
from guideway.json_schema.patterns import MANY, MIXED, REPEAT
from guideway.json_schema.support import Status, Table
from guideway.json_schema.validity import validator

__all__ = ["Case", "byte_vocabulary", "cases", "labeled_cases", "probe", "probe_holders_apart", "spoilt"]

Case: TypeAlias = tuple[str, Schema, list[Any], list[Any]]
"""Name (as `guideway.json_schema.keywords` gives it), schema, valid instances, invalid instances."""

HOLDERS = frozenset({"$ref", "allOf", "anyOf", "oneOf:disjoint"})
"""Keywords that only apply other schemas. ``oneOf`` also demands that no two of them hold."""

_INDIRECT = frozenset({"$ref:nested-id", "$ref:siblings"})
"""Names that only other keywords in their schemas can reveal; judged by schemas whose other keywords are enforced."""

_WORSE: tuple[Status, ...] = ("enforced", "narrow", "unenforced", "refused")
_REFUSED: Status = "refused"
STOP = 256
MOST_SECONDS = 10
"""CPU seconds for one schema and its texts; the slowest that pass take half of it."""

SMALL, LONG = 1000, 5000
"""Largest instances, in characters, that are tried with each kind of white space; largest texts, in bytes, that are
also tried with malformed strings."""
_BAD = (b'"', b"\\", b"\\x", b"\n", b"\x01", b"\xff", b'"b')
"""Bytes that a JSON string must escape, or that end it."""


class _Unfit(Exception):
    """Raised if a strategy compiles a schema but accepts malformed JSON or takes too long: the name is refused."""


def byte_vocabulary() -> Vocabulary:
    """Return a vocabulary with one token for each byte, and a stop token."""
    return Vocabulary([*(bytes([i]) for i in range(256)), b""], frozenset({STOP}), {STOP: "</s>"})


def probe(strategy: GrammarStrategy) -> Table:
    """Measure the status of every keyword, every pair of keywords, and each construct of a `Regex`, with each kind of
    white space. `strategy` is built for `byte_vocabulary`."""
    return dict(sorted({**_probe(strategy.compile), **_probe_regexes(strategy)}.items()))


def _probe_regexes(strategy: GrammarStrategy) -> Table:
    found: dict[str, list[Status]] = {}
    for name, expression, right, wrong in regex_cases() if "regex" in strategy.kinds else ():
        texts = ([text.encode() for text in some] for some in (right, wrong))
        found.setdefault(f"regex:{name}", []).append(_judge(strategy.compile, Regex(expression), *texts))
    return {name: _summary(statuses) for name, statuses in found.items()}


def probe_holders_apart(strategy: GrammarStrategy) -> Table:
    """Like `probe`, for a library that ignores many keywords. Keywords that hold other schemas are judged only by cases
    without ignored keywords, since they would otherwise be blamed for the ignored ones."""
    table = probe(strategy)
    ignored = {name for name in table if table[name] == "unenforced" and "+" not in name and not _holds(name)}

    def compile_holders(constraint: JsonSchema) -> CompiledGrammar:
        names = keywords(constraint.parsed)
        if names.isdisjoint(HOLDERS) or not names.isdisjoint(ignored):
            raise UnsupportedGrammar("not of interest", feature="probe")
        return strategy.compile(constraint)

    again = _probe(compile_holders)
    judged = {name: status for name, status in again.items() if _holds(name) and status != "refused"}
    return dict(sorted({**table, **judged}.items()))


def _holds(name: str) -> bool:
    return not HOLDERS.isdisjoint(name.split("+"))


def _probe(compile_: Callable[[Any], CompiledGrammar]) -> Table:
    found: dict[str, list[Status]] = {}
    indirect: list[tuple[str, frozenset[str], Status]] = []
    unfit: set[str] = set()
    for name, schema, right, wrong in cases():
        statuses: list[Status] = []
        is_pair = "+" in name
        words: Sequence[Whitespace] = ("bounded",) if is_pair or len(str(right)) > SMALL else WHITESPACE
        try:
            if name not in unfit and not (is_pair and "unenforced" in found.get(name, ())):  # more would tell nothing
                statuses += (_judge_schema(compile_, schema, right, wrong, word) for word in words)
        except _Unfit:
            unfit.add(name)
        found.setdefault(name, []).extend(statuses)
        if name in _INDIRECT:
            indirect += ((name, keywords(schema) - {name}, status) for status in statuses)
    table: Table = {name: _summary(statuses) for name, statuses in found.items() if "+" not in name}
    for name in found.keys() - table.keys():
        parts = name.replace("format", "format:email").split("+")
        if _summary(found[name]) == "unenforced" and all(table.get(part) != "unenforced" for part in parts):
            table[name] = "unenforced"
    ignored = {name for name, status in table.items() if status in ("unenforced", "refused")}
    for name in _INDIRECT:
        alone = [status for other, rest, status in indirect if other == name and rest.isdisjoint(ignored)]
        if set(alone) - {"refused"}:
            table[name] = _summary(alone)
    return dict(sorted((table | dict.fromkeys(unfit, _REFUSED)).items()))


def _summary(statuses: list[Status]) -> Status:
    """Return the worst status. Refusals count only if all were refused: a strategy that compiles some of the schemas
    refuses the others when it compiles them."""
    compiled = [status for status in statuses if status != "refused"]
    return max(compiled, key=_WORSE.index) if compiled else "refused"


def _judge_schema(
    compile_: Callable[[Any], CompiledGrammar], schema: Schema, right: list[Any], wrong: list[Any], word: Whitespace
) -> Status:
    return _judge(compile_, JsonSchema(schema, whitespace=word), _texts(right, word), _texts(wrong, word))


def _judge(
    compile_: Callable[[Any], CompiledGrammar], constraint: JsonSchema | Regex, right: list[bytes], wrong: list[bytes]
) -> Status:
    try:
        compiled = compile_(constraint)
    except (InvalidGrammar, UnsupportedGrammar):
        return "refused"
    start = time.thread_time()

    def accepts(text: bytes) -> bool:
        if time.thread_time() - start > MOST_SECONDS:
            raise _Unfit
        return _accepts(compiled, text)

    accepted = [text for text in right if accepts(text)]
    spoilable = (each for each in accepted if len(each) < LONG and isinstance(constraint, JsonSchema))
    if any(accepts(text) for each in spoilable for text in spoilt(each)):
        raise _Unfit
    if any(map(accepts, wrong)):
        return "unenforced"
    if not accepted:
        return "refused"
    return "enforced" if len(accepted) == len(right) else "narrow"


def _texts(instances: list[Any], whitespace: Whitespace) -> list[bytes]:
    """Return instances as JSON text in the form that all strategies allow."""
    separators = (", ", ": ") if whitespace == "spaced" else (",", ":")
    return [json.dumps(instance, ensure_ascii=False, separators=separators).encode() for instance in instances]


def spoilt(text: bytes) -> Iterator[bytes]:
    """Yield texts that are not JSON because the end of the last string in `text` was replaced."""
    end = text.rfind(b'"')
    for bad in _BAD:
        other = text[: max(end - len(bad), 0)] + bad + text[end:]
        try:
            json.loads(other)
        except ValueError:
            yield other


def _accepts(compiled: CompiledGrammar, text: bytes) -> bool:
    matcher = compiled.matcher(frozenset({STOP}))
    try:
        return matcher.accept([*text, STOP]) == len(text) + 1
    except Exception:
        return False


@cache
def cases() -> Sequence[Case]:
    """Return every case of the probe. Callers share the lists: do not change them."""
    return tuple(_cases())


@cache
def labeled_cases() -> Sequence[Case]:
    """Return the cases of which no validator judged the instances. They take no time to make."""
    return tuple(
        (name, schema, right, wrong)
        for several in _data()["labeled"].values()
        for name, schema, right, wrong in several
    )


@cache
def _data() -> Any:
    return json.loads(files("guideway.json_schema").joinpath("cases.json").read_text("utf-8"))


_OLD = frozenset({"items:list", "additionalItems", "dependencies"})
"""Keywords that draft 2020-12 does not have."""
_NEW = frozenset(
    {"$ref", "prefixItems", "unevaluatedItems", "unevaluatedProperties", "minContains", "maxContains"}
    | {"dependentRequired", "dependentSchemas", "items:false"}
)
"""Keywords that earlier drafts do not have, or do not combine with others."""


def _cases() -> Iterator[Case]:
    data = _data()
    yield from labeled_cases()
    yield from _sized()
    for name, pattern, right_texts, wrong_texts in pattern_cases():
        yield f"pattern:{name}", _string(pattern), right_texts, wrong_texts
    yield from _contradicted(data["contradicted"])
    everything = [instance for pool in data["instances"].values() for instance in pool]
    for kind, fragments in data["fragments"].items():
        types = ["number", "integer"] if kind == "number" else [kind]
        for name, schemas in fragments.items():
            plain = name.partition(":")[0] if name.startswith("format") else name
            needs_type = {f"{plain}+untyped", f"{plain}:number+untyped"} & keywords(schemas[0])
            for schema in schemas:
                for typed in [{"type": t, **schema} for t in types] if needs_type else [schema]:
                    yield from _case(name, typed, everything)
            beside: list[Any] = [None, [kind, "null"]] if needs_type else [*types, [kind, "null"]]
            for types_beside in beside:
                for schema in schemas:
                    typed = schema if types_beside is None else {"type": types_beside, **schema}
                    how = "untyped" if types_beside is None else "types" if needs_type else "type"
                    yield from _case(f"{plain}+{how}", typed, everything)
        for first, second in combinations(fragments, 2):
            if {first, second} & _OLD and {first, second} & _NEW:
                continue  # no draft has both
            for one, other, t in product(fragments[first], fragments[second], types):
                yield from _case(combine(first, second), {"type": t, **one, **other}, everything)
        yield from _beside_another_type(fragments, kind, everything)


_INT = {"type": "integer"}


def _sized() -> Iterator[Case]:
    """Yield cases with numbers as large as users write. Engines have limits, and some loops end at 128."""
    for n in (127, 129, 300, 2000):
        yield from (
            (keyword if n <= LARGE else f"{keyword}>{LARGE}", {"type": kind, **more, keyword: n}, right, wrong)
            for kind, more, keyword, right, wrong in (
                ("string", {}, "minLength", _strings(n), _strings(n - 1)),
                ("string", {}, "maxLength", _strings(n), _strings(n + 1)),
                ("array", {"items": _INT}, "minItems", [[1] * n], [[1] * (n - 1)]),
                ("array", {"items": _INT}, "maxItems", [[1] * n, [1]], [[1] * (n + 1)]),
                ("array", {"items": _INT, "contains": _INT}, "minContains", [[1] * n], [[1] * (n - 1)]),
                ("array", {"items": _INT, "contains": _INT}, "maxContains", [[1] * n], [[1] * (n + 1)]),
                ("object", {"additionalProperties": _INT}, "minProperties", [_names(n)], [_names(n - 1)]),
                ("object", {"additionalProperties": _INT}, "maxProperties", [_names(n)], [_names(n + 1)]),
                ("integer", {}, "multipleOf", [0, n, 3 * n], [1, n - 1, n + 1]),
            )
        )
        for times, other in ((f"{{1,{n}}}", n + 1), (f"{{{n}}}", n - 1), (f"{{{n},}}", n - 1)):
            yield from _repeated("pattern", f"[a-zé]{times}", ["a" * n, "é" * n], ["a" * other, "é" * other])
        for piece in (".", r"\S", r"\W", "[^<>]", r"[^\n\r]", "[ -~]", r"[\s\S]", "(?:x|.)"):
            text = "-" if piece == r"\W" else "a"
            name = "pattern" if n <= MANY else f"pattern:{REPEAT}"
            yield from _repeated(name, f"{piece}{{1,{n}}}", [text * n], [text * (n + 1)])

    for piece, wrong in (("[^é]", ["é"]), ("[ -é]", ["ü"]), ("[^é😀]", ["é", "😀"]), ("[!-~é]", ["ü", " "])):
        for times in ("", "*", "{1,20}"):
            yield from _repeated(f"pattern:{MIXED}", f"{piece}{times}", ["a"], wrong)


def _repeated(name: str, pattern: str, right: list[str], wrong: list[str]) -> Iterator[Case]:
    yield name, _string(f"^{pattern}$"), right, wrong
    names = {"type": "object", "patternProperties": {f"^{pattern}$": _INT}, "additionalProperties": False}
    name = name if ":" in name else "patternProperties"
    yield name, names, [{text: 1} for text in right], [{text: 1} for text in wrong]


def _string(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def _strings(length: int) -> list[Any]:
    return ["a" * length, "é" * length, '"' * length]


def _names(count: int) -> dict[str, int]:
    return {f"{i:x}": 1 for i in range(count)}


def _contradicted(data: Any) -> Iterator[Case]:
    """Yield schemas whose ``const`` or ``enum`` violates another keyword, which an engine may overlook."""
    for value, several in data:
        for schema, said in product(several, ({"const": value}, {"enum": [value]})):
            (keyword,) = said
            # in draft 4 a bound excludes the value only with its flag, before or after ``const`` or ``enum``
            flags = {name: each for name, each in schema.items() if each is True}
            apart = {**{name: each for name, each in schema.items() if each is not True}, **said, **flags}
            for whole in ({**schema, **said}, apart) if flags else ({**schema, **said},):
                for name in sorted(keywords(whole)):
                    is_about = not flags or "draft4" in name or "unique" in name
                    if is_about and "+" in name and keyword in name.split("+"):
                        yield name, whole, [], [value]


def _beside_another_type(fragments: Any, kind: str, instances: list[Any]) -> Iterator[Case]:
    """Yield keywords of one type in schemas that allow only another type: an engine may infer the type from them."""
    other = {"type": "array" if kind == "object" else "object"}
    holders: tuple[dict[str, Any], ...] = (
        {"$ref": "#/$defs/other", "$defs": {"other": other}},
        {"allOf": [other]},
        {"anyOf": [other]},
    )
    for holder, (name, (schema, *_)) in product(holders, fragments.items()):
        if name not in ("$ref", "allOf", "anyOf"):
            yield from _case(combine(next(iter(holder)), name), {**holder, **schema}, instances)


def _case(name: str, schema: Schema, instances: list[Any]) -> Iterator[Case]:
    """Yield the case if the schema has the keyword and some instance is invalid. Pairs need no valid instance, because
    an engine may ignore one of two contradicting keywords."""
    if name not in keywords(schema):
        return
    is_valid = validator(schema).is_valid
    judged = [(instance, is_valid(instance)) for instance in instances]
    right, wrong = [i for i, valid in judged if valid], [i for i, valid in judged if not valid]
    if wrong and (right or "+" in name):
        yield name, schema, right, wrong
