"""Checks of what fill_bitmask writes, and where."""

from __future__ import annotations

from functools import partial

import numpy as np
from guideway.api import DeadEnd
from guideway.api.bitmask import Bitmask, unpack

from guideway_conformance.grammar.dead_ends import dead_ends
from guideway_conformance.grammar.session import Session, expect_same, legal, new_rows, observe, row_of, walk
from guideway_conformance.grammar.subject import GrammarSubject
from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

POISON = 0x5A5A5A5A


def accepted_one_by_one(session: Session) -> list[int]:
    """Every token that an equal matcher accepts."""
    found, other = [], session.twin()
    for token_id in range(len(session.vocabulary)):
        if other.accept([token_id]):
            found.append(token_id)
            other = session.twin()
    return found


def expect_exact(session: Session, name: str) -> None:
    """Fail unless the mask is what accept takes, token by token."""
    mask, taken = set(legal(session)), set(accepted_one_by_one(session))
    refused, unset = (show(session.vocabulary, sorted(ids)) for ids in (mask - taken, taken - mask))
    said = f"{name}: {session.place}, accept"
    expect(mask <= taken, f"{said} refuses {refused}, whose bits are set")
    expect(taken <= mask, f"{said} takes {unset}, whose bits are not set")


@check("grammar", seconds=120)
def bits_are_what_accept_takes(subject: GrammarSubject) -> None:
    """Bit t is set exactly if accept([t]) is 1, for every token."""
    for case in subject.cases():
        name = case.name
        walk(case.session(), f"bits {name}", 4, partial(expect_exact, name=name))


@check("grammar")
def fill_touches_only_its_row(subject: GrammarSubject) -> None:
    """Filling a bitmask overwrites the given row, whichever it is and whatever it held, and nothing else."""
    for case in subject.few():
        session = case.session()
        for _ in range(4):
            if not legal(session):
                break
            wanted = row_of(session.matcher, case.vocabulary)
            for value in (POISON, -1, 0):
                for row in (0, 2, 4):
                    bitmask = new_rows(5, case.vocabulary, value)
                    session.matcher.fill_bitmask(bitmask, row)
                    others = np.delete(bitmask, row, axis=0)
                    said = f"{case.name}: {session.place}, filling row {row} of 5"
                    expect((others == np.int32(value)).all(), f"{said} changed other rows")
                    expect(
                        (bitmask[row] == wanted).all(),
                        f"{said}, all words {value:#x} before, gives another mask than row 0",
                    )
            walk(session, 1, 1)
            if session.is_terminated():
                break


@check("grammar")
def rows_are_the_hosts(subject: GrammarSubject) -> None:
    """A row it has filled is the host's, who may overwrite it: nothing is written there later, or rests on it."""
    for case in subject.few():
        kept = new_rows(3, case.vocabulary, POISON)

        def fill(session: Session, kept: Bitmask = kept, name: str = case.name) -> None:
            expect((kept == np.int32(POISON)).all(), f"{name}: {session.place}, a row of an earlier call has changed")
            try:
                session.matcher.fill_bitmask(kept, 1)
            except DeadEnd:
                return
            first = kept[1].copy()
            kept[:] = POISON
            for which, matcher in (("it", session.matcher), ("an equal matcher", session.twin().matcher)):
                again = row_of(matcher, session.vocabulary)
                expect((again == first).all(), f"{name}: {session.place}, {which} fills another mask the next time")

        for seed in range(3):
            walk(case.session(), seed, 6, fill)


@check("grammar", tier="extended")
def fill_takes_any_contiguous_bitmask(subject: GrammarSubject) -> None:
    """The bitmask may be part of a larger array, or very large, as long as it is C-contiguous."""
    for case in subject.few(most=1):
        session = case.session()
        wanted = row_of(session.matcher, case.vocabulary)
        large = new_rows(3000, case.vocabulary, POISON)
        for first, row in ((0, 2999), (17, 0), (1000, 3)):
            large[:] = POISON
            part = large[first : first + 3000]
            session.matcher.fill_bitmask(part, row)
            expect(
                (part[row] == wanted).all(),
                f"{case.name}: row {row} of a view that begins at row {first} is not filled",
            )
            untouched = np.delete(large, first + row, axis=0) == POISON
            expect(untouched.all(), f"{case.name}: row {row} of a view that begins at row {first}: other rows changed")


@check("grammar")
def bits_past_the_vocabulary_are_zero(subject: GrammarSubject) -> None:
    """Bits at and past the vocabulary's length are zero, also in the words that only wider logits have."""
    for case in subject.few():
        size = len(case.vocabulary)

        def look(session: Session, name: str = case.name, size: int = size) -> None:
            bitmask = new_rows(1, session.vocabulary, -1)
            session.matcher.fill_bitmask(bitmask, 0)
            past = np.flatnonzero(unpack(bitmask, bitmask.shape[1] * 32)[0, size:]) + size
            expect(not past.size, f"{name}: {session.place}, bits {past[:5].tolist()} of {size} tokens are set")

        walk(case.session(), 3, 6, look)


@check("grammar")
def filling_moves_nothing(subject: GrammarSubject) -> None:
    """Filling a bitmask, and asking whether it terminated or accepts, leaves the state as it was."""
    for case in subject.few():
        for seed in range(2):
            session = case.session()
            token_ids = walk(session.twin(), seed, 6)
            for token_id in token_ids:
                before = observe(session)
                for _ in range(3):
                    expect_same(
                        session, before, case.vocabulary, f"{case.name}: {session.place}, looking changed what is seen"
                    )
                once = session.fresh().take(session.token_ids)
                expect_same(session, once, case.vocabulary, f"{case.name}: {session.place}, filling moved the matcher")
                session.take([token_id])


@check("grammar")
def a_dead_end_is_raised(subject: GrammarSubject) -> None:
    """Filling raises DeadEnd and leaves the row untouched where no token is legal; the matcher goes on from where the
    host takes it back to, and so do others of its grammar."""
    for dead in dead_ends(subject):
        said = f"{dead.name}: {dead.place}, where no token is legal"
        for _ in range(2):
            bitmask = new_rows(3, dead.vocabulary, POISON)
            try:
                dead.matcher.fill_bitmask(bitmask, 1)
            except DeadEnd:
                rows = "the row" if (bitmask[1] != POISON).any() else "other rows" if (bitmask != POISON).any() else ""
                expect(not rows, f"{said}, DeadEnd was raised, but {rows} changed")
                continue
            set_bits = np.flatnonzero(unpack(bitmask, len(dead.vocabulary))[1]).tolist()
            expect(False, f"{said}, a mask was filled: {show(dead.vocabulary, set_bits)}")
        fork = dead.fork()
        for here in (dead, fork):
            here.rollback(1)
            expect_same(here, here.twin(), dead.vocabulary, f"{said}, DeadEnd was raised, and a token rolled back")


@check("grammar")
def a_dead_end_accepts_nothing(subject: GrammarSubject) -> None:
    """No token is accepted where none is legal, not even a stop token, and the output is neither complete nor over."""
    for dead in dead_ends(subject):
        said = f"{dead.name}: {dead.place}, where no token is legal"
        offered = [*dead.stop_token_ids, *range(0, len(dead.vocabulary), 7)]
        for token_id in offered:
            count = dead.matcher.accept([token_id])
            expect(count == 0, f"{said}, accept of {show(dead.vocabulary, [token_id])} returned {count}")
        expect(not dead.is_accepting(), f"{said}, is_accepting is true")
        expect(not dead.is_terminated(), f"{said}, is_terminated is true")


__all__ = ["POISON", "accepted_one_by_one", "expect_exact"]
