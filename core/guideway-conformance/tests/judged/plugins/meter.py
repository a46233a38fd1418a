"""The layout of a text: lines of at most so many bytes, so many of them, indented, in one case, of some characters.

It forbids at `Stage.MASK`. What is allowed depends on the place in the line and on the characters a request wants, so
`compile` makes one table for all requests of the same characters, with a row for every situation on a line, and a
payload names for each row of the logits the row of the table.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from guideway import api
from guideway.api.bitmask import Bitmask, is_allowed, pack


@dataclass(frozen=True)
class Settings:
    """The operator's options."""

    longest: int = 16
    """No token of more bytes is used."""
    threads: int = 2


@dataclass(frozen=True)
class Wish:
    width: int = 40
    """Bytes of a line, the indent included."""
    lines: int = 20
    least: int = 0
    """The text does not end before so many line breaks."""
    indent: int = 0
    characters: Literal["any", "ascii", "letters"] = "any"
    case: Literal["any", "lower", "upper"] = "any"
    blank: bool = True
    """True if a line may be empty."""
    ending: Literal["stop", "break"] = "stop"
    """The last line ends with a stop token, or with a line break."""


class Place(NamedTuple):
    column: int = 0
    line: int = 0
    over: bool = False


@dataclass(frozen=True)
class Table:
    key: tuple[str, str]
    forbidden: Bitmask
    only: tuple[int, ...]
    """By row the token that is allowed alone, -1 where there are others or none."""


@dataclass
class State:
    wish: Wish
    table: Table
    place: Place = Place()  # noqa: RUF009 (a NamedTuple never changes)
    written: int = 0
    widest: int = 0


class MeterTransform(api.LogitTransform):
    idempotent: ClassVar = True

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops = step.ops
        words = ops.gather(payload.shared["forbidden"], payload.arrays["which"])
        forbidden = ops.unpack_bitmask(words, self.context.logits_width)
        return ops.where_rows(logits, payload.rows, forbidden, -np.inf)


