"""A strategy gives back what it took, and a token costs it the same however many came before."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from guideway.api import Choice, Constraint, FillJob, InvalidGrammar, JsonSchema, Regex, UnsupportedGrammar

from guideway_conformance.grammar.batches import filled
from guideway_conformance.grammar.lifetime import MANY
from guideway_conformance.grammar.samples import SAMPLES, Sample
from guideway_conformance.grammar.session import Session, legal, new_rows, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard, wide
from guideway_conformance.growth import Kept, Meter, Open, Work, alive, expect_same_work, resident, traced
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MOST_KEPT = 2
"""Grammars that a strategy may go on holding: what it used last."""

AT_ONCE, LONG_WAY = 48, 120
MOST_OF_A_TOKEN = 16
"""Bytes of memory, with room for an array that a pool keeps, for each token of a sequence that has ended."""
WALKS = 2
_TEXT = "".join(f"{number:02}" for number in range(50))
_LITERALS = (JsonSchema({"const": _TEXT}), Regex(_TEXT), Choice([_TEXT]))
"""Constraints of one text, in which each letter is a state."""

NBYTES_FACTOR = 8
LEAST_JUDGED = 256 << 10
"""Bytes of a grammar below which what the system says of memory is noise."""

EARLY, LATE, WINDOW = 64, 4096, 24
"""The tokens of an output at which the work for a token is compared, and over how many."""

MORE = Work(lines=(LATE - EARLY) / 2, nbytes=64 * (LATE - EARLY), seconds=1e-3)
"""The work that a late token may add: less than a loop over the tokens before it, and a few copies of them."""


def _regexes(number: int, size: int = 1) -> Constraint:
    words = "|".join(f"w{number}x{i}y" for i in range(20 * size))
    return Regex(f"({words})+")


def _choices(number: int, size: int = 1) -> Constraint:
    return Choice([f"choice {number} of {i}" for i in range(50 * size)])


def _schemas(number: int, size: int = 1) -> Constraint:
    names = [f"name_{number}_{i}" for i in range(40 * size)]
    types = ({"type": "string"}, {"type": "array", "items": {"type": "integer"}})
    properties: dict[str, Any] = {name: types[i % 2] for i, name in enumerate(names)}
    return JsonSchema({"type": "object", "properties": properties, "required": names, "additionalProperties": False})


FAMILIES: dict[str, Callable[..., Constraint]] = {"json_schema": _schemas, "regex": _regexes, "choice": _choices}
"""By kind: constraints of the same size without end, no two alike."""


def _family(subject: GrammarSubject) -> Callable[..., Constraint]:
    """Constraints that the strategy takes: no two alike, or, of a kind that has no family, always the same."""
    strategy = subject.build()
    for kind, family in FAMILIES.items():
        if kind in subject.component.kinds and not strategy.supports(family(0)).refused:
            return family
    (first, *_) = subject.few()
    return lambda _number, _size=1: first.sample.constraint


@check("grammar", tier="stress", seconds=60)
def released_grammars_are_freed(subject: GrammarSubject) -> None:
    """A compiled grammar that nobody holds any more is freed, and its matchers: what is worth keeping is kept by the
    host, within its limit."""
    strategy, family = subject.build(), _family(subject)
    references: list[weakref.ref[Any]] = []

    def refer(*things: Any) -> None:
        for thing in things:
            with suppress(TypeError):  # of a class without weak references
                references.append(weakref.ref(thing))

    def live(number: int) -> None:
        compiled = strategy.compile(family(number))
        session = Session(strategy, compiled, standard(), "a grammar")
        walk(session, number, 3)
        refer(compiled, session.matcher)
        compiled.recycle(session.matcher)
        if "serialize" in strategy.capabilities:  # as a host does that has grammars from elsewhere
            read = strategy.from_bytes(compiled.to_bytes())
            walk(Session(strategy, read, standard(), "a grammar read from bytes"), number, 3)
            refer(read)

    with traced() as held:
        for number in range(3):
            live(number)
        before = held()
        compiled = strategy.compile(family(3))
        matcher = compiled.matcher(standard().stop_token_ids)
        one = held() - before
        del compiled, matcher
    rounds = 16
    references.clear()
    kept = Kept(live, warm_up=4, rounds=rounds)
    left = alive(references)
    expect(
        left <= 3 * MOST_KEPT,
        f"of {rounds + 4} grammars that were let go, and a matcher of each, {left} objects are still there, those read "
        "from bytes among them",
    )
    expect(
        kept.nbytes <= max(one / 4, 4096),
        f"each grammar that was let go left {kept.nbytes:.0f} bytes behind; one takes {one} while it is there",
    )


@check("grammar", tier="stress", seconds=60)
def ended_sequences_are_freed(subject: GrammarSubject) -> None:
    """A sequence that has ended leaves nothing behind, whether its matcher was given back or not."""
    for case in subject.few(most=1):

        def live(number: int, case: Case = case) -> None:
            session = case.session()
            walk(session, number % 7, 8)
            if number % 2:
                case.compiled.recycle(session.matcher)

        kept = Kept(live, warm_up=14, rounds=28)  # the same walks, so that what is learnt of the grammar is known
        expect(kept.nbytes < 512, f"{case.name}: each sequence that ended left {kept.nbytes:.0f} bytes behind")


@check("grammar", tier="stress", seconds=60)
def long_sequences_are_freed(subject: GrammarSubject) -> None:
    """Sequences that ran at once leave nothing of what they accepted, however long they were, in the matchers that were
    given back."""
    for case in subject.few(most=1):
        way = max((_long_way(case, seed) for seed in range(4)), key=len)
        most = len(way)

        def kept(length: int, case: Case = case, way: list[int] = way) -> int:
            for _ in range(2):  # what is learnt of the grammar is known the second time
                with traced() as held:
                    before = held()
                    sessions = [case.session() for _ in range(AT_ONCE)]
                    for session in sessions:
                        for token_id in way[:length]:
                            session.take([token_id])
                    for session in sessions:
                        case.compiled.recycle(session.matcher)
                    del session, sessions
                    after = held() - before
            return after

        short, long = kept(1), kept(most)
        each = (long - short) / AT_ONCE / max(1, most - 1)
        expect(
            each <= MOST_OF_A_TOKEN,
            f"{case.name}: {AT_ONCE} sequences of {most} tokens that ended left {each:.0f} bytes for each token behind",
        )


def _long_way(case: Case, seed: int) -> list[int]:
    """Tokens that go on without a stop token for as long as there are some, up to `LONG_WAY`."""
    session, rng = case.session(), random.Random(seed)
    while len(session.token_ids) < LONG_WAY:
        ways = [t for t in legal(session) if t not in session.stop_token_ids]
        if not ways:
            break
        session.take([rng.choice([t for t in ways if len(case.vocabulary.tokens[t]) == 1] or ways)])
    return session.token_ids


@check("grammar", tier="stress", seconds=120)
def nbytes_counts_what_is_learnt(subject: GrammarSubject) -> None:
    """The nbytes of a grammar grows with the masks and states that it keeps as it is used: with a vocabulary of the
    size that models have, it is at least an eighth of the memory that letting go of the grammar frees."""
    vocabulary = wide()
    strategy = subject.build_if_it_can(vocabulary)
    if strategy is None:
        return
    samples = [Sample(constraint) for constraint in _LITERALS if constraint.kind in subject.component.kinds]
    for sample in samples or [case.sample for case in subject.few()]:
        with traced() as held:
            case = compiled_case(strategy, vocabulary, sample)
            if case is None:
                continue
            for seed in range(WALKS):
                _long_way(case, seed)
            said = int(case.compiled.nbytes)
            before = held()
            del case
            freed = before - held()
        what = f"{sample.name}: walked {WALKS} times with {len(vocabulary)} tokens, it gave {freed} bytes back"
        is_near = freed < LEAST_JUDGED or said * NBYTES_FACTOR >= freed
        expect(is_near, f"{what} when it was let go, and its nbytes was {said}")


SEEN, AGAIN = 1, 2
"""The rounds in which a grammar learns what there is to learn of an output, and those after them."""
LETTERS = (1100, 300)
"""The lengths of an output that is walked again and again: longer than what most keep of its states, if it compiles."""
MOST_SECONDS = 1.5
"""Seconds of processor time after which a walk goes no further."""
MOST_OF_A_ROUND = 32 << 10
"""Bytes that may come in a round where memory says nothing."""


@check("grammar", tier="stress", seconds=120)
def nbytes_stops_growing(subject: GrammarSubject) -> None:
    """The nbytes of a grammar that sees the same output again and again, longer than what it keeps of one, grows no
    further than its memory does: what it has let go of is not counted."""
    for case, token_ids in _again(subject):
        said: list[int] = []
        with traced() as held:
            memory: list[int] = []
            for _ in range(SEEN + AGAIN):
                session = case.session()
                bitmask = new_rows(1, case.vocabulary, 0)
                began = time.process_time()
                for token_id in token_ids:
                    session.matcher.fill_bitmask(bitmask, 0)
                    session.take([token_id])
                    if not said and time.process_time() - began > MOST_SECONDS:
                        break
                token_ids = list(session.token_ids)
                if "fork" in case.strategy.capabilities:
                    case.compiled.recycle(session.matcher.fork())
                case.compiled.recycle(session.matcher)
                del session
                memory.append(held())
                said.append(int(case.compiled.nbytes))
        more, taken = said[-1] - said[SEEN - 1], memory[-1] - memory[SEEN - 1]
        expect(
            more <= AGAIN * MOST_OF_A_ROUND + NBYTES_FACTOR * max(0, taken),
            f"{case.name}: the same {len(token_ids)} tokens {AGAIN} times more added {more} bytes to nbytes, from "
            f"{said[SEEN - 1]} to {said[-1]}, and {taken} to what is held",
        )


def _again(subject: GrammarSubject) -> Iterator[tuple[Case, list[int]]]:
    """Grammars, each with an output: one text of many letters, and what the examples of a dialect have."""
    strategy = subject.build()
    for make in _MANY_LETTERS:
        for length in LETTERS:
            text = _text(length)
            constraint = make(text)
            if constraint.kind not in subject.component.kinds:
                break
            if case := compiled_case(strategy, standard(), Sample(constraint)):
                quote = b'"' if isinstance(constraint, JsonSchema) else b""
                yield case, ids_of(standard(), quote + text.encode() + quote)
                break
    for case in subject.few():
        if case.sample.constraint.kind not in SAMPLES:
            yield case, case.whole()


def _text(length: int) -> str:
    rng = random.Random(0)
    return "".join(rng.choice("abcdefgh0123") for _ in range(length))


_MANY_LETTERS: tuple[Callable[[str], Constraint], ...] = (
    lambda text: JsonSchema({"type": "string", "const": text}),
    Regex,
    lambda text: Choice([text]),
)


@check("grammar", tier="stress", seconds=60)
def nbytes_is_near_what_is_held(subject: GrammarSubject) -> None:
    """The nbytes of a grammar that takes 256 KiB or more is at least an eighth of the memory that it takes, so that the
    limit of the host's cache is one."""
    strategy, family = subject.build(), _family(subject)
    if family(0) == family(1):
        return  # what one constraint takes cannot be told from what all share
    number = 8
    for size in (1, 8):  # some take little of what is usual
        try:
            strategy.compile(family(0, size))
        except (InvalidGrammar, UnsupportedGrammar):
            return
        gc.collect()
        with traced() as held:
            before, first = resident(), held()
            kept = [strategy.compile(family(i, size)) for i in range(1, number + 1)]
            taken = max(resident() - before, held() - first) / number
        said = sum(int(compiled.nbytes) for compiled in kept) / number
        if taken >= LEAST_JUDGED:
            what = f"a grammar takes {taken:.0f} bytes, and its nbytes is {said:.0f}"
            expect(said * NBYTES_FACTOR >= taken, what)
            return


