"""Modifiers against repetition: `Dry` lowers tokens that extend a repeated sequence, `NoRepeatNgram` forbids them."""

from __future__ import annotations

from abc import abstractmethod
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, Self

import numpy as np
from guideway import api
from guideway.api.options import Range

MAX_LENGTH = 50
"""Matches longer than this many tokens count as this long, as in the original, so that penalties stay finite."""
MAX_PLACES = 64
"""The nearest earlier places of a token sequence that count, so that the cost of a token has a bound."""
FORBIDDEN = -np.inf
NONE: Mapping[Any, Any] = {}


class AddTransform(api.LogitTransform):
    """Adds each row's values to the logits of its token ids; padding adds 0."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ids = payload.arrays["ids"]
        repeated = (payload.rows[:, None] + 0 * ids).reshape(-1)
        return step.ops.add_at(logits, repeated, ids.reshape(-1), payload.arrays["values"].reshape(-1))


@dataclass(slots=True)
class State:
    """The continuations of each earlier sequence of `size` tokens, and their effect on the next token."""

    size: int
    last: tuple[int, ...] = ()
    """The last `size` tokens, or fewer after the beginning."""
    places: MutableMapping[tuple[int, ...], tuple[Any, ...]] = field(default_factory=dict)
    values: Mapping[int, float] = field(default_factory=dict)
    """Values to add to the logits of the next token, by token id."""

    def fork(self, *, drafts: bool = False) -> Self:
        """Return a copy; a short-lived one for drafts does not copy the places."""
        return replace(self, places=ChainMap({}, self.places) if drafts else dict(self.places))

    def hear(self, token_id: int) -> None:
        """Add a token and compute `values`."""
        last, places = self.last, self.places
        if len(last) == self.size:
            followers = places.get(last)
            if followers is None:
                places[last] = (token_id,)
            elif token_id not in followers:
                places[last] = (*followers, token_id)
            self.last = last = (*last, token_id)[1:]
        else:
            self.last = last = (*last, token_id)
        followers = places.get(last)
        self.values = dict.fromkeys(followers, FORBIDDEN) if followers else NONE


class Repetition(api.LogitModifier[State]):
    """The common part: it hears prompt and output token by token, and adds `State.values`."""

    transform = AddTransform

    def compile(self, request: api.Request, grammar: api.CompiledGrammar | None) -> State:
        state = self.begin(request.params.modifiers[self.name])
        for token_id in request.prompt_token_ids:
            state.hear(token_id)
        return state

    @abstractmethod
    def begin(self, options: Mapping[str, Any]) -> State:
        """Return the state before the first token. Raises `InvalidRequest`."""

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: State | None) -> State | None:
        return None if compiled is None else compiled.fork()

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        if batch.num_rows == batch.num_sequences:
            changed = [(i, state.values) for i, state in enumerate(states) if state is not None and state.values]
        else:
            changed = [(row, values) for row, values in self.ahead(batch, states) if values]
        if not changed:
            return None
        rows, values = zip(*changed, strict=True)
        lengths = np.array(list(map(len, values)))
        width = max(8, 1 << (int(lengths.max()) - 1).bit_length())  # few shapes, for devices that compile for each
        ids = np.zeros((len(values), width), dtype=np.int32)
        added = np.zeros((len(values), width), dtype=np.float32)
        taken = np.arange(width) < lengths[:, None]
        ids[taken] = list(chain.from_iterable(values))
        added[taken] = list(chain.from_iterable(found.values() for found in values))
        outside = ids >= self.context.vocabulary.logits_width
        ids[outside] = added[outside] = 0
        return api.Payload(np.array(rows, dtype=np.int32), {"ids": ids, "values": added})

    def ahead(self, batch: api.StepBatch, states: Sequence[State | None]) -> Iterator[tuple[int, Mapping[int, float]]]:
        """Yield the rows of the sequences with a state, also of their drafts, each with the values to add."""
        for i, (row, state) in enumerate(zip(batch.row_start.tolist(), states, strict=False)):
            if state is not None:
                yield row, state.values
                state = state.fork(drafts=True)
                for j, token_id in enumerate(batch.drafts(i).tolist(), row + 1):
                    state.hear(token_id)
                    yield j, state.values

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            state.hear(token_id)
        return api.CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def fork(self, state: State) -> State:
        return state.fork()


@dataclass(frozen=True)
class NgramWish:
    """The wish of a request."""

    ngram_size: Annotated[int, Range(1, 100)]


class NoRepeatNgram(Repetition):
    """No sequence of `ngram_size` tokens occurs twice in prompt and output."""

    contract, name, stage = "1.0", "no_repeat_ngram", api.Stage.MASK
    examples = (
        api.Example({"ngram_size": 2}, prompt_token_ids=(97, 98, 99, 97), generated=(97, 98)),
        api.Example({"ngram_size": 1}),
    )

    def begin(self, options: Mapping[str, Any]) -> State:
        return State(api.parse_options(NgramWish, options, where="modifiers.no_repeat_ngram").ngram_size - 1)


@dataclass(frozen=True)
class DryWish:
    """A wish: a token that extends a repeat of n tokens loses ``multiplier * base**(n - allowed_length)``.
    No match contains a token with a text of `breakers`."""

    multiplier: Annotated[float, Range(0, 100)] = 0.8
    base: Annotated[float, Range(1, 4)] = 1.75
    allowed_length: Annotated[int, Range(1, MAX_LENGTH)] = 2
    breakers: tuple[str, ...] = ("\n", ":", '"', "*")


@dataclass(slots=True)
class DryState(State):
    """`places` holds the index of the last token of each earlier occurrence, and the token that followed."""

    penalties: Sequence[float] = ()
    """The value of the token that extends a match, by the match's length."""
    breakers: frozenset[int] = frozenset()
    """Token ids that no match contains."""
    end: int = -1
    """The index of the last token."""
    lengths: Mapping[int, int] = field(default_factory=dict)
    """The length of the match that ends at each index."""

    def hear(self, token_id: int) -> None:
        last, places, end, found = self.last, self.places, self.end, None
        if token_id in self.breakers:
            self.last = ()
        else:
            if len(last) == self.size:
                earlier = places.get(last)
                places[last] = ((end, token_id),) if earlier is None else (*earlier[1 - MAX_PLACES :], (end, token_id))
                self.last = last = (*last, token_id)[1:]
            else:
                self.last = last = (*last, token_id)
            found = places.get(last)
        self.end = end + 1
        before, penalties = self.lengths, self.penalties
        if found is None:
            self.lengths = self.values = NONE
        elif not before:  # every match has just begun
            self.lengths = dict.fromkeys([i for i, _ in found], self.size)
            self.values = dict.fromkeys([follower for _, follower in found], penalties[self.size])
        else:
            lengths = [min(before.get(i - 1, self.size - 1) + 1, MAX_LENGTH) for i, _ in found]
            self.lengths = dict(zip([i for i, _ in found], lengths, strict=True))
            values: dict[int, float] = {}
            for (_, follower), length in zip(found, lengths, strict=True):
                values[follower] = min(values.get(follower, 0.0), penalties[length])
            self.values = values


