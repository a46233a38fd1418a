"""Optional features: forced tokens, shortest completions, serialized grammars."""

from __future__ import annotations

from dataclasses import replace

from guideway.api import Choice, Regex, UnsupportedCapability

from guideway_conformance.grammar.languages import oracle
from guideway_conformance.grammar.samples import Sample
from guideway_conformance.grammar.session import Session, expect_same, legal, observe, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.undoing import expect_refused
from guideway_conformance.grammar.vocabularies import GreedyEncoder, ids_of, show, standard, with_long_tokens
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

LIMIT = 200
"""Tokens of a completion that has to be found: every sample has a shorter one."""

MOST_BEHIND = 4
_LITERAL = "abc yes 12 é中 true"
_BEGINNING, _ENDINGS = "abc 1", ("2", ",", "]")
"""The beginning of some texts, and their ends: tokens run over the border of the two."""


def forcing_is_refused(subject: GrammarSubject) -> None:
    for case in subject.few(most=1):
        session = case.session()
        try:
            forced = session.matcher.forced_tokens()
        except UnsupportedCapability:
            continue
        expect(not list(forced), f"{case.name}: forced_tokens is not declared, but returned {list(forced)}, not ()")


def _places(case: Case, walks: int = 3) -> list[Session]:
    """Some states that are not over, one of them of a matcher with a stop token that is none of the vocabulary's."""
    stops = case.vocabulary.stop_token_ids
    other = min(frozenset(case.vocabulary.special_tokens) - stops)
    found = [case.session(), case.session(frozenset({other}))]
    for seed in range(walks):
        session = case.session()
        for token_id in walk(session.twin(), seed, 8):
            session.take([token_id])
            if not session.is_terminated():
                found.append(session.twin())
    return found


@check("grammar", capability="forced_tokens", refusal=forcing_is_refused)
def forced_tokens_are_legal(subject: GrammarSubject) -> None:
    """Forced tokens are accepted, every one of them, and asking for them leaves the state."""
    for case in subject.cases():
        for session in _places(case):
            before = observe(session)
            forced = list(session.matcher.forced_tokens())
            said = f"{case.name}: {session.place}, forced_tokens {show(case.vocabulary, forced)}"
            expect_same(session, before, case.vocabulary, f"{said} moved the matcher")
            count = session.twin().accept(forced)
            expect(count == len(forced), f"{said}: accept takes {count} of them")


@check("grammar", capability="forced_tokens", refusal=forcing_is_refused)
def forced_tokens_are_the_only_way(subject: GrammarSubject) -> None:
    """Forced tokens spell the only text that can come next: every token that is legal on the way is part of it."""
    for case in subject.cases():
        for session in _places(case):
            forced = list(session.matcher.forced_tokens())
            _expect_only_way(session, forced, case.name)


def _expect_only_way(session: Session, forced: list[int], name: str) -> None:
    """Follow the text over every token that spells a part of it."""
    tokens, text = session.vocabulary.tokens, session.vocabulary.decode(forced)
    said = f"{name}: {session.place}, forced_tokens {show(session.vocabulary, forced)}, but"
    reached, pending = {0}, [(0, session.twin())]
    while pending:
        at, here = pending.pop()
        rest = text[at:]
        for token_id in legal(here) if rest else ():
            token = tokens[token_id]
            fits = bool(token) and (rest.startswith(token) or token.startswith(rest))
            expect(fits, f"{said} {show(session.vocabulary, [token_id])} is legal {here.place} too")
            if at + len(token) < len(text) and at + len(token) not in reached:
                reached.add(at + len(token))
                pending.append((at + len(token), here.twin().take([token_id])))


