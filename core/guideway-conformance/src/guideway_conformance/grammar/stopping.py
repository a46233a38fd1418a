"""Stop tokens and other special tokens."""

from __future__ import annotations

from guideway_conformance.grammar.session import Session, legal, walk
from guideway_conformance.grammar.subject import GrammarSubject
from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect


@check("grammar")
def stop_tokens_are_legal_when_accepting(subject: GrammarSubject) -> None:
    """Stop tokens are legal exactly where is_accepting says that the output is complete."""
    for case in subject.cases():

        def look(session: Session, name: str = case.name) -> None:
            accepting = session.is_accepting()
            for stop in sorted(session.stop_token_ids):
                is_set = stop in legal(session)
                said = f"{name}: {session.place}, is_accepting is {accepting}, the bit of stop token {stop} {is_set:d}"
                expect(is_set == accepting, said)
                count = session.twin().accept([stop])
                expect(
                    count == accepting,
                    f"{name}: {session.place}, is_accepting is {accepting}, accept of {stop} {count}",
                )

        for seed in range(2):
            walk(case.session(), seed, 8, look)


@check("grammar")
def every_stop_token_stops(subject: GrammarSubject) -> None:
    """Each stop token a matcher was given terminates a complete output."""
    for case in subject.few():
        token_ids = case.output()
        if token_ids is None:
            continue
        for stops in (case.vocabulary.stop_token_ids, frozenset({max(case.vocabulary.stop_token_ids)})):
            session = case.session(stops).take(token_ids)
            for stop in sorted(stops):
                over = session.twin().take([stop])
                expect(over.is_terminated(), f"{case.name}: {over.place}, a stop token, is_terminated is false")


@check("grammar")
def stop_tokens_are_those_of_the_matcher(subject: GrammarSubject) -> None:
    """A matcher's stop tokens are those it was given, and not the vocabulary's others."""
    for case in subject.few():
        token_ids = case.output()
        specials = frozenset(case.vocabulary.special_tokens)
        if token_ids is None:
            continue
        tool = min(specials - case.vocabulary.stop_token_ids)
        last = max(case.vocabulary.stop_token_ids)
        for stops in (frozenset({tool}), frozenset({tool, last})):
            session = case.session(stops).take(token_ids)
            found = specials & set(legal(session))
            said = f"{case.name}: a matcher for stop tokens {sorted(stops)}, complete {session.place}, allows"
            expect(found == stops, f"{said} the special tokens {sorted(found)}")
            for special in sorted(specials):
                over = session.twin()
                count = over.accept([special])
                expect(count == (special in stops), f"{said} {special} by its mask, but accept of it returned {count}")
                expect(over.is_terminated() == (special in stops), f"{case.name}: {over.place}, is_terminated is wrong")


@check("grammar")
def matchers_with_other_stop_tokens_are_independent(subject: GrammarSubject) -> None:
    """The stop tokens of one matcher are not those of another one of the same grammar."""
    for case in subject.few(most=1):
        token_ids = case.output()
        if token_ids is None:
            continue
        specials = sorted(case.vocabulary.special_tokens)
        several = [frozenset({special}) for special in specials] + [frozenset(specials[:2]), frozenset(specials[-2:])]
        sessions = [case.session(stops).take(token_ids) for stops in (*several, *reversed(several))]
        for session in (*sessions, *sessions):
            found = frozenset(specials) & set(legal(session))
            said = f"{case.name}: beside matchers with other stop tokens, one for {sorted(session.stop_token_ids)}"
            expect(found == session.stop_token_ids, f"{said} allows {sorted(found)} by its mask")
            for special in specials:
                count = session.twin().accept([special])
                expect(count == (special in found), f"{said}: accept of {special} returned {count}")


@check("grammar", trait="known-kind")
def special_tokens_are_no_text(subject: GrammarSubject) -> None:
    """A grammar never produces a special token, or an id without bytes, as text."""
    for case in subject.cases("regex", "choice", "json_schema", "json_object"):

        def look(session: Session, name: str = case.name) -> None:
            tokens = session.vocabulary.tokens
            wrong = [t for t in legal(session) if not tokens[t] and t not in session.stop_token_ids]
            expect(not wrong, f"{name}: {session.place}, {show(session.vocabulary, wrong)} without bytes are allowed")
            other = session.twin()
            for token_id in (t for t in range(len(tokens)) if not tokens[t] and t not in session.stop_token_ids):
                count = other.accept([token_id])
                expect(
                    not count, f"{name}: {session.place}, {show(session.vocabulary, [token_id])} was accepted as text"
                )

        walk(case.session(), 5, 6, look)
