"""Constraints that differ in one place, all of which live at once."""

from __future__ import annotations

import gc
import random
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
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

from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample
from guideway_conformance.grammar.session import Seen, Session, difference, legal, observe, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, show, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

STEPS = 6
MOST_OUTPUTS = 6
MOST_LETTERS = 12
"""The letters of a constraint that get an accent, or the other case."""
MOST_NUMBERS = 6
"""The numbers of a constraint that get another value."""
MOST_OF_AN_OUTPUT = 40
"""The tokens of an example's output that are followed into constraints near its own."""


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


def other_numbers(text: str) -> list[str]:
    """`text` with one of its numbers changed: one more, one less, one digit, and much more."""
    found = []
    for number in list(re.finditer(r"[0-9]+", text))[:MOST_NUMBERS]:
        value = int(number[0])
        others = (value + 1, max(0, value - 1), value + 2, 2 * value + 3)
        found += [f"{text[: number.start()]}{other}{text[number.end() :]}" for other in others if other != value]
    return found


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
        near += other_numbers(text)
        yield tuple(replace(given, text=each) for each in dict.fromkeys(near))
        yield tuple(replace(given, dialect=dialect) for dialect in dict.fromkeys((given.dialect, *dialects)))


def _said(constraint: Constraint) -> str:
    return f"{constraint.kind} {constraint.source()[-80:]!r}, white space {constraint.spacing}"


def _along(case: Case, outputs: Sequence[bytes]) -> list[tuple[list[int], list[Seen]]]:
    """Ways into a grammar, by chance and as far as `outputs` go, and what is seen on each."""
    found = []
    for text in outputs:
        wanted = ids_of(case.vocabulary, text)[:MOST_OF_AN_OUTPUT]
        session = case.session()
        noted = [observe(session)]
        while len(session.token_ids) < len(wanted) and session.accept(wanted[len(session.token_ids) :][:1]):
            noted.append(observe(session))
        found.append((session.token_ids, noted))
    for seed in range(3):
        seen: list[Seen] = []
        session = case.session()
        token_ids = walk(session, seed, STEPS, partial(_note, seen))
        found.append((token_ids, [*seen[: len(token_ids)], observe(session)]))
    return found


def _note(seen: list[Seen], session: Session) -> None:
    seen.append(observe(session))


def _outputs(subject: GrammarSubject, constraint: Constraint) -> list[bytes]:
    """Outputs of the examples in a dialect."""
    examples = [e for e in subject.component.examples if e.constraint.kind == constraint.kind]
    return [text for e in examples if isinstance(constraint, Grammar) for text in e.accepted][:MOST_OUTPUTS]


def _alone(subject: GrammarSubject, constraint: Constraint) -> list[tuple[list[int], list[Seen]]] | None:
    """Return what is seen of it in a strategy that compiled nothing else; None if it is refused."""
    case = compiled_case(subject.build(), standard(), Sample(constraint))
    return None if case is None else _along(case, _outputs(subject, constraint))


