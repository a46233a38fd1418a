"""Checks that what is allowed is what the constraint says."""

from __future__ import annotations

import random
from collections.abc import Iterable

from guideway.api import Matcher, Vocabulary

from guideway_conformance.grammar.samples import MEANT, RARE_REGEX, Spellings
from guideway_conformance.grammar.session import Session, expect_same, legal, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.reference.strategy import Strategy as Reference
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

SEPARATORS = (b"\x1c", b"\x1d", b"\x1e", b"\x1f")
"""Characters of ASCII that are spaces in Python alone."""


def oracle(case: Case) -> Session:
    """The reference strategy's matcher of the same constraint."""
    strategy = Reference(case.vocabulary, {})
    return Session(strategy, strategy.compile(case.sample.constraint), case.vocabulary, f"the reference, {case.name}")


def _expect_exact(subject: GrammarSubject, kind: str) -> None:
    for case in subject.cases(kind):
        if case.support.unenforced or not case.sample.accepted or case.sample.constraint.strategy:
            continue
        try:
            reference = oracle(case)
        except Exception:  # an example of its author's in a dialect of its own
            continue
        for seed in range(4):
            session, wanted = case.session(), reference.fresh()
            for token_id in [*walk(reference.fresh(), f"{case.name}{seed}", 10), None]:
                expect_same(session, wanted, case.vocabulary, f"{case.name}: {session.place}")
                if token_id is not None:
                    wanted.take([token_id])
                    session.take([token_id])


@check("grammar", trait="kind:regex", seconds=60)
def a_regex_allows_exactly_its_matches(subject: GrammarSubject) -> None:
    """A regex allows exactly the texts that match it as a whole, whichever tokens spell them; a set has characters, not
    bytes, and what is repeated no times is not there."""
    _expect_exact(subject, "regex")
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for sample in RARE_REGEX:
        case = compiled_case(strategy, standard(), sample)
        if case is None or case.support.unenforced:
            continue
        for texts, allowed in (([ways[0] for ways in sample.accepted], True), (sample.rejected, False)):
            for text in texts:
                accepted = is_output(case.session().matcher, ids_of(standard(), text), stop)
                expect(accepted == allowed, f"{case.name}: {text!r} is {'accepted' if accepted else 'refused'}")


@check("grammar", trait="kind:regex", seconds=60)
def a_pattern_means_what_python_says(subject: GrammarSubject) -> None:
    """The language of a regex is all texts that Python's `re.fullmatch` takes, but that a strategy may leave out
    letters, digits and spaces that are not in every engine: a dot, a class such as `\\w`, an anchor, a boundary, a flag
    or other syntax that it reads in another way it refuses or calls unenforced."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for sample in MEANT:
        case = compiled_case(strategy, standard(), sample)
        if case is None or case.support.unenforced:
            continue
        plain = [ways[0] for ways in sample.accepted if ways[0].isascii() and not ways[0].startswith(SEPARATORS)]
        for texts, allowed in ((plain, True), (sample.rejected, False)):
            for text in texts:
                accepted = is_output(case.session().matcher, ids_of(standard(), text), stop)
                said = f"{case.name}: {text!r} is {'accepted' if accepted else 'refused'}, and supports says nothing"
                expect(accepted == allowed, said)


@check("grammar", trait="kind:choice", seconds=60)
def a_choice_allows_exactly_its_strings(subject: GrammarSubject) -> None:
    """A choice allows exactly one of its strings, whichever tokens spell them."""
    _expect_exact(subject, "choice")


def cuttings(vocabulary: Vocabulary, text: bytes) -> Iterable[list[int]]:
    """`text` as tokens: byte by byte, as long as they get, and at random."""
    yield ids_of(vocabulary, text)
    by_text: dict[bytes, list[int]] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        by_text.setdefault(token, []).append(token_id)
    rng = random.Random(text)
    for longest in (True, False, False, False):
        token_ids, start = [], 0
        while start < len(text):
            ends = [end for end in range(start + 1, min(len(text), start + 10) + 1) if text[start:end] in by_text]
            end = max(ends) if longest else rng.choice(ends)
            token_ids.append(rng.choice(by_text[text[start:end]]))
            start = end
        yield token_ids


def is_output(matcher: Matcher, token_ids: list[int], stop: int) -> bool:
    """Return whether a new matcher takes these tokens and then a stop token."""
    return matcher.accept([*token_ids, stop]) == len(token_ids) + 1 and bool(matcher.is_terminated())


def _is_accepted(case: Case, ways: Spellings) -> bool:
    """Return whether one of the spellings is accepted."""
    stop = max(case.vocabulary.stop_token_ids)
    verdicts = {text: _verdict(case, text, stop) for text in ways}
    return any(verdicts.values())


def _verdict(case: Case, text: bytes, stop: int) -> bool:
    found = {is_output(case.session().matcher, ids, stop) for ids in cuttings(case.vocabulary, text)}
    expect(len(found) == 1, f"{case.name}: {text!r} is accepted or not, depending on how it is cut into tokens")
    return found.pop()


@check("grammar", seconds=60)
def outputs_of_the_language_are_accepted(subject: GrammarSubject) -> None:
    """Outputs of the language are accepted, however they are cut into tokens; JSON in a usual spacing, of a schema with
    keywords that a strategy may take too narrowly at least one."""
    for case in subject.cases():
        refused = [ways for ways in case.sample.accepted if not _is_accepted(case, ways)]
        shown = " and ".join(repr(ways[0].decode(errors="replace")) for ways in refused[:3])
        is_wrong = refused and (case.sample.is_plain or len(refused) == len(case.sample.accepted))
        expect(not is_wrong, f"{case.name}: refused {shown}, in every spelling; it is an output of its language")


@check("grammar", seconds=60)
def other_texts_are_refused(subject: GrammarSubject) -> None:
    """A text that is no output of the language is refused, unless `supports` said that something is not enforced."""
    for case in subject.cases():
        if case.support.unenforced:
            continue
        stop = max(case.vocabulary.stop_token_ids)
        for text in case.sample.rejected:
            accepted = _verdict(case, text, stop)
            expect(not accepted, f"{case.name}: accepted {text!r}, which is no output of its language")


@check("grammar", seconds=60)
def walks_end_in_the_language(subject: GrammarSubject) -> None:
    """Whatever is drawn from the masks, a token is always legal, and what a stop token ends obeys the constraint."""
    for case in subject.cases():
        for seed in range(6):
            session = case.session()
            walk(session, f"{case.name} {seed}", 50)
            if not session.is_terminated():
                expect(legal(session), f"{case.name}: {session.place} {session.text!r}, no token is legal")
                continue
            flaw = None if case.support.unenforced else case.sample.flaw(session.text)
            expect(flaw is None, f"{case.name}: the masks allow {session.text!r}, which {flaw}")
