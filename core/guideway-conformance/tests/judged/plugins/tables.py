"""Tables of separated values: a constraint names the columns, and which of them is a key.

``id:int! ok:flag name:word`` and then ``rows 1..3``: one to three lines such as ``17,yes,pear``, no two with the same
id.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidGrammar,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    hookimpl,
    parse_options,
)
from guideway.api.bitmask import Bitmask, pack
from guideway.api.options import Range

FLAGS = (b"yes", b"no")
LONGEST = {"int": 6, "word": 12}
KEPT = 64


@dataclass(frozen=True)
class Options:
    max_rows: Annotated[int, Range(1)] = 1000
    separator: Literal[",", ";", "|"] = ","


class Column(NamedTuple):
    name: str
    type: str
    unique: bool

    def next_bytes(self, cell: bytes) -> bytes:
        """Return what may come after the first bytes of a cell, were it not a key."""
        if self.type == "flag":
            return bytes(flag[len(cell)] for flag in FLAGS if flag.startswith(cell) and flag != cell)
        if len(cell) == LONGEST[self.type] or cell == b"0":
            return b""
        return b"0123456789" if self.type == "int" else b"abcdefghijklmnopqrstuvwxyz"

    def whole(self, cell: bytes) -> bool:
        return cell in FLAGS if self.type == "flag" else cell != b""

    def alive(self, cell: bytes, seen: frozenset[bytes]) -> bool:
        """Return whether `cell` is the beginning of one that is not in `seen`."""
        if self.whole(cell) and cell not in seen:
            return True
        return any(self.alive(cell + bytes((byte,)), seen) for byte in self.next_bytes(cell))


class State(NamedTuple):
    row: int
    column: int
    cell: bytes
    seen: tuple[frozenset[bytes], ...]
    """The cells of earlier rows, by column; none of those that are no keys."""


class Tables(GrammarStrategy):
    contract = "1.0"
    name = "tables"
    kinds = frozenset({"grammar:table"})
    examples = (
        GrammarExample(
            Grammar("id:int! ok:flag\nrows 1..3", "table"),
            (b"17,yes", b"1,no\n2,no", b"0,yes\n12,no\n1,yes"),
            (b"", b"17", b"1,no\n1,yes", b"1,no\n", b"01,no", b"1,yes\n2,no\n3,no\n4,no"),
        ),
        GrammarExample(
            Grammar("name:word ok:flag!\nrows 2..2", "table"),
            (b"pear,yes\npear,no", b"a,no\nb,yes"),
            (b"pear,yes", b"pear,yes\nplum,yes", b"pear yes\nplum,no"),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.tables")
        special = {*vocabulary.special_tokens, *vocabulary.stop_token_ids}
        self.texts = [b"" if i in special else text for i, text in enumerate(vocabulary.tokens)]

    def supports(self, constraint: Constraint) -> Support:
        try:
            self.read(constraint)
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        return CompiledTable(*self.read(constraint), self.options.separator.encode(), self.texts)

    def read(self, constraint: Constraint) -> tuple[list[Column], int, int]:
        lines = constraint.source().split("\n")
        columns = []
        for word in lines[0].split(" "):
            match = re.fullmatch(r"([a-z]+):(int|word|flag)(!?)", word)
            if not match:
                raise InvalidGrammar(f"{word!r} is no column, such as id:int!")
            columns.append(Column(match[1], match[2], match[3] == "!"))
        rows = re.fullmatch(r"rows ([0-9]{1,9})\.\.([0-9]{1,9})", "\n".join(lines[1:]))
        if not rows:
            raise InvalidGrammar("the second line must be as rows 1..3")
        least, most = int(rows[1]), int(rows[2])
        if any(column.unique and column.type == "flag" for column in columns):
            most = min(most, len(FLAGS))
        if least < 1 or least > most:
            raise InvalidGrammar(f"there are no tables of {least} to {most} rows")
        if most > self.options.max_rows:
            raise UnsupportedGrammar(f"more than {self.options.max_rows} rows", feature="rows")
        return columns, least, most

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> np.ndarray:
        """As the host's, but without moving a matcher: a state is a value."""
        accepted = np.zeros(len(jobs), dtype=np.int32)
        for i, job in enumerate(jobs):
            try:
                accepted[i] = fill_one(job, bitmask)
            except Exception as error:
                job.error, accepted[i] = error, -1
        return accepted


