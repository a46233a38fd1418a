"""The calls that backends are tested with, and the control group: the contract's formula, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

import torch
from guideway.api import ATTENTION_TOLERANCES, AttentionBackend
from torch import Tensor

from guideway_conformance.attention.subject import AttentionSubject
from guideway_conformance.subjects import expect

__all__ = [
    "MIXED",
    "Case",
    "Row",
    "answered",
    "attended",
    "check_answer",
    "check_case",
    "compare",
    "exact",
    "in_one_row",
    "laid_out",
    "row_of",
    "sights",
]

MIXED = (5, 5, 3, 17, 1, 17, 40)
"""Lengths in no order, some of them neighbors of the same length."""

Row: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""Queries, keys and values, each ``[1, heads or key heads, total, dim]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call, but for its numbers."""

    lengths: tuple[int, ...] = MIXED
    heads: int = 4
    key_heads: int = 4
    dim: int = 32
    dtype: str
    scale: float = 0.3
    causal: bool = False
    window: int | None = None

    def __str__(self) -> str:
        sight = "causal" if self.causal else "bidirectional"
        window = "" if self.window is None else f", window {self.window}"
        return f"lengths {self.lengths}, {self.heads} heads on {self.key_heads}, {self.dtype}, {sight}{window}"


def row_of(case: Case, device: torch.device, seed: int = 0) -> Row:
    """Random numbers, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(case.lengths)

    def drawn(heads: int) -> Tensor:
        numbers = torch.randn(1, heads, total, case.dim, generator=generator)
        return numbers.to(device=device, dtype=getattr(torch, case.dtype))

    return drawn(case.heads), drawn(case.key_heads), drawn(case.key_heads)


def laid_out(backend: AttentionBackend, row: Row, lengths: tuple[int, ...], padding: int = 2) -> Row:
    """`row` in the layout of `backend`, where there are rows with `padding` places more than the longest sequence has;
    what stands in places of no sequence differs from call to call."""
    if backend.layout == "packed":
        return row

    def padded(x: Tensor) -> Tensor:
        result = x.new_empty(len(lengths), x.shape[1], max(lengths, default=0) + padding, x.shape[3]).normal_(std=100)
        for i, (stop, length) in enumerate(zip(accumulate(lengths), lengths, strict=True)):
            result[i, :, :length] = x[0, :, stop - length : stop]
        return result

    return padded(row[0]), padded(row[1]), padded(row[2])


def attended(backend: AttentionBackend, case: Case, arguments: Row) -> Tensor:
    """Call `backend` with tensors in its layout and return ``[heads, total, dim]``. Fails if shape or type are not the
    query's."""
    return in_one_row(backend, case, answered(backend, case, arguments))


def answered(backend: AttentionBackend, case: Case, arguments: Row) -> Tensor:
    """Call `backend` with tensors in its layout and return what it does, in its own memory. Fails if shape or type are
    not the query's."""
    returned = backend.attend(
        *arguments, lengths=case.lengths, scale=case.scale, causal=case.causal, window=case.window
    )
    query = arguments[0]
    right = isinstance(returned, Tensor) and returned.shape == query.shape and returned.dtype == query.dtype
    found = f"{tuple(returned.shape)} of {returned.dtype}" if isinstance(returned, Tensor) else type(returned).__name__
    expect(right, f"for a query {tuple(query.shape)} of {query.dtype} it returned {found}")
    result: Tensor = returned
    return result


def in_one_row(backend: AttentionBackend, case: Case, result: Tensor) -> Tensor:
    """``[heads, total, dim]`` of what `backend` returned, without what stands in places of no sequence."""
    if backend.layout == "packed":
        return result[0]
    pieces = [result[i, :, :length] for i, length in enumerate(case.lengths)]
    return torch.cat(pieces, dim=1) if pieces else result.new_empty(result.shape[1], 0, result.shape[3])


def exact(case: Case, row: Row) -> Tensor:
    """``float64[heads, total, dim]`` by the contract's formula."""
    query, key, value = (x[0].double().cpu() for x in row)
    group = case.heads // case.key_heads
    key, value = key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0)
    result = torch.zeros_like(query)
    for stop, length in zip(accumulate(case.lengths), case.lengths, strict=True):
        if not length:
            continue
        own, places = slice(stop - length, stop), torch.arange(length)
        away = places[:, None] - places
        seen = (away >= 0) | (not case.causal)
        if case.window is not None:
            seen &= away.abs() < case.window
        scores = query[:, own] @ key[:, own].transpose(1, 2) * case.scale
        result[:, own] = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ value[:, own]
    return result


def compare(case: Case, found: Tensor, row: Row, what: str = "") -> None:
    """Fail if `found` is not what the formula gives."""
    wanted = exact(case, row)
    if not wanted.numel():
        return
    largest = float(row[2].abs().max())
    error = float((found.double().cpu() - wanted).abs().nan_to_num(torch.inf).max()) / largest
    allowed = ATTENTION_TOLERANCES[case.dtype]
    expect(
        error <= allowed,
        f"{what or 'its result'} is {error:.1e} of the largest value away from the formula's, "
        f"and may be {allowed:.0e} ({case})",
    )


def check_case(subject: AttentionSubject, case: Case) -> None:
    """Fail if a new backend's answer to `case` is not the formula's, with padding and without."""
    check_answer(subject.backend(), subject, case)


def check_answer(backend: AttentionBackend, subject: AttentionSubject, case: Case, seed: int = 0) -> None:
    """Fail if the answer of `backend` to `case` is not the formula's, with padding and without."""
    row = row_of(case, subject.device, seed)
    for padding in (2, 0) if backend.layout == "padded" else (0,):
        compare(case, attended(backend, case, laid_out(backend, row, case.lengths, padding)), row)


def sights(subject: AttentionSubject, case: Case) -> list[Case]:
    """`case` with what is declared of causal attention and windows."""
    declared = subject.declared(subject.component)
    cases = [case]
    cases += [replace(case, causal=True)] if "causal" in declared else []
    cases += [replace(case, causal=True, window=3)] if {"causal", "window"} <= declared else []
    cases += [replace(case, window=3)] if "two_sided_window" in declared else []
    return cases
