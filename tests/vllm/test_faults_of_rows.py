"""Failures at single rows in a worker of vLLM: the request is named, and only its rows are closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from guideway.api import StepBatch, StepInput
from guideway.api.bitmask import allocate

from tests.vllm.test_startup import runner_with

STOP = 2
REQUEST_IDS, NUM_ROWS = ["a", "b", "c"], [1, 3, 1]


@pytest.fixture
def guest(demo_model: str) -> Any:
    from guideway_vllm.worker import attach
    from vllm import EngineArgs

    config = EngineArgs(demo_model, dtype="float32", enforce_eager=True, max_model_len=512).create_engine_config()
    config.additional_config = {"guideway": {"device_backend": "torch"}}
    runner = runner_with(v2=config.use_v2_model_runner)
    worker = SimpleNamespace(model_runner=runner, device="cpu", shutdown=lambda: None)
    attach(worker, config)
    yield worker.guideway_guest
    worker.guideway_guest.close()


def act(guest: Any, logits: Any, **more: Any) -> tuple[list[int], Any]:
    """Return the rows in which only the stop token is left, and the output. vLLM's rows are in reverse order."""
    from guideway_vllm.steps import GuestStep

    given: dict[str, Any] = {"masked": np.empty(0, np.int32), "bitmask": allocate(0, logits.shape[1])} | more
    step = GuestStep(guest.plan.fingerprint, STOP, REQUEST_IDS, NUM_ROWS, **given)
    logits, output = guest.act(step, logits, lambda _: None, {"c": 0, "b": 1, "a": 4})
    closed = (logits == -float("inf")).sum(dim=1) == logits.shape[1] - 1
    assert (logits[closed, STOP] == 0).all()
    return closed.nonzero().flatten().tolist(), output


def test_a_mask_that_cannot_be_applied_fails_its_request(guest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    apply_bitmask = type(guest._device).apply_bitmask

    def breaks(device: Any, logits: Any, bitmask: Any, rows: Any) -> Any:
        if 2 in rows:
            raise RuntimeError("not this row")
        return apply_bitmask(device, logits, bitmask, rows)

    monkeypatch.setattr(type(guest._device), "apply_bitmask", breaks)
    logits = torch.zeros(5, guest._pipeline._context.width)
    closed, output = act(guest, logits, masked=np.array([0, 2, 4], np.int32), bitmask=allocate(3, logits.shape[1]))
    assert closed == [2], "the second row of b"
    assert {request_id: str(fault) for request_id, fault in output.faults.items()} == {
        "b": "device.torch failed in apply_bitmask: RuntimeError: not this row"
    }


def test_the_rows_after_a_failing_one_are_closed_too(guest: Any) -> None:
    import torch
    from guideway_vllm.steps import Part

    batch = StepBatch.build([7, 5], [4, 4], [[9, 9], []])
    zeros = np.zeros(4, np.float32)
    part = Part(
        StepInput(batch, {}, zeros, zeros.astype(np.int64), zeros.astype(np.int32)),
        np.arange(1, 5, dtype=np.int32),
        False,
    )
    logits = torch.zeros(5, guest._pipeline._context.width)
    logits[2] = torch.nan  # the second row of b, in slot 7
    closed, output = act(guest, logits, parts=[part])
    assert closed == [2, 3]
    (shaped,) = output.parts
    assert {slot: (fault.plugin, fault.row) for slot, fault in shaped.faults.items()} == {7: ("model", 1)}
    assert not output.faults