@check("grammar", capability="forced_tokens", refusal=forcing_is_refused)
def forced_tokens_are_the_tokenizers(subject: GrammarSubject) -> None:
    """Forced tokens are the first of those the tokenizer would write for the rest of the output, whatever it becomes:
    where one text alone is possible, and where several begin alike."""
    for usual in subject.few(most=3):
        _expect_tokenizers(usual)
    _expect_tokenizers_over_borders(subject)
    strategy, vocabulary = subject.build(), standard()
    texts = [_BEGINNING + ending for ending in _ENDINGS]
    several = [vocabulary.encode(text.encode()) or [] for text in texts]
    common = next(i for i, ids in enumerate(zip(*several, strict=False)) if len(set(ids)) > 1)
    for constraint in (Choice(texts), Regex(rf"{_BEGINNING}(2|,|\])")):
        if constraint.kind not in subject.component.kinds:
            continue
        case = compiled_case(strategy, vocabulary, Sample(constraint))
        for start in range(common + 1) if case else ():
            assert case is not None
            session = case.session().take(several[0][:start])
            forced = list(session.matcher.forced_tokens())
            for text, written in zip(texts, several, strict=True):
                expect(
                    forced == written[start : start + len(forced)],
                    f"{case.name}: {session.place}, forced_tokens are {show(vocabulary, forced)}, and of {text!r} the "
                    f"tokenizer writes {show(vocabulary, written[start:])}",
                )
    for constraint in (Choice([_LITERAL]), Regex(_LITERAL)):
        if constraint.kind not in subject.component.kinds:
            continue
        case = compiled_case(strategy, vocabulary, Sample(constraint))
        written = vocabulary.encode(_LITERAL.encode()) or []
        for start in range(len(written) + 1) if case else ():
            assert case is not None
            session = case.session().take(written[:start])
            forced = list(session.matcher.forced_tokens())
            wanted = written[start : start + len(forced)]
            forced_text = [token for token in forced if token not in session.stop_token_ids]
            expect(
                forced_text == wanted[: len(forced_text)],
                f"{case.name}: {session.place}, forced_tokens are {show(vocabulary, forced)}, the tokenizer writes "
                f"{show(vocabulary, wanted)}",
            )


def _expect_tokenizers(case: Case) -> None:
    """Fail if a token that begins in the forced text and ends behind it makes the tokenizer write other tokens: the
    longest at each place, so that what is behind such a token counts no more."""
    vocabulary = case.vocabulary
    for session in (*_places(case), *_along_an_output(case)):
        if session.is_terminated():
            continue
        forced = [t for t in session.matcher.forced_tokens() if t not in session.stop_token_ids]
        text = vocabulary.decode(forced)
        for token in {token for token in vocabulary.tokens if len(token) > 1} if text else ():
            for cut in range(max(1, len(token) - MOST_BEHIND), len(token)):
                if not text.endswith(token[:cut]):
                    continue
                behind = ids_of(vocabulary, token[cut:])
                written = vocabulary.encode(text + token[cut:])
                ahead = session.twin().take(forced)
                if written is None or written[: len(forced)] == forced or ahead.accept(behind) < len(behind):
                    continue
                said = f"{case.name}: {session.place}, forced_tokens are {show(vocabulary, forced)}, and where the text"
                expect(False, f"{said} goes on with {token[cut:]!r} the tokenizer writes {show(vocabulary, written)}")


def _expect_tokenizers_over_borders(subject: GrammarSubject) -> None:
    """The same with a tokenizer whose tokens run over all borders in outputs."""
    samples = [case.sample for case in subject.few()]
    outputs = [ways[0] for sample in samples for ways in sample.accepted[:2]]
    bare = with_long_tokens(outputs, over=outputs)
    vocabulary = replace(bare, encoder=GreedyEncoder(tuple(bare.tokens)))
    strategy = subject.build_if_it_can(vocabulary)
    for sample in samples if strategy else ():
        case = compiled_case(strategy, vocabulary, sample) if strategy else None
        for text in (ways[0] for ways in sample.accepted[:2]) if case else ():
            assert case is not None
            token_ids, session = ids_of(vocabulary, text), case.session()
            if case.session().accept(token_ids) < len(token_ids):
                continue
            for i, token_id in enumerate(token_ids):
                forced = [t for t in session.matcher.forced_tokens() if t not in session.stop_token_ids]
                written = vocabulary.encode(text[i:])
                said = f"{case.name}: {session.place}, forced_tokens are {show(vocabulary, forced)}, and of the rest of"
                same = written is None or written[: len(forced)] == forced
                expect(same, f"{said} {text!r} the tokenizer writes {show(vocabulary, written or ())}")
                session.take([token_id])


def _along_an_output(case: Case) -> list[Session]:
    """The states on the way to an output."""
    found, session = [case.session()], case.session()
    for token_id in case.whole()[:-1]:
        session.take([token_id])
        found.append(session.twin())
    return found


def completing_is_refused(subject: GrammarSubject) -> None:
    for case in subject.few(most=1):
        session = case.session()
        expect_refused("shortest_completion", lambda session=session: session.matcher.shortest_completion(LIMIT))


