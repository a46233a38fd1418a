"""A grammar strategy for documents of a markup language: the dialect ``elements`` has a line for each element, the
root first: ``note = to+ body?`` and ``body = # | quote`` (``#`` is text, ``|`` another content). Elements may contain
themselves."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

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
    hookimpl,
)
from guideway.api.bitmask import Bitmask, num_words

Frame: TypeAlias = tuple[str, frozenset[tuple[int, int]]]  # an open element, and where in its contents it may be
Stack: TypeAlias = tuple[Frame, Any]  # the innermost frame, and the stack around it or None
Place: TypeAlias = tuple[Stack, bytes]  # and what was begun: a tag, an entity, a character
MOST_MASKS = 8 << 20
SHORTEST_TAG = 4  # </a>
ENTITIES = (b"&lt;", b"&gt;", b"&amp;")


class Markup(GrammarStrategy):
    contract = "1.0"
    name = "markup"
    kinds = frozenset({"grammar:elements"})
    capabilities = frozenset({"fork"})
    max_rollback = None
    examples = (
        GrammarExample(
            Grammar("a = b* c?\nb = #\nc = a | #", "elements"),
            (b"<a></a>", b"<a><b>x y</b><b></b></a>", b"<a><c><a></a></c></a>", b"<a><b>1 &lt; 2</b><c>z</c></a>"),
            (b"", b"<a>", b"<a></b>", b"<a><c></c><b></b></a>", b"<a></a><a></a>", b"<a><b>1 < 2</b></a>"),
        ),
        GrammarExample(
            Grammar("list = item+\nitem = # list?", "elements"),
            (b"<list><item>one<list><item></item></list></item></list>", "<list><item>\u00fc</item></list>".encode()),
            (b"<list></list>", b"<list><item><list></list></item></list>", b"<list><item>\xfc</item></list>"),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.words = Words(vocabulary)

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"markup cannot compile {constraint.kind}", feature=constraint.kind)
        return CompiledMarkup(self.words, *read(constraint.source()))


def read(text: str) -> tuple[str, dict[str, list[list[tuple[str, bool, bool]]]]]:
    """The root, and of each element its contents: lists of (name, may be left out, may be repeated)."""
    contents: dict[str, list[list[tuple[str, bool, bool]]]] = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        found = re.fullmatch(r"\s*([a-z]\w*)\s*=([^=]*)", line, re.ASCII)
        if not found or found[1] in contents:
            raise InvalidGrammar(f"not an element, or one a second time: {line[:60]!r}")
        contents[found[1]] = []
        for alternative in found[2].split("|"):
            items: list[tuple[str, bool, bool]] = []
            for word in alternative.split():
                item = re.fullmatch(r"([a-z]\w*)([?*+]?)|#", word, re.ASCII)
                if not item:
                    raise InvalidGrammar(f"not an item of a content: {word[:60]!r}")
                name, mark = item[1] or "#", item[2] or ""
                if mark == "+":
                    items.append((name, False, False))
                items.append((name, mark in ("?", "*", "+") or name == "#", mark in ("*", "+") or name == "#"))
            contents[found[1]].append(items)
    named = {name for each in contents.values() for items in each for name, _, _ in items} - {"#"}
    if not contents or named - contents.keys():
        raise InvalidGrammar(f"no element, or one without a line: {', '.join(sorted(named - contents.keys()))[:60]}")
    finite: set[str] = {"#"}
    while more := {
        name
        for name, each in contents.items()
        if name not in finite and any(all(skip or item in finite for item, skip, _ in items) for items in each)
    }:
        finite |= more
    root = next(iter(contents))
    if root not in finite:
        raise InvalidGrammar(f"the element {root} never ends")
    return root, {
        name: [
            [item for item in items if item[0] in finite]
            for items in each
            if all(skip or item in finite for item, skip, _ in items)
        ]
        for name, each in contents.items()
        if name in finite
    }


class Words:
    """The tokens of a vocabulary as a tree of bytes: {byte: [ids that end here, tree]}."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.size = len(vocabulary)
        self.tokens = tuple(b"" if i in vocabulary.special_tokens else t for i, t in enumerate(vocabulary.tokens))
        self.longest = max(map(len, self.tokens))
        self.tree: dict[int, Any] = {}
        for token_id, token in enumerate(self.tokens):
            tree = self.tree
            for byte in token[:-1]:
                tree = tree.setdefault(byte, [[], {}])[1]
            if token:
                tree.setdefault(token[-1], [[], {}])[0].append(token_id)


