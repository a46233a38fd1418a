"""Threads, long outputs, large vocabularies, other processes."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from guideway.api import FillJob

from guideway_conformance.grammar.batches import filled, why
from guideway_conformance.grammar.extras import serializing_is_refused
from guideway_conformance.grammar.languages import oracle
from guideway_conformance.grammar.samples import LOOPS, loop
from guideway_conformance.grammar.session import Seen, Session, difference, expect_same, legal, new_rows, observe, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.undoing import fork_is_refused
from guideway_conformance.grammar.vocabularies import large, show, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import interleaved

NUM_THREADS = 4
LONG = 10_000
LIVES, LOOKS = 150, 50
"""Sequences of each thread that begin and end while others do."""
ASKED = 200
"""Times that a grammar's size is asked for while its masks are filled."""


def _seen_along(session: Session, token_ids: Sequence[int]) -> list[Seen]:
    """Return what is seen at the start and after each of the tokens."""
    seen = [observe(session)]
    for token_id in token_ids:
        seen.append(observe(session.take([token_id])))
    return seen


def _at_once(component: type, work: Callable[[int], Any], times: int) -> list[Any]:
    """Results of `work` in several threads that begin together."""
    barrier = threading.Barrier(NUM_THREADS)

    def begin(number: int) -> Any:
        if number < NUM_THREADS:
            barrier.wait()
        return work(number)

    with interleaved(component), ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(begin, range(times)))


@check("grammar", tier="stress", seconds=90)
def compile_is_thread_safe(subject: GrammarSubject) -> None:
    """Compiling in several threads at once gives what compiling alone gives."""
    cases = subject.few(most=4)
    walks = [walk(case.session(), i, 6) for i, case in enumerate(cases)]
    alone = [_seen_along(case.session(), token_ids) for case, token_ids in zip(cases, walks, strict=True)]

    def compile_one(number: int) -> tuple[int, list[Seen]]:
        index = number % len(cases)
        case = cases[index]
        name = f"{case.name}: compiled beside other threads"
        session = Session(case.strategy, case.strategy.compile(case.sample.constraint), case.vocabulary, name)
        return index, _seen_along(session, walks[index])

    for index, seen in _at_once(subject.component, compile_one, max(4 * NUM_THREADS, 2 * len(cases))):
        for found, wanted in zip(seen, alone[index], strict=True):
            said = f"{cases[index].name}: compiled beside other threads, {difference(found, wanted, standard())}"
            expect(found == wanted, said)


@check("grammar", tier="stress", seconds=90)
def a_compiled_grammar_is_shared_by_threads(subject: GrammarSubject) -> None:
    """Threads may use the matchers of one compiled grammar, each its own, at once, and ask for its nbytes."""
    for case, fresh in zip(subject.few(), subject.few(), strict=True):
        walks = [walk(fresh.session(), 8 + i, 10) for i in range(4 * NUM_THREADS)]
        alone = [_seen_along(fresh.session(), token_ids) for token_ids in walks]

        def use(i: int, case: Case = case, walks: list[list[int]] = walks) -> list[Seen]:
            if i % NUM_THREADS:
                return _seen_along(case.session(), walks[i])
            sizes = [case.compiled.nbytes for _ in range(ASKED)]
            expect(min(sizes) > 0, f"{case.name}: nbytes is {min(sizes)} while others fill")
            return _seen_along(case.session(), walks[i])

        for seen, wanted_of in zip(_at_once(subject.component, use, len(walks)), alone, strict=True):
            for found, wanted in zip(seen, wanted_of, strict=True):
                said = f"{case.name}: used beside other threads, {difference(found, wanted, standard())}"
                expect(found == wanted, said)


@check("grammar", tier="stress", seconds=90)
def matchers_come_and_go_in_threads(subject: GrammarSubject) -> None:
    """Threads that begin and end sequences of one grammar at once, and give their matchers back, have a matcher each,
    which is at the start."""
    for case in subject.few(most=1):
        start, lock, held = observe(case.session()), threading.Lock(), dict[int, Session]()
        for _ in range(NUM_THREADS):
            case.compiled.recycle(case.session().matcher)
        ways = [walk(case.session(), seed, 2) for seed in range(NUM_THREADS)]

        def live(i: int, case: Case = case, start: Seen = start, lock: Any = lock, held: Any = held) -> None:
            for turn in range(LIVES):
                session = case.session()
                with lock:
                    is_taken = id(session.matcher) in held
                    held[id(session.matcher)] = session
                expect(not is_taken, f"{case.name}: one matcher was given to two threads at once")
                if turn % LOOKS == LOOKS - 1:  # seldom, as threads change a limited number of times
                    said = f"{case.name}: a matcher made while other threads give theirs back is not at the start"
                    expect_same(session, start, case.vocabulary, said)
                    session.take(ways[(i + turn) % NUM_THREADS])  # noqa: B023 (called before the next case)
                with lock:
                    del held[id(session.matcher)]
                case.compiled.recycle(session.matcher)

        _at_once(subject.component, live, NUM_THREADS)


