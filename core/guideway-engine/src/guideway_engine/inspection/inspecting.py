"""Running the tokens of a text through a compiled constraint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from guideway.api.bitmask import allocate, unpack
from guideway.api.grammar import GrammarStrategy, Matcher
from guideway.api.types import Constraint, JsonSchema
from guideway.api.vocabulary import Vocabulary
from guideway.errors import DeadEnd, InvalidGrammar, LimitExceeded, UnsupportedGrammar, blame
from guideway.json_schema.validity import Fault, faults, is_valid
from guideway.runtime.sequences.replay import new_matcher
from numpy.typing import NDArray

from guideway_engine.inspection.choosing import Choice, StrategyReport, Unenforced, choose_and_compile
from guideway_engine.inspection.places import Place, place_of
from guideway_engine.inspection.words import visible

__all__ = ["FEW", "Allowed", "Inspection", "Refusal", "Run", "Step", "inspect_constraint"]

Freedom: TypeAlias = Literal["forced", "spelled", "few", "many", "none"]

FEW = 20
"""Maximum number of allowed tokens that counts as few."""
EXAMPLES = 12
"""Maximum number of allowed tokens that are listed."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that are allowed next."""

    count: int
    """Number of allowed tokens, stop tokens included."""
    examples: tuple[int, ...]
    """Ids of some of them, tokens of short readable text first."""
    first_bytes: bytes
    """First bytes of their texts, ascending, without duplicates."""
    may_end: bool
    """True if stop tokens are allowed, so that the text may end here."""


NOTHING = Allowed(0, (), b"", may_end=False)


@dataclass(frozen=True, slots=True)
class Step:
    """One token of the text, or its end."""

    token_id: int | None
    """Id of the token; None at the end of the text."""
    offset: int
    """Number of bytes of text before it."""
    allowed: Allowed
    choice: Freedom
    """Degree of freedom: ``forced``, one token; ``spelled``, one text, which can be split into tokens in several ways;
    ``few``, at most `FEW` tokens; ``many``, more; ``none``, if the text cannot be completed any more."""
    accepted: bool
    fill_seconds: float
    """Seconds to fill the mask."""
    accept_seconds: float | None
    """Seconds to accept the token; None at the end of the text."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The place where the constraint refuses the text, and the reason."""

    step: int
    """Index into `Inspection.steps`."""
    place: Place
    """The first byte that is not allowed; inside a token if the token's text begins with allowed bytes."""
    reason: str
    allowed: Allowed
    """Characters that are allowed at this place."""


