"""Vocabularies of the sizes at which words end, and other odd ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from guideway.api import Vocabulary

from guideway_conformance.grammar.languages import cuttings, oracle
from guideway_conformance.grammar.masks import expect_exact
from guideway_conformance.grammar.session import Session, expect_same, new_rows, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import sized, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

SIZES = (31, 32, 33, 63, 64, 65)


def _cases(subject: GrammarSubject, size: int, padding: int) -> Iterator[Case]:
    """Samples in a vocabulary of `size` made of their own letters, where the strategy takes it."""
    done: dict[str, int] = {}
    for sample in subject.samples():
        letters = b"".join(text for ways in sample.accepted for text in ways[:1])
        kind = sample.constraint.kind
        if done.get(kind, 0) == 2 or len(set(letters)) >= size - 1:
            continue
        vocabulary = sized(size, letters, padding)
        strategy = subject.build_if_it_can(vocabulary)
        case = strategy and compiled_case(strategy, vocabulary, sample)
        if case:
            done[kind] = done.get(kind, 0) + 1
            yield case


def _expect_right(case: Case, seed: int) -> None:
    """The masks along a walk are what accept takes, and nothing but zero past the vocabulary."""
    name = f"{case.name} with {len(case.vocabulary)} tokens, logits {case.vocabulary.logits_width} wide"

    def look(session: Session) -> None:
        expect_exact(session, name)
        bitmask = new_rows(1, case.vocabulary, -1)
        session.matcher.fill_bitmask(bitmask, 0)
        past = int.from_bytes(bitmask.tobytes(), "little") >> len(case.vocabulary)
        expect(not past, f"{name}: {session.place}, bits past the vocabulary are set")

    walk(case.session(), seed, 6, look)
    if case.sample.constraint.kind in ("regex", "choice") and not case.support.unenforced:
        for token_ids in (t for ways in case.sample.accepted for t in cuttings(case.vocabulary, ways[0])):
            wanted, session = oracle(case), case.session()
            for token_id in [*token_ids, len(case.vocabulary) - 1]:
                expect_same(session, wanted, case.vocabulary, f"{name}: {session.place}")
                session.take([token_id])
                wanted.take([token_id])


@check("grammar", tier="extended", seconds=60)
def vocabularies_of_any_size_work(subject: GrammarSubject) -> None:
    """Masks are right for 31, 32, 33 and as many tokens, or the vocabulary is refused with InvalidConfiguration."""
    for size in SIZES:
        for case in _cases(subject, size, 0):
            _expect_right(case, size)


@check("grammar", tier="extended", seconds=60)
def logits_of_any_width_work(subject: GrammarSubject) -> None:
    """Masks are right where the logits are wider than the vocabulary, by a bit or by words."""
    for size, padding in ((31, 1), (31, 2), (32, 1), (33, 31), (64, 192), (33, 4000)):
        for case in _cases(subject, size, padding):
            _expect_right(case, size + padding)


@check("grammar", tier="extended")
def a_vocabulary_of_one_token_works(subject: GrammarSubject) -> None:
    """With a stop token alone, a strategy refuses the vocabulary or the constraint, or allows what accept takes."""
    vocabulary = Vocabulary([b""], frozenset({0}), {0: "</s>"})
    strategy = subject.build_if_it_can(vocabulary)
    for sample in subject.samples():
        case = strategy and compiled_case(strategy, vocabulary, sample)
        if case:
            expect_exact(case.session(), f"{case.name} with a stop token and no other")


@check("grammar", tier="extended")
def an_encoder_is_not_needed_for_masks(subject: GrammarSubject) -> None:
    """Tokens without an encoder give the same masks, or the vocabulary is refused with InvalidConfiguration."""
    bare = replace(standard(), encoder=None)
    strategy = subject.build_if_it_can(bare)
    for usual in subject.few() if strategy else ():
        case = strategy and compiled_case(strategy, bare, usual.sample)
        if not case:
            continue
        session, wanted = case.session(), usual.session()
        for token_id in [*walk(usual.session(), 4, 6), None]:
            expect_same(session, wanted, bare, f"{case.name} without an encoder: {session.place}")
            if token_id is not None:
                session.take([token_id])
                wanted.take([token_id])
