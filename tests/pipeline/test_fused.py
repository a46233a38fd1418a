"""A device's optional operations draw the same tokens as the mandatory ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guideway.api import Draw, Payload, StepInput, StepOutput, Warp, WorkerContext
from guideway.api.bitmask import pack
from guideway.devices.numpy.device import NumpyDevice
from guideway.pipeline import Pipeline
from guideway.runtime.constraints.grammar_mask import GrammarMask

from tests.pipeline.test_static_shapes import VOCABULARY, WIDTH, random_step
from tests.support.devices import FusedNumpy

NOTHING = (np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32))
SOME = (np.array([0, 2], np.int32), np.array([3, 4], np.int32), np.array([5, -5], np.float32))


class Counting(FusedNumpy):
    """Records the optional operations that a host calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: set[str] = set()

    def apply_token_lists(self, *args: Any) -> Any:
        self.calls.add("apply_token_lists")
        return super().apply_token_lists(*args)

    def masked_argmax(self, *args: Any) -> Any:
        self.calls.add("masked_argmax")
        return super().masked_argmax(*args)

    def masked_sample(self, *args: Any) -> Any:
        self.calls.add("masked_sample")
        return FusedNumpy().masked_sample(*args)

    def warp_masked(self, *args: Any) -> Any:
        self.calls.add("warp_masked")
        return super().warp_masked(*args)


class Gumbel(NumpyDevice):
    """Draws by the Gumbel-max method, as a device with `masked_sample` does."""

    fused = frozenset({"masked_sample"})


class ArgmaxAlone(Counting):
    fused = frozenset({"masked_argmax"})


