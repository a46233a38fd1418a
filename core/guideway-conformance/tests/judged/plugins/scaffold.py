"""Puts a text into a frame: a header that must come, some free tokens, a footer that must come, and the end."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from guideway import api
from guideway.api.bitmask import Bitmask, num_words, pack
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The operator's: what a request may ask for at most."""

    max_frame: Annotated[int, Range(0, 4096)] = 512
    """Bytes of header and footer, each."""
    max_label: Annotated[int, Range(0, 256)] = 64


@dataclass(frozen=True)
class Wish:
    header: str = ""
    footer: str = ""
    free: Annotated[int, Range(0, 1_000_000)] = 6
    """Tokens between header and footer."""
    forbidden: tuple[int, ...] = ()
    """Tokens that do not come between them."""
    alphabet: Literal["any", "ascii", "letters"] = "any"
    """The signs that tokens between them are made of."""
    close_on: str = ""
    """The footer comes as soon as a free token has one of these characters."""
    label: str = ""
    """Comes back in the report."""
    counts: bool = True


@dataclass(frozen=True)
class Frame:
    """The compiled part of a request: sequences share it."""

    header: tuple[int, ...]
    footer: tuple[int, ...]
    inside: Bitmask
    """``int32[1, words]``: the tokens that may come between them."""
    closing: frozenset[int]


@dataclass(frozen=True)
class State:
    """Never changed: `accept` cannot give another one, so it is held in a `Place`."""

    header_at: int = 0
    free: int = 0
    footer_at: int = -1
    """-1: the free part goes on."""
    strayed: int = 0


@dataclass
class Place:
    wish: Wish
    frame: Frame
    at: State


class ScaffoldTransform(api.LogitTransform):
    bitmask: ClassVar = "allowed"
    idempotent: ClassVar = True

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        allowed = step.ops.unpack_bitmask(payload.arrays["allowed"], self.context.logits_width)
        return step.ops.where_rows(logits, payload.rows, allowed == False, -np.inf)  # noqa: E712 (an array)


