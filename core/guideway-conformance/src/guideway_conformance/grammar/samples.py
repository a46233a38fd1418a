"""Constraints that a strategy is tested with: plain ones, whose meaning no dialect disputes."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from guideway.api import Choice, Constraint, GrammarExample, JsonObject, JsonSchema, Regex, StructuralTag
from guideway.json_schema import keywords
from guideway.json_schema.validity import validator

from guideway_conformance.grammar.vocabularies import standard

__all__ = ["LOOPS", "MEANT", "RARE_REGEX", "SAMPLES", "Sample", "loop", "of_example", "spellings"]

Spellings: TypeAlias = tuple[bytes, ...]
"""Ways to write one output: a strategy may take any of them, and need not take more than one."""


@dataclass(frozen=True)
class Sample:
    """A constraint, outputs of its language, and texts that are no output."""

    constraint: Constraint
    accepted: tuple[Spellings, ...] = ()
    rejected: tuple[bytes, ...] = ()
    flaw: Callable[[bytes], str | None] = lambda _: None
    """A function that says what is wrong with a complete output, if anything: it judges what a strategy produces."""
    is_plain: bool = True
    """True if each of `accepted` has to be; of a schema with harder keywords one has to be, because a strategy that
    allows less than the schema does still enforces it."""

    @property
    def name(self) -> str:
        """The name that messages call it by."""
        fields = {k: v for k, v in vars(self.constraint).items() if k != "strategy"}
        return f"{self.constraint.kind} {' '.join(map(str, fields.values()))}"[:120]


def spellings(value: Any) -> Spellings:
    """The usual ways to write a JSON value."""
    ways: list[dict[str, Any]] = [
        {"separators": (",", ":")},
        {},
        {"separators": (", ", ":")},
        {"indent": 2},
        {"indent": 4},
    ]
    texts = (json.dumps(value, ensure_ascii=escaped, **way).encode() for escaped in (False, True) for way in ways)
    return tuple(dict.fromkeys(texts))


def of_example(example: GrammarExample) -> Sample:
    """An example a plugin's author gave."""
    return Sample(example.constraint, tuple((text,) for text in example.accepted), tuple(example.rejected))


def _regex(pattern: str, accepted: Sequence[str], rejected: Sequence[str], malformed: Sequence[bytes] = ()) -> Sample:
    sample = _text(Regex(pattern), accepted, rejected)
    return replace(sample, rejected=(*sample.rejected, *malformed))


def _choice(*choices: str, rejected: Sequence[str] = ()) -> Sample:
    return _text(Choice(list(choices)), choices, rejected)


def _text(constraint: Constraint, accepted: Sequence[str], rejected: Sequence[str]) -> Sample:
    return Sample(constraint, tuple((t.encode(),) for t in accepted), tuple(t.encode() for t in rejected))


def _schema(schema: Any, accepted: Sequence[Any], rejected: Sequence[Any], malformed: Sequence[bytes] = ()) -> Sample:
    wrong = (*(text for value in rejected for text in spellings(value)), *malformed)
    is_plain = not _HARD & keywords(schema)
    return Sample(
        JsonSchema(schema), tuple(map(spellings, accepted)), wrong, lambda text: _json_flaw(schema, text), is_plain
    )


def _json_flaw(schema: Any, text: bytes) -> str | None:
    try:
        value = json.loads(text.decode(), parse_float=_number, parse_constant=_no_constant)
    except ValueError as error:
        return f"is no JSON ({error})"
    return None if validator(schema).is_valid(value) else "does not obey the schema"


def _number(text: str) -> int | float:
    """1.0 is an integer in JSON Schema, and so is what no float can hold."""
    value = float(text)
    if math.isinf(value):
        return 10**400 if value > 0 else -(10**400)
    return int(value) if value.is_integer() else value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is Python's, not JSON's")