@check("grammar", capability="shortest_completion", refusal=completing_is_refused, seconds=240)
def a_completion_completes(subject: GrammarSubject) -> None:
    """A completion has at most `limit` tokens, a stop token last, is accepted, and asking for it leaves the state."""
    for case in subject.few(most=3):
        for session in _places(case, 1):
            before = observe(session)
            for limit in (LIMIT, 2):
                found = session.matcher.shortest_completion(limit)
                said = f"{case.name}: {session.place}, shortest_completion({limit})"
                expect_same(session, before, case.vocabulary, f"{said} moved the matcher")
                if found is None:
                    continue
                token_ids = list(found)
                said = f"{said} returned {show(case.vocabulary, token_ids)}"
                expect(len(token_ids) <= limit, f"{said}, {len(token_ids)} tokens")
                ends = bool(token_ids) and token_ids[-1] in session.stop_token_ids
                expect(ends, f"{said}, whose last is no stop token")
                over = session.twin()
                count = over.accept(token_ids)
                expect(count == len(token_ids), f"{said}, of which accept takes {count}")
                expect(over.is_terminated(), f"{said}, after which is_terminated is false")


@check("grammar", capability="shortest_completion", refusal=completing_is_refused, seconds=240)
def a_completion_is_found_if_there_is_one(subject: GrammarSubject) -> None:
    """Shortest_completion returns None only if no completion is as short as `limit`: not where that of a larger limit
    is, nor where the rest of an output is."""
    for case in subject.few(most=3):
        _expect_completed_within(case)
        for session in _places(case, 1):
            shortest = _shortest(case, session)
            if shortest is None:
                continue
            said = f"{case.name}: {session.place}, where {shortest} tokens complete the output, shortest_completion"
            for limit in (shortest, LIMIT):
                expect(session.matcher.shortest_completion(limit) is not None, f"{said}({limit}) returned None")
            for limit in range(max(0, shortest - 2), shortest):
                found = session.matcher.shortest_completion(limit)
                expect(found is None, f"{said}({limit}) returned {found}")


def _expect_completed_within(case: Case) -> None:
    """Fail if a completion is not found with the limit that it, or the rest of an output that is known, needs."""
    way = case.whole()
    session = case.session()
    for i, token_id in enumerate(way):
        left = len(way) - i
        said = f"{case.name}: {session.place}, where {left} tokens complete the output, shortest_completion"
        found = session.matcher.shortest_completion(left)
        expect(found is not None, f"{said}({left}) returned None")
        needed = len(list(found or ()))
        if needed < left:
            again = session.matcher.shortest_completion(needed)
            expect(again is not None, f"{said}({left}) returned {needed} tokens, and ({needed}) None")
        session.take([token_id])
    for session in _places(case, 1):
        known = session.matcher.shortest_completion(LIMIT)
        if known is not None:
            again = session.matcher.shortest_completion(len(known))
            said = f"{case.name}: {session.place}, shortest_completion({LIMIT}) returned {len(known)} tokens"
            expect(again is not None, f"{said}, and ({len(known)}) None")


def _shortest(case: Case, session: Session, most: int = 4) -> int | None:
    """Tokens of the shortest completion with its stop token, by trying all; None if that takes too long."""
    is_exact = case.sample.constraint.kind in ("regex", "choice") and not case.support.unenforced
    texts_left = 2000 if is_exact else 200
    if is_exact:
        session = oracle(case).take(session.token_ids)
    layer, seen = [session], set[bytes]()
    for length in range(1, most + 1):
        if any(here.is_accepting() for here in layer):
            return length
        following = []
        for here in layer:
            ways = {here.text + here.vocabulary.tokens[t]: t for t in legal(here)}
            new = ways.keys() - seen
            texts_left -= len(new)
            if texts_left < 0:
                return None
            seen |= new
            following += [here.fork().take([ways[text]]) for text in sorted(new)]
        layer = following
    return None


def serializing_is_refused(subject: GrammarSubject) -> None:
    for case in subject.few(most=1):
        expect_refused("serialize", case.compiled.to_bytes)
        expect_refused("serialize", lambda case=case: case.strategy.from_bytes(b"x"))


@check("grammar", capability="serialize", refusal=serializing_is_refused)
def a_serialized_grammar_is_the_same(subject: GrammarSubject) -> None:
    """from_bytes of another strategy for an equal vocabulary turns what to_bytes wrote into an equal grammar."""
    other = subject.build()
    for case in subject.cases():
        data = case.compiled.to_bytes()
        expect(isinstance(data, bytes), f"{case.name}: to_bytes returned a {type(data).__name__}, no bytes")
        again = Session(other, other.from_bytes(data), case.vocabulary, f"{case.name}: read from bytes")
        for seed in range(2):
            session, read = case.session(), again.fresh()
            for token_id in [*walk(case.session(), seed, 8), None]:
                expect_same(read, session, case.vocabulary, f"{case.name}: read from bytes, {session.place}")
                if token_id is not None:
                    read.take([token_id])
                    session.take([token_id])