@check("grammar", tier="stress", seconds=60)
def closing_ends_threads_and_files(subject: GrammarSubject) -> None:
    """When a strategy is closed, its threads end and its files are closed, though somebody still holds it."""
    closed: list[Any] = []

    def live() -> None:
        cases = subject.few(most=1)
        for case in cases:
            walk(case.session(), 0, 4)
            sessions = [case.session() for _ in range(MANY)]
            bitmask = new_rows(MANY, case.vocabulary, 0)
            jobs = [FillJob(session.hosted(), (), i) for i, session in enumerate(sessions)]
            filled(case.strategy, jobs, bitmask, case.name)
        cases[0].strategy.close()
        closed.append(cases)

    live()  # a library may have a pool of its own, for all
    before = Open.now()
    for _ in range(3):
        live()
    Open.soon(before).expect_no_more_than(before, "three strategies that were closed")


_ENDLESS = (
    (Sample(Regex("(ab|c)*")), [b"a", b"b", b"c"], b""),
    (Sample(JsonSchema({"type": "array", "items": {"type": "boolean"}})), [b"true", b",", b"false", b","], b"["),
)


def _endless(subject: GrammarSubject) -> Iterator[tuple[Case, list[int]]]:
    """Grammars without an end, and a long way into each."""
    strategy, tokens = subject.build(), standard().tokens
    for sample, pieces, first in _ENDLESS:
        if sample.constraint.kind in subject.component.kinds and (case := compiled_case(strategy, standard(), sample)):
            token_ids = [tokens.index(first)] if first else []
            while len(token_ids) < LATE + WINDOW:
                token_ids += [tokens.index(piece) for piece in pieces]
            yield case, token_ids


def _at(case: Case, token_ids: Sequence[int], start: int) -> Work:
    """The work for a token, its mask and its acceptance, from the `start`-th on."""
    session, meter = case.session().take(token_ids[:start]), Meter()
    bitmask = new_rows(1, case.vocabulary, 0)
    for token_id in token_ids[start : start + WINDOW]:

        def step(token_id: int = token_id) -> None:
            session.matcher.fill_bitmask(bitmask, 0)
            session.matcher.accept((token_id,))

        meter.call(step)
    return meter.work()


@check("grammar", tier="stress", trait="known-kind", seconds=120)
def a_token_costs_the_same_however_many_came_before(subject: GrammarSubject) -> None:
    """The mask and the acceptance of a token take about as many lines of Python, as much memory and as much processor
    time after 4,096 tokens as after 64, so that the work for an output does not grow with the square of its length."""
    for case, token_ids in _endless(subject):
        _at(case, token_ids, 0)  # what is worked out once
        early, late = _at(case, token_ids, EARLY), _at(case, token_ids, LATE)
        expect_same_work(early, late, MORE, f"{case.name}: fill_bitmask and accept")
