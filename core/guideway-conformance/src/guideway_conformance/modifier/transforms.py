"""Checks of what `apply` does to logits, and of what `sample` leaves of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import Need, Payload, Stage
from guideway.api.bitmask import num_words
from guideway.devices.numpy.device import NumpyDevice
from numpy.typing import NDArray

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import bits
from guideway_conformance.modifier.harder import forbidding, without_some_columns
from guideway_conformance.modifier.records import Applied, Work
from guideway_conformance.modifier.step import OracleStep
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect


@check("modifier", trait="logits", acts=("rows",))
def apply_returns_the_logits(subject: ModifierSubject) -> None:
    """`apply` returns the logits: an array of the same library, shape and dtype, to which the next can write."""
    for bench, work, payload in Bench.stages(subject):
        _check_result(bench, work, payload)


@check("modifier", tier="extended", trait="raw", acts=("rows",))
def half_precision_stays(subject: ModifierSubject) -> None:
    """Logits of float16 stay float16, and become no NaN."""
    for bench, work, payload in Bench.stages(subject):
        half = replace(work, logits=work.logits.astype(np.float16))
        result = _check_result(bench, half, payload)
        expect(not np.isnan(result).any(), "of float16 numbers it made NaN")


@check("modifier", acts=("rows",))
def other_rows_stay(subject: ModifierSubject) -> None:
    """All rows but those of the payload keep their bits."""
    for bench, work, payload in Bench.stages(subject):
        pieces = [payload, payload.take(payload.rows[::2]), payload.take(payload.rows[:1])]
        for piece in pieces:
            for logits in (work.logits, forbidding(work)):
                applied = bench.apply(work, piece, logits=logits)
                for row in sorted({*range(len(logits))} - {*piece.rows.tolist()}):
                    expect(
                        bits(applied.logits[row]) == bits(logits[row]),
                        f"with a payload of rows {piece.rows.tolist()} it changed row {row} of {len(logits)}",
                    )


@check("modifier", trait="logits", acts=("rows",))
def forbidden_stays_forbidden(subject: ModifierSubject) -> None:
    """-inf stays -inf, also where the logits of a companion are: it is never made finite, nor NaN."""
    for bench, work, payload in Bench.stages(subject):
        for logits in (forbidding(work), without_some_columns(work)):
            after = bench.apply(work, payload, logits=logits).logits
            freed = after[np.isneginf(logits) & ~np.isneginf(after)]
            expect(len(freed) == 0, f"{len(freed)} tokens that were at -inf are at {freed[:1]} and the like after it")


@check("modifier", trait="logits", acts=("rows",))
def numbers_stay_numbers(subject: ModifierSubject) -> None:
    """Results are logits, or log-probabilities: numbers or -inf, no NaN."""
    for bench, work, payload in Bench.stages(subject):
        may_be_forbidden = bench.cls.stage is not Stage.PRE_WARP
        given = [work.logits]
        given += [forbidding(work)] if may_be_forbidden else []
        given += [_only_companions_forbidding(work)] if len(work.logits) > work.batch.num_rows else []
        for logits in given:
            after = bench.apply(work, payload, logits=logits).logits
            for what, found in (("NaN", np.isnan(after)), ("infinity", np.isposinf(after))):
                expect(not found.any(), f"it made {what} of {int(found.sum())} numbers")


@check("modifier", trait="stage:mask", acts=("rows",))
def a_mask_only_forbids(subject: ModifierSubject) -> None:
    """At Stage.MASK a modifier only forbids: a logit keeps its value or becomes -inf."""
    for bench, work, payload in Bench.stages(subject):
        after = bench.apply(work, payload).logits
        changed = (after != work.logits) & ~np.isneginf(after)
        expect(not changed.any(), f"it changed {int(changed.sum())} logits without forbidding them")


@check("modifier", trait="bitmask", acts=("rows",))
def a_bitmask_is_all_it_applies(subject: ModifierSubject) -> None:
    """A transform with a `bitmask` forbids what that array of its payload forbids, no more and no less."""
    for bench, work, payload in Bench.stages(subject):
        name = str(bench.transform.bitmask)
        bitmask = payload.arrays.get(name)
        shape = (len(payload), num_words(bench.vocabulary.logits_width))
        expect(
            bitmask is not None and bitmask.dtype == np.int32 and bitmask.shape == shape,
            f"the array {name!r} of its payload is not int32{list(shape)}, a bitmask",
        )
        wanted = NumpyDevice().apply_bitmask(work.logits.copy(), bitmask, payload.rows)
        wrong = bench.apply(work, payload).logits != wanted
        expect(not wrong.any(), f"it left {int(wrong.sum())} logits other than its bitmask does")


@check("modifier", trait="idempotent", acts=("rows",))
def applied_again_it_changes_nothing(subject: ModifierSubject) -> None:
    """Rows that an `idempotent` transform is applied to twice become what one call gives."""
    for bench, work, payload in Bench.stages(subject):
        once = bench.apply(work, payload).logits
        for piece in (payload, payload.take(payload.rows[::2])):
            before = bench.apply(work, piece).logits
            again = bench.apply(work, payload, logits=before).logits
            expect(bits(again) == bits(once), f"after rows {piece.rows.tolist()} it gave something else")


@check("modifier", acts=("rows",))
def transforms_are_pure(subject: ModifierSubject) -> None:
    """The result of a transform depends on its arguments alone, not on what it was called with before."""
    for bench, work, payload in Bench.stages(subject):
        crowd = [sequence for sequence in work.sequences if sequence.state is not None]
        first = bench.apply(work, payload)
        between = bench.work(crowd[:1])
        bench.apply(between, bench.prepare(between))
        _expect_equal(bench.apply(work, payload), first, "called again with the same arguments, after another batch")
        for transform in (bench.transform, bench.new_transform()):
            found = bench.apply(work, payload, transform=transform)
            _expect_equal(found, first, "another instance, or the same one a third time, with the same arguments")


@check("modifier", acts=("rows",))
def arguments_stay(subject: ModifierSubject) -> None:
    """A transform changes nothing of the payload, nor of the step's `positions` and `companion_rows`, which other
    modifiers read: what the step's methods return is its own."""
    for bench, work, payload in Bench.stages(subject):
        uploaded = bench.device.upload(payload)
        step = bench.step_of(work, bench.transform, len(payload))
        transform: Any = bench.transform
        act = transform.apply if "logits" in subject.traits(subject.component) else transform.sample
        before, names = _content(bench, uploaded, step), (set(uploaded.arrays), set(uploaded.shared))
        act(bench.device.from_logits(work.logits.copy()), uploaded, step)
        expect((set(uploaded.arrays), set(uploaded.shared)) == names, "it added or removed arrays of the payload")
        after = _content(bench, uploaded, step)
        changed = [name for name, value in before.items() if after[name] != value]
        expect(not changed, f"it changed the array {changed[:1]} of its arguments")