def outcome(device: NumpyDevice, step: StepInput, seed: int = 0) -> StepOutput:
    context = WorkerContext(device=device, vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    logits = np.random.default_rng([seed, 2]).normal(scale=3, size=(step.batch.num_rows, WIDTH)).astype(np.float32)
    return Pipeline([(GrammarMask, {})], context).run(logits, step)


def masked_step(seed: int) -> StepInput:
    """Return a step with only a mask and temperatures, perhaps with log-probabilities."""
    return replace(random_step(seed, 6), warp=None, processed=None, records=None)


def test_one_pass_and_many_draw_the_same() -> None:
    used = set()
    for seed in range(60):
        step, device = masked_step(seed), Counting()
        at_once = outcome(device, step, seed)
        in_turn = outcome(Gumbel(), replace(step, warp=Warp(added=NOTHING)), seed)
        assert at_once.token_ids.tolist() == in_turn.token_ids.tolist()
        assert (at_once.logprobs is None) == (in_turn.logprobs is None)
        if at_once.logprobs is not None and in_turn.logprobs is not None:
            np.testing.assert_allclose(at_once.logprobs.chosen, in_turn.logprobs.chosen, rtol=1e-6)
        used |= device.calls
    assert used == {"masked_argmax", "masked_sample"}


def test_a_device_that_has_no_draw_of_its_own_is_asked_for_greedy_steps_only() -> None:
    for seed in range(20):
        step, device = masked_step(seed), ArgmaxAlone()
        assert outcome(device, step, seed).token_ids.tolist() == outcome(NumpyDevice(), step, seed).token_ids.tolist()
        assert device.calls == (set() if (step.temperatures > 0).any() else {"masked_argmax"})


def test_mask_bias_and_temperature_in_one_pass() -> None:
    used = set()
    for seed in range(40):
        bias = Warp(added=SOME, top_p=np.full(6, 0.8, np.float32))
        step, device = replace(masked_step(seed), warp=bias), Counting()
        assert outcome(device, step, seed).token_ids.tolist() == outcome(Gumbel(), step, seed).token_ids.tolist()
        used |= device.calls
    assert used == {"warp_masked"}


def test_bans_and_penalties_take_the_general_way() -> None:
    for added, repeated in (
        (NOTHING, (*NOTHING[:2], np.full(1, 2, np.float32))),
        ((*SOME[:2], SOME[2] - np.inf), None),
    ):
        few = pack(np.isin(np.arange(WIDTH), [0, 3, 4])[None, :])
        mask = {"grammar": Payload(np.array([2], np.int32), {"bitmask": few})}
        warp = Warp(added=added, repeated=repeated)
        step, device = replace(masked_step(4), payloads=mask, warp=warp), Counting()
        assert outcome(device, step).token_ids.tolist() == outcome(Gumbel(), step).token_ids.tolist()
        assert "warp_masked" not in device.calls
        assert "apply_token_lists" in device.calls


class FailingForOne(Counting):
    """Fails for rows whose first logit is the largest float16."""

    def masked_argmax(self, logits: Any, *args: Any) -> Any:
        if (logits[:, 0] == 65504).any():
            raise RuntimeError("a bad row")
        return super().masked_argmax(logits, *args)

    def masked_sample(self, logits: Any, *args: Any) -> Any:
        if (logits[:, 0] == 65504).any():
            raise RuntimeError("a bad row")
        return super().masked_sample(logits, *args)


@pytest.mark.parametrize("seed", range(8))
def test_a_row_it_fails_for_costs_that_row(seed: int) -> None:
    step = masked_step(seed)
    context = WorkerContext(device=FailingForOne(), vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    logits = np.random.default_rng([seed, 2]).normal(scale=3, size=(6, WIDTH)).astype(np.float32)
    logits[3, 0] = 65504
    output = Pipeline([(GrammarMask, {})], context).run(logits.copy(), step)
    (fault,) = output.faults.values()
    assert (list(output.faults), fault.plugin) == ([3], "device.fused")
    assert fault.phase in ("masked_argmax", "masked_sample")
    assert "a bad row" in fault.message
    context = WorkerContext(device=FusedNumpy(), vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    whole = Pipeline([(GrammarMask, {})], context).run(logits.copy(), step)
    others = [0, 1, 2, 4, 5]
    assert output.token_ids[others].tolist() == whole.token_ids[others].tolist()
    assert (output.logprobs is None) == (whole.logprobs is None)


class Wrong(FusedNumpy):
    """Draws an invalid token id."""

    def masked_argmax(self, *args: Any) -> Any:
        ids, best = super().masked_argmax(*args)
        return ids + WIDTH, best

    def masked_sample(self, logits: Any, bitmask: Any, rows: Any, num_tokens: int, draw: Draw) -> Any:
        return self.masked_argmax(logits, bitmask, rows, num_tokens)


def test_a_token_id_outside_the_vocabulary_is_the_devices_fault() -> None:
    output = outcome(Wrong(), masked_step(1))
    assert {fault.plugin for fault in output.faults.values()} == {"device.fused"}
    assert sorted(output.faults) == list(range(6))


def test_logits_that_are_not_numbers_are_the_models_fault() -> None:
    step = replace(masked_step(2), payloads={})
    context = WorkerContext(device=FusedNumpy(), vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    logits = np.zeros((6, WIDTH), np.float32)
    logits[2, 5] = np.nan
    logits[4] = -np.inf
    output = Pipeline([(GrammarMask, {})], context).run(logits, step)
    assert {row: (fault.plugin, "NaN" in fault.message) for row, fault in output.faults.items()} == {
        2: ("model", True),
        4: ("model", False),
    }


class BrokenPass(FusedNumpy):
    def warp_masked(self, logits: Any, *args: Any) -> Any:
        logits[:] = np.nan
        raise RuntimeError("the pass broke")


def test_a_pass_that_changes_the_logits_costs_its_step() -> None:
    output = outcome(BrokenPass(), replace(masked_step(3), warp=Warp(added=SOME)))
    assert sorted(output.faults) == list(range(6))
    assert {(fault.plugin, fault.phase) for fault in output.faults.values()} == {("device.fused", "warp_masked")}


class Late(FusedNumpy):
    """Fails asynchronously: errors are raised when the result is awaited."""

    def download(self, arrays: Any) -> Any:
        return self

    def result(self) -> Any:
        raise RuntimeError("the stream broke")


@pytest.mark.parametrize("warp", [None, Warp(added=NOTHING)], ids=["at once", "in turn"])
def test_what_fails_late_is_named_as_the_devices_failure(warp: Warp | None) -> None:
    output = outcome(Late(), replace(masked_step(3), warp=warp))
    assert sorted(output.faults) == list(range(6))
    assert {fault.plugin for fault in output.faults.values()} == {"device.fused"}
    assert all("the stream broke" in fault.message for fault in output.faults.values())