def is_match(pattern: str, text: str) -> bool:
    """Return whether `text` as a whole matches `pattern` as Python reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.fullmatch(pattern, text) is not None


_HARD = frozenset({"anyOf", "$ref", "pattern", "minItems", "maxItems", "minimum", "maximum"})
_NO_CHARACTERS = (
    *(b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf"),
    *(b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\x80", b"\xe9", b"\xc3", b"\xe4\xb8", b"\xff", b"\xff\xfe"),
)
"""Forms that are too long, surrogates, numbers past the last character, and characters that are cut."""
_NO_UTF8 = tuple(no for no in _NO_CHARACTERS if no[0] != 0xED)
_NO_STRINGS = (
    *(b'"a\nb"', b'"\x00"', b'"\x1f"', b'"\\x"', b'"\\u12"', b'"a', b"'a'", b'"a" "b"'),
    *(b'"%s"' % no for no in _NO_CHARACTERS),
)
_NO_NAMES = tuple(b'{"%s":1}' % no for no in _NO_CHARACTERS)
_NULL = {"type": "null"}
_INTEGER = {"type": "integer"}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": _INTEGER},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_OPTIONAL = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": _INTEGER, "c": _NULL},
    "required": ["b"],
    "additionalProperties": False,
}
_TREE = {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/tree"}, _NULL]}}
_FLAG = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}

_REGEX = (
    _regex("abc[0-9]", ["abc0", "abc7"], ["abc", "abd1", "abc12", ""]),
    _regex("(a|b)*abb", ["abb", "aababb"], ["ab", "abba", "abbc"]),
    _regex("[ab]{2,4}|é+中?", ["ab", "baba", "é", "éé中"], ["a", "ababa", "中", "é中中"]),
    _regex("a*", ["", "aaa"], ["b", "aab"]),
    _regex("yes|no|maybe", ["yes", "maybe"], ["ye", "yesno", "y"]),
    _regex("a+b?c*", ["a", "aab", "abcc"], ["b", "abb", "c"]),
    _regex("(foo|bar)(,(foo|bar))*", ["foo", "bar,foo,bar"], ["foo,", ",foo", "foobar"]),
    _regex("[a-z]+@[a-z]+", ["a@b", "foo@bar"], ["@b", "a@", "a@b@c"]),
    _regex("(ab){1,3}c", ["abc", "abababc"], ["c", "ababababc", "aabc"]),
    _regex("-?(0|[1-9][0-9]*)", ["0", "-12", "100"], ["01", "-", "1-"]),
    _regex("x{3}", ["xxx"], ["xx", "xxxx"]),
    _regex("a{2,}", ["aa", "aaaaa"], ["a", "aab"]),
    _regex("(a|ab)(c|bcd)", ["ac", "abc", "abcd", "abbcd"], ["a", "ab", "abcc"]),
)

RARE_REGEX = (
    _regex("[é]", ["é"], ["e", "è"], [b"\xe9", b"\xc3"]),
    _regex("[äöü]+", ["ä", "öü"], ["a", "äa"], [b"\xe4", b"\xf6\xfc"]),
    _regex("[ж-я]", ["щ"], ["a", "Я"], [b"\xd0"]),
    _regex("[^é]", ["e", "è", "中"], ["é", "ee"], _NO_UTF8),
    _regex("[^a]", ["b", "é", "中"], ["a", "bb"], _NO_UTF8),
    _regex(".", ["a", "é", "中", "\U0001f600"], ["", "aa"], _NO_UTF8),
    _regex("xa{0,0}", ["x"], ["xa", "xaaa"]),
    _regex("xa{0}", ["x"], ["xa", "xaaa"]),
    _regex("x(ab){0,0}y", ["xy"], ["xaby", "xababy"]),
    _regex("xa{0,1}", ["x", "xa"], ["xaa"]),
    _regex("xa{1,1}", ["xa"], ["x", "xaa"]),
)
"""For rules of expressions alone: letters past ASCII, bytes that are no character, and repetitions of nothing."""

_MEANT: tuple[tuple[str, tuple[str, ...]], ...] = (
    *((pattern, ("ab", "a b", "a", "b", "a$b", "a^b", "$", "^")) for pattern in ("a$b", "a^b", "(a$|b)b", "a(^b|c)")),
    *((pattern, ("ab", "a b", "a", "abb")) for pattern in (r"a\bb", r"a\Bb", r"a\b b", r"\Bab", r"\bab\b", r"ab\B")),
    *((pattern, ("ab", "ab\n", "aab", "abb", "AabZ", "Aab", "abZ")) for pattern in ("^ab$", "^ab", "ab$", r"\Aab\Z")),
    *((pattern, ("a", "ac", "bc", "b", "c")) for pattern in ("(^a|b)c", "a|^b", "(a$|b)c", "^a|b$")),
    *((pattern, ("yes", "YES", "Yes", "i:yes")) for pattern in ("(?i:yes)", "(?i)yes", "(?-i:yes)", "y(?i:e)s")),
    *((pattern, ("a\nb", "ab", "a b", "axb", "a.b")) for pattern in ("(?s:a.b)", "(?s)a.b", "(?x:a b)", "(?x) a b")),
    *((pattern, ("a", "a\na", "aa", "\na")) for pattern in ("(?m:^a$)", "(?m)^a$\n^a$")),
    *((pattern, ("aab", "b", "ab", "a*?b", "a+b")) for pattern in ("a*?b", "a+?b", "a??b", "a*+b", "a++b")),
    *((pattern, ("abc", "ac", "abbc", "a:c")) for pattern in ("(?:a|ab)c", "(?>a|ab)c", "(?P<x>a|ab)c")),
    *((pattern, ("ab", "aa", "a1", "a\\1")) for pattern in (r"(a)\1", r"(?P<x>a)(?P=x)", r"(a)(?(1)b|c)")),
    *((pattern, ("ab", "a", "b")) for pattern in ("a(?=b)b", "a(?!b)b", "(?<=a)b", "a(?<!a)b")),
    *(
        (pattern, ("a", "&", "-", "b", "]", "^", "[", "a&&b"))
        for pattern in ("[a&&b]", "[]a]", "[^]a]", "[a^]", "[a-]")
    ),
    *((pattern, ("a", "aa", "a{,2}", "", "aaa")) for pattern in ("a{,2}", "a{0,2}")),
    *((pattern, ("A", "x41", r"\x41", "é", "u00e9")) for pattern in (r"\x41", r"\u00e9", r"\t|\n")),
    *((pattern, ("a/b", "a-b", "$", r"\$", "a.b", "axb")) for pattern in (r"a\/b", r"a\-b", r"\$", r"a\.b")),
)
_ANY = (*"aZ0_- \n\r\t\x0b\x1c\x85\xa0\u2003\u2028\u3000\u0663éβ中\xb2\u0301\U0001f600",)
_MEANT += tuple(
    (pattern, _ANY) for pattern in (".", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"[^\s]", r"[^\w-]", r"[\d\s]")
)
MEANT = tuple(
    _regex(pattern, [t for t in texts if is_match(pattern, t)], [t for t in texts if not is_match(pattern, t)])
    for pattern, texts in _MEANT
)
"""Expressions that few engines have all of, and texts that match each as a whole or not, in the words of Python."""

_CHOICE = (
    _choice("yes", "no", rejected=["ye", "yesno", "maybe", ""]),
    _choice("a", "ab", "abc", rejected=["b", "abcd", ""]),
    _choice("foobar", "foo", "abc", "a", rejected=["f", "foob", "ab", ""]),
    _choice("é", "è", "中文", rejected=["中", "e"]),
    _choice('a"b', "[x]", "a\\b", "a.b", rejected=["ab", "x", "a/b", "axb"]),
    _choice("a.b", "x+y", "[n]", "(z)", rejected=["axb", "xy", "xxy", "n", "z"]),
    _choice("<unk>", "</s>a", "<|tool|>", rejected=["<", "</s>", "a"]),
    _choice("", "ab", rejected=["a", "b", "abab"]),
    _choice(" a", "b ", "\n", "c", rejected=["a", "b", "", " c", "c "]),
    _choice(*(f"{i:03}" for i in range(200)), rejected=["200", "00", "0000"]),
)

_JSON_SCHEMA = (
    _schema(
        _PERSON, [{"name": "Ann", "age": 3}, {"name": "", "age": -10}], [{"name": "Ann"}, {"name": 1, "age": 3}, [], 1]
    ),
    _schema({"type": "boolean"}, [True, False], [1, "true", None, [True]]),
    _schema(
        _OPTIONAL,
        [{"b": 1}, {"a": True, "b": 0, "c": None}],
        [{}, {"a": 1, "b": 1}, {"b": 1, "d": 1}],
        [b'{"b":1,}', b"{b:1}", b'{"b":1 "c":null}'],
    ),
    _schema({"enum": ["red", "green", 1]}, ["red", "green", 1], ["blue", "re", 2, None]),
    _schema(_INTEGER, [0, 12, -3], [1.5, "1", None, [1]]),
    _schema({"type": "string"}, ["", "abc", "é中", 'a"b'], [1, None, ["a"]], _NO_STRINGS),
    _schema({"type": "number"}, [0, 1.5, -2], ["1", True], [b"01", b"1.", b"+1", b".5", b"1e", b"NaN"]),
    _schema(
        {"type": "array", "items": _INTEGER}, [[], [1], [1, 2, 3]], [["a"], {}, [1, None]], [b"[1,]", b"[,1]", b"[1 2]"]
    ),
    _schema(
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        [[True], [True, False, True]],
        [[], [True] * 4, [1]],
    ),
    _schema({"anyOf": [_INTEGER, _NULL]}, [1, None], ["a", True, []]),
    _schema({"type": "string", "pattern": "^[ab]{1,3}$"}, ["a", "bab"], ["", "abab", "c"]),
    _schema({"type": "integer", "minimum": 1, "maximum": 120}, [1, 120, 64], [0, 121, -5]),
    _schema({"$ref": "#/$defs/tree", "$defs": {"tree": _TREE}}, [[], [[None], None]], [[1], {}, None]),
    _schema(
        {"type": "object", "properties": {"p": _PERSON}, "required": ["p"], "additionalProperties": False},
        [{"p": {"name": "é", "age": 1}}],
        [{}, {"p": {}}, {"p": None}],
    ),
)

_JSON_OBJECT = (
    Sample(
        JsonObject(),
        tuple(map(spellings, [{}, {"a": 1}, {"a": {"b": [1, None, "x", True]}}])),
        (*(text for value in ([1], 1, "x", None) for text in spellings(value)), *_NO_NAMES),
        lambda text: _json_flaw({"type": "object"}, text),
    ),
)

_STRUCTURAL_TAG = (
    Sample(
        StructuralTag({"structures": [{"begin": "<f>", "schema": _FLAG, "end": "</f>"}], "triggers": ["<f"]}),
        (*(tuple(b"a <f>" + text + b"</f>" for text in spellings({"a": v})) for v in (True, False)), (b"abc",)),
        (*(b"<f>" + text + b"</f>" for text in spellings({"a": 1})), b"<f>1</f>", b"<f>x", b"<fx"),
    ),
    Sample(
        StructuralTag(
            {
                "type": "structural_tag",
                "format": {
                    "type": "tag",
                    "begin": "<f>",
                    "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
                    "end": "</f>",
                },
            }
        ),
        ((b"<f>true</f>",), (b"<f>false</f>",)),
        (b"<f>1</f>", b"true", b"<f>true", b"<f>null</f>"),
    ),
)

SAMPLES: dict[str, tuple[Sample, ...]] = {
    "regex": _REGEX,
    "choice": _CHOICE,
    "json_schema": _JSON_SCHEMA,
    "json_object": _JSON_OBJECT,
    "structural_tag": _STRUCTURAL_TAG,
}
"""By kind, the plainest first."""

LOOPS: tuple[tuple[Sample, bytes, tuple[bytes, ...]], ...] = (
    (Sample(Regex("(ab|c)*")), b"", (b"a", b"b", b"c")),
    (Sample(JsonSchema({"type": "array", "items": {"type": "boolean"}})), b"[", (b"true", b",", b"false", b",")),
)
"""Constraints without an end; a token to begin with, and tokens that may follow again and again."""


def loop(first: bytes, pieces: Sequence[bytes], length: int) -> list[int]:
    """So many tokens of one of `LOOPS`, in the standard vocabulary."""
    tokens = standard().tokens
    around = [tokens.index(piece) for piece in pieces]
    token_ids = [tokens.index(first)] if first else []
    return [*token_ids, *(length * around)][:length]
