"""A transform that declares `bitmask`, `hard` and `idempotent` is treated like the grammar mask."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    Array,
    InvalidConfiguration,
    LogitModifier,
    LogitTransform,
    Need,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    StepInput,
    StepOutput,
    Warp,
    WorkerContext,
    padded_size,
)
from guideway.api.bitmask import pack
from guideway.devices.numpy.device import NumpyDevice, NumpyOps
from guideway.pipeline import Pipeline
from guideway.runtime.constraints.grammar_mask import GrammarMask

from tests.pipeline.test_fused import Counting
from tests.pipeline.test_static_shapes import VOCABULARY, WIDTH, random_step
from tests.repository.sources import ROOT, core_modules
from tests.support.devices import StaticNumpy


class Permits(LogitTransform):
    bitmask, hard, idempotent = "permitted", True, True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        raise AssertionError("a host that knows the bitmask need not call this")


class Strange(LogitModifier[None]):
    """A third-party mask."""

    name, stage, transform = "strange", Stage.MASK, Permits

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> None:
        return None

    def prepare(self, batch: StepBatch, states: Sequence[None]) -> Payload | None:
        return None


def variant(name: str, **attributes: Any) -> type[LogitModifier[Any]]:
    """Return `Strange` under another name, with other declarations of its transform."""
    transform = type("Transform", (Permits,), attributes)
    return type("Variant", (Strange,), {"name": name, "transform": transform})


SOFT = variant("soft", hard=False)


def run(
    modifiers: Sequence[type[LogitModifier[Any]]], device: NumpyDevice, step: StepInput, seed: int = 0
) -> StepOutput:
    context = WorkerContext(device=device, vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    size = padded_size(step.batch.num_rows) if device.static_shapes else step.batch.num_rows
    logits = np.random.default_rng([seed, 2]).normal(scale=3, size=(size, WIDTH)).astype(np.float32)
    return Pipeline([(cls, {}) for cls in modifiers], context).run(logits, step, num_rows=step.batch.num_rows)


def under_its_own_name(step: StepInput) -> StepInput:
    """Return `step` with the grammar mask's payload for `Strange` instead."""
    mask = step.payloads.get("grammar")
    payloads = {} if mask is None else {"strange": Payload(mask.rows, {"permitted": mask.arrays["bitmask"]})}
    return replace(step, payloads=payloads)


def allowing(rows: Sequence[int], *token_ids: int) -> Payload:
    bits = pack(np.isin(np.arange(WIDTH), token_ids)[None, :])
    bitmask = np.repeat(bits, len(rows), axis=0)
    return Payload(np.array(rows, dtype=np.int32), {"bitmask": bitmask, "permitted": bitmask})


def greedy(payloads: dict[str, Payload], *, warp: Warp | None = None) -> StepInput:
    """Return a step of four rows."""
    step = replace(random_step(1, 4), payloads=payloads, warp=warp, num_logprobs=None)
    return replace(step, temperatures=np.zeros(4, dtype=np.float32))


@pytest.mark.parametrize("device", [NumpyDevice, Counting, StaticNumpy])
def test_a_mask_under_any_name_takes_the_ways_of_the_grammar_mask(device: type[NumpyDevice]) -> None:
    operations: set[str] = set()
    for seed in range(60):
        step = random_step(seed, 6)
        if seed % 3 == 0:
            step = replace(step, warp=None)
        elif seed % 3 == 1:
            rows, columns = np.array([0, 2], dtype=np.int32), np.array([3, 4], dtype=np.int32)
            step = replace(step, warp=Warp(added=(rows, columns, np.array([5, -5], dtype=np.float32))))
        grammars, strangers = device(), device()
        expected = run([GrammarMask], grammars, step, seed)
        found = run([Strange], strangers, under_its_own_name(step), seed)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.overruled == expected.overruled
        assert found.faults == expected.faults == {}
        if isinstance(strangers, Counting) and isinstance(grammars, Counting):
            assert strangers.calls == grammars.calls
            operations |= strangers.calls
    if device is Counting:
        assert operations == {"masked_argmax", "masked_sample", "warp_masked", "apply_token_lists"}


