"""The numbers: what a backend returns is what the formula gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from guideway.api import UnsupportedCapability

from guideway_conformance.attention.cases import (
    MIXED,
    Case,
    attended,
    check_case,
    compare,
    laid_out,
    row_of,
    sights,
)
from guideway_conformance.attention.subject import DTYPES, AttentionSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []


def refuses(**changes: Any) -> Callable[[AttentionSubject], None]:
    """Return what a backend does that does not declare what the case with `changes` needs."""

    def refusal(subject: AttentionSubject) -> None:
        for lengths in (MIXED, (1,), (), (0, 0)):  # a host may ask with one short text, or none
            case = replace(Case(lengths=lengths, dtype=subject.dtype), **changes)
            backend = subject.backend()
            arguments = laid_out(backend, row_of(case, subject.device), case.lengths)
            try:
                attended(backend, case, arguments)
            except UnsupportedCapability:
                continue
            raise AssertionError(f"it answered a call that needs what it does not declare ({case})")

    return refusal


@check("attention", tier="smoke")
def attends(subject: AttentionSubject) -> None:
    """A backend attends to both sides within one sequence, and returns a tensor of the query's shape and type."""
    check_case(subject, Case(lengths=(7,), dtype=subject.dtype))


@check("attention")
def keeps_sequences_apart(subject: AttentionSubject) -> None:
    """Sequences of any lengths in any order each get what they would get alone."""
    for lengths in (MIXED, (4,) * 6, (40, 3, 17), (1, 2, 3, 4, 5)):
        check_case(subject, Case(lengths=lengths, dtype=subject.dtype))


@check("attention", tier="extended")
def many_of_one_length(subject: AttentionSubject) -> None:
    """Hundreds of short sequences of one length, or dozens of longer ones, each get what they would get alone."""
    for lengths in ((3,) * 301, (64,) * 37, (*(17,) * 53, 2)):
        check_case(subject, Case(lengths=lengths, heads=12, key_heads=12, dim=8, dtype=subject.dtype))


@check("attention")
def no_length_is_special(subject: AttentionSubject) -> None:
    """A length may be 0 or 1, and there may be no sequence at all."""
    for lengths in ((1,), (0, 3, 0, 0, 5, 1), (1, 1, 1), (6, 0), (0, 0), ()):
        check_case(subject, Case(lengths=lengths, dtype=subject.dtype))


@check("attention")
def neighbors_do_not_leak(subject: AttentionSubject) -> None:
    """Whatever stands in other sequences, or in places of none, has no influence on a sequence."""
    case = Case(lengths=(6, 6, 9, 2), dtype=subject.dtype)
    for causal in (False, True) if "causal" in subject.declared(subject.component) else (False,):
        case = replace(case, causal=causal)
        row = row_of(case, subject.device)
        quiet = row_of(case, subject.device)
        for x in row:
            x[:, :, :6] = 2000.0
            x[:, :, 12:] = -2000.0
        backend = subject.backend()
        found = attended(backend, case, laid_out(backend, row, case.lengths))[:, 6:12]
        alone = replace(case, lengths=(6,))
        compare(alone, found, tuple(x[:, :, 6:12] for x in quiet), "a sequence between others of large numbers")  # type: ignore[arg-type]


@check("attention")
def scales_scores(subject: AttentionSubject) -> None:
    """Scores are multiplied by `scale`, whatever the dimension of a head would suggest."""
    for scale in (1.0, 0.05):
        check_case(subject, Case(scale=scale, dtype=subject.dtype))


@check("attention", capability="causal", refusal=refuses(causal=True))
def causal_sees_no_later_place(subject: AttentionSubject) -> None:
    """With `causal`, a place sees those up to its own, and no later one."""
    for lengths in (MIXED, (9,), (6, 6)):
        check_case(subject, Case(lengths=lengths, causal=True, dtype=subject.dtype))


@check("attention", capability="window", refusal=refuses(causal=True, window=3))
def window_counts_places_before(subject: AttentionSubject) -> None:
    """With `causal` and `window`, a place sees so many places up to its own, its own included."""
    for window in (1, 3, 17, 100):
        check_case(subject, Case(causal=True, window=window, dtype=subject.dtype))


@check("attention", capability="two_sided_window", refusal=refuses(window=3))
def window_reaches_to_both_sides(subject: AttentionSubject) -> None:
    """With `window` alone, a place sees the places that are less than `window` away, before it and after it."""
    for window in (1, 3, 17, 100):
        check_case(subject, Case(window=window, dtype=subject.dtype))


@check("attention", tier="extended")
def long_sequences_are_no_different(subject: AttentionSubject) -> None:
    """Sequences of hundreds of places follow the same rules, with every window and direction that is declared."""
    declared = subject.declared(subject.component)
    cases = [Case(lengths=(210, 4, 333), heads=2, key_heads=2, dtype=subject.dtype)]
    cases += [replace(cases[0], causal=True)] if "causal" in declared else []
    cases += [replace(cases[0], causal=True, window=50)] if {"causal", "window"} <= declared else []
    cases += [replace(cases[0], window=50)] if "two_sided_window" in declared else []
    for case in cases:
        check_case(subject, case)


@check("attention", capability="grouped_query", refusal=refuses(key_heads=2))
def query_heads_share_key_heads(subject: AttentionSubject) -> None:
    """Query heads share key heads: of h on k, head i uses key head ``i // (h // k)``."""
    for heads, key_heads in ((4, 2), (6, 1), (6, 2)):
        check_case(subject, Case(heads=heads, key_heads=key_heads, dtype=subject.dtype))


