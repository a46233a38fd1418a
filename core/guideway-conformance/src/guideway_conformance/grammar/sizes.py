"""Vocabularies of the sizes at which words end, and other odd ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from guideway.api import Choice, JsonSchema, Regex, Vocabulary

from guideway_conformance.grammar.languages import cuttings, oracle
from guideway_conformance.grammar.masks import expect_exact
from guideway_conformance.grammar.samples import SAMPLES, Sample, spellings
from guideway_conformance.grammar.session import (
    Seen,
    Session,
    allowed,
    difference,
    expect_same,
    legal,
    new_rows,
    observe,
    walk,
)
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import (
    GreedyEncoder,
    ids_of,
    long_tokens,
    show,
    sized,
    standard,
    with_long_tokens,
)
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

SIZES = (31, 32, 33, 63, 64, 65)
LONGEST_TEXT = 40
"""The bytes of a text after each of which tokens are tried."""


def _deep(levels: int) -> Iterator[Sample]:
    listed: tuple[Any, Any] = ({"type": "integer"}, 1)
    named = listed
    for _ in range(levels):
        listed = {"type": "array", "items": listed[0]}, [listed[1]]
        named = (
            {"type": "object", "properties": {"a": named[0]}, "required": ["a"], "additionalProperties": False},
            {"a": named[1]},
        )
    for schema, value in (listed, named):
        yield Sample(JsonSchema(schema, whitespace="compact"), (spellings(value),))


_DEEP = tuple(_deep(7))
MOST_TRIES = 3000
"""Texts that are tried in search of one that is deeper."""
_SPELLED = "abc name 12 true"


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


@check("grammar", tier="extended", seconds=120)
def tokens_over_many_levels_work(subject: GrammarSubject) -> None:
    """A token is legal wherever its text may come next, though it ends or begins many parts of the output at once; and
    is not where another part is around those, though an output before it had such parts."""
    samples = [
        *(case.sample for case in subject.few()),
        *(s for s in _DEEP if s.constraint.kind in subject.component.kinds),
    ]
    texts = [max((ways[0] for ways in sample.accepted), key=len, default=b"") for sample in samples]
    nested = [_nested(subject, sample) for sample in samples]
    vocabulary = with_long_tokens(texts, over=[text for some in nested for text in some])
    strategy = subject.build_if_it_can(vocabulary)
    for sample, text, deep in zip(samples, texts, nested, strict=True):
        case = strategy and compiled_case(strategy, vocabulary, sample)
        if not case or case.session().accept(ids_of(vocabulary, text)) != len(text):
            continue
        for output in (*deep, text, *deep[:1]):
            _expect_long_tokens(case, output)


def _expect_long_tokens(case: Case, text: bytes) -> None:
    vocabulary, session = case.vocabulary, case.session()
    # of a long text the end, where all closes
    begin = 0 if len(text) <= LONGEST_TEXT else len(text) - LONGEST_TEXT
    session.take(ids_of(vocabulary, text[:begin]))
    for i in range(begin, len(text)):
        found = set(legal(session))
        for token_id in long_tokens(vocabulary):
            token = vocabulary.tokens[token_id]
            if token_id not in found and token[0] != text[i]:
                continue
            count = session.fork().accept([token_id])
            said = f"{case.name}: {session.place}, token {show(vocabulary, [token_id])}"
            expect(count == (token_id in found), f"{said}: bit {token_id in found}, accept {count}")
            expect(count or not text.startswith(token, i), f"{said} is refused, with which {text!r} goes on")
        session.take(ids_of(vocabulary, text[i : i + 1]))


def _nested(subject: GrammarSubject, sample: Sample) -> list[bytes]:
    """Outputs in the grammar of an example that are like one of its outputs, but with what is in the midst of that
    several times around it, as parts that may contain themselves."""
    if sample.constraint.kind in SAMPLES or not (case := compiled_case(subject.build(), standard(), sample)):
        return []
    for text in sorted((ways[0] for ways in sample.accepted), key=len, reverse=True):
        for opening, inside, closing, end in _around(case, text):
            found = [opening[0] + opening[1] * n + inside + closing * n + end for n in (2, 4)]
            if all(_is_output(case, output) for output in found):
                return [*found[::-1], text]
    return []


def _around(case: Case, text: bytes) -> Iterator[tuple[tuple[bytes, bytes], bytes, bytes, bytes]]:
    """Ways to take `text` apart so that two pieces of it may stand twice, and one of them alone may not."""
    tries, shortest = MOST_TRIES, 3
    for length in range(len(text) // 2, shortest - 1, -1):
        for i in range(len(text) - 2 * length + 1):
            j = i + length
            twice = text[:j] + text[i:j]
            tries -= 1
            if tries < 0 or case.session().accept(ids_of(standard(), twice)) < len(twice):
                continue
            for k in range(j, len(text) - shortest + 1):
                for end in range(k + shortest, len(text) + 1):
                    whole = twice + text[j:k] + text[k:end] * 2 + text[end:]
                    tries -= 1
                    if tries < 0:
                        return
                    if _is_output(case, whole) and not _is_output(case, twice + text[j:]):
                        yield (text[:i], text[i:j]), text[j:k], text[k:end], text[end:]


def _is_output(case: Case, text: bytes) -> bool:
    session, token_ids = case.session(), ids_of(standard(), text)
    return session.accept(token_ids) == len(token_ids) and session.is_accepting()


@check("grammar", seconds=60)
def strategies_of_other_vocabularies_are_independent(subject: GrammarSubject) -> None:
    """Strategies for several vocabularies work side by side, each with its own: the same tokens under other ids, other
    stop tokens, another tokenizer."""
    usual = _cases_beside(subject)
    walks = [walk(case.session(), 1, 6) for case in usual]
    before = [_seen_along(case.session(), token_ids) for case, token_ids in zip(usual, walks, strict=True)]
    for vocabulary, ids in (_reversed(standard()), _with_other_ends(standard())):
        strategy = subject.build_if_it_can(vocabulary)
        for case, token_ids, wanted in zip(usual, walks, before, strict=True) if strategy else ():
            other = strategy and compiled_case(strategy, vocabulary, case.sample)
            if not other:
                continue
            session = other.session(frozenset(ids[stop] for stop in standard().stop_token_ids))
            name = f"{case.name}, beside a strategy of the same tokens {'in another order' if ids[0] else 'alone'}"
            for token_id, seen in zip([*token_ids, None], wanted, strict=True):
                due = frozenset(ids[t] for t in allowed(seen, standard()))
                found = frozenset(legal(session)) if not session.is_terminated() else frozenset()
                expect(
                    found == due, f"{name}: {session.place}, the mask has {show(vocabulary, sorted(found ^ due))} wrong"
                )
                if not session.token_ids:
                    _expect_forced(session, name)
                if token_id is not None:
                    session.take([ids[token_id]])
    again = _cases_beside(subject)
    for case, fresh, token_ids, wanted in zip(usual, again, walks, before, strict=True):
        for one in (case, fresh):
            along = _seen_along(one.session(), token_ids)
            same = "; ".join(difference(a, b, standard()) for a, b in zip(along, wanted, strict=True) if a != b)
            expect(along == wanted, f"{one.name}: beside strategies for other vocabularies, {same}")


def _cases_beside(subject: GrammarSubject) -> list[Case]:
    """Some cases, and of what the tokenizer would write in several tokens."""
    strategy, found = subject.build(), subject.few(most=1)
    if not frozenset(subject.component.kinds) & SAMPLES.keys():
        found = subject.few()
    for constraint in (Choice([_SPELLED]), Regex(_SPELLED), JsonSchema({"const": _SPELLED})):
        if constraint.kind in subject.component.kinds:
            case = compiled_case(strategy, standard(), Sample(constraint))
            found += [case] if case else []
    return found


def _expect_forced(session: Session, name: str) -> None:
    """Forced tokens are those that the tokenizer of its own vocabulary writes."""
    encoder = session.vocabulary.encoder
    if "forced_tokens" in session.strategy.capabilities and encoder is not None and not session.is_terminated():
        forced = [t for t in session.matcher.forced_tokens() if t not in session.stop_token_ids]
        written = encoder.encode(session.vocabulary.decode(forced))
        said = f"{name}: {session.place}, forced_tokens are {show(session.vocabulary, forced)}, the tokenizer writes"
        expect(written is None or list(written) == forced, f"{said} {show(session.vocabulary, written or ())}")


def _seen_along(session: Session, token_ids: Sequence[int]) -> list[Seen]:
    return [observe(session), *(observe(session.take([token_id])) for token_id in token_ids)]


def _reversed(usual: Vocabulary) -> tuple[Vocabulary, list[int]]:
    """The same tokens from behind, and the new id of each."""
    ids = [len(usual) - 1 - i for i in range(len(usual))]
    tokens = [usual.tokens[i] for i in ids]
    stops = frozenset(ids[stop] for stop in usual.stop_token_ids)
    specials = {ids[i]: name for i, name in usual.special_tokens.items()}
    return Vocabulary(tokens, stops, specials, usual.logits_width, GreedyEncoder(tuple(tokens))), ids


def _with_other_ends(usual: Vocabulary) -> tuple[Vocabulary, list[int]]:
    """The same tokens, of a tokenizer that writes each byte as a token of its own, and with another stop token."""
    single = tuple(token if len(token) < 2 else b"" for token in usual.tokens)
    stops = frozenset({min(frozenset(usual.special_tokens) - usual.stop_token_ids)})
    other = replace(usual, stop_token_ids=stops, encoder=GreedyEncoder(single))
    return other, list(range(len(usual)))