class Scaffold(api.LogitModifier[Place]):
    contract, name, stage, transform = "1.0", "scaffold", api.Stage.MASK, ScaffoldTransform
    examples = (
        api.Example({"header": "ab", "footer": "c", "free": 3}),
        api.Example({"footer": "yz", "free": 2, "alphabet": "letters", "label": "two"}, generated=(97, 98)),
        api.Example({"header": "x", "free": 40, "close_on": ".", "footer": "!", "forbidden": [97, 98]}),
        api.Example({"free": 5, "alphabet": "ascii", "counts": False}),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.operator = api.parse_options(Options, options, where="modifier.scaffold")
        tokens = context.vocabulary.tokens
        self.by_text: dict[bytes, int] = {}
        for token_id, token in enumerate(tokens):
            if token:
                self.by_text.setdefault(token, token_id)
        self.longest = max(map(len, self.by_text), default=0)
        self.alphabets = {
            "any": np.array([bool(token) for token in tokens]),
            "ascii": np.array([bool(token) and token.isascii() for token in tokens]),
            "letters": np.array([token.isalpha() for token in tokens]),
        }
        self.stop = min(context.vocabulary.stop_token_ids, default=None)

    def wish(self, request: api.Request) -> Wish:
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.scaffold")
        for field in ("header", "footer"):
            if len(getattr(wish, field).encode(errors="replace")) > self.operator.max_frame:
                raise api.InvalidRequest(f"{field} is too long", field=f"modifiers.scaffold.{field}")
        if len(wish.label) > self.operator.max_label or not wish.label.isascii():
            raise api.InvalidRequest("label is too long, or not ASCII", field="modifiers.scaffold.label")
        if any(not 0 <= token_id < len(self.context.vocabulary) for token_id in wish.forbidden):
            raise api.InvalidRequest("no token of the vocabulary", field="modifiers.scaffold.forbidden")
        return wish

    def encode(self, text: str, field: str) -> tuple[int, ...]:
        raw = text.encode(errors="replace")
        found = self.context.vocabulary.encode(raw)
        if found is not None:
            return tuple(found)
        found = []
        while raw:
            length = next((k for k in range(min(self.longest, len(raw)), 0, -1) if raw[:k] in self.by_text), 0)
            if not length:
                raise api.InvalidRequest("the vocabulary cannot spell this", field=f"modifiers.scaffold.{field}")
            found.append(self.by_text[raw[:length]])
            raw = raw[length:]
        return tuple(found)

    def compile(self, request: api.Request, grammar: api.CompiledGrammar | None) -> Frame:
        wish = self.wish(request)
        inside = self.alphabets[wish.alphabet].copy()
        inside[list(wish.forbidden)] = False
        if wish.free and not inside.any():
            raise api.InvalidRequest("no token is left between", field="modifiers.scaffold.forbidden")
        tokens = self.context.vocabulary.tokens
        closing = [i for i, token in enumerate(tokens) if any(c.encode() in token for c in wish.close_on)]
        padded = np.zeros((1, self.context.vocabulary.logits_width), dtype=np.bool_)
        padded[0, : len(inside)] = inside
        allowed = pack(padded)
        allowed.setflags(write=False)
        return Frame(
            self.encode(wish.header, "header"), self.encode(wish.footer, "footer"), allowed, frozenset(closing)
        )

    def compile_key(self, request: api.Request) -> Hashable:
        wish = self.wish(request)
        return wish.header, wish.footer, wish.free > 0, wish.forbidden, wish.alphabet, wish.close_on

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> Place | None:
        if compiled is None:
            return None
        wish = self.wish(request)
        return Place(wish, compiled, State(footer_at=-1 if wish.free else 0))

    def only(self, place: Place, at: State) -> int | None:
        """The token that must come next; None where several may."""
        if at.header_at < len(place.frame.header):
            return place.frame.header[at.header_at]
        if at.footer_at < 0:
            return None
        return place.frame.footer[at.footer_at] if at.footer_at < len(place.frame.footer) else self.stop

    def is_over(self, place: Place, at: State) -> bool:
        return at.header_at >= len(place.frame.header) and at.footer_at >= len(place.frame.footer)

    def after(self, place: Place, at: State, token_id: int) -> State:
        wanted = self.only(place, at)
        strayed = at.strayed + (wanted is not None and token_id != wanted)
        if at.header_at < len(place.frame.header):
            return replace(at, header_at=at.header_at + 1, strayed=strayed)
        if at.footer_at >= 0:
            return replace(at, footer_at=min(at.footer_at + 1, len(place.frame.footer) + 1), strayed=strayed)
        free = at.free + 1
        closes = free >= place.wish.free or token_id in place.frame.closing
        return replace(at, free=free, footer_at=0 if closes else -1)

    def allowed(self, place: Place, at: State) -> Bitmask:
        wanted = self.only(place, at)
        if wanted is not None:
            mask = np.zeros((1, num_words(self.context.vocabulary.logits_width)), dtype=np.int32)
            mask.view(np.uint32)[0, wanted // 32] = 1 << wanted % 32
            return mask
        if self.is_over(place, at):  # no stop token: whatever comes, `accept` has ended the text
            return np.full_like(place.frame.inside, -1)
        return place.frame.inside

    def prepare(self, batch: api.StepBatch, states: Sequence[Place | None]) -> api.Payload | None:
        rows, _ = batch.select(states)
        masks = []
        for i, place in enumerate(states):
            if place is not None:
                at = place.at
                masks.append(self.allowed(place, at))
                for token_id in batch.drafts(i).tolist():
                    at = self.after(place, at, token_id)
                    masks.append(self.allowed(place, at))
        return api.Payload(rows, {"allowed": np.concatenate(masks)}) if masks else None

    def accept(self, state: Place, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            state.at = self.after(state, state.at, token_id)
        return api.FINISH if self.is_over(state, state.at) else api.CONTINUE

    def forced(self, state: Place, limit: int) -> Sequence[int]:
        found: list[int] = []
        at = state.at
        while len(found) < limit and not self.is_over(state, at) and (token_id := self.only(state, at)) is not None:
            found.append(token_id)
            at = self.after(state, at, token_id)
        return tuple(found)

    def validate(self, state: Place, token_ids: Sequence[int]) -> int:
        at = state.at
        for passed, token_id in enumerate(token_ids):
            mask = self.allowed(state, at)
            if self.is_over(state, at) or not int(mask[0, token_id // 32]) >> token_id % 32 & 1:
                return passed
            at = self.after(state, at, token_id)
        return len(token_ids)

    def fork(self, state: Place) -> Place:
        return replace(state)

    def report(self, state: Place) -> Mapping[str, Any] | None:
        at, frame = state.at, state.frame
        told: dict[str, Any] = {"complete": self.is_over(state, at), "label": state.wish.label}
        if state.wish.counts:
            told |= {"header": min(at.header_at, len(frame.header)), "free": at.free, "strayed": at.strayed}
        return told
