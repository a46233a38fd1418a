"""Mistakes that the simulated accelerator detects. The conformance suite checks its results."""

from __future__ import annotations

import copy
import pickle
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guideway.api import Array, InvalidConfiguration, Payload
from guideway.api.bitmask import TokenLists, token_lists
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from guideway_sim_device import DeviceFault, HostAccess, UseAfterDonation
from guideway_sim_device.fused.device import FusedSimDevice
from guideway_sim_device.sim.array import SimArray
from guideway_sim_device.sim.device import SimDevice
from guideway_sim_device.sim.streams import Event, Stream
from guideway_sim_device.static.device import StaticSimDevice


@pytest.fixture(params=[SimDevice, StaticSimDevice])
def device(request: pytest.FixtureRequest) -> SimDevice:
    made: SimDevice = request.param()
    return made


def floats(device: SimDevice, *shape: int) -> SimArray:
    return device.ops.asarray(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def ints(device: SimDevice, *values: int) -> SimArray:
    return device.ops.asarray(np.array(values, dtype=np.int32))


def read(device: SimDevice, array: Array) -> np.ndarray[Any, Any]:
    return device.download({"it": array}).result()["it"]


def test_it_is_simulated_on_the_cpu_only(device: SimDevice) -> None:
    with pytest.raises(InvalidConfiguration, match="on 'cpu' only, not on 'cuda:0'"):
        type(device)("cuda:0")


READS: dict[str, Callable[[SimArray], Any]] = {
    "bool": bool,
    "a branch": lambda x: 1 if x[0, 0] > 0 else 0,
    "int": int,
    "float": float,
    "complex": complex,
    "index": lambda x: [1, 2, 3][x],  # type: ignore[index, call-overload]
    "loop": lambda x: [row for row in x],  # noqa: C416
    "in": lambda x: 3 in x,
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "array": np.array,
    "asarray": np.asarray,
    "array interface": lambda x: x.__array_interface__,
    "dlpack": np.from_dlpack,
    "ufunc": np.exp,
    "reduction of a ufunc": np.add.reduce,
    "operator with out": lambda x: np.add(1.0, x, out=np.zeros((2, 3))),
    "function": lambda x: np.where(x, 0, 1),
    "functions of several": lambda x: np.concatenate([x, x]),
    "torch": torch.as_tensor,
    "buffer": memoryview,
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": pickle.dumps,
    "assignment": lambda x: x.__setitem__(0, 1.0),
}


@pytest.mark.parametrize("how", READS)
def test_the_host_reaches_no_value(how: str, device: SimDevice) -> None:
    x = floats(device, 2, 3)
    with pytest.raises(TypeError if how in ("buffer", "torch") else HostAccess):
        READS[how](x)
    assert device.syncs == 0


def test_arrays_of_host_and_device_do_not_mix(device: SimDevice) -> None:
    ops, x, host, rows = device.ops, floats(device, 2, 3), np.ones((2, 3), dtype=np.float32), ints(device, 0, 1)
    mixtures: list[Callable[[], Any]] = [
        *(lambda: x + host, lambda: host * x, lambda: x < host, lambda: host == x),
        *(lambda: x[np.array([0])], lambda: x[[0, 1]]),
        *(lambda: ops.exp(host), lambda: ops.gather(x, np.array([0])), lambda: ops.where_rows(x, rows, True, host)),
        *(lambda: device.download({"x": host}), lambda: ops.asarray(x)),
        *(lambda: device.apply_bitmask(x, np.ones((2, 1), np.int32), rows), lambda: device.upload(Payload(x, {}))),
        lambda: device.apply_bitmask(x, rows[:, None], np.arange(2, dtype=np.int32)),
    ]
    for mix in mixtures:
        with pytest.raises(HostAccess):
            mix()
    assert read(device, x + 0).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_arrays_of_two_devices_do_not_mix(device: SimDevice) -> None:
    with pytest.raises(HostAccess, match="another device"):
        floats(device, 2) + floats(SimDevice(), 2)


def test_numbers_of_numpy_are_numbers(device: SimDevice) -> None:
    x = floats(device, 2, 2)
    for got in (np.float64(2) * x, x * np.float64(2), np.float32(2) * x, 2 * x):
        assert got.dtype == np.float32
        assert read(device, got).tolist() == [[0, 2], [4, 6]]
    assert read(device, np.float32(1) < x).tolist() == [[False, False], [True, True]]


def test_what_arrays_of_every_library_do(device: SimDevice) -> None:
    x, rows = floats(device, 3, 4), ints(device, 2, 0)
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    for got, wanted in (
        (x[rows], host[[2, 0]]),
        (x[rows, rows], host[[2, 0], [2, 0]]),
        (x[:, None], host[:, None]),
        (x[1:, -1], host[1:, -1]),
        (x[..., :2], host[..., :2]),
        ((x[rows[:, None], rows]), host[np.array([[2], [0]]), [2, 0]]),
        (-x, -host),
        (~(x < 3) & (x < 7) | (x == 0), ~(host < 3) & (host < 7) | (host == 0)),
        ((1 - x).sum(axis=1), (1 - host).sum(axis=1)),
        (x.reshape(-1), host.reshape(-1)),
        (x.reshape(2, 6), host.reshape(2, 6)),
    ):
        assert (tuple(got.shape), len(got), str(got.dtype)) == (wanted.shape, len(wanted), str(wanted.dtype))
        np.testing.assert_array_equal(read(device, got), wanted)
    with pytest.raises(AttributeError, match="'mean', which not every array library has"):
        x.mean(axis=1)
    with pytest.raises(HostAccess, match="bool is no index"):
        x[x > 3]


def test_wrong_shapes_are_known_at_once(device: SimDevice) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        floats(device, 2, 3) + floats(device, 2)
    with pytest.raises(IndexError):
        floats(device, 2, 3)[5]


DONATIONS: dict[str, Callable[[SimDevice, SimArray], Any]] = {
    "add_at": lambda d, x: d.ops.add_at(x, ints(d, 0), ints(d, 1), floats(d, 1)),
    "scale_rows": lambda d, x: d.ops.scale_rows(x, ints(d, 0), floats(d, 1)),
    "where_rows": lambda d, x: d.ops.where_rows(x, ints(d, 0), True, 0.0),
    "scatter": lambda d, x: d.ops.scatter(x, ints(d, 0), ints(d, 1)[:, None], floats(d, 1, 1)),
    "forbid_from": lambda d, x: d.ops.forbid_from(x, 2),
    "apply_bitmask": lambda d, x: d.apply_bitmask(x, ints(d, 3)[None], ints(d, 0)),
    "apply_token_lists": lambda d, x: d.apply_token_lists(
        x, TokenLists(np.array([0, 1], np.int32), np.array([2], np.int32), np.array([True])), np.array([0], np.int32)
    ),
    "warp_masked": lambda d, x: d.warp_masked(x, ints(d, 3)[None], ints(d, 0), None, floats(d, 2)),
}


@pytest.mark.parametrize("operation", DONATIONS)
def test_an_array_that_may_have_changed_is_dead(operation: str, device: SimDevice) -> None:
    x = floats(device, 2, 3)
    part = x[:, 1:]
    changed = DONATIONS[operation](device, x)
    assert (x.shape, str(x.dtype)) == ((2, 3), "float32")
    uses: list[Callable[[], Any]] = [
        *(lambda: x + 1, lambda: x[0], lambda: part * 2, lambda: part[0] * 2, lambda: device.ops.exp(x)),
        *(lambda: device.ops.forbid_from(x, 2), lambda: device.download({"x": x}), lambda: device.from_logits(x)),
    ]
    for use in uses:
        with pytest.raises(UseAfterDonation, match=r"use the one \w+ returned"):
            use()
    assert read(device, changed + 1).shape == (2, 3)


def test_what_only_reads_leaves_its_argument_alive(device: SimDevice) -> None:
    x, rows = floats(device, 2, 3), ints(device, 0, 1)
    taken = device.ops.gather(x, rows)
    device.ops.forbid_from(taken, 0)
    device.ops.argmax(x), device.ops.topk(x, 2), device.ops.log_softmax(x), device.ops.cumsum(x)
    device.ops.categorical(x, floats(device, 2)), device.ops.exp(x), x.sum(axis=0)
    device.masked_argmax(x, ints(device, 3)[None], ints(device, 0), 3)
    assert read(device, x).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_nobody_may_rely_on_what_happens_to_the_whole_when_its_part_changes(device: SimDevice) -> None:
    x = floats(device, 2, 4)
    before = device.download({"x": x})
    part = device.ops.forbid_from(x[:, :3][:, :2], 1)
    whole = read(device, x)
    assert read(device, part).tolist() == [[0, -np.inf], [4, -np.inf]]
    assert np.isnan(whole[:, :2]).all()
    assert whole[:, 2:].tolist() == [[2, 3], [6, 7]]
    assert before.result()["x"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_nothing_is_computed_before_somebody_waits(device: SimDevice) -> None:
    x = floats(device, 2, 2)
    y = x + 1
    download = device.download({"y": y})
    assert np.isnan(y.read()).all()
    assert device.syncs == 0
    assert download.result()["y"].tolist() == [[1, 2], [3, 4]]
    assert download.result() is not None
    assert device.syncs == 1


def test_downloads_finish_in_the_order_in_which_they_are_waited_for(device: SimDevice) -> None:
    x = floats(device, 1, 2)
    first = device.download({"x": x})
    x = device.ops.where_rows(x, ints(device, 0), True, 7.0)
    second = device.download({"x": x})
    assert second.result()["x"].tolist() == [[7, 7]]
    assert first.result()["x"].tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="read-only"):
        second.result()["x"][0, 0] = 1


def test_memory_of_a_payload_may_change_after_its_upload(device: SimDevice) -> None:
    host, rows = np.array([1.0, 2.0], dtype=np.float32), np.array([0, 1], dtype=np.int32)
    payload = device.upload(Payload(rows, {"a": host}, {"b": host}))
    host[:], rows[:] = -1, -1
    assert read(device, payload.arrays["a"]).tolist() == read(device, payload.shared["b"]).tolist() == [1, 2]
    assert read(device, payload.rows).tolist() == [0, 1]


def test_other_memory_of_the_host_is_read_late(device: SimDevice) -> None:
    """No contract lets a host overwrite it before the step is over."""
    uploads: list[Callable[[Any], SimArray]] = [device.ops.asarray, device.from_logits]
    for upload in uploads:
        host = np.ones((1, 2), dtype=np.float32)
        array = upload(host)
        host[:] = 5
        assert read(device, array).tolist() == [[5, 5]]
    logits = torch.ones(1, 2)
    array = device.from_logits(logits)
    logits[:] = 5
    assert read(device, array).tolist() == [[5, 5]]


def test_logits_of_torch(device: SimDevice) -> None:
    with torch.inference_mode():
        for dtype, wanted in ((torch.float32, "float32"), (torch.float16, "float16"), (torch.bfloat16, "float32")):
            array = device.from_logits(torch.full((2, 3), 1.5, dtype=dtype))
            assert str(array.dtype) == wanted
            assert read(device, array).tolist() == [[1.5] * 3] * 2


def test_what_is_wrong_with_values_is_known_late(device: SimDevice) -> None:
    x, good = floats(device, 2, 3), floats(device, 1)
    for rows in ([2], [-1]):
        row = ints(device, *rows)
        for outcome in (device.ops.gather(x, row), x[row], device.ops.where_rows(x + 0, row, True, 0.0)):
            download = device.download({"good": good, "worse": device.ops.exp(outcome)})
            for _ in range(2):
                with pytest.raises(DeviceFault, match=r"(gather|indexing|where_rows) failed on the device.*index"):
                    download.result()
    assert read(device, good).tolist() == [0]


def failures(component: type[SimDevice]) -> set[str]:
    """Return the checks of the conformance suite that `component` fails."""
    report = run(Target.of_class(component), up_to="core", jobs=1, timeout_factor=4)
    return {result.obligation.check for result in report.results if result.outcome == "fail"}


class NeverWaits(Stream):
    def wait(self, event: Event) -> None:
        """Do nothing."""


class Racing(SimDevice):
    """A device whose streams do not wait for one another."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.machine._uploads, self.machine._computing, self.machine._downloads = (NeverWaits() for _ in range(3))


class Unstaged(SimDevice):
    """A device that copies a payload from memory that it may no longer read."""

    def upload(self, payload: Payload) -> Payload:
        arrays = {name: self.ops.asarray(array) for name, array in payload.arrays.items()}
        shared = {name: self.ops.asarray(array) for name, array in payload.shared.items()}
        return Payload(self.ops.asarray(payload.rows), arrays, shared)


@pytest.mark.slow
def test_a_backend_that_forgets_to_wait_is_caught() -> None:
    assert "device.arrays_go_and_come" in failures(Racing)


@pytest.mark.slow
def test_a_backend_without_a_staging_copy_is_caught() -> None:
    assert failures(Unstaged) == {"device.upload_has_read"}


def test_each_shape_is_a_program() -> None:
    device = StaticSimDevice()
    x = floats(device, 8, 3)
    before = len(device.compiled)

    def new() -> int:
        nonlocal before
        before, more = len(device.compiled), len(device.compiled) - before
        return more

    y = x + 1.0
    assert new() == 1
    y = x + 2.0
    device.ops.exp(y)
    assert new() == 1
    device.ops.exp(floats(device, 8, 3) * 3.5)
    assert new() == 1
    device.ops.exp(floats(device, 4, 3))
    device.ops.topk(x, 2), device.ops.topk(x, 3)
    assert new() == 3
    for row, word in enumerate((0b1, 0b10, 0b110, 0b111)):
        lists, chosen = token_lists(np.array([[word]], dtype=np.int32), 200)
        assert chosen.all()
        device.apply_token_lists(device.from_logits(np.zeros((4, 200), np.float32)), lists, np.array([row]))
    assert new() == 1
    assert device.syncs == 0


def test_what_each_of_them_declares() -> None:
    declared = [(cls.static_shapes, len(cls.fused)) for cls in (SimDevice, FusedSimDevice, StaticSimDevice)]
    assert declared == [(False, 0), (False, 4), (True, 4)]


def test_the_readme_shows_what_happens() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (code,), (shown,) = (re.findall(rf"```{kind}\n(.*?)```", readme, re.DOTALL) for kind in ("python", "text"))
    with pytest.raises(UseAfterDonation) as raised:
        exec(code, {})
    assert f"UseAfterDonation: {raised.value}" == " ".join(shown.split())


def test_work_is_done_before_another_thread_goes_on() -> None:
    stream, began, found = Stream(), threading.Event(), list[str]()

    def work() -> None:
        began.set()
        time.sleep(0.05)
        found.append("done")

    event = stream.launch(work)
    first = threading.Thread(target=event.synchronize)
    first.start()
    began.wait()
    event.synchronize()
    assert found == ["done"]
    first.join()