class CompiledMarkup(CompiledGrammar):
    def __init__(self, words: Words, root: str, contents: dict[str, list[list[tuple[str, bool, bool]]]]) -> None:
        self.words = words
        self.contents = {**contents, "": [[(root, False, False)]]}  # "" is around the root
        self.depth = 2 + words.longest // SHORTEST_TAG  # so many frames one token can close
        starts = {name: {(i, 0) for i in range(len(each))} for name, each in self.contents.items()}
        self.opened = {name: self.closed(name, places) for name, places in starts.items()}
        self.lock = threading.Lock()
        self.masks: dict[Any, Bitmask] = {}
        self.spare: list[MarkupMatcher] = []
        self.start: Place = ((("", self.opened[""]), None), b"")

    def closed(self, name: str, places: set[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """`places`, and those after what may be left out."""
        found = set(places)
        for i, at in places:
            for item in self.contents[name][i][at:]:
                if not item[1]:
                    break
                at += 1
                found.add((i, at))
        return frozenset(found)

    def over(self, frame: Frame) -> bool:
        return any(at == len(self.contents[frame[0]][i]) for i, at in frame[1])

    def take(self, frame: Frame, wanted: str) -> Frame | None:
        """`frame` after a child, or text."""
        places = set()
        for i, at in frame[1]:
            items = self.contents[frame[0]][i]
            if at < len(items) and items[at][0] == wanted:
                places.add((i, at if items[at][2] else at + 1))
        return (frame[0], self.closed(frame[0], places)) if places else None

    def step(self, place: Place, byte: int) -> Place | None:
        (frame, outer), begun = place[0], place[1] + bytes([byte])
        if begun[:1] == b"<":
            if self.over(frame) and outer is not None:
                tag = b"</%s>" % frame[0].encode()
                if begun == tag:
                    return outer, b""
                if tag.startswith(begun):
                    return place[0], begun
            partly = False
            for name in sorted(
                {self.contents[frame[0]][i][at][0] for i, at in frame[1] if at < len(self.contents[frame[0]][i])}
                - {"#"}
            ):
                tag = b"<%s>" % name.encode()
                if begun == tag:
                    return ((name, self.opened[name]), (self.take(frame, name), outer)), b""
                partly = partly or tag.startswith(begun)
            return (place[0], begun) if partly else None
        after = self.take(frame, "#")
        if after is None:
            return None
        if begun[:1] == b"&":
            if begun in ENTITIES:
                return (after, outer), b""
            return (place[0], begun) if any(each.startswith(begun) for each in ENTITIES) else None
        try:
            char = begun.decode()
        except UnicodeDecodeError as error:
            return (place[0], begun) if error.reason == "unexpected end of data" else None
        return ((after, outer), b"") if char >= " " and char != ">" else None

    def run(self, place: Place, data: bytes) -> Place | None:
        for byte in data:
            following = self.step(place, byte)
            if following is None:
                return None
            place = following
        return place

    def mask(self, place: Place) -> Bitmask:
        frames, stack = [], place[0]
        while stack is not None and len(frames) < self.depth:
            frames.append(stack[0])
            stack = stack[1]
        key = (tuple(frames), place[1])
        row = self.masks.get(key)
        if row is None:
            bits = np.zeros(num_words(self.words.size) * 32, dtype=np.uint8)
            todo = [(place, self.words.tree)]
            while todo:
                at, tree = todo.pop()
                for byte, (ids, below) in tree.items():
                    following = self.step(at, byte)
                    if following is not None:
                        bits[ids] = 1
                        todo.append((following, below))
            row = np.packbits(bits, bitorder="little").view(np.int32)
            with self.lock:
                if len(self.masks) * row.nbytes > MOST_MASKS:
                    self.masks.clear()
                self.masks[key] = row
        return row

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        with self.lock:
            matcher = self.spare.pop() if self.spare else MarkupMatcher()
        return matcher.begin(self, stop_token_ids, [self.start], None)

    def recycle(self, matcher: Matcher) -> None:
        matcher.begin(None, frozenset(), [], None)
        with self.lock:
            if len(self.spare) < 64:
                self.spare.append(matcher)

    @property
    def nbytes(self) -> int:
        with self.lock:
            masks = sum(row.nbytes + 600 + 100 * len(frames) for (frames, _), row in self.masks.items())
            return 4_000 + masks + 500 * len(self.spare) + 1_000 * len(self.contents)


class MarkupMatcher(Matcher):
    def begin(
        self, compiled: CompiledMarkup | None, stops: frozenset[int], path: list[Place], ended_at: int | None
    ) -> MarkupMatcher:
        self.compiled, self.stops, self.path = compiled, stops, path
        self.ended_at = ended_at  # the length of the path when a stop token was accepted
        return self

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if self.is_terminated():
                return count
            place = self.after(self.path[-1], token_id)
            if place is None:
                return count
            self.path.append(place)
            if token_id in self.stops:
                self.ended_at = len(self.path)
        return len(token_ids)

    def after(self, place: Place, token_id: int) -> Place | None:
        if token_id in self.stops:
            return place if self.complete(place) else None
        token = self.compiled.words.tokens[token_id]
        return self.compiled.run(place, token) if token else None

    def validate(self, token_ids: Sequence[int]) -> int:
        if self.is_terminated():
            return 0
        place = self.path[-1]
        for count, token_id in enumerate(token_ids):
            following = self.after(place, token_id)
            if following is None:
                return count
            if token_id in self.stops:
                return count + 1
            place = following
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} of {len(self.path) - 1} tokens")
        if num_tokens:
            del self.path[-num_tokens:]
            self.ended_at = None

    def fork(self) -> Matcher:
        return MarkupMatcher().begin(self.compiled, self.stops, self.path[:], self.ended_at)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        mask = self.compiled.mask(self.path[-1])
        stops = self.stops if self.is_accepting() else frozenset()
        if not stops and not mask.any():
            raise DeadEnd("no token of the vocabulary can come next in this document")
        bitmask[row, : len(mask)] = mask
        bitmask[row, len(mask) :] = 0
        for token_id in stops:
            bitmask[row].view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)

    def is_terminated(self) -> bool:
        return self.ended_at is not None

    def is_accepting(self) -> bool:
        return not self.is_terminated() and self.complete(self.path[-1])

    def complete(self, place: Place) -> bool:
        (frame, outer), begun = place
        return outer is None and not begun and self.compiled.over(frame)


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Markup