@check("attention", capability="float32", refusal=refuses(dtype="float32"))
def float32_is_exact(subject: AttentionSubject) -> None:
    """In float32 a result is as close to the formula's as the contract says."""
    check_case(subject, Case(dtype="float32"))


@check("attention", capability="float16", refusal=refuses(dtype="float16"))
def float16_is_close(subject: AttentionSubject) -> None:
    """In float16 a result is as close to the formula's as the contract says, with scores in at least float32."""
    check_case(subject, Case(dtype="float16"))
    _large_scores(subject, "float16")


@check("attention", capability="bfloat16", refusal=refuses(dtype="bfloat16"))
def bfloat16_is_close(subject: AttentionSubject) -> None:
    """In bfloat16 a result is as close to the formula's as the contract says, with scores in at least float32."""
    check_case(subject, Case(dtype="bfloat16"))
    _large_scores(subject, "bfloat16")


def _large_scores(subject: AttentionSubject, dtype: str) -> None:
    """Scores near 300 that differ by less than their type can tell apart, and such of some 30, from a head and a scale
    that are no powers of two."""
    backend = subject.backend()
    for seed in range(10):
        case = Case(lengths=(64,), dim=96, dtype=dtype, scale=96**-0.5)
        query, key, value = row_of(case, subject.device, seed)
        row = (query, key * 32, value)
        found = attended(backend, case, laid_out(backend, row, case.lengths))
        compare(case, found, row, "with scores of some 30 its result")
    case = Case(lengths=(12,), heads=1, key_heads=1, dtype=dtype, scale=1.0)
    query, key, value = row_of(case, subject.device)
    query[..., 0], key[..., 0] = 16.0, 18.0
    row = (query, key, value)
    backend = subject.backend()
    compare(case, attended(backend, case, laid_out(backend, row, case.lengths)), row, "with scores near 300 its result")


@check("attention", seconds=90)
def extreme_scores_stay_finite(subject: AttentionSubject) -> None:
    """Scores of any finite size give finite numbers, none larger than the largest value: where all that is seen has the
    same score, however small, the mean of what is seen, and where one is larger than the others, however large they
    are, its value."""
    for dtype in DTYPES:
        if dtype not in subject.declared(subject.component):
            continue
        case = Case(dtype=dtype, scale=1.0)
        query, key, value = row_of(case, subject.device)
        row = (query * 200, key * 200, value)
        backend = subject.backend()
        found = attended(backend, case, laid_out(backend, row, case.lengths))
        largest = float(value.abs().max())
        expect(bool(torch.isfinite(found).all()), f"scores of some 10^5 gave numbers that are not finite ({case})")
        expect(float(found.abs().max()) <= 1.02 * largest, f"a mean of values is larger than all of them ({case})")
        _equal_scores(subject, dtype)
        _different_scores(subject, dtype)


def _different_scores(subject: AttentionSubject, dtype: str) -> None:
    """Scores from 10^3 to 10^34 in size, positive and negative, of which one, early, in the middle or late in short and
    long sequences, is a fifth larger than the others; and values as large and as small as the type holds."""
    backend = subject.backend()
    largest = {"float16": 2.0**13, "bfloat16": 2.0**100, "float32": 2.0**100}[dtype]
    for number, size in enumerate((2.0**5, 2.0**7, 2.0**10, 2.0**14, 2.0**56)):
        if size > torch.finfo(getattr(torch, dtype)).max:
            continue
        cases = sights(subject, Case(lengths=(9, 150), heads=2, key_heads=2, dim=8, dtype=dtype, scale=1.0))
        case = cases[number % len(cases)]  # each with one, as some libraries compile for each
        query, key, value = row_of(case, subject.device, number)
        query[...], key[...] = 0, 0
        sign = (1, -1)[number % 2]
        query[..., 0], key[..., 0] = size, sign * size
        for place in ((0, 9), (5, 9 + 75), (8, 9 + 149))[number % 3]:
            key[:, :, place, 0] = size * (1.25 if sign > 0 else -0.75)
        row = (query, key, value * (1.0, largest, 1 / largest)[number % 3])
        found = attended(backend, case, laid_out(backend, row, case.lengths))
        compare(case, found, row, f"with scores of some {sign * size * size:.0e}, one of them larger, its result")


def _equal_scores(subject: AttentionSubject, dtype: str) -> None:
    """Scores from -10^9 to -10^35 that are all the same, as far as the type holds the numbers they come from."""
    declared = subject.declared(subject.component)
    for size in (2.0**7, 2.0**15, 2.0**20, 2.0**56):
        if size > torch.finfo(getattr(torch, dtype)).max:
            continue
        cases = [Case(lengths=(40, 3), dtype=dtype, scale=1.0)]
        cases += [replace(cases[0], causal=True)] if "causal" in declared else []
        cases += [replace(cases[0], causal=True, window=3)] if {"causal", "window"} <= declared else []
        cases += [replace(cases[0], window=3)] if "two_sided_window" in declared else []
        for case in cases:
            query, key, value = row_of(case, subject.device)
            row = (torch.full_like(query, -size), torch.full_like(key, size), value)
            backend = subject.backend()
            found = attended(backend, case, laid_out(backend, row, case.lengths))
            compare(case, found, row, f"with all scores {-case.dim * size * size:.0e} its result")
