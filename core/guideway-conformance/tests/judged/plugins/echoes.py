"""A grammar strategy for forms that repeat themselves: in the dialect ``echo``, ``<{tag}>{n:digits}</{tag}>`` has a
blank of letters, one of digits, and a copy of the first. Most of an output is forced, and few tokens need undoing."""

from __future__ import annotations

import re
import string
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

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
from guideway.api.bitmask import Bitmask, allow_only
from guideway.api.options import Range
from guideway.errors import contain

SETS = {"letters": frozenset(string.ascii_letters.encode()), "digits": frozenset(string.digits.encode())}
MOST, KEPT_BACK, KEPT_MASKS = 12, 64, 500


@dataclass(frozen=True)
class Options:
    threads: Annotated[int, Range(1, 64)] = 2
    """Threads that fill large batches."""
    batch: Annotated[int, Range(1)] = 48
    """The number of jobs from which a batch is large."""


class Part(NamedTuple):
    literal: bytes = b""
    blank: int = -1  # which blank it is, or a copy of
    allowed: frozenset[int] = frozenset()  # the bytes of a blank; none of a copy


class Place(NamedTuple):
    part: int
    offset: int  # in the literal, the blank or the copy
    filled: tuple[bytes, ...]


class Echo(GrammarStrategy):
    contract = "1.0"
    name = "echo"
    kinds = frozenset({"grammar:echo"})
    capabilities = frozenset({"fork", "forced_tokens", "serialize"})
    max_rollback = KEPT_BACK
    examples = (
        GrammarExample(
            Grammar("<{tag}>{n:digits}</{tag}>", "echo"),
            (b"<b>12</b>", b"<Title>0</Title>"),
            (b"<b>12</i>", b"<b></b>", b"<b>1a</b>", b"<b>12</b", b"<b>12</bb>"),
        ),
        GrammarExample(
            Grammar("Dear {who}, the code of {who} is {code:digits}. Repeat: {code}, {code}.", "echo"),
            (b"Dear Ann, the code of Ann is 7. Repeat: 7, 7.",),
            (b"Dear Ann, the code of Bob is 7. Repeat: 7, 7.", b"Dear Ann, the code of Ann is 7. Repeat: 7, 8."),
        ),
        GrammarExample(
            Grammar("the answer is: yes {x}", "echo"), (b"the answer is: yes sir",), (b"the answer is: yes ",)
        ),
        GrammarExample(Grammar("no blank in it", "echo"), (b"no blank in it",), (b"no blank in",)),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.echo")
        self.words = Words(vocabulary)
        self.lock = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"echo cannot compile {constraint.kind}", feature=constraint.kind)
        return CompiledEcho(self.words, constraint.source())

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        return CompiledEcho(self.words, data.decode())

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> np.ndarray[Any, np.dtype[np.int32]]:
        if len(jobs) < self.options.batch:
            return np.array([fill_one(job, bitmask) for job in jobs], dtype=np.int32)
        with self.lock:
            if self.pool is None:
                self.pool = ThreadPoolExecutor(self.options.threads)
            pool = self.pool
        return np.fromiter(pool.map(lambda job: fill_one(job, bitmask), jobs), dtype=np.int32, count=len(jobs))

    def close(self) -> None:
        with self.lock:
            pool, self.pool = self.pool, None
        if pool is not None:
            pool.shutdown(wait=True)


def fill_one(job: FillJob, bitmask: Bitmask) -> int:
    """The rows of `job`; its matcher stays where it is, so that no draft pushes out what can be rolled back."""
    accepted = 0
    try:
        job.matcher.fill_bitmask(bitmask, job.first_row)
        if not job.draft_token_ids:
            return 0
        ahead = job.matcher.fork()
        for token_id in job.draft_token_ids:
            if not ahead.accept((token_id,)):
                break
            if not ahead.is_terminated():
                try:
                    ahead.fill_bitmask(bitmask, job.first_row + accepted + 1)
                except DeadEnd:
                    break
            accepted += 1
            if ahead.is_terminated():
                break
    except BaseException as error:
        contain(error)
        job.error = error
        return -1
    return accepted


