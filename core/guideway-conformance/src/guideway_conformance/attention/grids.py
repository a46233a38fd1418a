"""Calls of many sizes, one after another: lengths, windows, heads, and one argument changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from guideway_conformance.attention.cases import (
    Case,
    Row,
    answered,
    attended,
    check_answer,
    compare,
    in_one_row,
    laid_out,
    row_of,
    sights,
)
from guideway_conformance.attention.subject import DTYPES, AttentionSubject
from guideway_conformance.availability import expect_reasons
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []

EDGES = (31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 192)
"""Lengths around those at which implementations cut."""
WINDOWS = (1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 128, 129)


@check("attention")
def says_whether_it_can_run(subject: AttentionSubject) -> None:
    """`available` is None or the reason why the backend cannot run here, and never raises, not even where a package
    that it imports is not installed."""
    expect_reasons(subject.component)


@check("attention")
def lengths_in_any_order(subject: AttentionSubject) -> None:
    """Sequences of few different lengths, in whatever order these are and however often they repeat, each get what they
    would get alone."""
    backend, generator = subject.backend(), torch.Generator().manual_seed(1)
    drawn = [
        tuple(int(values[i]) for i in torch.randint(len(values), (count,), generator=generator))
        for values in ((3, 5), (1, 2), (0, 4), (1, 7, 2), (0, 1, 6, 9))
        for count in (3, 4, 6)
    ]
    for number, lengths in enumerate(((5, 3, 5), (3, 5, 3), (5, 3, 3, 5), (2, 9, 2, 9), (6, 0, 6), *drawn)):
        for case in sights(subject, Case(lengths=lengths, heads=2, key_heads=2, dim=8, dtype=subject.dtype)):
            check_answer(backend, subject, case, number)


@check("attention", tier="extended", seconds=120)
def windows_of_every_size(subject: AttentionSubject) -> None:
    """A window may have any size beside any length, be it that of a whole block of places, one less or one more."""
    backend = subject.backend()
    for case in sights(subject, Case(lengths=(), heads=1, key_heads=1, dim=8, dtype=subject.dtype)):
        for window in WINDOWS if case.window else (None,):
            for lengths in (*((length,) for length in EDGES), (*EDGES[:6], *EDGES[:3])):
                check_answer(backend, subject, replace(case, lengths=lengths, window=window), len(lengths))


@check("attention", tier="extended", seconds=120)
def many_of_different_lengths(subject: AttentionSubject) -> None:
    """Dozens of long sequences of different lengths, or hundreds of short ones, each get what they would get alone in
    whatever order they are."""
    backend = subject.backend()
    descending = tuple(range(300, 260, -1))
    for lengths in (descending, descending[::-3] + descending[1::3], tuple(i * 7 % 23 for i in range(301))):
        check_answer(backend, subject, Case(lengths=lengths, dim=8, dtype=subject.dtype))
    for case in sights(subject, Case(lengths=descending[::2], dim=8, dtype=subject.dtype))[1:]:
        check_answer(backend, subject, case)


@check("attention", tier="extended", seconds=120)
def heads_of_every_size(subject: AttentionSubject) -> None:
    """Heads may be of any number and dimension, with every type and direction that is declared."""
    declared = subject.declared(subject.component)
    sizes = [(heads, heads, dim) for heads, dim in enumerate((1, 2, 8, 33, 64, 80, 128, 256), 1)]
    sizes += [(h, k, 16) for h, k in ((2, 1), (8, 1), (8, 2), (9, 3))] if "grouped_query" in declared else []
    dtypes = [dtype for dtype in DTYPES if dtype in declared] or [subject.dtype]
    for number, (heads, key_heads, dim) in enumerate(sizes):  # each of one type, as many libraries compile for each
        case = Case(
            lengths=(9, 2, 33),
            heads=heads,
            key_heads=key_heads,
            dim=dim,
            dtype=dtypes[number % len(dtypes)],
            scale=(dim**-0.5, 1e-3, 0.5)[number % 3],
        )
        backend = subject.backend()
        for seen in sights(subject, case):
            check_answer(backend, subject, seen)


@check("attention", seconds=120)
def one_argument_at_a_time(subject: AttentionSubject) -> None:
    """A call gives the same after one that differed in a single argument, and that one what it asked for, be it the
    lengths, the scale, the direction, the window, the heads, the type or the numbers; no call changes an argument or a
    result of one before it."""
    backend = subject.backend()
    found: list[tuple[Case, Row, Row, list[torch.Tensor], torch.Tensor]] = []

    def call(case: Case, row: Row, arguments: Row) -> None:
        before = [x.clone() for x in arguments]
        result = answered(backend, case, arguments)
        compare(case, in_one_row(backend, case, result), row, "after a call that differs in one argument its result")
        found.append((case, row, arguments, before, result))

    for base in sights(subject, Case(lengths=(5, 3, 5, 9), dim=16, dtype=subject.dtype)):
        row = row_of(base, subject.device)
        arguments = laid_out(backend, row, base.lengths)
        for case, padding, seed in _changed(subject, base):
            call(base, row, arguments)  # the same tensors each time, as a model's buffers may be
            other = row_of(case, subject.device, seed)
            call(case, other, laid_out(backend, other, case.lengths, padding))
        for case in _beside(subject, base):
            call(base, row, arguments)
            call(case, row, arguments)
        call(base, row, arguments)
    for case, row, arguments, before, result in found:
        what = "its result, after calls that differ in one argument,"
        compare(case, in_one_row(backend, case, result), row, what)
        same = all(torch.equal(x, old) for x, old in zip(arguments, before, strict=True))
        expect(same, f"a later call changed an argument ({case})")
    _expect_read_anew(subject)


def _changed(subject: AttentionSubject, base: Case) -> Iterator[tuple[Case, int, int]]:
    """`base` with other tensors, with the padding and the seed of its numbers."""
    declared = subject.declared(subject.component)
    yield base, 2, 1
    yield base, 0, 0
    yield base, 5, 0
    for lengths in ((3, 5, 5, 9), (5, 5, 3, 9), (9, 5, 3, 5), (5, 3, 5), (5, 3, 6, 8), (22,), (9, 9, 9, 9)):
        yield replace(base, lengths=lengths), 2, 0
    yield replace(base, heads=2, key_heads=2), 2, 0
    yield replace(base, dim=8), 2, 0
    if "grouped_query" in declared:
        yield replace(base, key_heads=2), 2, 0
        yield replace(base, key_heads=1), 2, 0
    for dtype in DTYPES:
        if dtype in declared:
            yield replace(base, dtype=dtype), 2, 0


def _beside(subject: AttentionSubject, base: Case) -> list[Case]:
    """`base` with another argument beside the same tensors."""
    declared = subject.declared(subject.component)
    cases = [replace(base, scale=0.05), *sights(subject, replace(base, causal=False, window=None))]
    needed = ("window" if base.causal else "two_sided_window") in declared
    return cases + [replace(base, window=window) for window in (1, 2, 4, 5, 9, 40) if needed]


def _expect_read_anew(subject: AttentionSubject) -> None:
    """Fail if tensors that are written to between calls are not read anew."""
    backend = subject.backend()
    case = Case(lengths=(5, 3, 5), dim=16, dtype=subject.dtype)
    arguments = laid_out(backend, row_of(case, subject.device), case.lengths)
    for changed in range(4):
        rows = [row_of(case, subject.device, seed) for seed in (0, 1)]
        row = tuple(rows[number < changed][number] for number in range(3))
        for x, new in zip(arguments, laid_out(backend, row, case.lengths), strict=True):  # type: ignore[arg-type]
            x.copy_(new)
        found = attended(backend, case, arguments)
        compare(case, found, row, "with arguments that were written anew its result")  # type: ignore[arg-type]