@check("grammar", tier="stress", capability="fork", refusal=fork_is_refused, seconds=90)
def forks_go_to_other_threads(subject: GrammarSubject) -> None:
    """A fork may be used in another thread while its matcher and other forks move: each sees what it sees alone."""
    for case in subject.few():
        for seed in range(3):
            session = case.session()
            walk(session, seed, 2 + seed)
            walks = [walk(session.twin(), seed * NUM_THREADS + i, 8) for i in range(NUM_THREADS)]
            alone = [_seen_along(session.twin(), token_ids) for token_ids in walks]
            movers = [session, *(session.fork() for _ in range(1, NUM_THREADS))]

            def move(i: int, movers: list[Session] = movers, walks: list[list[int]] = walks) -> list[Seen]:
                return _seen_along(movers[i], walks[i])

            for i, seen in enumerate(_at_once(subject.component, move, NUM_THREADS)):
                for found, wanted in zip(seen, alone[i], strict=True):
                    said = f"{case.name}: {'a fork' if i else 'a matcher'} beside forks of it in other threads"
                    expect(found == wanted, f"{said}, {difference(found, wanted, standard())}")


def _long(subject: GrammarSubject) -> Sequence[tuple[Case, list[int]]]:
    """Grammars without an end, and a long way into each."""
    strategy, found = subject.build(), []
    for sample, first, pieces in LOOPS:
        if sample.constraint.kind not in subject.component.kinds:
            continue
        case = compiled_case(strategy, standard(), sample)
        if case is not None:
            found.append((case, loop(first, pieces, LONG)))
    return found