class Words:
    """The tokens of a vocabulary as a tree of bytes: {byte: [ids that end here, tree]}."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.tokens = tuple(b"" if i in vocabulary.special_tokens else t for i, t in enumerate(vocabulary.tokens))
        self.longest = max(map(len, self.tokens))
        self.tree: dict[int, Any] = {}
        for token_id, token in enumerate(self.tokens):
            tree = self.tree
            for byte in token[:-1]:
                tree = tree.setdefault(byte, [[], {}])[1]
            if token:
                tree.setdefault(token[-1], [[], {}])[0].append(token_id)


def read(text: str) -> tuple[tuple[Part, ...], int]:
    """The parts of a form, and how many blanks it has."""
    parts: list[Part] = []
    known: dict[str, int] = {}
    for literal, blank in re.findall(r"([^{}]+)|\{([^{}]*)\}", text) if balanced(text) else ():
        name, colon, kind = blank.partition(":")
        if literal:
            parts.append(Part(literal.encode()))
        elif not re.fullmatch(r"\w+", name) or (colon and (kind not in SETS or name in known)):
            raise InvalidGrammar(f"not a blank such as {{name}} or {{name:digits}}: {blank[:60]!r}")
        elif name in known:
            parts.append(Part(blank=known[name]))
        else:
            known[name] = len(known)
            parts.append(Part(blank=known[name], allowed=SETS[kind or "letters"]))
    if text and not parts:
        raise InvalidGrammar("a brace of this form has no other one")
    for part, following in pairwise(parts):
        if part.allowed and (not following.literal or following.literal[0] in part.allowed):
            raise UnsupportedGrammar("echo cannot tell where a blank ends before its kind", feature="adjacent blanks")
    return tuple(parts), len(known)


def balanced(text: str) -> bool:
    return "".join(re.findall(r"[{}]", text)).replace("{}", "") == ""


class CompiledEcho(CompiledGrammar):
    def __init__(self, words: Words, text: str) -> None:
        self.words, self.text = words, text
        self.parts, blanks = read(text)
        self.lock = threading.Lock()
        self.masks: OrderedDict[Place, tuple[int, ...]] = OrderedDict()
        self.held = 0
        self.start = Place(0, 0, (b"",) * blanks)

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return EchoMatcher(self, stop_token_ids, self.start, deque(maxlen=KEPT_BACK))

    @property
    def nbytes(self) -> int:
        with self.lock:
            return 3_000 + 4 * len(self.text) + 300 * len(self.parts) + self.held

    def to_bytes(self) -> bytes:
        return self.text.encode()

    def known(self, place: Place) -> bytes | None:
        """The text of the part at `place`, or None for a blank."""
        part = self.parts[place.part]
        return None if part.allowed else part.literal or place.filled[part.blank]

    def step(self, place: Place, byte: int) -> Place | None:
        if place.part == len(self.parts):
            return None
        part, text = self.parts[place.part], self.known(place)
        if text is not None:
            if text[place.offset] != byte:
                return None
            last = place.offset + 1 == len(text)
            return place._replace(part=place.part + last, offset=0 if last else place.offset + 1)
        if byte in part.allowed and place.offset < MOST:
            before, after = place.filled[: part.blank], place.filled[part.blank + 1 :]
            filled = (*before, place.filled[part.blank] + bytes([byte]), *after)
            return Place(place.part, place.offset + 1, filled)
        return self.step(place._replace(part=place.part + 1, offset=0), byte) if place.offset else None

    def run(self, place: Place, data: bytes) -> Place | None:
        for byte in data:
            following = self.step(place, byte)
            if following is None:
                return None
            place = following
        return place

    def complete(self, place: Place) -> bool:
        if place.part == len(self.parts):
            return True
        return place.part == len(self.parts) - 1 and bool(self.parts[-1].allowed) and place.offset > 0

    def legal(self, place: Place) -> tuple[int, ...]:
        with self.lock:
            if place in self.masks:
                self.masks.move_to_end(place)
                return self.masks[place]
        found: list[int] = []
        stack = [(place, self.words.tree)]
        while stack:
            at, tree = stack.pop()
            for byte, (ids, below) in tree.items():
                following = self.step(at, byte)
                if following is not None:
                    found += ids
                    stack.append((following, below))
        with self.lock:
            if place not in self.masks:
                self.held += 600 + 40 * len(found)
                self.masks[place] = tuple(found)
                if len(self.masks) > KEPT_MASKS:
                    self.held -= 600 + 40 * len(self.masks.popitem(last=False)[1])
        return tuple(found)

    def forced(self, place: Place) -> tuple[bytes, frozenset[int]]:
        """The text that must come next, and the bytes that may follow; none where it is the last."""
        text = bytearray()
        if place.part < len(self.parts) and self.parts[place.part].allowed and place.offset == MOST:
            place = place._replace(part=place.part + 1, offset=0)
        while place.part < len(self.parts):
            known = self.known(place)
            if known is None:
                return bytes(text), self.parts[place.part].allowed
            text += known[place.offset :]
            place = place._replace(part=place.part + 1, offset=0)
        return bytes(text), frozenset()


class EchoMatcher(Matcher):
    def __init__(
        self, compiled: CompiledEcho, stops: frozenset[int], place: Place, before: deque[Place], ended: bool = False
    ) -> None:
        self.compiled, self.stops, self.place, self.ended = compiled, stops, place, ended
        self.before = before  # the places before the last tokens

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if self.ended:
                return count
            if token_id in self.stops:
                if not self.is_accepting():
                    return count
                self.before.append(self.place)
                self.ended = True
                continue
            token = self.compiled.words.tokens[token_id]
            place = self.compiled.run(self.place, token) if token else None
            if place is None:
                return count
            self.before.append(self.place)
            self.place = place
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        return self.fork().accept(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self.before):
            raise ValueError(f"cannot roll back {num_tokens} tokens, only {len(self.before)}")
        for _ in range(num_tokens):
            self.place = self.before.pop()
            self.ended = False

    def fork(self) -> Matcher:
        return EchoMatcher(self.compiled, self.stops, self.place, self.before.copy(), self.ended)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        legal = self.compiled.legal(self.place)
        stops = tuple(self.stops) if self.is_accepting() else ()
        if not legal and not stops:
            raise DeadEnd("no token of the vocabulary can come next in this form")
        allow_only(bitmask, row, legal + stops)

    def is_terminated(self) -> bool:
        return self.ended

    def is_accepting(self) -> bool:
        return not self.ended and self.compiled.complete(self.place)

    def forced_tokens(self) -> Sequence[int]:
        text, following = (b"", frozenset()) if self.ended else self.compiled.forced(self.place)
        words = self.compiled.words
        tokens = words.vocabulary.encode(text) if text else None
        if not tokens:
            return ()
        if following:  # what the tokenizer writes at the end may depend on what comes after
            for byte in sorted(following):
                other = words.vocabulary.encode(text + bytes([byte])) or []
                same = 0
                while same < min(len(tokens), len(other)) and tokens[same] == other[same]:
                    same += 1
                tokens = tokens[:same]
            length = sum(len(words.tokens[token_id]) for token_id in tokens)
            while tokens and length > len(text) - words.longest:
                length -= len(words.tokens[tokens.pop()])
        return tuple(tokens) if self.compiled.run(self.place, b"".join(words.tokens[i] for i in tokens)) else ()


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Echo