class Dry(Repetition):
    """Lowers each token that would extend a repeated sequence, exponentially in its length."""

    contract, name, stage = "1.0", "dry", api.Stage.PRE_WARP
    examples = (
        api.Example({}, prompt_token_ids=(97, 98, 99, 100, 97, 98, 99), generated=(100, 97)),
        api.Example({"multiplier": 5.0, "allowed_length": 1, "breakers": []}, prompt_token_ids=(97, 98, 97)),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        api.parse_options(NoOptions, options, where="modifier.dry")
        self.breaking = lru_cache(maxsize=64)(self.find_breaking)

    def find_breaking(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Return the tokens that contain one of these texts."""
        parts, tokens = [text.encode(errors="surrogatepass") for text in texts], self.context.vocabulary.tokens
        return frozenset(i for i, token in enumerate(tokens) if any(part in token for part in parts))

    def begin(self, options: Mapping[str, Any]) -> State:
        wish = api.parse_options(DryWish, options, where="modifiers.dry")
        if "" in wish.breakers or len(wish.breakers) > 100:
            raise api.InvalidRequest("breakers must be at most 100 texts, none empty", field="modifiers.dry.breakers")
        lengths = range(MAX_LENGTH + 1)
        penalties = [-wish.multiplier * wish.base ** max(0, n - wish.allowed_length) for n in lengths]
        return DryState(wish.allowed_length, penalties=penalties, breakers=self.breaking(wish.breakers))


@dataclass(frozen=True)
class NoOptions:
    """The operator has none."""


@api.hookimpl
def guideway_logit_modifier(name: str) -> type[Repetition]:
    return {cls.name: cls for cls in (Dry, NoRepeatNgram)}[name]
