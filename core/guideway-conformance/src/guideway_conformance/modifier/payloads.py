"""Checks of what `prepare` gives."""

from __future__ import annotations

import numpy as np
from guideway.api import Payload
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import copied, expect_same_steps
from guideway_conformance.modifier.records import Running, Work
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

NUM_STEPS = 4


@check("modifier")
def payload_rows_are_rows(subject: ModifierSubject) -> None:
    """The rows of a payload are a NumPy array int32[m] of rows of the batch, each at most once."""
    bench = Bench(subject)
    for work in _works(bench):
        payload = bench.prepare(work)
        if payload is None:
            continue
        rows = payload.rows
        expect(
            isinstance(rows, np.ndarray) and rows.dtype == np.int32 and rows.ndim == 1,
            f"rows is a {type(rows).__name__} of {getattr(rows, 'dtype', '?')} and shape {getattr(rows, 'shape', '?')}",
        )
        expect(len(np.unique(rows)) == len(rows), f"it names a row twice: {rows.tolist()}")


@check("modifier")
def payload_arrays_are_aligned(subject: ModifierSubject) -> None:
    """The arrays of a payload are NumPy arrays, and those that are not shared have one entry for each row."""
    bench = Bench(subject)
    for work in _works(bench):
        payload = bench.prepare(work)
        if payload is None:
            continue
        for name, array in [*payload.arrays.items(), *payload.shared.items()]:
            expect(isinstance(name, str), f"an array is called {name!r}")
            expect(isinstance(array, np.ndarray), f"{name!r} is a {type(array).__name__}, not a NumPy array")
        for name, array in payload.arrays.items():
            expect(
                array.ndim > 0 and len(array) == len(payload.rows),
                f"{name!r} has shape {array.shape}, with {len(payload.rows)} rows",
            )


@check("modifier")
def none_leaves_rows_alone(subject: ModifierSubject) -> None:
    """A payload speaks of no row of a sequence without a state."""
    first, later = Bench(subject), Bench(subject)
    crowd = first.crowd()
    siblings = [later.start(number, slot=number, index=number % 4) for number in range(8)]
    for bench, sequences in ((first, crowd), (first, crowd[::-1]), (first, crowd[:2]), (later, siblings)):
        work = bench.work(sequences, bench.drafts(sequences))
        payload = bench.prepare(work)
        if payload is None:
            continue
        owner = np.repeat(np.arange(len(sequences)), np.diff(work.batch.row_start))
        wrong = [row for row in payload.rows.tolist() if sequences[owner[row]].state is None]
        expect(not wrong, f"it speaks of row {wrong[:1]}, whose sequence has no state")


@check("modifier", acts=("rows",))
def prepare_moves_nothing(subject: ModifierSubject) -> None:
    """`prepare` does not change a state: a payload depends on the states, not on how often it was asked for."""
    often, once = Bench(subject), Bench(subject)
    for number in range(len(often.examples)):
        pair = often.start(number), once.start(number)
        for _ in range(NUM_STEPS):
            if pair[0].outcome != "continue":
                break
            for drafts in ([], [97, 300, 301]):
                often.prepare(often.work([pair[0]], [drafts]))
            again = often.peek([pair[0]])
            found, wanted = often.step([pair[0]]), once.step([pair[1]])
            expect_same_steps(again, wanted, "another prepare for the same states gave something else")
            expect_same_steps(found, wanted, "prepare for a sequence changed what it gets")


@check("modifier")
def prepare_leaves_the_batch_alone(subject: ModifierSubject) -> None:
    """The batch is shared by every modifier, and read-only: `prepare` changes nothing of it."""
    bench = Bench(subject)
    for work in _works(bench):
        batch, states = work.batch, work.states
        before = [array.copy() for array in (batch.slots, batch.row_start, batch.draft_token_ids, batch.positions)]
        bench.modifier.prepare(batch, states)
        after = (batch.slots, batch.row_start, batch.draft_token_ids, batch.positions)
        for name, left, right in zip(
            ("slots", "row_start", "draft_token_ids", "positions"), before, after, strict=True
        ):
            expect(np.array_equal(left, right), f"prepare changed {name}: {right.tolist()} instead of {left.tolist()}")


@check("modifier", acts=("rows",))
def payload_holds_a_step(subject: ModifierSubject) -> None:
    """The arrays of a payload stay as they are until the second prepare after."""
    bench = Bench(subject)
    crowd = bench.crowd()
    before: tuple[Payload, list[bytes]] | None = None
    for turn in range(5):
        running = [sequence for sequence in crowd if sequence.outcome == "continue"]
        sequences = running if turn % 2 else running[::-1][turn // 2 :] or running
        work = bench.work(sequences)
        payload = bench.prepare(work)
        if before is not None:
            expect(_content(before[0]) == before[1], "the next prepare changed the payload of the step before")
        if payload is not None:
            kept = _content(payload)
            applied = bench.apply(work, payload)
            for i, sequence in enumerate(sequences):
                ids = bench.final(applied, i)
                bench.accept(sequence, ids, bench.feedback(applied, i, len(ids)))
            expect(_content(payload) == kept, "what followed in the same step changed its payload")
            before = payload, kept


@check("modifier", seconds=60, acts=("rows",))
def any_partition_of_rows(subject: ModifierSubject) -> None:
    """A payload may be applied in several calls on disjoint rows: each entry is treated on its own."""
    bench = Bench(subject)
    works = [bench.work(sequences, drafts) for sequences, drafts in _situations(bench)]
    payloads = [_kept(bench.prepare(work)) for work in works]
    whole = [bench.apply(work, payload) for work, payload in zip(works, payloads, strict=True)]

    @settings(
        max_examples=25,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def partition(data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(works) - 1))
        payload = payloads[at]
        if payload is None:
            return
        part_of = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(payload), max_size=len(payload))))
        parts = [payload.rows[part_of == part] for part in data.draw(st.permutations(range(4)))]
        found = bench.apply(works[at], payload, parts=parts)
        sizes = [len(part) for part in parts if len(part)]
        expect_same_steps(found, whole[at], f"applied in {len(sizes)} calls on {sizes} rows it gives something else")

    partition()


def _situations(bench: Bench) -> list[tuple[list[Running], list[list[int]]]]:
    """Sequences with and without state, with and without drafts, and one alone."""
    crowd = bench.crowd()
    drafts = bench.drafts(crowd)
    alone = [sequence for sequence in crowd if sequence.state is not None][:1]
    return [(crowd, drafts), (crowd[::-1], [[] for _ in crowd]), (alone, [[97]] * len(alone))]


def _works(bench: Bench) -> list[Work]:
    return [bench.work(sequences, drafts) for sequences, drafts in _situations(bench) if sequences]


def _kept(payload: Payload | None) -> Payload | None:
    return None if payload is None else copied(payload)


def _content(payload: Payload) -> list[bytes]:
    groups = ({"rows": payload.rows}, payload.arrays, payload.shared)
    return [
        f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        for group in groups
        for name, array in group.items()
    ]
