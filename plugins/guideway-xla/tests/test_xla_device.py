"""Properties of the device that the conformance suite does not test: compilation, memory ownership, device names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from guideway.api import ArrayOps, DeviceBackend, InvalidConfiguration, Payload
from guideway.api import bitmask as bits
from guideway.api.device import Draw
from guideway.devices.numpy.device import NumpyDevice
from guideway_xla.device.device import XlaDevice

from tests.support.stages import one_in

ROWS, WIDTH = 8, 100


def logits_of(rng: np.random.Generator, width: int = WIDTH) -> np.ndarray[Any, Any]:
    return rng.normal(size=(ROWS, width)).astype(np.float32) * 5


def bitmask_of(rng: np.random.Generator, width: int = WIDTH) -> bits.Bitmask:
    allowed = rng.random((ROWS, width)) < rng.choice([0.1, 0.9], size=(ROWS, 1))
    allowed[:, 7] = True
    return bits.pack(allowed)


def rows_of(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    rows = rng.permutation(ROWS).astype(np.int32)
    rows[rows == ROWS - 1] = -1  # padding; the last row must stay as it is, so -1 is not counted from the end
    return rows


def draw_of(rng: np.random.Generator, asarray: Callable[[Any], Any]) -> Draw:
    return Draw(
        temperatures=asarray(rng.choice([0, 0.5, 1, 2], size=ROWS).astype(np.float32)),
        seeds=asarray(rng.integers(-(2**63), 2**63 - 1, size=ROWS)),
        sequences=asarray(rng.integers(0, 9, size=ROWS).astype(np.int32)),
        positions=asarray(rng.integers(0, 999, size=ROWS).astype(np.int32)),
        purpose=int(rng.integers(2**32)),
    )


def every_operation(device: DeviceBackend, rng: np.random.Generator) -> dict[str, Any]:
    """Return the results of all operations that a step may need, with the same shapes but other values in each call."""
    ops = device.ops
    rows, columns = (ops.asarray(rng.integers(0, ROWS, ROWS).astype(np.int32)) for _ in range(2))
    each = ops.asarray(rng.permutation(ROWS).astype(np.int32))
    values = ops.asarray(rng.random(ROWS).astype(np.float32))
    payload = Payload(rows_of(rng), {"bitmask": bitmask_of(rng)}, {"seed": rng.integers(0, 9, 3)})
    mask = device.upload(payload)
    chosen = mask.arrays["bitmask"], mask.rows
    draw = draw_of(rng, ops.asarray)

    def x() -> Any:
        return device.from_logits(jax.device_put(logits_of(rng), jax.devices("cpu")[0]))

    returned = {
        "add_at": ops.add_at(x(), rows, columns, values),
        "scale_rows": ops.scale_rows(x(), each, values),
        "where_rows": ops.where_rows(x(), each, values[:, None] < float(rng.random()), float(rng.random())),
        "where_all": ops.where_rows(x(), each, bool(rng.random() < 0.5), x()),
        "gather": ops.gather(x(), rows),
        "gather_columns": ops.gather(x(), rows, columns[:, None]),
        "scatter": ops.scatter(x(), each, columns[:, None], values[:, None]),
        "cumsum": ops.cumsum(x()),
        "forbid_from": ops.forbid_from(x(), int(rng.integers(WIDTH))),
        "exp": ops.exp(ops.log(x())),
        "log_softmax": ops.log_softmax(x()),
        "topk": ops.topk(x(), 5)[0],
        "argmax": ops.argmax(x()),
        "categorical": ops.categorical(x(), values),
        "uniform": ops.uniform(draw.seeds, draw.sequences, draw.positions, draw.purpose, WIDTH),
        "unpack_bitmask": ops.unpack_bitmask(chosen[0], WIDTH),
        "apply_bitmask": device.apply_bitmask(x(), *chosen),
        "apply_bitmask_of_the_host": device.apply_bitmask(x(), payload.arrays["bitmask"], payload.rows),
        "warp_masked": device.warp_masked(x(), *chosen, (rows, columns, values), values),
        "warp_masked_alone": device.warp_masked(x(), *chosen, None, values),
        "masked_argmax": device.masked_argmax(x(), *chosen, int(rng.integers(8, WIDTH)))[0],
        "masked_sample": device.masked_sample(x(), *chosen, int(rng.integers(8, WIDTH)), draw)[0],
    }
    return dict(device.download(returned).result())


@pytest.mark.slow
def test_nothing_is_compiled_for_other_values(compilations: Any) -> None:
    device = XlaDevice("cpu")
    every_operation(device, np.random.default_rng(0))
    with compilations() as compiled:
        for seed in range(1, 4):
            every_operation(device, np.random.default_rng(seed))
    assert not compiled


def test_all_arrays_are_committed() -> None:
    """jax would compile an operation twice: for committed and for uncommitted arrays."""
    device = XlaDevice("cpu")
    for logits in (torch.zeros(2, 32), np.zeros((2, 32), dtype=np.float32), jnp.zeros((2, 32))):
        assert device.from_logits(logits).committed
    assert device.ops.asarray(np.zeros(3, dtype=np.int64)).committed
    uploaded = device.upload(Payload(np.zeros(1, dtype=np.int32), {"a": np.zeros((1, 2))}))
    assert uploaded.rows.committed
    assert device.apply_bitmask(
        device.from_logits(jnp.zeros((2, 32))), bits.allocate(1, 32), np.zeros(1, int)
    ).committed


@pytest.mark.parametrize("width", one_in(2, [96, 100]))
def test_fused_operations_do_what_they_stand_for(width: int) -> None:
    rng = np.random.default_rng(width)
    device, plain = XlaDevice("cpu"), NumpyDevice("cpu")
    for num_tokens in (width, width - 9):
        host, mask, rows = logits_of(rng, width), bitmask_of(rng, width), rows_of(rng)
        state = rng.bit_generator.state
        draw = draw_of(rng, device.ops.asarray)
        rng.bit_generator.state = state
        plain_draw = draw_of(rng, lambda array: array)
        logits = device.from_logits(host)
        for got, wanted in (
            (
                device.masked_sample(logits, mask, rows, num_tokens, draw),
                plain.masked_sample(host.copy(), mask, rows, num_tokens, plain_draw),
            ),
            (
                device.masked_argmax(logits, mask, rows, num_tokens),
                plain.masked_argmax(host.copy(), mask, rows, num_tokens),
            ),
        ):
            np.testing.assert_array_equal(np.asarray(got[0]), wanted[0])
            np.testing.assert_array_equal(np.asarray(got[1]), wanted[1])
        np.testing.assert_array_equal(np.asarray(logits), host)


@pytest.mark.slow
def test_draws_follow_the_distribution() -> None:
    device, n = XlaDevice("cpu"), 4096
    probabilities = np.array([0.4, 0.3, 0.2, 0.1])
    logits = device.from_logits(np.tile(np.log(probabilities) * 2, (n, 1)).astype(np.float32))
    asarray = device.ops.asarray
    draw = Draw(
        temperatures=asarray(np.full(n, 2, dtype=np.float32)),
        seeds=asarray(np.full(n, 2**40 + 3)),
        sequences=asarray(np.zeros(n, dtype=np.int32)),
        positions=asarray(np.arange(n, dtype=np.int32)),
        purpose=1,
    )
    none = np.full(1, -1, dtype=np.int32)
    drawn, _ = device.masked_sample(logits, bits.allocate(1, 4), none, 4, draw)
    assert np.abs(np.bincount(np.asarray(drawn), minlength=4) / n - probabilities).max() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_of_torch_are_shared(dtype: torch.dtype) -> None:
    tensor = torch.randn(4, 64).to(dtype)
    assert tensor.data_ptr() % 64 == 0
    logits = XlaDevice("cpu").from_logits(tensor)
    assert logits.unsafe_buffer_pointer() == tensor.data_ptr()
    assert str(logits.dtype) == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(np.asarray(logits).astype(np.float32), tensor.float().numpy())


def test_logits_of_torch_that_cannot_be_shared_are_copied() -> None:
    device, base = XlaDevice("cpu"), torch.randn(6, 70)
    for tensor in (base[1:], base[:, 3:50], base[::2], base.t(), base.clone().requires_grad_()):
        np.testing.assert_array_equal(np.asarray(device.from_logits(tensor)), tensor.detach().numpy())


def test_a_mask_leaves_the_logits_and_a_warp_takes_their_memory() -> None:
    device = XlaDevice("cpu")
    logits = device.ops.exp(device.ops.asarray(np.zeros((4, 4096), dtype=np.float32)))  # not in host memory
    mask, rows = np.zeros((1, 128), dtype=np.int32), np.array([2])
    memory = logits.unsafe_buffer_pointer()
    masked = device.apply_bitmask(logits, mask, rows)
    assert (np.asarray(masked)[2] == -np.inf).all()
    assert (np.asarray(logits) == 1).all()
    downloading = device.download({"before": logits})
    warped = device.warp_masked(logits, mask, rows, None, device.ops.asarray(np.full(4, 2, dtype=np.float32)))
    assert logits.is_deleted()
    assert warped.unsafe_buffer_pointer() == memory
    assert (downloading.result()["before"] == 1).all()
    assert (np.asarray(warped)[2] == -np.inf).all()


def test_a_transform_that_fails_halfway_leaves_the_logits() -> None:
    """A host reuses them, so no operation for transforms may take their memory."""
    ops: ArrayOps = XlaDevice("cpu").ops
    x = ops.asarray(np.ones((4, 32), dtype=np.float32))
    rows, values = ops.asarray(np.array([1, 2])), ops.asarray(np.ones((2, 1), dtype=np.float32))
    ops.add_at(x, rows, rows, values[:, 0])
    ops.scale_rows(x, rows, values[:, 0])
    ops.where_rows(x, rows, True, 3.0)
    ops.scatter(x, rows, rows[:, None], values)
    ops.forbid_from(x, 5)
    assert (np.asarray(x) == 1).all()


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cpu:7", "platform 'cpu' has the numbers 0 to 0"),
        ("quantum", "quantum"),
        ("cpu:", "write a platform, with a number after the first device"),
        ("cpu:one", "write a platform, with a number after the first device"),
        ("", "write a platform, with a number after the first device"),
    ],
)
def test_devices_that_are_not_there(device: str, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason) as error:
        XlaDevice(device)
    assert error.value.field == "device"
    assert XlaDevice("cpu:0").ops.device == XlaDevice().ops.device


@pytest.mark.slow
def test_why_it_cannot_run() -> None:
    assert XlaDevice.available() is None
    said = "from guideway_xla.device.device import XlaDevice; print(XlaDevice.available())"
    environment = os.environ | {"JAX_PLATFORMS": "cuda"}
    told = subprocess.run([sys.executable, "-c", said], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("jax finds no device: ") or jax.default_backend() == "gpu"


def test_integers_of_64_bits_keep_their_bits() -> None:
    host = np.array([[2**62 + 1, -(2**53) - 1], [2**40 + 3, 7]])
    ops, rows, columns, changed = XlaDevice().ops, np.array([1]), np.array([[1]]), host.copy()
    changed[1] = host[0]
    got = ops.where_rows(host, rows, np.array([[True, True]]), host[:1])
    assert np.asarray(got).tolist() == changed.tolist()
    changed = host.copy()
    changed[1, 1] = host[0, 0]
    got = ops.scatter(host, rows, columns, host[:1, :1])
    assert np.asarray(got).tolist() == changed.tolist()


def test_nan_is_found_in_wide_rows() -> None:
    device, logits = XlaDevice(), np.zeros((3, 9001), dtype=np.float32)
    logits[[0, 1], [0, 9000]] = np.nan
    everything, rows = np.full((1, 282), -1, dtype=np.int32), np.array([1], dtype=np.int32)
    _, best = device.masked_argmax(device.from_logits(logits), everything, rows, 9001)
    assert np.isnan(np.asarray(best)).tolist() == [True, True, False]