def _content(bench: Bench, payload: Payload, step: OracleStep) -> dict[str, bytes]:
    arrays = {"rows": payload.rows, "positions": step.positions, **payload.arrays}
    if Need.COMPANIONS in bench.cls.needs:
        arrays["companion_rows"] = step.companion_rows
    arrays |= {f"shared {name}": array for name, array in payload.shared.items()}
    return {name: bits(bench.host(array)) for name, array in arrays.items()}


def _only_companions_forbidding(work: Work) -> NDArray[Any]:
    """The logits where the rows of companions have some tokens at -inf that others have not."""
    logits = work.logits.copy()
    logits[work.batch.num_rows :, np.random.default_rng(2).random(logits.shape[1]) < 1 / 4] = -np.inf
    return logits


def _check_result(bench: Bench, work: Work, payload: Payload) -> NDArray[Any]:
    given = bench.device.from_logits(work.logits.copy())
    library, shape, dtype = type(given), tuple(given.shape), given.dtype
    step = bench.step_of(work, bench.transform, len(payload))
    result: Any = bench.transform.apply(given, bench.device.upload(payload), step)
    expect(isinstance(result, library), f"of a {library.__name__} it made a {type(result).__name__}")
    expect(tuple(result.shape) == shape, f"of shape {shape} it made {tuple(result.shape)}")
    expect(result.dtype == dtype, f"of {dtype} it made {result.dtype}")
    flags = getattr(result, "flags", None)
    expect(getattr(flags, "writeable", True), "it returned a read-only array; what comes next changes it in place")
    return bench.host(result)


def _expect_equal(found: Applied, wanted: Applied, what: str) -> None:
    pairs = {"logits": (found.logits, wanted.logits)}
    if found.token_ids is not None and wanted.token_ids is not None:
        pairs["token ids"] = (found.token_ids, wanted.token_ids)
    pairs |= {name: (array, wanted.emitted[name]) for name, array in found.emitted.items()}
    for name, (left, right) in pairs.items():
        expect(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), f"{what}, gives other {name}")
