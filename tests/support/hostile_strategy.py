"""A strategy that a constraint can make crash, hang or eat memory, as native libraries do."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from guideway.api import (
    CompiledGrammar,
    Constraint,
    Matcher,
    PluginUnavailable,
    Support,
    Vocabulary,
    hookimpl,
)
from guideway.api.bitmask import Bitmask
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

REFUSES = "GWT_HOSTILE_REFUSES"
"""Environment variable: the vocabulary for which it cannot be built, ``small`` (257 tokens) or ``large`` (others)."""

TARDY = 0.15
"""CPU seconds."""

HOARD: list[bytearray] = []
"""Memory that a process never frees."""

WEIGHT = 1 << 19
"""Bytes in each grammar and each matcher, so that one which is not freed is noticed."""


def act(word: str) -> None:
    """Do the action that the constraint names."""
    if word == "crash":
        ctypes.string_at(0)
    elif word in ("orphan", "parent"):  # a child that keeps all file descriptors of this process open
        if os.fork() == 0:
            time.sleep(10)
            os._exit(0)
        if word == "orphan":
            ctypes.string_at(0)
    elif word == "spin":
        while True:
            pass
    elif word == "sleep":
        time.sleep(3600)
    elif word == "eat":
        kept = []
        while True:
            kept.append(bytearray(64 << 20))
    elif word == "hoard":
        HOARD.append(bytearray(48 << 20))
    elif word == "camp":
        kept = [bytearray(100 << 20)]
        time.sleep(3600)
    elif word == "grow":
        kept = []
        for _ in range(7):
            kept.append(bytearray(25 << 20))
            time.sleep(0.05)
    elif word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal may take a while
    elif word == "abort":  # like C++ and Rust when an allocation fails
        os.abort()
    elif word in ("tardy", "mild"):
        end = time.thread_time() + (TARDY if word == "tardy" else TARDY / 4)
        while time.thread_time() < end:
            pass
    elif word == "raise":
        raise RuntimeError("a bug")


class Strategy(ReferenceStrategy):
    """Regexes that begin with two capitals do as they say: the first says when (S supports, C compile, F fill, A
    accept, Q search for forced tokens), the second what."""

    contract = "1.0"
    name = "hostile"

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        if os.environ.get(REFUSES) == ("small" if len(vocabulary) == 257 else "large"):
            raise PluginUnavailable("not this vocabulary", plugin="grammar.hostile")

    def supports(self, constraint: Constraint) -> Support:
        act(asked(constraint, "S"))
        if constraint.source().startswith("SV"):  # the value of an environment variable
            return Support(reason=os.environ.get(constraint.source()[2:]))
        return super().supports(constraint)

    def compile(self, constraint: Constraint) -> Any:
        act(asked(constraint, "C"))
        return Grammar(super().compile(constraint), constraint)


def asked(constraint: Constraint, when: str) -> str:
    words = {
        "C": "crash",
        "S": "spin",
        "L": "sleep",
        "E": "eat",
        "K": "killed",
        "R": "raise",
        "T": "tardy",
        "M": "mild",
        "O": "orphan",
        "P": "parent",
        "A": "abort",
        "B": "camp",
        "H": "hoard",
        "W": "grow",
    }
    source = constraint.source()
    return words.get(source[1:2], "") if constraint.kind == "regex" and source[:1] == when else ""


class Grammar(CompiledGrammar):
    def __init__(self, inner: CompiledGrammar, constraint: Constraint) -> None:
        self.inner, self.constraint = inner, constraint
        self.weight = b"x" * WEIGHT

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Hostile(self.inner.matcher(stop_token_ids), self.constraint, 0)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


class Hostile(Matcher):
    """Acts at its fourth token."""

    def __init__(self, inner: Matcher, constraint: Constraint, length: int) -> None:
        self.inner, self.constraint, self.length = inner, constraint, length
        self.weight = b"x" * WEIGHT

    def accept(self, token_ids: Sequence[int]) -> int:
        if self.length + len(token_ids) > 3:
            act(asked(self.constraint, "A"))
        count = self.inner.accept(token_ids)
        self.length += count
        return count

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        if self.length > 3:
            act(asked(self.constraint, "F"))
        self.inner.fill_bitmask(bitmask, row)

    def forced_tokens(self) -> Sequence[int]:
        act(asked(self.constraint, "Q"))
        return self.inner.forced_tokens()

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)
        self.length -= num_tokens

    def fork(self) -> Matcher:
        return Hostile(self.inner.fork(), self.constraint, self.length)


@hookimpl
def guideway_grammar_strategy() -> type[Strategy]:
    return Strategy