def test_warm_up_has_the_shapes_of_a_strangers_mask() -> None:
    device = StaticNumpy()
    context = WorkerContext(device=device, vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    pipeline = Pipeline([(Strange, {})], context)

    def logits() -> np.ndarray[Any, Any]:
        return np.random.default_rng(0).normal(size=(8, WIDTH)).astype(np.float32)

    pipeline.warm_up(logits, 8)
    seen = set(device.shapes)
    for seed in range(20):
        pipeline.run(logits(), under_its_own_name(random_step(seed, 8)), num_rows=8)
    assert device.shapes <= seen


@pytest.mark.parametrize("warp", [None, Warp(top_k=np.full(4, 9, np.int32))], ids=["at once", "in turn"])
@pytest.mark.parametrize("device", [NumpyDevice, Counting, StaticNumpy])
def test_two_masks_forbid_what_either_forbids(device: type[NumpyDevice], warp: Warp | None) -> None:
    step = greedy({"grammar": allowing([0, 1, 2], 3, 4, 5), "strange": allowing([1, 2, 3], 5, 6)}, warp=warp)
    output = run([GrammarMask, Strange], device(), step)
    assert output.token_ids[0] in (3, 4, 5)
    assert output.token_ids[1:3].tolist() == [5, 5]
    assert output.token_ids[3] in (5, 6)
    assert not output.faults


class Reader(LogitTransform):
    seen: np.ndarray[Any, Any]

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        type(self).seen = np.array(step.bitmask(payload.rows))
        return logits


class Reads(Strange):
    name, stage, transform, needs = "reads", Stage.POST_WARP, Reader, frozenset({Need.BITMASK})


def test_the_field_of_the_step_shows_every_bitmask() -> None:
    masks = {"grammar": allowing([0, 1], 3, 4, 5), "strange": allowing([1, 2], 5, 6)}
    run([GrammarMask, Strange, Reads], NumpyDevice(), greedy(masks | {"reads": allowing([0, 1, 2, 3])}))
    allowed = [np.flatnonzero(row).tolist() for row in Reader.seen]
    assert allowed == [[3, 4, 5], [5], [5, 6], list(range(WIDTH))]


class Gathers(NumpyOps):
    """Counts the copies of rows."""

    def __init__(self) -> None:
        self.count = 0

    def gather(self, *args: Any) -> Any:
        self.count += 1
        return super().gather(*args)


def copies(modifier: type[LogitModifier[Any]]) -> int:
    device = NumpyDevice()
    device.ops = ops = Gathers()
    run([modifier], device, greedy({modifier.name: allowing([0, 1], 3, 4)}))
    return ops.count


def test_rows_are_copied_unless_applying_again_is_harmless() -> None:
    assert copies(variant("careful", idempotent=False)) == copies(Strange) + 1


class Breaks(NumpyDevice):
    """Applies the first row's mask and then raises, if there is more than one row."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        if len(rows) > 1:
            super().apply_bitmask(logits, bitmask[:1], rows[:1])
            raise RuntimeError("broke")
        if rows[0] == 2:
            raise RuntimeError("broke again")
        return super().apply_bitmask(logits, bitmask, rows)


@pytest.mark.parametrize("modifier", [Strange, variant("strange", idempotent=False)])
def test_a_failing_bitmask_costs_its_row_and_is_the_devices_failure(modifier: type[LogitModifier[Any]]) -> None:
    output = run([modifier], Breaks(), greedy({"strange": allowing([0, 2, 3], 5)}))
    assert {row: (f.plugin, f.phase, f.message) for row, f in output.faults.items()} == {
        2: ("device.numpy", "apply_bitmask", "RuntimeError: broke again")
    }
    assert output.token_ids[[0, 3]].tolist() == [5, 5]


@pytest.mark.parametrize("device", [Breaks, StaticNumpy])
def test_the_fault_of_a_sequence_is_that_of_its_first_failing_row(device: type[NumpyDevice]) -> None:
    step = replace(greedy({"strange": allowing([0, 1, 2], 5)}), batch=StepBatch.build([7, 3], [1, 1], [[5, 5], []]))
    logits = np.zeros((4, WIDTH), np.float32)
    logits[1] = logits[3] = np.nan
    context = WorkerContext(device=device(), vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    output = Pipeline([(Strange, {})], context).run(logits, step)
    assert {slot: (fault.plugin, fault.row) for slot, fault in output.faults.items()} == {
        7: ("model", 1),
        3: ("model", 0),
    }


@pytest.mark.parametrize("device", [NumpyDevice, Counting, StaticNumpy])
def test_a_row_left_empty_is_drawn_under_the_hard_masks_alone(device: type[NumpyDevice]) -> None:
    step = greedy({"strange": allowing([0, 1], 3), "soft": allowing([1, 2], 4)})
    output = run([Strange, SOFT], device(), step)
    assert output.token_ids[:3].tolist() == [3, 3, 4]
    assert output.overruled == {1: ("modifier.soft",)}
    assert not output.faults


@pytest.mark.parametrize("device", [NumpyDevice, Counting])
def test_hard_masks_that_leave_nothing_together_are_to_blame_for_it(device: type[NumpyDevice]) -> None:
    step = greedy({"grammar": allowing([0, 1], 3), "strange": allowing([1], 4)})
    output = run([GrammarMask, Strange], device(), step)
    assert {row: str(fault) for row, fault in output.faults.items()} == {
        1: "modifier.strange failed in apply: every token has probability 0"
    }


@pytest.mark.parametrize(
    ("modifier", "problem"),
    [
        (type("Early", (Strange,), {"stage": Stage.PRE_WARP}), "declares a bitmask, which is for stage 'mask'"),
        (variant("emits", emits={"x": ((), "int32")}), "its transform declares a bitmask"),
        (variant("emits", emits={"x": ((), "int32")}, bitmask=None), "its transform declares hard = True"),
    ],
)
def test_declarations_that_cannot_be_kept_are_refused(modifier: type[LogitModifier[Any]], problem: str) -> None:
    with pytest.raises(InvalidConfiguration, match=problem):
        run([modifier], NumpyDevice(), greedy({}))


OF_THE_MASK = {"GRAMMAR_MASK", "GrammarMask", "GrammarState", "MaskRows", "MaskTransform", "WorkerMask"}
MAY_NAME_IT = {
    "core/guideway/api/steps.py": {"GRAMMAR_MASK"},
    "core/guideway/plugins/configuration.py": {"GRAMMAR_MASK"},  # refuses other modifiers of that name
    "core/guideway/runtime/constraints/grammar_mask.py": OF_THE_MASK,
    "core/guideway/runtime/constraints/grammar_state.py": {"GrammarState"},
    "core/guideway/runtime/constraints/mask_rows.py": {"GrammarState", "MaskRows"},
    "core/guideway/runtime/constraints/reasoning/gate.py": {
        "GrammarMask",
        "GrammarState",
    },  # wraps the mask
    "core/guideway/runtime/runtime.py": {"GrammarMask"},  # creates it
    "core/guideway/runtime/constraints/steady.py": {
        "GRAMMAR_MASK",
        "GrammarState",
        "MaskRows",
    },  # steps with constraints alone
    "core/guideway/runtime/constraints/worker_half.py": {"GRAMMAR_MASK", "MaskTransform", "WorkerMask"},
    "plugins/guideway-vllm/src/guideway_vllm/worker.py": {"WorkerMask"},  # a worker's pipeline begins with it
}


def test_neither_library_nor_host_asks_whether_something_is_the_grammar_mask() -> None:
    hosts = [*ROOT.glob("core/guideway-engine/src/**/*.py"), *ROOT.glob("plugins/guideway-vllm/src/**/*.py")]
    assert len(hosts) > 40
    for path in [*core_modules(), *hosts]:
        tree = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        named = {node.id for node in tree if isinstance(node, ast.Name)}
        named |= {node.attr for node in tree if isinstance(node, ast.Attribute)}
        named |= {node.name for node in tree if isinstance(node, ast.alias)}
        where = path.relative_to(ROOT).as_posix()
        assert named & OF_THE_MASK <= MAY_NAME_IT.get(where, set()), where
        compared = [node for node in tree if isinstance(node, ast.Compare)]
        assert not any("self._mask" in ast.unparse(node) for node in compared), where