class Meter(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "meter", api.Stage.MASK, MeterTransform
    examples = (
        api.Example({"width": 3, "indent": 1, "blank": False}, generated=(32, 97, 98, 10, 32, 99)),
        api.Example({"width": 6, "characters": "letters", "case": "upper", "lines": 2, "ending": "break"}),
        api.Example({"case": "lower", "least": 2, "width": 4}, generated=(97, 98, 99, 100, 10, 10)),
        api.Example({"width": 2, "lines": 1, "characters": "ascii"}, generated=(97, 98)),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.settings = api.parse_options(Settings, options, where="modifier.meter")
        if not 1 <= self.settings.longest <= 64 or not 1 <= self.settings.threads <= 16:
            raise api.InvalidConfiguration("longest or threads is out of range", field="modifier.meter")
        vocabulary = context.vocabulary
        self.breaks = [i for i, token in enumerate(vocabulary.tokens) if token == b"\n"]
        self.spaces = [i for i, token in enumerate(vocabulary.tokens) if token == b" "]
        self.stops = sorted(vocabulary.stop_token_ids)
        self.pool = ThreadPoolExecutor(self.settings.threads, "meter")
        self.stacked: tuple[tuple[tuple[str, str], ...], Bitmask] | None = None

    def wish(self, request: api.Request) -> Wish:
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.meter")
        if not 1 <= wish.lines <= 10_000 or not 0 <= wish.least < wish.lines:
            raise api.InvalidRequest("lines must be at least 1, least below lines", field="modifiers.meter")
        if not 0 <= wish.indent < wish.width <= 1000:
            raise api.InvalidRequest("width must be above indent and at most 1000", field="modifiers.meter")
        if not self.breaks or not self.spaces or not self.stops:
            raise api.InvalidRequest("the vocabulary has no line break, space or stop token", field="modifiers.meter")
        return wish

    def compile(self, request: api.Request, grammar: api.CompiledGrammar | None) -> Table:
        wish, width = self.wish(request), self.context.vocabulary.logits_width
        used = bytes(range(256)) if wish.characters == "any" else bytes(range(32, 127))
        if wish.characters == "letters":
            used = bytes(b for b in used if chr(b).isalpha() or b == 32)
        dropped = {"any": b"\n", "lower": b"\n" + bytes(range(65, 91)), "upper": b"\n" + bytes(range(97, 123))}
        used = bytes(set(used) - set(dropped[wish.case]))

        def lengths(tokens: Sequence[bytes]) -> list[int]:  # 0: is not used
            return [len(t) if len(t) <= self.settings.longest and not t.translate(None, used) else 0 for t in tokens]

        tokens = self.context.vocabulary.tokens
        parts = self.pool.map(lengths, [tokens[i : i + 8192] for i in range(0, len(tokens), 8192)])
        length = np.zeros(width, dtype=np.int64)
        length[: len(tokens)] = [n for part in parts for n in part]
        content = (length > 0) & (length <= np.arange(self.settings.longest + 1)[:, None])
        indent = np.isin(np.arange(width), self.spaces)[None]
        allowed = np.repeat(np.concatenate([content, indent]), 4, axis=0)
        allowed[np.ix_(range(1, len(allowed), 4), self.breaks)] = True
        allowed[np.ix_(range(2, len(allowed), 4), self.stops)] = True
        allowed[np.ix_(range(3, len(allowed), 4), self.breaks + self.stops)] = True
        only = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
        forbidden = pack(~allowed)
        forbidden.setflags(write=False)
        return Table((wish.characters, wish.case), forbidden, tuple(only.tolist()))

    def compile_key(self, request: api.Request) -> Hashable:
        wish = self.wish(request)
        return wish.characters, wish.case

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        return None if compiled is None else State(self.wish(request), compiled)

    def unenforced(self, state: State) -> Sequence[str]:
        # letters past ASCII are bytes like others
        return ("meter.case",) if state.wish.case != "any" and state.wish.characters == "any" else ()

    def after(self, wish: Wish, place: Place, token_id: int) -> Place:
        if place.over:
            return place
        text = self.context.vocabulary.tokens[token_id]
        breaks = text.count(b"\n")  # more than one only where the row was drawn without this modifier
        if not breaks:
            return place._replace(column=place.column + len(text))
        line = place.line + breaks
        return Place(len(text) - text.rfind(b"\n") - 1, line, line >= wish.lines)

    def row(self, wish: Wish, place: Place) -> int:
        """The row of the table."""
        if place.column < wish.indent:
            return 4 * (self.settings.longest + 1)
        is_last = place.line >= wish.lines - 1
        may_break = (wish.blank or place.column > wish.indent) and (not is_last or wish.ending == "break")
        may_stop = place.line >= wish.least and (not is_last or wish.ending == "stop")
        left = min(max(wish.width - place.column, 0), self.settings.longest)
        return 4 * left + may_break + 2 * may_stop

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        tables = {state.table.key: state.table for state in states if state is not None}
        keys = tuple(sorted(tables))
        if self.stacked is None or self.stacked[0] != keys:
            self.stacked = keys, np.concatenate([tables[key].forbidden for key in keys])
        which: list[int] = []
        for i, state in enumerate(states):
            if state is None:
                continue
            first, place = keys.index(state.table.key) * len(state.table.only), state.place
            which.append(first + self.row(state.wish, place))
            for token_id in batch.drafts(i).tolist():
                place = self.after(state.wish, place, token_id)
                which.append(first + self.row(state.wish, place))
        return api.Payload(rows, {"which": np.array(which, dtype=np.int32)}, {"forbidden": self.stacked[1]})

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            if state.place.over:
                break
            state.written += len(self.context.vocabulary.tokens[token_id])
            state.place = self.after(state.wish, state.place, token_id)
            state.widest = max(state.widest, state.place.column)
        return api.FINISH if state.place.over else api.CONTINUE

    def forced(self, state: State, limit: int) -> Sequence[int]:
        found: list[int] = []
        place = state.place
        while len(found) < limit and not place.over:
            token_id = state.table.only[self.row(state.wish, place)]
            if token_id < 0:
                break
            found.append(token_id)
            if token_id in self.stops:
                break
            place = self.after(state.wish, place, token_id)
        return found

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        place = state.place
        for count, token_id in enumerate(token_ids):
            if place.over or is_allowed(state.table.forbidden, self.row(state.wish, place), token_id):
                return count
            place = self.after(state.wish, place, token_id)
        return len(token_ids)

    def fork(self, state: State) -> State:
        return replace(state)

    def report(self, state: State) -> Mapping[str, Any]:
        return {"lines": state.place.line + 1 - state.place.over, "bytes": state.written, "widest": state.widest}

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[State]]:
    return Meter
