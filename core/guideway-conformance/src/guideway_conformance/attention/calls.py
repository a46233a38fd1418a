"""The calls: what a backend does with its arguments, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import torch

from guideway_conformance.attention.cases import (
    MIXED,
    Case,
    Row,
    answered,
    attended,
    compare,
    in_one_row,
    laid_out,
    row_of,
    sights,
)
from guideway_conformance.attention.subject import AttentionSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []


@check("attention")
def strides_do_not_matter(subject: AttentionSubject) -> None:
    """Arguments may be views of any strides, such as those of one tensor of queries, keys and values."""
    backend = subject.backend()
    case = Case(dtype=subject.dtype)
    row = row_of(case, subject.device)
    arguments = laid_out(backend, row, case.lengths)
    rows, heads, places, dim = arguments[0].shape
    fused = torch.stack([x.transpose(1, 2) for x in arguments], dim=2)  # [rows, places, 3, heads, dim]
    views = fused.new_empty(rows, places, 3, heads, 2 * dim)[..., ::2].copy_(fused)
    for tensor, what in ((fused, "with arguments that are parts of one tensor"), (views, "with strides of two")):
        query, key, value = (tensor[:, :, i].transpose(1, 2) for i in range(3))
        compare(case, attended(backend, case, (query, key, value)), row, f"{what} its result")


@check("attention")
def arguments_stay_as_they_are(subject: AttentionSubject) -> None:
    """Arguments are the same after the call, and the result has no memory of theirs."""
    backend = subject.backend()
    for lengths in (MIXED, (8, 8), (1,), (1, 1, 1)):
        cases = sights(subject, Case(lengths=lengths, dtype=subject.dtype))
        cases += [replace(case, window=1) for case in cases if case.window]
        if "grouped_query" in subject.declared(subject.component):
            cases.append(replace(cases[0], key_heads=2))
        for case in cases:
            for padding in (2, 0):
                arguments = laid_out(backend, row_of(case, subject.device), case.lengths, padding)
                before = [x.clone() for x in arguments]
                result = answered(backend, case, arguments)
                same = all(torch.equal(x, old) for x, old in zip(arguments, before, strict=True))
                expect(same, f"it changed an argument ({case})")
                memory = result.untyped_storage().data_ptr()
                shared = any(x.untyped_storage().data_ptr() == memory for x in arguments)
                expect(not shared, f"what it returned shares memory with an argument ({case})")


@check("attention")
def calls_do_not_remember(subject: AttentionSubject) -> None:
    """A call's result does not depend on the calls before it, whatever their lengths, scales and windows, and does not
    change after it."""
    backend = subject.backend()
    cases: list[Case] = []
    for number, lengths in enumerate(((6, 2), (2, 6), (6, 2), (4, 4), (5, 3), (5, 3))):
        cases.append(
            Case(
                lengths=lengths,
                dtype=subject.dtype,
                causal=number % 2 == 1 and "causal" in subject.declared(subject.component),
            )
        )
    for case in sights(subject, Case(lengths=(40,), dtype=subject.dtype)):
        # as the layers of one model do, which see farther in turn
        windows = (2, 7, 30, 2) if case.window else (None,)
        cases += [replace(case, window=window) for window in windows]
    cases += [replace(cases[-1], scale=0.05), cases[-1]]
    found: list[tuple[Case, torch.Tensor, Row]] = []
    # what it returns is kept as it is: a copy would not change with its memory
    for number, case in enumerate(cases):
        row = row_of(case, subject.device, seed=number)
        found.append((case, answered(backend, case, laid_out(backend, row, case.lengths)), row))
    for case, result, row in found:
        compare(case, in_one_row(backend, case, result), row, "among calls of another kind its result")


@check("attention")
def works_where_gradients_are_off(subject: AttentionSubject) -> None:
    """A backend works inside ``torch.inference_mode()``, outside of it, and in turn."""
    backend = subject.backend()
    for case in sights(subject, Case(dtype=subject.dtype)):
        for mode in (True, False, True):
            with torch.inference_mode(mode):
                row = row_of(case, subject.device)
                compare(case, attended(backend, case, laid_out(backend, row, case.lengths)), row)


@check("attention")
def closes(subject: AttentionSubject) -> None:
    """A backend can be closed, whether it was used or not, and another one then still works."""
    subject.backend().close()
    used, other = subject.backend(), subject.backend()
    case = Case(lengths=(3,), dtype=subject.dtype)
    row = row_of(case, subject.device)
    attended(used, case, laid_out(used, row, case.lengths))
    used.close()
    compare(
        case, attended(other, case, laid_out(other, row, case.lengths)), row, "after another one was closed its result"
    )
