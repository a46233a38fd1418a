"""Sequences that are under way, and forks of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from guideway.api import UnsupportedCapability

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.records import Running

__all__ = ["forked", "lives", "under_way"]

LIFE = 16
"""The tokens of a life."""


def under_way(bench: Bench, steps: Sequence[int] = range(1, 3)) -> list[Running]:
    """For each example a sequence after each of these numbers of steps."""
    found = []
    size = max(3, len(bench.examples))
    for number in range(size):
        for turn, num_steps in enumerate(steps):
            sequence = bench.start(number + turn * size)
            for _ in range(num_steps):
                if sequence.outcome == "continue":
                    bench.step([sequence])
            if sequence.outcome == "continue":
                found.append(sequence)
    return found


def lives(bench: Bench) -> Iterator[Running]:
    """A sequence of each example at each place of its life, one after the other, until it ends or is of some tokens."""
    for number in range(max(3, len(bench.examples))):
        sequence = bench.start(number)
        while sequence.outcome == "continue" and len(sequence.tokens) < LIFE:
            yield sequence
            bench.step([sequence])
        bench.release(sequence)


def forked(bench: Bench, sequence: Running) -> Running | None:
    """None where the modifier refuses to fork this state. That it does so everywhere is for `require` to say."""
    evidence = bench.subject.evidence
    try:
        fork = bench.fork(sequence, slot=60, index=1)
    except UnsupportedCapability:
        evidence.fork_refusals += 1
        return None
    evidence.forked += sequence.state is not None
    return fork
