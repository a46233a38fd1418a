"""Constraints that differ in one place, all of which live at once."""

from __future__ import annotations

import gc
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from guideway.api import (
    WHITESPACE,
    Choice,
    CompiledGrammar,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
)

from guideway_conformance.grammar.samples import Sample
from guideway_conformance.grammar.session import Seen, Session, difference, legal, observe, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

STEPS = 6
MOST_LETTERS = 12
"""The letters of a constraint that get an accent."""


def _spaced(make: Any, *args: Any) -> tuple[Constraint, ...]:
    return (*(make(*args, whitespace=word) for word in WHITESPACE), make(*args))


def _tagged(begin: str) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "boolean"}}}
    return {"type": "structural_tag", "format": {"type": "tag", "begin": begin, "content": content, "end": "</f>"}}


_VALUES: tuple[Any, ...] = (1, 1.0, True, "1", [1], [True], {"a": 1}, {"a": True}, 0, False, None, "null", [], {}, "")
_ORDERED = {"a": {"type": "integer"}, "b": {"type": "integer"}}
_TURNED = dict(reversed(_ORDERED.items()))

_GROUPS: tuple[tuple[Constraint, ...], ...] = (
    _spaced(JsonSchema, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    _spaced(JsonSchema, {"type": "array", "items": {"type": "boolean"}}),
    _spaced(JsonSchema, '{"type": "array", "items": {"type": "boolean"}}'),
    _spaced(JsonObject),
    _spaced(StructuralTag, _tagged("<f>")),
    (StructuralTag(_tagged("<f>")), StructuralTag(_tagged("<F>")), StructuralTag(_tagged("<f> "))),
    tuple(JsonSchema({"enum": [value]}, whitespace="compact") for value in _VALUES),
    tuple(JsonSchema({"const": value}, whitespace="compact") for value in _VALUES),
    tuple(
        JsonSchema({"type": "object", "properties": each, "required": names, "additionalProperties": False})
        for each in (_ORDERED, _TURNED)
        for names in (["a"], ["b"], ["a", "b"], [])
    ),
    tuple(JsonSchema({"type": "array", "items": {"type": "integer"}, "maxItems": n}) for n in (1, 2, 3, 11)),
    (JsonSchema({}), JsonSchema(True), JsonSchema({"type": "object"}), JsonObject(), Regex("{}"), Choice(["{}"])),
    tuple(map(Choice, (["ab", "c"], ["a", "bc"], ["abc"], ["a", "b", "c"], ['a", "b'], ["a, b"], ["a", "b"], ["ba"]))),
    tuple(map(Regex, ("a b", "a  b", "a b ", " a b", "A b", "a b\n", "ab", "a|b", "(a b)", "[a b]"))),
    tuple(map(Regex, ("\u00e9", "e\u0301", "\u00e8", "\u212b", "\u00c5"))),
    (Regex('["a","b"]'), Choice(["a", "b"]), Regex("a"), Choice(["a"]), JsonSchema({"const": "a"})),
)


def _of_dialects(subject: GrammarSubject) -> Iterator[tuple[Constraint, ...]]:
    """Each example in a dialect, and texts that differ from it in one place."""
    dialects = [kind.partition(":")[2] for kind in sorted(subject.component.kinds) if kind.startswith("grammar:")]
    for example in subject.component.examples:
        given = example.constraint
        if not isinstance(given, Grammar):
            continue
        text = given.text
        letter = next((i for i, char in enumerate(text) if char.isalpha()), None)
        blank = text.find(" ")
        near = [text, f"{text} ", f" {text}", f"{text}\n", f"\n{text}", text[:-1], text.swapcase()]
        near += [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC")]
        if letter is not None:
            others = ("\u00e9", "e\u0301", text[letter].swapcase())
            near += [f"{text[:letter]}{new}{text[letter + 1 :]}" for new in others]
        if blank >= 0:
            near += [f"{text[:blank]} {text[blank:]}", text[:blank] + text[blank + 1 :]]
        yield tuple(replace(given, text=each) for each in dict.fromkeys(near))
        yield tuple(replace(given, dialect=dialect) for dialect in dict.fromkeys((given.dialect, *dialects)))


def _said(constraint: Constraint) -> str:
    return f"{constraint.kind} {constraint.source()[-80:]!r}, white space {constraint.spacing}"


def _along(case: Case) -> list[tuple[list[int], list[Seen]]]:
    """Ways into a grammar, and what is seen on each."""
    found = []
    for seed in range(3):
        seen: list[Seen] = []
        session = case.session()
        token_ids = walk(session, seed, STEPS, partial(_note, seen))
        found.append((token_ids, [*seen[: len(token_ids)], observe(session)]))
    return found


def _note(seen: list[Seen], session: Session) -> None:
    seen.append(observe(session))


def _alone(subject: GrammarSubject, constraint: Constraint) -> list[tuple[list[int], list[Seen]]] | None:
    """Return what is seen of it in a strategy that compiled nothing else; None if it is refused."""
    case = compiled_case(subject.build(), standard(), Sample(constraint))
    return None if case is None else _along(case)


@check("grammar", seconds=120)
def constraints_that_live_together_are_told_apart(subject: GrammarSubject) -> None:
    """Constraints that differ in one place (white space of their JSON, dialect, kind, a letter, its case, a blank,
    an accent's form, a number's type, the order of names) are what they are alone when compiled before, after and
    beside each other, all of them alive; and so are those read from their bytes."""
    kinds = frozenset(subject.component.kinds)
    for group in (*_GROUPS, *_of_dialects(subject)):
        declared = [constraint for constraint in group if constraint.kind in kinds]
        if len(declared) > 1:
            _expect_apart(subject, declared)


def _expect_apart(subject: GrammarSubject, group: Sequence[Constraint]) -> None:
    alone = [(constraint, seen) for constraint in group if (seen := _alone(subject, constraint)) is not None]
    gc.collect()
    for order in (alone, alone[::-1]):
        strategy = subject.build()
        cases = [(compiled_case(strategy, standard(), Sample(constraint)), seen) for constraint, seen in order]
        for case, seen in cases:
            if case is not None:
                _expect_seen(case, case.compiled, seen, "among constraints that differ in one place")
    if "serialize" in subject.component.capabilities:
        data = [(case, case.compiled.to_bytes(), seen) for case, seen in cases if case is not None]
        read = [(case, case.strategy.from_bytes(written), seen) for case, written, seen in data]
        for case, compiled, seen in read:
            _expect_seen(case, compiled, seen, "read from bytes, among constraints that differ in one place")


def _expect_seen(case: Case, compiled: CompiledGrammar, seen: list[tuple[list[int], list[Seen]]], how: str) -> None:
    said = f"{_said(case.sample.constraint)}, {how}"
    for token_ids, wanted in seen:
        session = Session(case.strategy, compiled, standard(), said)
        for token_id, due in zip([*token_ids, None], wanted, strict=True):
            found = observe(session)
            expect(found == due, f"{said}: {session.place}, {difference(found, due, standard())}")
            if token_id is not None:
                session.take([token_id])


@check("grammar", tier="extended", trait="dialect", seconds=60)
def forms_of_an_accent_are_told_apart(subject: GrammarSubject) -> None:
    """In a grammar of a dialect, where one letter of a constraint is not as good as another, the two forms of an accent
    are not the same letter: texts are taken as they are written, to the last character."""
    strategy = subject.build()
    for example in subject.component.examples:
        given = example.constraint
        if not isinstance(given, Grammar):
            continue
        places = [i for i, char in enumerate(given.text) if char.isalpha()][:MOST_LETTERS]
        for i in places:
            texts = (given.text[:i] + new + given.text[i + 1 :] for new in ("\u00e9", "e\u0301", "\u00e8"))
            forms = [replace(given, text=text) for text in texts]
            cases = [compiled_case(strategy, standard(), Sample(form)) for form in forms]
            composed, parted, other = cases
            if composed is None or parted is None or other is None or not _differ(composed, other):
                continue
            expect(
                _differ(composed, parted),
                f"{given.kind} {forms[0].text!r} and {forms[1].text!r} give the same masks, {forms[2].text!r} others: "
                "of the constraint, the form of an accent does not count",
            )


def _differ(one: Case, other: Case) -> bool:
    """Return whether a way into one of them is none into the other, or looks different."""
    return any(_parts(*pair, seed) for pair in ((one, other), (other, one)) for seed in range(8))


def _parts(case: Case, other: Case, seed: int) -> bool:
    source = case.sample.constraint.source().encode()
    here, there = case.session(), other.session()
    for step in range(24):
        if observe(here) != observe(there):
            return True
        if here.is_terminated() or not (ways := legal(here)):
            return False
        tokens = case.vocabulary.tokens
        own = [t for t in ways if tokens[t] and tokens[t] in source] or ways
        choices = own if (seed + step) % 4 else ways
        token_id = choices[(seed * 31 + step * 17) % len(choices)]
        here.take([token_id])
        there.take([token_id])
    return False
