"""Checks of what compile and the constructor may raise, and of what compiling gives."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from guideway.api import (
    Choice,
    Constraint,
    DeadEnd,
    Grammar,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    UnsupportedGrammar,
)

from guideway_conformance.grammar.samples import SAMPLES, Sample
from guideway_conformance.grammar.session import expect_same, row_of, walk
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__ = ["hostile"]

STACK_BYTES = 64 << 20
_DEEP = 5000
_NESTED: dict[str, object] = {"type": "null"}
for _ in range(200):
    _NESTED = {"type": "array", "items": _NESTED}

_NO_WORD: Any = "wide"
_MALFORMED: tuple[Constraint, ...] = (
    Regex("("),
    Regex("[b-a]"),
    Regex("[a"),
    Regex("b\udc80"),
    JsonSchema("{"),
    JsonSchema({"type": "strin"}),
    JsonSchema({"type": "object", "properties": []}),
    *(JsonSchema(schema, whitespace=_NO_WORD) for schema in ({"type": "integer"}, {"type": "boolean"}, {})),
    JsonObject(whitespace=_NO_WORD),
    Choice("yes"),
    Choice([]),
    Choice([1]),  # type: ignore[list-item]
    StructuralTag("{"),
)

_RARE = tuple(map(Regex, ("(?=a)a", "(?!b)a", "(?P<x>a)", "(?i)a", r"\bA\b", r"(a)\1", r"\p{L}", "a{20001}")))
"""Expressions that are well-formed, which few engines take."""

_EMPTY: tuple[Constraint, ...] = (JsonSchema(False), Regex(r"[^\s\S]"))

_HOSTILE: tuple[Constraint, ...] = (
    *(Regex(text) for text in ("", "\x00", "\\", "*", "a|*", "(?P<x", "(?=a)b", "\\x{110000}", "a**", "[]", "$^")),
    Regex("(" * _DEEP),
    Regex("(" * _DEEP + "a" + ")" * _DEEP),
    JsonSchema({"type": "string", "pattern": "("}),
    JsonSchema({"$ref": "#"}),
    JsonSchema({"$ref": "#/$defs/nothing"}),
    JsonSchema({"type": "string", "minLength": 2, "maxLength": 1}),
    JsonSchema({"allOf": [{"type": "string"}, {"type": "integer"}]}),
    JsonSchema({"enum": ["\x00", "\U0001f600"]}),
    JsonSchema({"const": {"a": [None, {}]}}),
    JsonSchema({"type": ["string", "null"], "format": "no-such-format", "x-unknown": [1]}),
    JsonSchema(_NESTED),
    JsonSchema(True),
    JsonSchema({}),
    Choice([""]),
    Choice(["\x00", "a" * 500]),
    StructuralTag({}),
    StructuralTag({"format": 1}),
    StructuralTag({"format": {"type": "x"}}),
    StructuralTag({"structures": [1], "triggers": ["<"]}),
    StructuralTag("[]"),
    StructuralTag("1"),
)


def hostile(subject: GrammarSubject) -> Iterator[Constraint]:
    """Odd, malformed and empty constraints of the kinds it declares."""
    kinds = subject.component.kinds
    yield from (c for c in (*_HOSTILE, *_MALFORMED, *_EMPTY) if c.kind in kinds)
    for kind in sorted(kinds):
        dialect = kind.removeprefix("grammar:")
        if dialect != kind:
            yield from (
                Grammar(text, dialect) for text in ("", "\x00", "%", "{", "((((", "root ::=", "start: x", "\ud800")
            )


def _compile(strategy: GrammarStrategy, constraint: Constraint) -> object:
    """The compiled grammar, or the error of the contract it raised; fails for any other."""
    try:
        return _in_compile_thread(lambda: strategy.compile(constraint))
    except (InvalidGrammar, UnsupportedGrammar) as error:
        return error
    except BaseException as error:
        raise AssertionError(
            f"compile of {constraint.kind} {str(constraint)[:80]} raised {type(error).__qualname__} "
            f"({str(error)[:200]}), not InvalidGrammar or UnsupportedGrammar"
        ) from error


def _in_compile_thread(work: Callable[[], object]) -> object:
    """Run `work`, which may return or raise, in a thread like those hosts compile in, whose stack is large."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    previous = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=run, daemon=True).start()
    finally:
        threading.stack_size(previous)
    return future.result()


@check("grammar")
def every_declared_kind_compiles(subject: GrammarSubject) -> None:
    """For each kind it declares, a strategy compiles a constraint of the suite or one of its `examples`."""
    compiled = {case.sample.constraint.kind for case in subject.few(most=1)}
    lacking = sorted(frozenset(subject.component.kinds) - compiled)
    plain = [kind for kind in lacking if kind in SAMPLES]
    expect(not plain, f"of kind {plain}, every constraint of the suite is refused; at least a plain one has to compile")
    expect(not lacking, f"of kind {lacking}, none of the class's `examples` compiles, or there are none")


@check("grammar")
def a_valid_constraint_is_not_called_invalid(subject: GrammarSubject) -> None:
    """InvalidGrammar is for what no strategy could serve; what one lacks is UnsupportedGrammar, with a feature: so are
    escapes of a regex that other engines know and Python lacks, such as `\\p{L}`."""
    strategy = subject.build()
    for sample in subject.samples():
        if strategy.supports(sample.constraint).refused:
            continue
        found = _compile(strategy, sample.constraint)
        expect(not isinstance(found, InvalidGrammar), f"{sample.name} is valid, but compile says: {found}")
        if isinstance(found, UnsupportedGrammar):
            expect(found.feature, f"{sample.name}: UnsupportedGrammar names no feature")
    for constraint in _RARE if "regex" in subject.component.kinds else ():
        found, what = _compile(strategy, constraint), f"regex {constraint.source():.60}"
        expect(not isinstance(found, InvalidGrammar), f"{what} is valid, but compile says: {found}")
        is_named = not isinstance(found, UnsupportedGrammar) or found.feature
        expect(is_named, f"{what}: UnsupportedGrammar names no feature")