@check("grammar", tier="stress", trait="known-kind", seconds=120)
def long_outputs_work(subject: GrammarSubject) -> None:
    """After 10,000 tokens a matcher is as right as after ten, whether they came at once or one by one, and rolls back
    all it says it can, as its forks do."""
    for case, token_ids in _long(subject):
        at_once = case.session().take(token_ids)
        one_by_one = case.session()
        for token_id in token_ids:
            one_by_one.take([token_id])
        name = f"{case.name}: {len(token_ids)} tokens later"
        expect_same(one_by_one, at_once, case.vocabulary, f"{name}, one by one is not at once")
        # both loops are in a state again that they were in near the start
        early = case.session().take(token_ids[: _same_place(case, len(token_ids))])
        expect_same(at_once, early, case.vocabulary, name)
        before = observe(at_once)
        at_once.take(legal(at_once)[:1])
        at_once.rollback(1)
        expect_same(at_once, before, case.vocabulary, f"{name}, after one more and a rollback")
        for count in {_same_place(case, len(token_ids)), len(token_ids) // 2, one_by_one.undoable}:
            if count <= one_by_one.undoable:
                session = case.session().take(token_ids)
                session.rollback(count)
                wanted = case.session().take(token_ids[: len(token_ids) - count])
                expect_same(session, wanted, case.vocabulary, f"{name}, after a rollback of {count}")
                if "fork" in case.strategy.capabilities:
                    fork = one_by_one.fork()
                    fork.rollback(count)
                    expect_same(fork, wanted, case.vocabulary, f"{name}, after a fork and a rollback of {count} there")


def _same_place(case: Case, length: int) -> int:
    """Few tokens after which the loop is where it is after `length`."""
    period, begins = (3, 0) if case.sample.constraint.kind == "regex" else (4, 1)
    return begins + period + (length - begins) % period


@check("grammar", tier="stress", seconds=300)
def large_vocabularies_work(subject: GrammarSubject) -> None:
    """With 131,072 tokens the masks are right, or the vocabulary is refused with InvalidConfiguration."""
    vocabulary = large()
    strategy = subject.build_if_it_can(vocabulary)
    kinds: dict[str, int] = {}
    for sample in subject.samples() if strategy else ():
        kind = sample.constraint.kind
        if strategy is None or kinds.get(kind, 0) == 1:
            continue
        case = compiled_case(strategy, vocabulary, sample)
        if case is None:
            continue
        kinds[kind] = 1
        session = case.session()
        exact = kind in ("regex", "choice") and not case.support.unenforced
        wanted = oracle(case) if exact else session.twin()
        name = f"{case.name} with {len(vocabulary)} tokens"
        for token_id in [*walk(session.twin(), 6, 5), None]:
            expect_same(session, wanted, vocabulary, f"{name}: {session.place}")
            _expect_some_right(session, name)
            if token_id is not None:
                session.take([token_id])
                wanted.take([token_id])


def _expect_some_right(session: Session, name: str) -> None:
    """Bits and accept agree, for some tokens of each kind, the first and the last among them."""
    if session.is_terminated():
        return
    found, size = set(legal(session)), len(session.vocabulary)
    for token_id in {*range(0, size, 4999), size - 1, 0, 31, 32, *sorted(found)[:20], *sorted(found)[-20:]}:
        count = session.twin().accept([token_id])
        expect(
            count == (token_id in found),
            f"{name}: {session.place}, token {token_id}: bit {token_id in found}, accept {count}",
        )


@check("grammar", tier="stress", seconds=60)
def batches_of_many_jobs_work(subject: GrammarSubject) -> None:
    """A fill of hundreds of jobs gives each the masks it gets alone, and counts its drafts."""
    for case in subject.few(most=1):
        sessions = []
        for seed in range(150):
            session = case.session()
            walk(session, seed % 10, seed % 7)
            sessions.append(session if not session.is_terminated() else case.session())
        drafts = [[] if i % 3 else _live_draft(session) for i, session in enumerate(sessions)]
        bitmask = new_rows(3 * len(sessions), case.vocabulary, 0)
        jobs = [FillJob(session.hosted(), drafts[i], 3 * i) for i, session in enumerate(sessions)]
        name = f"{case.name}: in a fill of {len(jobs)} jobs"
        result = filled(case.strategy, jobs, bitmask, name)
        for i, session in enumerate(sessions):
            what = f"{name}, job {i} {session.place} with drafts {show(case.vocabulary, drafts[i])}"
            expect(result[i] == len(drafts[i]), f"{what}, all legal: the result is {result[i]}{why(jobs[i])}")
            for row, ahead in enumerate((session, session.twin().take(drafts[i]))[: 1 + len(drafts[i])]):
                same = bitmask[3 * i + row].tobytes() == observe(ahead)[2]
                expect(same, f"{what}: row {row} of its rows is not the mask it gets alone")
                bitmask[3 * i + row] = 0
        expect(not bitmask.any(), f"{name}, rows of none were changed")


def _live_draft(session: Session) -> list[int]:
    """A legal token after which another one is, if there is one."""
    for token_id in legal(session)[:3]:
        ahead = session.twin().take([token_id])
        if not ahead.is_terminated() and legal(ahead):
            return [token_id]
    return []


@check("grammar", tier="stress", seconds=90)
def other_processes_give_the_same(subject: GrammarSubject) -> None:
    """The same constraint and tokens give the same masks in another process."""
    there = _elsewhere(lambda _: _all_seen(subject.few()))
    for case, here, found in zip(subject.few(), _all_seen(subject.few()), there(b""), strict=True):
        same = "; ".join(difference(a, b, standard()) for a, b in zip(found, here, strict=False) if a != b)
        expect(found == here, f"{case.name}: in another process {same}")


def _all_seen(cases: Sequence[Case]) -> list[list[Seen]]:
    return [_seen_along(case.session(), walk(case.session(), 9, 6)) for case in cases]


@check("grammar", tier="stress", capability="serialize", refusal=serializing_is_refused, seconds=90)
def a_serialized_grammar_goes_to_other_processes(subject: GrammarSubject) -> None:
    """A process that never compiled the constraint gets the same grammar from its bytes."""

    def read(data: bytes) -> list[list[Seen]]:
        strategy = subject.build()
        return [
            _seen_along(Session(strategy, strategy.from_bytes(grammar), standard(), "read from bytes"), token_ids)
            for grammar, token_ids in pickle.loads(data)
        ]

    there = _elsewhere(read)  # before anything is compiled here
    cases = subject.few(most=4)
    walks = [walk(case.session(), 9, 6) for case in cases]
    data = pickle.dumps([(case.compiled.to_bytes(), ids) for case, ids in zip(cases, walks, strict=True)])
    for case, token_ids, found in zip(cases, walks, there(data), strict=True):
        for i, (seen, wanted) in enumerate(zip(found, _seen_along(case.session(), token_ids), strict=True)):
            where = f"{case.name}: read from bytes in another process, {i} tokens later"
            expect(seen == wanted, f"{where}, {difference(seen, wanted, standard())}")


def _elsewhere(work: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Start a process now, which does `work` with the bytes the returned function is given."""
    data_out, data_in = os.pipe()
    answer_out, answer_in = os.pipe()
    if os.fork() == 0:
        try:
            os.close(data_in)
            with os.fdopen(data_out, "rb") as pipe:
                data = pipe.read()
            try:
                answer = (True, work(data))
            except BaseException as error:
                answer = (False, f"{type(error).__name__}: {error}")
            with os.fdopen(answer_in, "wb") as reply:
                pickle.dump(answer, reply)
        finally:
            os._exit(0)
    os.close(data_out)
    os.close(answer_in)

    def ask(data: bytes) -> Any:
        with os.fdopen(data_in, "wb") as pipe:
            pipe.write(data)
        with os.fdopen(answer_out, "rb") as reply:
            worked, answer = pickle.load(reply)
        expect(worked, f"in another process: {answer}")
        return answer

    return ask
