"""Many constraints that are nearly the same, compiled one after the other and all at once."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from guideway.api import Choice, CompiledGrammar, Constraint, GrammarStrategy, JsonSchema, Regex
from guideway.errors import InvalidGrammar, UnsupportedGrammar

from guideway_conformance.grammar.samples import spellings
from guideway_conformance.grammar.session import Session, new_rows
from guideway_conformance.grammar.subject import GrammarSubject
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import interleaved

NUM_NUMBERED = 60
NUM_THREADS = 8
ROUNDS = 3

_LONG = "the same beginning of forty letters, and then "
_NEAR = (
    *("ab cd", "abcd", "AB CD", "Abcd", "dcba", "cdab", "ab  cd", "ab cd ", "abce"),
    *("\u00e9a", "e\u0301a", "\u212ba", "\u00c5a", "A\u030aa", "\ufb01x", "fix"),
    *(f"{_LONG}{letter}" for letter in "xyz"),
    *("1", "1.0", "01", "true", "True", "null"),
)
"""Texts that are the same to those who look at their length, their first letters, their letters in another order, or
without case, white space or accents."""


@dataclass(frozen=True)
class Near:
    """A constraint that allows one text alone."""

    constraint: Constraint
    ways: tuple[bytes, ...]
    """The ways to write it; one at least is in the language."""


@cache
def _near(kind: str) -> tuple[Near, ...]:
    texts = [*_NEAR, *(f"n{number:03}" for number in range(NUM_NUMBERED))]
    made: dict[str, Near] = {}
    for text in texts:
        if kind == "regex":
            made[text] = Near(Regex("".join(f"\\{c}" if c in ".\\" else c for c in text)), (text.encode(),))
        elif kind == "choice":
            made[text] = Near(Choice([text]), (text.encode(),))
        else:
            made[text] = Near(JsonSchema({"enum": [text]}), spellings(text))
    return tuple(made.values())


def _nears(subject: GrammarSubject) -> list[Near]:
    """Those of the kinds it declares, all kinds mixed."""
    kinds = [kind for kind in ("regex", "choice", "json_schema") if kind in subject.component.kinds]
    found = [near for kind in kinds for near in _near(kind)]
    random.Random(0).shuffle(found)
    return found


def _compile(strategy: GrammarStrategy, near: Near) -> CompiledGrammar | None:
    if strategy.supports(near.constraint).refused:
        return None
    try:
        return strategy.compile(near.constraint)
    except (InvalidGrammar, UnsupportedGrammar):
        return None


def _expect_own(
    strategy: GrammarStrategy, compiled: CompiledGrammar, near: Near, others: Sequence[Near], how: str
) -> None:
    """`compiled` accepts the text of `near`, and of `others` none."""
    name = f"{near.constraint.kind} {json.dumps(near.constraint.source())[-60:]}, {how}"

    def accepts(text: bytes) -> bool:
        session = Session(strategy, compiled, standard(), name)
        token_ids = ids_of(standard(), text)
        return session.accept(token_ids) == len(token_ids) and session.is_accepting()

    expect(any(map(accepts, near.ways)), f"{name}: its only text is not accepted")
    for other in others:
        wrong = [text for text in other.ways if text not in near.ways and accepts(text)]
        expect(not wrong, f"{name}: {wrong[:1]} is accepted, the text of another constraint")


@check("grammar", tier="extended", trait="known-kind", seconds=90)
def near_constraints_do_not_collide(subject: GrammarSubject) -> None:
    """Constraints that differ in a letter, its case, white space, the order of letters or the form of an accent are
    different, whatever was compiled before; and matchers of the first are right after a hundred others."""
    strategy, nears = subject.build(), _nears(subject)
    compiled = [(near, found) for near in nears if (found := _compile(strategy, near)) is not None]
    started = [found.matcher(standard().stop_token_ids) for _, found in compiled]
    again = [(near, _compile(strategy, near)) for near, _ in compiled]
    texts = {
        near.constraint.kind: [n for n, _ in compiled if n.constraint.kind == near.constraint.kind] for near in nears
    }
    for (near, first), (_, second), matcher in zip(compiled, again, started, strict=True):
        rng = random.Random(str(near.constraint.source()))
        others = rng.sample(texts[near.constraint.kind], min(3, len(texts[near.constraint.kind])))
        others += [n for n in texts[near.constraint.kind] if _alike(n, near)]
        _expect_own(strategy, first, near, others, f"compiled among {len(compiled)} others")
        assert second is not None
        _expect_own(strategy, second, near, others[:1], "compiled a second time")
        matcher.fill_bitmask(new_rows(1, standard(), 0), 0)
        count = max(matcher.accept(tuple(ids_of(standard(), way))) / len(way) for way in near.ways[:1])
        expect(
            count == 1 or near.constraint.kind == "json_schema",
            f"{near.constraint.kind} {near.constraint.source()[-60:]}: a matcher that was made before {len(compiled)} "
            "others were compiled refuses its only text",
        )


def _alike(one: Near, other: Near) -> bool:
    """Return whether two texts are the same without case, white space and the order of letters."""
    keys = [sorted(near.ways[0].decode().lower().replace(" ", "")) for near in (one, other)]
    return keys[0] == keys[1]


@check("grammar", tier="stress", trait="known-kind", seconds=120)
def hundreds_of_compilations_at_once(subject: GrammarSubject) -> None:
    """Hundreds of constraints of all kinds compiled in eight threads at once, while other matchers are filled and
    moved, each become what they are when compiled alone."""
    strategy, nears = subject.build(), _nears(subject) * ROUNDS
    barrier = threading.Barrier(NUM_THREADS)

    def work(number: int) -> list[tuple[Near, CompiledGrammar]]:
        barrier.wait()
        found = []
        for near in nears[number::NUM_THREADS]:
            compiled = _compile(strategy, near)
            if compiled is not None:
                found.append((near, compiled))
                _expect_own(strategy, compiled, near, (), "compiled beside other threads")
        return found

    with interleaved(subject.component), ThreadPoolExecutor(NUM_THREADS) as pool:
        results = list(pool.map(work, range(NUM_THREADS)))
    for found in results:
        for place, (near, compiled) in enumerate(found[:20]):
            other = found[place - 1][0]
            _expect_own(strategy, compiled, near, [other], "compiled beside other threads")
