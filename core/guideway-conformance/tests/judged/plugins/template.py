"""Texts from templates, such as ``{word}: {int:3} kg``, over finite-state machines of the library interegular."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidGrammar,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import Bitmask, pack
from guideway.api.options import Range, parse_options

FIELD = re.compile(r"\{\{|\}\}|\{(?P<kind>[a-z]+)(?::(?P<size>[0-9]{1,4}))?\}|[{}]|[^{}]+")
DEAD, OVER = -1, -2


@dataclass(frozen=True)
class Options:
    decimal_sign: Literal[".", ","] = "."
    digits: Annotated[int, Range(1, 40)] = 9
    """The most digits of a number whose field gives none."""
    most_states: Annotated[int, Range(8, 100_000)] = 2000


class Template(GrammarStrategy):
    contract = "1.0"
    name = "template"
    kinds = frozenset({"grammar:template"})
    max_rollback = 0
    examples = (
        GrammarExample(
            Grammar("{word}: {int:3} kg", "template"),
            (b"Apples: 120 kg", b"a: 0 kg"),
            (b"Apples: 1200 kg", b": 1 kg", b"a: 01 kg", b"Apples: 12 KG", b"Apples: 12 kg "),
        ),
        GrammarExample(
            Grammar("{{{date}}} für {decimal:2} €", "template"),
            ("{2027-01-31} für 1.50 €".encode(), "{1999-12-01} für 0.05 €".encode()),
            ("{2027-13-31} für 1.50 €".encode(), "{2027-01-31} für 1.5 €".encode(), b""),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.template")
        self.tokens = Tokens(vocabulary.tokens)
        self.workers = ThreadPoolExecutor(2, thread_name_prefix="template")

    @classmethod
    def available(cls) -> str | None:
        return None if find_spec("interegular") else "the library interegular is not installed"

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"template cannot compile {constraint.kind}", feature=constraint.kind)
        table, final = self.machine(self.pattern(constraint.source()))
        states = [range(i, min(i + 64, len(table))) for i in range(0, len(table), 64)]
        masks = np.concatenate(list(self.workers.map(lambda part: self.tokens.masks(table, part), states)))
        return CompiledTemplate(self.vocabulary, table, final, masks)

    def close(self) -> None:
        self.workers.shutdown(wait=True)

    def pattern(self, text: str) -> str:
        parts = []
        for match in FIELD.finditer(text):
            if match["kind"]:
                parts.append(self.field(match["kind"], match["size"]))
            elif match[0] in ("{", "}"):
                raise InvalidGrammar(f"a single {match[0]} in a template; write it twice", field="constraint.text")
            else:
                literal = match[0][0] if match[0] in ("{{", "}}") else match[0]
                parts += [f"\\x{byte:02x}" for byte in literal.encode()]
        return "".join(parts)

    def field(self, kind: str, size: str | None) -> str:
        most = self.options.digits if size is None else int(size)
        if most < 1:
            raise InvalidGrammar("a field has at least one character", field="constraint.text")
        if most > self.options.most_states:
            raise UnsupportedGrammar(f"template has no fields of {most} characters", feature="size")
        number = f"(0|[1-9][0-9]{{0,{most - 1}}})" if most > 1 else "[0-9]"
        if kind == "int":
            return number
        if kind == "word":
            return "[A-Za-z]+" if size is None else f"[A-Za-z]{{1,{most}}}"
        if kind == "date" and size is None:
            return "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
        if kind == "decimal":
            whole = f"(0|[1-9][0-9]{{0,{self.options.digits}}})"
            return f"{whole}\\x{ord(self.options.decimal_sign):02x}[0-9]{{{2 if size is None else most}}}"
        raise InvalidGrammar(f"templates have no field {{{kind}}} of this form", field="constraint.text")

    def machine(self, pattern: str) -> tuple[Any, Any]:
        """``int32[states, 256]``, the state after each byte or DEAD, and which states are final; 0 is the start."""
        from interegular import parse_pattern

        if len(pattern) > 8 * self.options.most_states:
            raise UnsupportedGrammar("this template is too long", feature="length")
        fsm = parse_pattern(pattern).to_fsm()
        live = [state for state in fsm.map if fsm.islive(state)]
        if len(live) > self.options.most_states:
            raise UnsupportedGrammar(f"this template has {len(live)} states", feature="states")
        live.sort(key=lambda state: state != fsm.initial)
        number = {state: i for i, state in enumerate(live)}
        table = np.full((len(live), 256), DEAD, dtype=np.int32)
        symbols = [fsm.alphabet[chr(byte)] for byte in range(256)]
        for state, i in number.items():
            moves = fsm.map[state]
            table[i] = [number.get(moves.get(symbol), DEAD) for symbol in symbols]
        return table, np.array([state in fsm.finals for state in live])


class Tokens:
    """The bytes of all tokens, one after the other, so that all take a step at once."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.bytes = np.frombuffer(b"".join(tokens), dtype=np.uint8)
        self.lengths = np.array([len(token) for token in tokens], dtype=np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths

    def masks(self, table: Any, states: range) -> Bitmask:
        allowed = np.zeros((len(states), len(self.lengths)), dtype=np.bool_)
        for row, state in enumerate(states):
            alive = np.flatnonzero(self.lengths)
            at = np.full(len(alive), state, dtype=np.int32)
            place = 0
            while len(alive):
                at = table[at, self.bytes[self.starts[alive] + place]]
                place += 1
                alive, at = alive[at != DEAD], at[at != DEAD]
                ended = self.lengths[alive] == place
                allowed[row, alive[ended]] = True
                alive, at = alive[~ended], at[~ended]
        return pack(allowed)


class CompiledTemplate(CompiledGrammar):
    def __init__(self, vocabulary: Vocabulary, table: Any, final: Any, masks: Bitmask) -> None:
        self.vocabulary, self.table, self.final, self.masks = vocabulary, table, final, masks

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return TemplateMatcher(self, stop_token_ids)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.final.nbytes + self.masks.nbytes + 1000

    def after(self, state: int, token_id: int, stops: frozenset[int]) -> int:
        if state < 0:
            return DEAD
        if token_id in stops:
            return OVER if self.final[state] else DEAD
        for byte in self.vocabulary.tokens[token_id]:
            state = self.table[state, byte]
            if state == DEAD:
                return DEAD
        return int(state) if self.vocabulary.tokens[token_id] else DEAD


class TemplateMatcher(Matcher):
    def __init__(self, compiled: CompiledTemplate, stops: frozenset[int]) -> None:
        self.compiled, self.stops, self.state = compiled, stops, 0

    def accept(self, token_ids: Sequence[int]) -> int:
        count, self.state = self.follow(token_ids)
        return count

    def validate(self, token_ids: Sequence[int]) -> int:
        return self.follow(token_ids)[0]

    def follow(self, token_ids: Sequence[int]) -> tuple[int, int]:
        state = self.state
        for count, token_id in enumerate(token_ids):
            after = self.compiled.after(state, token_id, self.stops)
            if after == DEAD:
                return count, state
            state = after
        return len(token_ids), state

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        mask, final = self.compiled.masks[self.state], self.compiled.final[self.state]
        if not final and not mask.any():
            raise DeadEnd(f"no token of the vocabulary fits in state {self.state} of the template")
        bitmask[row, : len(mask)] = mask
        bitmask[row, len(mask) :] = 0
        if final:
            words = bitmask[row].view(np.uint32)
            for stop in self.stops:
                words[stop // 32] |= np.uint32(1 << stop % 32)

    def is_terminated(self) -> bool:
        return self.state == OVER

    def is_accepting(self) -> bool:
        return bool(self.compiled.final[self.state])