def fill_one(job: FillJob, bitmask: Bitmask) -> int:
    if not isinstance(job.matcher, TableMatcher):
        (accepted,) = GrammarStrategy.fill(None, [job], bitmask)
        if accepted < 0:
            raise job.error
        return accepted
    state = job.matcher.state
    job.matcher.write(state, bitmask, job.first_row)
    for count, token_id in enumerate(job.draft_token_ids):
        state = job.matcher.after(state, token_id)
        if state is None:
            return count
        if state == "over":
            return count + 1
        try:
            job.matcher.write(state, bitmask, job.first_row + count + 1)
        except DeadEnd:
            return count
    return len(job.draft_token_ids)


class CompiledTable(CompiledGrammar):
    def __init__(self, columns: list[Column], least: int, most: int, separator: bytes, texts: list[bytes]) -> None:
        self.columns, self.least, self.most = columns, least, most
        self.separator, self.texts = separator[0], texts
        self.start = State(1, 0, b"", (frozenset(),) * len(columns))
        self.masks: dict[State, np.ndarray] = {}
        self.lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return TableMatcher(self, stop_token_ids, self.start)

    @property
    def nbytes(self) -> int:
        with self.lock:
            return 4096 + sum(mask.nbytes + 1000 for mask in self.masks.values())

    def ends_cell(self, state: State) -> bool:
        return self.columns[state.column].whole(state.cell) and state.cell not in state.seen[state.column]

    def ends_row(self, state: State) -> bool:
        return state.column == len(self.columns) - 1 and self.ends_cell(state)

    def accepting(self, state: State) -> bool:
        return state.row >= self.least and self.ends_row(state)

    def step(self, state: State, byte: int) -> State | None:
        row, column, cell, seen = state
        this = self.columns[column]
        if byte in this.next_bytes(cell):
            longer = cell + bytes((byte,))
            return State(row, column, longer, seen) if this.alive(longer, seen[column]) else None
        if byte == self.separator and self.ends_cell(state) and column + 1 < len(self.columns):
            return State(row, column + 1, b"", self.remember(state))
        if byte == 10 and self.ends_row(state) and row < self.most:
            return State(row + 1, 0, b"", self.remember(state))
        return None

    def remember(self, state: State) -> tuple[frozenset[bytes], ...]:
        if not self.columns[state.column].unique:
            return state.seen
        seen = list(state.seen)
        seen[state.column] |= {state.cell}
        return tuple(seen)

    def spell(self, state: State, text: bytes) -> State | None:
        for byte in text:
            state = self.step(state, byte)
            if state is None:
                return None
        return state if text else None

    def mask(self, state: State) -> np.ndarray:
        with self.lock:
            found = self.masks.get(state)
        if found is None:
            first = {byte for byte in range(256) if self.step(state, byte)}
            found = np.zeros(len(self.texts), dtype=np.bool_)
            for token_id, text in enumerate(self.texts):
                if text and text[0] in first:
                    found[token_id] = self.spell(state, text) is not None
            with self.lock:
                if len(self.masks) >= KEPT:
                    self.masks.clear()
                self.masks[state] = found
        return found


class TableMatcher(Matcher):
    def __init__(self, compiled: CompiledTable, stop_token_ids: frozenset[int], state: State) -> None:
        self.compiled, self.stop_token_ids, self.state = compiled, stop_token_ids, state

    def after(self, state: State | str, token_id: int) -> State | str | None:
        if state == "over":
            return None
        if token_id in self.stop_token_ids:
            return "over" if self.compiled.accepting(state) else None
        return self.compiled.spell(state, self.compiled.texts[token_id])

    def walk(self, token_ids: Sequence[int]) -> tuple[State | str, int]:
        state = self.state
        for count, token_id in enumerate(token_ids):
            after = self.after(state, token_id)
            if after is None:
                return state, count
            state = after
        return state, len(token_ids)

    def accept(self, token_ids: Sequence[int]) -> int:
        self.state, count = self.walk(token_ids)
        return count

    def validate(self, token_ids: Sequence[int]) -> int:
        return self.walk(token_ids)[1]

    def write(self, state: State, bitmask: Bitmask, row: int) -> None:
        legal = self.compiled.mask(state)
        if self.compiled.accepting(state):
            legal = legal.copy()
            legal[list(self.stop_token_ids)] = True
        if not legal.any():
            raise DeadEnd(f"no token of the vocabulary fits in row {state.row} of the table")
        words = pack(legal[None])[0]
        bitmask[row, : len(words)] = words
        bitmask[row, len(words) :] = 0

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.write(self.state, bitmask, row)

    def is_terminated(self) -> bool:
        return self.state == "over"

    def is_accepting(self) -> bool:
        return self.compiled.accepting(self.state)


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Tables
