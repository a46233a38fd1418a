"""A grammar strategy for one balanced group of brackets, in a dialect of its own: ``() [] / abc, / 5`` says which pairs
there are, which characters stand between them, and how deep groups may be nested (0: without bound). Batches are filled
by several threads."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    hookimpl,
)
from guideway.api.bitmask import Bitmask, num_words

MOST_ROWS = 512
THREADS = 4


class Level(NamedTuple):
    """A group that is open. Groups share those around them, and none is ever changed."""

    closer: int
    depth: int
    around: Level | None


BEGIN = Level(-1, 0, None)  # nothing is written yet
COMPLETE = Level(-2, 0, None)
OVER = Level(-3, 0, None)


class Rules(NamedTuple):
    pairs: dict[int, int]
    atoms: frozenset[int]
    deepest: int

    def step(self, level: Level, byte: int) -> Level | None:
        if byte in self.pairs:
            if level is COMPLETE or level.depth == self.deepest > 0:
                return None
            return Level(self.pairs[byte], level.depth + 1, level)
        if level.depth and byte == level.closer:
            return COMPLETE if level.depth == 1 else level.around
        return level if level.depth and byte in self.atoms else None


def read(text: str) -> Rules:
    parts = text.split(" / ")
    if len(parts) != 3 or not parts[2].isdecimal() or not parts[0]:
        raise InvalidGrammar("write pairs / atoms / depth, such as '() [] / abc, / 5'")
    if not text.isascii():
        raise UnsupportedGrammar("brackets knows no characters past ASCII", feature="non-ascii")
    pairs = parts[0].split(" ")
    letters = "".join(pairs) + parts[1]
    if any(len(pair) != 2 for pair in pairs) or len(set(letters)) != len(letters):
        raise InvalidGrammar("each pair has two characters, and each character one meaning")
    if len(parts[2]) > 6:
        raise UnsupportedGrammar("a bound of the depth has at most 6 digits", feature="depth")
    return Rules({ord(a): ord(b) for a, b in pairs}, frozenset(map(ord, parts[1])), int(parts[2]))


class CompiledBrackets(CompiledGrammar):
    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text, self.rules = text, read(text)
        written = self.rules.atoms.union(self.rules.pairs, self.rules.pairs.values())
        self.texts = {
            i: token
            for i, token in enumerate(vocabulary.tokens)
            if token and i not in vocabulary.special_tokens and written.issuperset(token)
        }
        self.longest = max(map(len, self.texts.values()), default=0)
        self.size = len(vocabulary)
        self._rows: OrderedDict[Any, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return BracketMatcher(self, stop_token_ids, [BEGIN])

    @property
    def nbytes(self) -> int:
        with self._lock:
            rows = len(self._rows)
        return 1024 + 160 * len(self.texts) + rows * (256 + 4 * num_words(self.size))

    def to_bytes(self) -> bytes:
        return self.text.encode()

    def after(self, level: Level | None, token_id: int) -> Level | None:
        text = self.texts.get(token_id)
        if text is None:
            return None
        for byte in text:
            level = None if level is None else self.rules.step(level, byte)
        return level

    def row(self, level: Level) -> np.ndarray:
        """The tokens that are legal as text: what a token can see of the levels decides."""
        if level.depth:
            closers, seen = [], level
            while seen.depth and len(closers) < self.longest:
                closers.append(seen.closer)
                seen = seen.around  # type: ignore[assignment]
            room = min(self.rules.deepest - level.depth, self.longest) if self.rules.deepest else self.longest
            key: Any = (*closers, room)
        else:
            key = level.closer
        with self._lock:
            if (row := self._rows.get(key)) is not None:
                self._rows.move_to_end(key)
                return row
        allowed = np.zeros(num_words(self.size) * 32, np.bool_)
        for token_id in self.texts:
            allowed[token_id] = self.after(level, token_id) is not None
        row = np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)
        with self._lock:
            self._rows[key] = row
            while len(self._rows) > MOST_ROWS:
                self._rows.popitem(last=False)
        return row


class BracketMatcher(Matcher):
    def __init__(self, compiled: CompiledBrackets, stops: frozenset[int], path: list[Level]) -> None:
        self.compiled, self.stops, self.path = compiled, stops, path

    def after(self, level: Level, token_id: int) -> Level | None:
        if token_id in self.stops:
            return OVER if level is COMPLETE else None
        return None if level is OVER else self.compiled.after(level, token_id)

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            level = self.after(self.path[-1], token_id)
            if level is None:
                return count
            self.path.append(level)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        level: Level | None = self.path[-1]
        for count, token_id in enumerate(token_ids):
            level = self.after(level, token_id)
            if level is None:
                return count
        return len(token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.write(self.path[-1], bitmask, row)

    def write(self, level: Level, bitmask: Bitmask, row: int) -> None:
        legal = self.compiled.row(level)
        if level is not COMPLETE and not legal.any():
            raise DeadEnd("no token of the vocabulary goes on with these brackets")
        target = bitmask[row].view(np.uint32)
        target[: len(legal)] = legal
        target[len(legal) :] = 0
        if level is COMPLETE:
            for stop in self.stops:
                target[stop // 32] |= np.uint32(1 << stop % 32)

    def fill(self, drafts: Sequence[int], bitmask: Bitmask, row: int) -> int:
        level = self.path[-1]
        self.write(level, bitmask, row)
        for count, token_id in enumerate(drafts):
            further = self.after(level, token_id)
            if further is None:
                return count
            if further is OVER:
                return count + 1
            try:
                self.write(further, bitmask, row + count + 1)
            except DeadEnd:
                return count
            level = further
        return len(drafts)

    def is_terminated(self) -> bool:
        return self.path[-1] is OVER

    def is_accepting(self) -> bool:
        return self.path[-1] is COMPLETE

    def rollback(self, num_tokens: int) -> None:
        if num_tokens < 0 or num_tokens >= len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} of {len(self.path) - 1} tokens")
        self.path = self.path[: len(self.path) - num_tokens] if num_tokens else self.path

    def fork(self) -> Matcher:
        return BracketMatcher(self.compiled, self.stops, list(self.path))


class Brackets(GrammarStrategy):
    contract = "1.0"
    name = "brackets"
    kinds = frozenset({"grammar:brackets"})
    capabilities = frozenset({"fork", "serialize"})
    max_rollback = None
    examples = (
        GrammarExample(
            Grammar("() [] / abc, / 3", "brackets"),
            (b"()", b"[a,(b),[[c]]]", b"(((a)))", b"[[],()]"),
            (b"", b"a", b"(]", b"((((a))))", b"()()", b"(a", b"[(])", b"(d)"),
        ),
        GrammarExample(
            Grammar("{} / e  / 0", "brackets"),
            (b"{e e}", b"{{{{{{{{{{}}}}}}}}}}", b"{ {e} }"),
            (b"{e}e", b"}{", b"{e}}", b" {}"),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        if options:
            raise InvalidConfiguration(f"brackets has no option {next(iter(options))!r}", field="grammar.brackets")
        self._pool: ThreadPoolExecutor | None = None

    def supports(self, constraint: Constraint) -> Support:
        try:
            read(constraint.source())
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"brackets does not compile {constraint.kind}", feature=constraint.kind)
        return CompiledBrackets(constraint.source(), self.vocabulary)

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        return CompiledBrackets(data.decode(), self.vocabulary)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> np.ndarray:
        accepted = np.zeros(len(jobs), np.int32)

        def work(first: int) -> None:
            for i in range(first, len(jobs), THREADS):
                job = jobs[i]
                try:
                    accepted[i] = job.matcher.fill(job.draft_token_ids, bitmask, job.first_row)  # type: ignore[attr-defined]
                except Exception as error:
                    job.error, accepted[i] = error, -1

        if len(jobs) < 2 * THREADS:
            for first in range(THREADS):
                work(first)
        else:
            if self._pool is None:  # made late: threads do not survive a fork of the process
                self._pool = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), thread_name_prefix="brackets")
            list(self._pool.map(work, range(THREADS)))
        return accepted

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Brackets