@check("grammar", seconds=120)
def constraints_that_live_together_are_told_apart(subject: GrammarSubject) -> None:
    """Constraints that differ in one place (white space of their JSON, dialect, kind, a letter, its case, a blank,
    an accent's form, a number, its type, the order of names) are what they are alone when compiled before, after and
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


@check("grammar", tier="extended", trait="dialect", seconds=60)
def cases_of_a_letter_are_told_apart(subject: GrammarSubject) -> None:
    """In a grammar of a dialect, where one letter of a constraint is not as good as another, its capital is not as good
    either, unless outputs may be written in both: a constraint is read to the last character."""
    strategy = subject.build()
    for example in subject.component.examples:
        given = example.constraint
        case = compiled_case(strategy, standard(), Sample(given)) if isinstance(given, Grammar) else None
        if case is None or not isinstance(given, Grammar) or _takes_both_cases(case, example.accepted):
            continue
        other = next((letter for letter in "qzxjkw" if letter not in given.text.lower()), None)
        for i in [i for i, char in enumerate(given.text) if char.isascii() and char.isalpha()][:MOST_LETTERS]:
            swapped = given.text[i].swapcase()
            texts = [given.text[:i] + new + given.text[i + 1 :] for new in (swapped, other or swapped)]
            found = [compiled_case(strategy, standard(), Sample(replace(given, text=text))) for text in texts]
            if found[0] is None or found[1] is None or not _differ(case, found[1]):
                continue
            expect(
                _differ(case, found[0]),
                f"{given.kind} {given.text!r} and {texts[0]!r} give the same masks, {texts[1]!r} others: of the "
                "constraint, the case of a letter does not count",
            )


def _takes_both_cases(case: Case, texts: Sequence[bytes]) -> bool:
    """Return whether an output may be written in the other case too."""
    stop = max(case.vocabulary.stop_token_ids)
    others = [text.swapcase() for text in texts if text.swapcase() != text]
    return any(is_output(case.session().matcher, ids_of(case.vocabulary, text), stop) for text in others)


@check("grammar", tier="extended", trait="dialect", seconds=120)
def near_constraints_of_a_dialect_have_ends(subject: GrammarSubject) -> None:
    """A constraint that differs from an example in a number, and compiles, keeps the rules that examples keep:
    whatever is drawn from its masks, a token is always legal, and the masks allow what accept takes."""
    strategy = subject.build()
    for example in subject.component.examples:
        given = example.constraint
        for text in dict.fromkeys(other_numbers(given.text)) if isinstance(given, Grammar) else ():
            case = compiled_case(strategy, standard(), Sample(replace(given, text=text)))
            for seed in range(WALKS if case else 0):
                assert case is not None
                _expect_an_end(case, example.accepted, seed)


TIMES, ROUNDS = (3, 16), 3
"""The times that an example's text stands in a longer one, and that it is compiled."""
MOST_SECONDS = 2.0
"""Seconds for one of them after which no longer one is tried."""


@check("grammar", tier="extended", trait="dialect", seconds=120)
def long_constraints_of_a_dialect_are_right(subject: GrammarSubject) -> None:
    """A constraint that is an example's text several times over, and compiles, keeps the rules that examples keep,
    however often it is compiled: the masks allow what accept takes, and a token is always legal."""
    strategy = subject.build()
    for example in subject.component.examples:
        given = example.constraint
        for between, times in product(("", " ", "\n") if isinstance(given, Grammar) else (), TIMES):
            began = time.monotonic()
            text = between.join([given.text] * times)
            for turn in range(ROUNDS):
                case = compiled_case(strategy, standard(), Sample(replace(given, text=text)))
                if case is None:
                    break
                _expect_an_end(case, example.accepted, turn, 10 * times)
            if time.monotonic() - began > MOST_SECONDS:
                break


WALKS, LONGEST_WALK = 6, 80


def _expect_an_end(case: Case, like: Sequence[bytes], seed: int, most: int = LONGEST_WALK) -> None:
    """Walk as outputs of an example go, over all ends."""
    session, rng, tokens = case.session(), random.Random(seed), case.vocabulary.tokens
    for _ in range(most):
        ways = [t for t in legal(session) if t not in session.stop_token_ids]
        if not ways:
            break
        last = session.text[-1:]
        usual = [t for t in ways if len(tokens[t]) == 1 and any(last + tokens[t] in text for text in like)]
        token_id = rng.choice(usual if usual and rng.random() < 0.8 else ways)
        count = session.accept([token_id])
        expect(count == 1, f"{case.name}: {session.place}, {show(case.vocabulary, [token_id])} is allowed and refused")
    said = f"{case.name}, near an example: {session.place} {session.text!r}, no token is legal"
    expect(session.is_terminated() or legal(session), said)


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