@check("grammar", seconds=60)
def compile_raises_its_two_errors_only(subject: GrammarSubject) -> None:
    """Whatever the constraint, compile raises InvalidGrammar or UnsupportedGrammar and nothing else."""
    strategy = subject.build()
    for constraint in hostile(subject):
        compiled = _compile(strategy, constraint)
        if isinstance(compiled, Exception):
            continue
        matcher = compiled.matcher(standard().stop_token_ids)  # type: ignore[attr-defined]
        what = f"{constraint.kind} {str(constraint)[:80]} compiles, but"
        try:
            row = row_of(matcher, standard())
        except DeadEnd:
            continue
        expect(row.any(), f"{what} its first mask allows nothing")


@check("grammar", trait="known-kind")
def malformed_constraints_are_refused(subject: GrammarSubject) -> None:
    """A malformed constraint is not compiled."""
    strategy = subject.build()
    for constraint in _MALFORMED:
        if constraint.kind in subject.component.kinds:
            found = _compile(strategy, constraint)
            expect(isinstance(found, Exception), f"{constraint.kind} {str(constraint)[:80]} is malformed, but compiles")


@check("grammar", trait="known-kind")
def an_empty_language_is_refused(subject: GrammarSubject) -> None:
    """A grammar that matches no text at all is not compiled."""
    strategy = subject.build()
    for constraint in _EMPTY:
        if constraint.kind in subject.component.kinds:
            found = _compile(strategy, constraint)
            expect(
                isinstance(found, Exception), f"{constraint.kind} {str(constraint)[:80]} matches nothing, but compiles"
            )


@check("grammar")
def compiling_twice_gives_the_same(subject: GrammarSubject) -> None:
    """Equal constraints give equal masks, whatever was compiled in between."""
    cases = list(subject.cases())
    for case in cases:
        again = case.session()
        again.compiled = case.strategy.compile(case.sample.constraint)
        again = again.fresh()
        session = case.session()
        for _ in range(4):
            expect_same(again, session, case.vocabulary, f"{case.name}: compiled again, {session.place}")
            again.take(walk(session, case.name, 1))


_EQUAL_SOURCES: tuple[tuple[Constraint, Constraint], ...] = (
    (Regex('["a","b"]'), Choice(["a", "b"])),
    (JsonSchema({}), JsonObject()),
    (Regex("{}"), JsonObject()),
)


@check("grammar", trait="known-kind")
def equal_texts_of_two_kinds_are_two_constraints(subject: GrammarSubject) -> None:
    """Constraints of different kinds are different, though their sources be the same text."""
    for pair in _EQUAL_SOURCES:
        for first, second in (pair, pair[::-1]):
            if not {first.kind, second.kind} <= frozenset(subject.component.kinds):
                continue
            alone = compiled_case(subject.build(), standard(), Sample(second))
            strategy = subject.build()
            after = compiled_case(strategy, standard(), Sample(first)) and compiled_case(
                strategy, standard(), Sample(second)
            )
            if alone is None or after is None:
                continue
            wanted = alone.session()
            for _ in range(4):
                session = after.session().take(wanted.token_ids)
                said = f"{second.kind} {second.source()} compiled after {first.kind} {first.source()}, {session.place}"
                expect_same(session, wanted, standard(), said)
                walk(wanted, second.kind, 1)


@check("grammar")
def nbytes_is_a_number_of_bytes(subject: GrammarSubject) -> None:
    """A compiled grammar's nbytes is the memory it holds, a positive int."""
    for case in subject.few():
        nbytes = case.compiled.nbytes
        is_int = not isinstance(nbytes, float) and hasattr(type(nbytes), "__index__")
        expect(is_int, f"{case.name}: nbytes is {nbytes!r}, no int")
        expect(operator.index(nbytes) > 0, f"{case.name}: nbytes is {nbytes}, but a compiled grammar holds something")


@check("grammar")
def the_constructor_raises_its_error_only(subject: GrammarSubject) -> None:
    """A strategy raises InvalidConfiguration for options or a vocabulary it cannot work with, and nothing else: an
    option that it does not know is one of them, if it looks at its options at all."""
    for unknown in ({"no_such_option": 1}, {"no-such-option": None}, {"": "", "x": [1]}):
        options = Watched({**subject.settings.options, **unknown})
        try:
            subject.component(standard(), options)
        except InvalidConfiguration:
            continue
        except BaseException as error:
            message = f"options {options} raise {type(error).__qualname__} ({error}), not InvalidConfiguration"
            raise AssertionError(message) from error
        expect(not options.is_read, f"it looks at its options and takes {dict(unknown)}, none of which it can know")


class Watched(dict[str, Any]):
    """Options that remember whether somebody looked at what they are."""

    is_read = False

    def _read(name: str) -> Callable[..., Any]:  # type: ignore[misc]  # noqa: N805
        def read(self: Watched, *args: Any) -> Any:
            self.is_read = True
            return getattr(dict, name)(self, *args)

        return read

    __getitem__, __contains__, __iter__, __eq__, __or__, __ror__ = map(
        _read, ("__getitem__", "__contains__", "__iter__", "__eq__", "__or__", "__ror__")
    )
    get, keys, items, values, pop = map(_read, ("get", "keys", "items", "values", "pop"))