class Run(NamedTuple):
    """Consecutive steps without a choice."""

    first: int
    """Index into `Inspection.steps`."""
    length: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A constraint and its answers to a text. Times are in seconds and of this one run."""

    constraint: Constraint
    vocabulary: Vocabulary
    strategies: tuple[StrategyReport, ...]
    """Reports on all strategies considered, including the chosen one."""
    strategy: str
    """Name of the chosen strategy."""
    unenforced: tuple[Unenforced, ...]
    """Keywords that it does not enforce."""
    compile_seconds: float
    nbytes: int
    """Memory of the compiled constraint in bytes, as the strategy reports it."""
    matcher_seconds: float
    """Seconds to create a matcher for one sequence."""
    text: bytes | None
    """Bytes of all tokens; None without a text."""
    token_ids: tuple[int, ...]
    steps: tuple[Step, ...]
    """One step per token up to the first refused one; after the last token, a step for the end of the text."""
    refusal: Refusal | None
    """None if the text satisfies the constraint as far as the strategy enforces it, or if there is no text."""
    valid: bool | None
    """True if the text is an instance of the schema, by the library ``jsonschema``. None if that is unknown, or without
    a JSON Schema or a text."""
    faults: tuple[Fault, ...]
    """Reasons why the text is not valid."""
    in_another_order: bool
    """True if the text is refused only for the order of its properties: with ``properties_order="any"`` it is not."""
    pressure: tuple[float, ...] = ()
    """By token, the probability that the model gave to all allowed tokens when the text was drawn
    (`guideway.Records.pressure`); empty if it was not recorded."""

    @property
    def num_forced(self) -> int:
        """Number of accepted tokens without a choice."""
        return sum(run.length for run in self.forced_runs)

    @property
    def forced_runs(self) -> tuple[Run, ...]:
        """Runs of accepted tokens that were forced or spelled."""
        runs: list[Run] = []
        for index, step in enumerate(self.steps):
            if step.token_id is None or not step.accepted or step.choice not in ("forced", "spelled"):
                continue
            if runs and sum(runs[-1]) == index:
                runs[-1] = Run(runs[-1].first, runs[-1].length + 1)
            else:
                runs.append(Run(index, 1))
        return tuple(runs)

    @property
    def rest(self) -> tuple[int, ...]:
        """Tokens after the refused one."""
        return () if self.refusal is None else self.token_ids[self.refusal.step + 1 :]

    @property
    def passes(self) -> bool:
        """True if neither the strategy nor ``jsonschema`` rejects the text."""
        return self.refusal is None and self.valid is not False


def inspect_constraint(
    constraint: Constraint,
    strategies: Mapping[str, GrammarStrategy],
    vocabulary: Vocabulary,
    token_ids: Sequence[int] | None = None,
    *,
    served_by: str | None = None,
    pressure: tuple[float, ...] = (),
) -> Inspection:
    """Choose a strategy, compile `constraint` and run the text with `token_ids` through it.

    Without `token_ids` the only step shows which tokens are allowed first. `served_by` names the strategy to use. Ids
    must be in the vocabulary. `pressure` has an entry per token, if it was recorded. Raises the errors of
    `choose_and_compile`, and `PluginError` if the strategy fails.
    """
    choice = choose_and_compile(constraint, strategies, served_by)
    walk = _Walk(choice, vocabulary, is_json=isinstance(constraint, JsonSchema))
    steps = tuple(walk.steps(token_ids or ()))
    text = None if token_ids is None else vocabulary.decode(token_ids)
    valid, found = _judge(constraint, text)
    refusal = None if text is None else walk.refusal(steps, text)
    return Inspection(
        constraint=constraint,
        vocabulary=vocabulary,
        strategies=choice.strategies,
        strategy=choice.candidate.name,
        unenforced=choice.unenforced,
        compile_seconds=choice.compile_seconds,
        nbytes=walk.nbytes,
        matcher_seconds=walk.matcher_seconds,
        text=text,
        token_ids=tuple(token_ids or ()),
        steps=steps,
        refusal=refusal,
        valid=valid,
        faults=found,
        in_another_order=refusal is not None
        and valid is not False
        and _takes_in_any_order(constraint, strategies, vocabulary, token_ids or ()),
        pressure=pressure,
    )


def _takes_in_any_order(
    constraint: Constraint,
    strategies: Mapping[str, GrammarStrategy],
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
) -> bool:
    """Return whether a schema allows a text if its properties may come in any order."""
    if not isinstance(constraint, JsonSchema) or constraint.takes_any_order:
        return False
    try:
        choice = choose_and_compile(replace(constraint, properties_order="any"), strategies)
    except (InvalidGrammar, LimitExceeded, UnsupportedGrammar):
        return False
    with blame(f"grammar.{choice.candidate.name}", "matcher"):
        matcher = new_matcher(choice.candidate.strategy, choice.grammar, vocabulary.stop_token_ids)
        return matcher.accept(tuple(token_ids)) == len(token_ids) and matcher.is_accepting()


def _judge(constraint: Constraint, text: bytes | None) -> tuple[bool | None, tuple[Fault, ...]]:
    """Return the values of `Inspection.valid` and `Inspection.faults`."""
    if text is None or not isinstance(constraint, JsonSchema):
        return None, ()
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        return False, (Fault(f"not UTF-8 at byte {error.start}", "", ""),)
    valid = is_valid(constraint.parsed, decoded, enforces_formats=False)
    return valid, tuple(faults(constraint.parsed, decoded)) if valid is False else ()


class _Walk:
    """Runs a matcher through tokens, and another one through their bytes, because an output's text is its bytes."""

    def __init__(self, choice: Choice, vocabulary: Vocabulary, *, is_json: bool) -> None:
        self._plugin = f"grammar.{choice.candidate.name}"
        self._vocabulary = vocabulary
        self._is_json = is_json
        self._bitmask = allocate(1, vocabulary.logits_width)
        tokens = vocabulary.tokens
        self._first = np.array([token[0] if token else 0 for token in tokens], dtype=np.uint8)
        self._has_text = np.array([bool(token) for token in tokens])
        self._by_readability = np.array(sorted(range(len(tokens)), key=self._readability))
        self._of_byte = {token: i for i, token in enumerate(tokens) if len(token) == 1}
        begin = time.perf_counter()
        with self._blame("matcher"):
            self._matcher = new_matcher(choice.candidate.strategy, choice.grammar, vocabulary.stop_token_ids)
        self.matcher_seconds = time.perf_counter() - begin
        with self._blame("matcher"):
            # None after a byte that is no token of the vocabulary
            self._of_bytes: Matcher | None = new_matcher(
                choice.candidate.strategy, choice.grammar, vocabulary.stop_token_ids
            )
        with self._blame("nbytes"):
            self.nbytes = int(choice.grammar.nbytes)

    def steps(self, token_ids: Sequence[int]) -> Iterator[Step]:
        """Yield the steps up to the first refused token, or the end."""
        offset = 0
        for token_id in [*token_ids, None]:
            if self._has_ended():
                if token_id is not None:  # do not ask for a mask after the end
                    yield Step(token_id, offset, NOTHING, "none", False, 0.0, None)
                return
            allowed, seconds = self._read_mask(self._matcher)
            choice = _how_many(allowed)
            if token_id is None:
                yield Step(None, offset, allowed, choice, allowed.may_end, seconds, None)
                return
            token = self._vocabulary.tokens[token_id]
            begin = time.perf_counter()
            with self._blame("accept"):
                accepted = allowed.count > 0 and self._matcher.accept((token_id,)) == 1
            accept_seconds = time.perf_counter() - begin
            if accepted and self._spells(token, allowed) and choice != "forced":
                choice = "spelled"
            yield Step(token_id, offset, allowed, choice, accepted, seconds, accept_seconds)
            if not accepted:
                return
            offset += len(token)

    def refusal(self, steps: Sequence[Step], text: bytes) -> Refusal | None:
        """Return why the last of `steps` is refused; None if it is accepted. Call it last: it moves the matcher of
        bytes."""
        last = steps[-1]
        if last.accepted:
            return None
        offset, allowed = last.offset, last.allowed
        if self._has_ended():
            reason = "a stop token has already ended the output"
        elif not allowed.count:
            reason = "no token is allowed here, because the text so far cannot be completed"
        elif last.token_id is None:
            reason = "the text ends before it is complete"
        elif last.token_id in self._vocabulary.stop_token_ids:
            reason = "the output may not end here"
        elif not (token := self._vocabulary.tokens[last.token_id]):
            name = self._vocabulary.special_tokens.get(last.token_id, str(last.token_id))
            reason = f"the special token {name} is not text"
        else:
            begun = 0
            while begun < len(token) and self._goes_on(token[begun]):
                begun += 1
            if begun and self._of_bytes is not None:
                offset += begun
                allowed, _ = self._read_mask(self._of_bytes)
            if self._of_bytes is None or token[begun : begun + 1] not in self._of_byte:
                reason = f"the token {visible(token)} may not stand here"
            else:
                reason = f"{_character(text, offset)!r} may not stand here"
        return Refusal(len(steps) - 1, place_of(text, offset, is_json=self._is_json), reason, allowed)

    def _has_ended(self) -> bool:
        with self._blame("is_terminated"):
            return self._matcher.is_terminated()

    def _blame(self, phase: str) -> blame:
        """Return a context that names the strategy in errors of its methods."""
        return blame(self._plugin, phase, passing=(DeadEnd,))

    def _spells(self, token: bytes, allowed: Allowed) -> bool:
        """Accept a token byte by byte, and return whether each byte was the only one allowed."""
        forced = bool(token)
        for count, byte in enumerate(token):
            if self._of_bytes is None:
                return False
            if forced and count:
                allowed, _ = self._read_mask(self._of_bytes)
            forced = forced and len(allowed.first_bytes) == 1 and not allowed.may_end
            if not self._goes_on(byte):
                self._of_bytes = None
        return forced

    def _goes_on(self, byte: int) -> bool:
        """Accept `byte` in the matcher of bytes, and return whether it was allowed."""
        token_id = self._of_byte.get(bytes((byte,)))
        if self._of_bytes is None or token_id is None:
            return False
        with self._blame("accept"):
            return self._of_bytes.accept((token_id,)) == 1

    def _read_mask(self, matcher: Matcher) -> tuple[Allowed, float]:
        """Return the tokens that the mask allows, and the seconds to fill it."""
        begin = time.perf_counter()
        try:
            with self._blame("fill_bitmask"):
                matcher.fill_bitmask(self._bitmask, 0)
        except DeadEnd:
            return NOTHING, time.perf_counter() - begin
        seconds = time.perf_counter() - begin
        mask: NDArray[np.bool_] = unpack(self._bitmask, len(self._vocabulary))[0]
        readable = self._by_readability[mask[self._by_readability]]
        return Allowed(
            count=int(np.count_nonzero(mask)),
            examples=tuple(int(i) for i in readable[:EXAMPLES]),
            first_bytes=np.unique(self._first[mask & self._has_text]).tobytes(),
            may_end=any(bool(mask[i]) for i in self._vocabulary.stop_token_ids),
        ), seconds

    def _readability(self, token_id: int) -> tuple[bool, bool, int, int]:
        """Return a sort key: readable tokens first, special ones last, short ones before long ones."""
        token = self._vocabulary.tokens[token_id]
        try:
            is_readable = token.decode().isprintable()
        except UnicodeDecodeError:
            is_readable = False
        return not token, not is_readable, len(token), token_id


def _character(text: bytes, offset: int) -> str:
    """Return the character that contains the byte at `offset`."""
    begin = len(text[:offset].decode(errors="ignore").encode())
    return text[begin:].decode(errors="replace")[:1]


def _how_many(allowed: Allowed) -> Freedom:
    if allowed.count <= 1:
        return "forced" if allowed.count else "none"
    return "few" if allowed.count <= FEW else "many"
