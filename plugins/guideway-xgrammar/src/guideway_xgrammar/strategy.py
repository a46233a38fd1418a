"""xgrammar as a grammar strategy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import numpy as np
import xgrammar as xgr
from guideway.api import (
    MAX_INDENTATION,
    WHITESPACE,
    Constraint,
    DeadEnd,
    FillJob,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    Regex,
    StructuralTag,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    Whitespace,
    excerpt,
    parse_options,
)
from guideway.api.bitmask import allocate, empty_rows, num_words
from guideway.json_schema import (
    IN_PLACE_APPLICATORS,
    Schema,
    WritingRule,
    assertions,
    check_schema,
    hides_names,
    in_a_row,
    names_may_run_out,
    pattern_details,
    resolve,
    restrict,
    subschemas,
    tag_nodes,
    tag_schemas,
    with_patterns,
)
from guideway.json_schema.ecma import with_spelled_patterns
from guideway.json_schema.expressions import python, python_reads, spelled_out
from guideway.json_schema.patterns import place_of_detail
from guideway.json_schema.support import SupportTable, Table

from guideway_xgrammar.characters import CharacterRule
from guideway_xgrammar.matcher import NO_TOKEN, XgrammarCompiled, XgrammarMatcher

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Options:
    """The settings of an operator under ``[grammar.xgrammar]``."""

    max_threads: int = 4
    """Threads of one compile, at least 1."""


_COMPACT: dict[str, Any] = {"any_whitespace": False, "separators": (",", ":")}
_SPACED: dict[str, Any] = {"any_whitespace": False, "separators": (", ", ": ")}
# xgrammar cannot bound white space as a rule does, so it allows any; and with separators of compact JSON it writes a
# space after commas in arrays and objects of anything.
_AFTER_COMMA = re.compile(r'^(basic_(?:array_items|object_properties) ::= \(\()", "', re.MULTILINE)
_SEPARATOR = re.compile(r'(?<!Regex\()"[,:]"')
"""A comma or colon between JSON tokens in a compact grammar, where literals escape their quotes."""

LENGTHS = ("minLength", "maxLength")
JSON_KINDS = frozenset({"json_schema", "json_object"})
# xgrammar allows raw control characters in strings that have a length, which is not JSON. JSON needs no token with one,
# except line feed and carriage return between values, and xgrammar does keep those out of strings.
_CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")

_RAW_FORMATS = frozenset({"format:json-pointer", "format:relative-json-pointer"})
"""Formats whose patterns in xgrammar allow unescaped quotes, which is not JSON: they are removed from its schema."""

# Messages of xgrammar about well-formed text.
_PLACE = re.compile(r" at (?:position (?P<position>\d+)|line (?P<line>\d+), column (?P<column>\d+))")
_UNSUPPORTED = re.compile("support|not implemented|exceed|limit", re.IGNORECASE)
# Messages about schemas that xgrammar misreads.
_CLOSED = re.compile("additional (?:items|properties) are(?:n't| not) allowed|less than the number of prefixItems")

_CHARACTER = re.compile(r"\\.|[^\x00-\x7f]", re.DOTALL)
"""A character of an expression that is escaped, or not ASCII."""
APPLYING = "`$ref`, `allOf`, `anyOf`, `oneOf`, `not` or `if`"
_LARK = 'start: "[" (NUMBER ("," NUMBER)*)? "]"\nNUMBER: /[0-9]+/'
_DIALECTS = {
    "ebnf": 'root ::= "[" (number ("," number)*)? "]"\nnumber ::= [0-9]+',
    **({"lark": _LARK} if hasattr(xgr.GrammarCompiler, "compile_lark") else {}),
}
"""The dialects that this xgrammar reads, each with a grammar of the same language: lists of numbers."""


class Strategy(GrammarStrategy):
    """A grammar strategy with two compilers, because JSON may not use some tokens."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str] = "xgrammar"
    kinds: ClassVar[frozenset[str]] = frozenset(
        {"json_schema", "json_object", "regex", "choice", "structural_tag"}
        | {f"grammar:{dialect}" for dialect in _DIALECTS}
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None
    limits = MappingProxyType({"strings": 640, "properties": 600, "stars": 150})
    examples: ClassVar[Sequence[GrammarExample]] = tuple(
        GrammarExample(Grammar(text, dialect), (b"[]", b"[1,22,3]"), (b"[", b"[1,]", b"[01,x]", b""))
        for dialect, text in _DIALECTS.items()
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self._options = parse_options(Options, options, where="grammar.xgrammar")
        if self._options.max_threads < 1:
            raise InvalidConfiguration(
                f"option 'max_threads' of grammar.xgrammar must be at least 1, not {self._options.max_threads}",
                field="grammar.xgrammar.max_threads",
            )
        self._specials = frozenset(i for i, token in enumerate(vocabulary.tokens) if not token)
        if not self._specials:
            raise InvalidConfiguration(
                "xgrammar needs a vocabulary with at least one special token (without bytes) to end outputs",
                field="vocabulary",
            )
        self._batch = xgr.BatchGrammarMatcher(max_threads=1)
        self._plain = _Compiler(vocabulary, vocabulary.tokens, self._options.max_threads)
        self._json = _Compiler(
            vocabulary,
            tuple(b"" if _CONTROL.search(token) else token for token in vocabulary.tokens),
            self._options.max_threads,
        )

        self._rules = {word: WritingRule(self._json.tokens, word) for word in WHITESPACE}
        self._characters = CharacterRule(self._plain.tokens)

    @property
    def takes(self) -> Set[str]:
        return SUPPORT.takes()

    def supports(self, constraint: Constraint) -> Support:
        if isinstance(constraint, JsonSchema):
            found = _mark_names(SUPPORT.support(constraint), constraint, [constraint.parsed])
            return _mark_whitespace(found, constraint.spacing, [constraint.parsed])
        if isinstance(constraint, StructuralTag):
            return self._tag_support(constraint)
        if isinstance(constraint, Regex):
            return SUPPORT.support_of_regex(constraint)
        is_open = constraint.kind == "grammar:lark" and "%json" in constraint.source()  # its schema is not examined
        return Support(enforced=frozenset({constraint.kind}), unenforced=frozenset({"%json"} if is_open else ()))

    def _tag_support(self, constraint: StructuralTag) -> Support:
        """Return the support for all schemas in a structural tag."""
        tag = constraint.parsed
        for node in tag_nodes(tag):
            if (kind := node.get("type")) in ("token", "exclude_token", "any_tokens", "token_triggered_tags"):
                return Support(reason=f"structural tags of type {kind} are not supported: a grammar has no tokens")
        schemas = tag_schemas(tag)
        found = _mark_names(SUPPORT.support(constraint, schemas), constraint, schemas)
        regions = [node for node in tag_nodes(tag) if node.get("type") == "json_schema" and not _is_plain(node)]
        if not found.refused and regions:
            names = {name for region in regions for node in _texts_in(region) for name in LENGTHS if name in node}
            names |= {"whitespace"} if constraint.spacing != "any" else set()
            found = replace(found, enforced=found.enforced - names, unenforced=found.unenforced | names)
        return _mark_whitespace(found, constraint.spacing, schemas)

    def compile(self, constraint: Constraint) -> XgrammarCompiled:
        kind = constraint.kind
        if kind not in self.kinds:
            raise UnsupportedGrammar(f"{SUPPORT.library} has no constraints of kind {kind}", feature=kind)
        source = constraint.source()
        if isinstance(constraint, JsonSchema):
            constraint.cached(check_schema)
            if constraint.parsed is False:
                raise InvalidGrammar("the schema `false` allows nothing")
        elif isinstance(constraint, StructuralTag):
            for schema in tag_schemas(constraint.parsed):
                constraint.cached(check_schema, schema)
            if (reason := self._tag_support(constraint).reason) is not None:
                raise UnsupportedGrammar(reason, feature=kind)
        compiler = self._json if kind in JSON_KINDS else self._plain
        rule = self._rules[constraint.spacing or "any"] if kind in JSON_KINDS else self._characters
        try:
            native = self._compile(compiler.native, constraint, source)
        except (InvalidGrammar, UnsupportedGrammar):
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            _refuse(kind, source, error)
        compiled = XgrammarCompiled(native, compiler.tokens, rule, looks_ahead=names_may_run_out(constraint))
        try:
            compiled.matcher(self._specials).fill_bitmask(allocate(1, self.vocabulary.logits_width), 0)
        except DeadEnd as error:
            raise InvalidGrammar("no text of this vocabulary matches the constraint") from error
        return compiled

    def _compile(self, compiler: xgr.GrammarCompiler, constraint: Constraint, source: str) -> xgr.CompiledGrammar:
        if isinstance(constraint, StructuralTag):
            for node in tag_nodes(constraint.parsed):
                if node.get("type") == "regex" and isinstance(node.get("pattern"), str):
                    _check_anchors(node["pattern"])
            tag = _set_whitespace(_modernize(constraint.parsed), constraint)
            return compiler.compile_structural_tag(json.dumps(tag))
        if isinstance(constraint, JsonSchema):
            schema = _spell(constraint, constraint.parsed)
            source = source if schema is constraint.parsed else json.dumps(schema)
        match kind := constraint.kind:
            case "json_schema" | "json_object":
                return compiler.compile_json_schema(
                    '{"type":"object"}' if kind == "json_object" else source,
                    strict_mode=kind == "json_schema",
                    **(_SPACED if constraint.spacing == "spaced" else {}),
                )
            case "regex":
                _check_anchors(source)
                return compiler.compile_regex(spelled_out(source, python(), _escape))
            case "choice":
                return compiler.compile_grammar("root ::= " + " | ".join(map(_ebnf_literal, json.loads(source))))
            case "grammar:ebnf":
                return compiler.compile_grammar(source)
        return compiler.compile_lark(source)

    def advance(self, matchers: Sequence[Matcher], token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Accept token by token: xgrammar's call for a batch takes twice as long, to convert its results."""
        found = []
        for matcher, token_id in zip(cast("Sequence[XgrammarMatcher]", matchers), token_ids.tolist(), strict=True):
            try:
                found.append(int(matcher.advance(token_id)))
            except Exception:  # the host finds out why
                found.append(-1)
        return np.array(found, dtype=np.int32)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """Fill all rows in one call of the library if there are no drafts; the calls are most of the cost. One thread:
        a second one costs more than it saves (``tests/benchmarks/results/batch_fill.md``)."""
        if any(job.draft_token_ids for job in jobs):
            return super().fill(jobs, bitmask)
        rows = [job.first_row for job in jobs]
        matchers = cast("list[XgrammarMatcher]", [job.matcher for job in jobs])
        try:
            self._batch.batch_fill_next_token_bitmask([matcher.native for matcher in matchers], bitmask, rows)
        except Exception:  # filling them one by one shows which job failed
            return super().fill(jobs, bitmask)
        restrict(bitmask, rows, [(matcher.rule, matcher.places[-1]) for matcher in matchers])
        for matcher, row in zip(matchers, rows, strict=True):
            if matcher.looks_ahead:
                matcher.keep_names(bitmask[row])
        accepted = np.zeros(len(jobs), dtype=np.int32)
        for i in np.flatnonzero(empty_rows(bitmask[in_a_row(rows)])).tolist():
            jobs[i].error = DeadEnd(NO_TOKEN)
            accepted[i] = -1
        return accepted


class _Compiler:
    """xgrammar's compiler for one spelling of the vocabulary; its cache is off because the host caches grammars."""

    def __init__(self, vocabulary: Vocabulary, tokens: Sequence[bytes], max_threads: int) -> None:
        self.tokens = tokens
        self.tokenizer_info = xgr.TokenizerInfo(
            list(tokens),
            xgr.VocabType.RAW,
            # whole words, so that xgrammar treats every bit past the vocabulary as a special token
            vocab_size=num_words(vocabulary.logits_width) * 32,
            # each matcher has its own; a token listed here would be legal as text of no bytes in the others
            stop_token_ids=[],
        )
        self.native = xgr.GrammarCompiler(self.tokenizer_info, max_threads=max_threads, cache_enabled=False)


def _check_anchors(pattern: str) -> None:
    """Raise `UnsupportedGrammar` for an anchor inside an expression, which xgrammar leaves out."""
    if "anchor" in pattern_details(pattern):
        shown = excerpt(pattern, place_of_detail(pattern, "anchor"))
        message = f"{SUPPORT.library} leaves out a `^` or `$` inside a pattern{shown}"
        raise UnsupportedGrammar(message, feature="regex:anchor")


def _refuse(kind: str, source: str, error: Exception) -> NoReturn:
    # "[time] /path/file.cc:123: what" and sometimes "Check failed: (...) is false: what"
    if "bad_alloc" in str(error):
        raise MemoryError(f"{SUPPORT.library} ran out of memory") from error
    message = re.sub(r"\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is false: )?", "", str(error).strip())
    message = f"{SUPPORT.library}: {message.splitlines()[0][:300] if message else type(error).__name__}"
    place = _PLACE.search(message)
    if kind == "regex" and place and place["line"]:  # the place is in a grammar that xgrammar made from the regex
        message = message.replace(place[0], "", 1)
    shown = "" if place is None else _show(kind, source, place)
    if _CLOSED.search(message):
        message += (
            ". The schema may have instances, but xgrammar requires every item of `prefixItems`, and allows only "
            "listed properties and items unless the schema has `additionalProperties` or `items`"
        )
    # a schema was checked already; xgrammar may find it empty only because it closes objects
    is_lacking = _UNSUPPORTED.search(message) or (kind == "regex" and python_reads(source))
    if kind in ("json_schema", "json_object") or is_lacking:
        raise UnsupportedGrammar(message + shown, feature=kind) from error
    raise InvalidGrammar(message + shown) from error


def _show(kind: str, source: str, place: re.Match[str]) -> str:
    """Return an excerpt of the user's text at the place; empty if the place is unknown."""
    if kind == "regex" and place["position"]:
        return excerpt(source, int(place["position"]) - 1)
    lines = source.split("\n")
    if not kind.startswith("grammar") or not place["line"] or int(place["line"]) > len(lines):
        return ""
    number, column = int(place["line"]) - 1, int(place["column"]) - 1  # the column counts bytes
    before = lines[number].encode()[:column].decode(errors="ignore")
    return excerpt(source, sum(len(line) + 1 for line in lines[:number]) + len(before))


def _mark_names(found: Support, constraint: JsonSchema | StructuralTag, schemas: Sequence[Schema]) -> Support:
    """Return `found`; ``properties`` is unenforced where xgrammar also takes a property's name for an additional
    one."""
    source = constraint.source()
    if found.refused or (source.isascii() and "\\" not in source):
        return found
    nodes = (node for schema in schemas for _, node in subschemas(schema))
    if not any(map(hides_names, nodes)):
        return found
    return replace(found, enforced=found.enforced - {"properties"}, unenforced=found.unenforced | {"properties"})


def _mark_whitespace(found: Support, whitespace: Whitespace, schemas: Sequence[Schema]) -> Support:
    """Return `found`; ``whitespace`` is unenforced if ``enum`` or ``const`` have arrays or objects, which xgrammar
    always writes compact."""
    if whitespace != "spaced" or found.refused:
        return found
    nodes = (node for schema in schemas for _, node in subschemas(schema) if isinstance(node, Mapping))
    values = (value for node in nodes for value in (*node.get("enum", ()), node.get("const")))
    if all(json.dumps(value) == json.dumps(value, separators=(",", ":")) for value in values if _is_container(value)):
        return found
    return replace(found, unenforced=found.unenforced | {"whitespace"})


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _spell(constraint: JsonSchema | StructuralTag, schema: Schema) -> Schema:
    """Return `schema`, the parsed constraint or a part of it, with formats as patterns: xgrammar's own accept 30
    February. Names of properties get the type string, because xgrammar would write any value for one. Raises
    `UnsupportedGrammar` where that is impossible."""
    names = constraint.cached(assertions, schema).keywords
    found = with_patterns(schema, names)
    if not names.isdisjoint(_RAW_FORMATS):
        found = json.loads(json.dumps(found))
        for _, node in subschemas(found):
            if isinstance(node, dict) and f"format:{node.get('format')}" in _RAW_FORMATS:
                del node["format"]
    if any(name.startswith("pattern") for name in names):
        found = with_spelled_patterns(found, _escape, _in_ascii)
    return _with_string_names(found) if names & {"propertyNames", "propertyNames:untyped"} else found


def _in_ascii(pattern: str) -> str:
    """Escape the characters of an expression that would make xgrammar allow raw quotes in JSON strings."""
    return _CHARACTER.sub(lambda found: found[0] if found[0].isascii() else _escape(ord(found[0][-1])), pattern)


def _escape(code: int) -> str:
    """Escape a character."""
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def _with_string_names(schema: Schema) -> Schema:
    copy: Schema = json.loads(json.dumps(schema))
    for pointer, node in subschemas(copy):
        if not isinstance(node, dict) or "propertyNames" not in node:
            continue
        names = node["propertyNames"]
        if names is True:
            del node["propertyNames"]
            continue
        keeps_type = isinstance(names, dict) and not names.keys() & IN_PLACE_APPLICATORS
        if not keeps_type or names.setdefault("type", "string") != "string":
            raise UnsupportedGrammar(
                f'{pointer}/propertyNames: {SUPPORT.library} needs `"type": "string"` there, and no {APPLYING}',
                feature="propertyNames:untyped",
            )
        _keep_strings(names, f"{pointer}/propertyNames")
    return copy


def _keep_strings(names: dict[str, Any], pointer: str) -> None:
    """Remove values that are not strings from the allowed names: xgrammar writes them regardless of ``type``."""
    for keyword, values in (("enum", names.get("enum")), ("const", [names["const"]] if "const" in names else None)):
        strings = [value for value in values or () if isinstance(value, str)]
        if values is not None and not strings:
            raise UnsupportedGrammar(f"{pointer}/{keyword}: no name of a property is such a value", feature=keyword)
        if keyword == "enum" and values is not None:
            names["enum"] = strings


def _set_whitespace(tag: Any, constraint: StructuralTag) -> Any:
    """Return a copy of a tag in xgrammar's present form, with the requested white space in its JSON regions."""
    whitespace = constraint.spacing
    if isinstance(tag, list):
        return [_set_whitespace(item, constraint) for item in tag]
    if not isinstance(tag, dict):
        return tag
    if tag.get("type") != "json_schema":
        return {k: v if k in ("json_schema", "schema") else _set_whitespace(v, constraint) for k, v in tag.items()}
    if isinstance(tag.get("json_schema"), dict):
        tag = {**tag, "json_schema": _spell(constraint, tag["json_schema"])}
        if not _is_plain(tag):
            tag["json_schema"] = json.loads(json.dumps(tag["json_schema"]))
            for node in list(_texts_in(tag)):
                for name in LENGTHS:
                    node.pop(name, None)
    if whitespace == "any":
        return tag
    if not _is_plain(tag):  # `supports` lists white space
        return {"max_whitespace_cnt": MAX_INDENTATION, **tag} if whitespace == "bounded" else tag
    # xgrammar has no other white space here, but accepts the grammar that it would make from the schema
    schema, any_order = json.dumps(tag["json_schema"]), tag.get("any_order", False)
    options = _SPACED if whitespace == "spaced" else _COMPACT
    grammar = str(xgr.Grammar.from_json_schema(schema, any_order=any_order, **options))
    if whitespace != "spaced":
        grammar = _AFTER_COMMA.sub(r'\1","', grammar)
    own = tag.get("max_whitespace_cnt")
    if whitespace == "bounded" and own != 0:
        gap = _gap(MAX_INDENTATION + 2 if own is None else own)
        grammar = _SEPARATOR.sub(lambda separator: f"{gap} {separator[0]} {gap}", grammar)
    return {"type": "grammar", "grammar": grammar}


def _gap(most: int) -> str:
    """Return an expression for bounded white space of at most `most` characters, at least 1."""
    choices = ['""', '" "']
    for line_end in ("\n", "\r\n"):
        blanks = min(MAX_INDENTATION, most - len(line_end))
        if blanks >= 0:
            choices.append(json.dumps(line_end) + (rf" [ \t]{{0,{blanks}}}" if blanks else ""))
    return f"({' | '.join(choices)})"


def _is_plain(region: Mapping[str, Any]) -> bool:
    """Return whether a grammar can express everything about a JSON region."""
    return region.get("style", "json") == "json" and not region.get("excludes")


def _texts_in(region: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the subschemas of the strings of a JSON region whose lengths xgrammar does not enforce: of all with
    `excludes`, and of those that are the text of an element. Such a text may contain the end of its element, so that a
    parser reads a shorter one, and no mask shows that the element may end."""
    schema = region.get("json_schema", True)
    if region.get("excludes"):
        yield from (node for _, node in subschemas(schema) if isinstance(node, dict))
        return
    pending, seen = [(schema, False)], set[tuple[int, bool]]()
    while pending:
        node, is_text = pending.pop()
        if not isinstance(node, dict) or (id(node), is_text) in seen:
            continue
        seen.add((id(node), is_text))
        if is_text:
            yield node
        pending += [(part, is_text) for keyword in ("allOf", "anyOf", "oneOf") for part in node.get(keyword, ())]
        pending.append((resolve(schema, node["$ref"]) if "$ref" in node else None, is_text))
        if not is_text:
            elements = [*node.get("properties", {}).values(), *node.get("patternProperties", {}).values()]
            pending += [(part, True) for part in (*elements, node.get("additionalProperties"))]


def _modernize(tag: Any) -> Any:
    """Convert a tag with ``structures`` and ``triggers``, vLLM's first form, to xgrammar's present form."""
    if not isinstance(tag, dict) or "structures" not in tag:
        return tag
    try:
        tags = [
            {"begin": s["begin"], "content": {"type": "json_schema", "json_schema": s["schema"]}, "end": s["end"]}
            for s in tag["structures"]
        ]
        triggers = tag["triggers"]
    except (KeyError, TypeError) as error:
        raise InvalidGrammar(
            "a structural tag with `structures` needs `triggers`, and in each structure `begin`, `schema` and `end`"
        ) from error
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def _ebnf_literal(text: str) -> str:
    return '"' + "".join(f"\\U{ord(c):08x}" for c in text) + '"'


def _measure() -> Table:
    from guideway.json_schema.prober import byte_vocabulary, probe

    return probe(Strategy(byte_vocabulary(), {}))


SUPPORT = SupportTable("xgrammar", "guideway_xgrammar", _measure)
"""The keywords that the installed xgrammar enforces: a table per version, by ``python -m guideway_xgrammar.probe``."""
