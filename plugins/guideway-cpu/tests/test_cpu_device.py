"""The CPU device: agreement with the NumPy device, threads, forks, and costs."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import guideway_cpu
import guideway_cpu.device
import numpy as np
import pytest
import torch
from guideway.api import InvalidConfiguration
from guideway.api import bitmask as bits
from guideway.devices.numpy.device import NumpyDevice
from guideway_cpu.device import INFINITY, CpuDevice
from guideway_cpu.threads import in_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.support.stages import examples

DTYPES = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
"""Dtypes of logits, with the integer dtypes of the same size."""
VALUES = [0.0, -0.0, 1.5, 2.0, -2.25, 3.0, 3.0, torch.inf, -torch.inf]
WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from([2047, 2048, 2049, 4096, 6150, 9001]))
KINDS = st.lists(st.sampled_from([0, -1, 1, -2, 2**31 - 1, -(2**31), None]), min_size=1, max_size=7)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    base: Tensor
    logits: Tensor
    """A view of `base`."""
    bitmask: NDArray[np.int32]
    rows: NDArray[Any]

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens the NumPy device allows."""
        real = self.rows >= 0
        zeros = np.zeros(self.logits.shape, dtype=np.float32)
        return np.isfinite(NumpyDevice().apply_bitmask(zeros, self.bitmask[real], self.rows[real]))

    def arguments(self, host: str) -> tuple[Any, Any]:
        """Return the bitmask and rows as arrays of kind `host`."""
        bitmask, rows = self.bitmask.copy(), self.rows.copy()
        if host == "torch":
            return torch.from_numpy(bitmask), torch.from_numpy(rows)
        if host == "strided":
            return np.repeat(bitmask, 2, axis=1)[:, ::2], torch.from_numpy(np.repeat(rows, 3))[1::3]
        bitmask.flags.writeable = rows.flags.writeable = host != "read-only"
        return bitmask, rows


@st.composite
def cases(draw: st.DrawFn) -> Case:
    width, num_rows = draw(WIDTHS), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = torch.tensor(VALUES)[rng.integers(0, len(VALUES), (2 * num_rows, 2 * width + 9))]
    if draw(st.booleans()):
        base[torch.from_numpy(rng.random(base.shape) < 0.01)] = torch.nan
    base = base.to(draw(st.sampled_from(list(DTYPES))))
    logits = draw(
        st.sampled_from([base[:num_rows, :width], base[::2, 9 : 9 + width], base[1::2, 1 : 1 + 2 * width : 2]])
    )
    if draw(st.booleans()):
        base = logits = logits.clone(memory_format=torch.contiguous_format)
    num_words = max(0, bits.num_words(width) + draw(st.sampled_from([0, 0, 0, 1, 70, -1, -70])))
    kinds = rng.choice(np.array(draw(KINDS), dtype=np.float64), (num_rows + 2, num_words))
    words = np.where(np.isnan(kinds), rng.integers(-(2**31), 2**31, kinds.shape), kinds).astype(np.int32)
    runs = draw(st.booleans())  # whether equal words are adjacent
    words = np.sort(words, axis=1) if runs else words
    rows = np.where(rng.random(num_rows) < 0.8, rng.permutation(num_rows), -1)
    padded = np.concatenate([[-1], rows, [-1]]).astype(draw(st.sampled_from([np.int32, np.int64])))
    return Case(base, logits[:num_rows], words, padded)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(case=cases(), host=st.sampled_from(["numpy", "read-only", "torch", "strided"]))
def test_masks_are_those_of_the_numpy_device(case: Case, host: str) -> None:
    integers = DTYPES[case.logits.dtype]
    forbidden = torch.from_numpy(~case.allowed())
    wanted = case.base.clone()
    view = torch.as_strided(wanted, case.logits.shape, case.logits.stride(), case.logits.storage_offset())
    view.masked_fill_(forbidden, -torch.inf)
    returned = CpuDevice().apply_bitmask(case.logits, *case.arguments(host))
    assert returned is case.logits
    assert torch.equal(case.base.view(integers), wanted.view(integers))


@settings(deadline=None, max_examples=examples(100))
@given(case=cases(), host=st.sampled_from(["numpy", "read-only", "torch", "strided"]), share=st.floats(0, 1))
def test_the_masked_argmax_is_that_of_numpy(case: Case, host: str, share: float) -> None:
    num_tokens = max(1, round(share * case.logits.shape[1]))
    integers, before = DTYPES[case.logits.dtype], case.base.clone()
    columns, best = CpuDevice().masked_argmax(case.logits, *case.arguments(host), num_tokens)
    assert torch.equal(case.base.view(integers), before.view(integers))
    assert best.dtype == torch.float32
    allowed = case.allowed()[:, :num_tokens]
    x = np.where(allowed, case.logits.float().numpy()[:, :num_tokens], np.float32(-np.inf))
    assert np.array_equal(best.numpy(), x.max(axis=1), equal_nan=True)
    assert ((columns >= 0) & (columns < num_tokens)).all()
    finite = np.isfinite(x.max(axis=1)) | (x.max(axis=1) == np.inf)
    assert np.array_equal(columns.numpy()[finite], x.argmax(axis=1)[finite])


def batch(
    dtype: torch.dtype = torch.float32, num_rows: int = 12, width: int = 131_075
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, masks that alternately refuse few and many tokens, and rows; large enough for two threads."""
    rng = np.random.default_rng(5)
    allowed = rng.random((num_rows, width)) < np.where(np.arange(num_rows) % 2, 0.999, 0.0005)[:, None]
    rows = rng.permutation(num_rows).astype(np.int32)
    logits = torch.from_numpy(rng.standard_normal((num_rows, width), dtype=np.float32)).to(dtype)
    return logits, torch.from_numpy(bits.pack(allowed)), torch.from_numpy(rows)


def outcomes(num_threads: int) -> list[Tensor]:
    """Return the results of both operations for all dtypes. torch itself uses one thread: its own pool would hang in a
    forked process."""
    device, found = CpuDevice(), []
    guideway_cpu.device.WORTH_A_THREAD = 1 << 20  # small enough for these batches to be shared
    for dtype, integers in DTYPES.items():
        logits, bitmask, rows = batch(dtype)
        torch.set_num_threads(num_threads)
        found += device.masked_argmax(logits, bitmask, rows, logits.shape[1] - 3)
        found.append(device.apply_bitmask(logits, bitmask, rows).view(integers))
        torch.set_num_threads(1)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_under_wide_masks_is_that_of_numpy(dtype: torch.dtype) -> None:
    """The largest logits are refused, wherever they are."""
    logits, bitmask, rows = batch(dtype)
    x = logits.float().numpy()
    allowed = np.empty(x.shape, dtype=np.bool_)
    allowed[rows] = bits.unpack(bitmask.numpy(), x.shape[1])
    allowed &= x < 2.5
    masked = np.where(allowed, x, -np.inf)
    columns, best = CpuDevice().masked_argmax(logits, bits.pack(allowed), np.arange(len(x)), x.shape[1])
    assert np.array_equal(columns.numpy(), masked.argmax(axis=1))
    assert np.array_equal(best.numpy(), masked.max(axis=1))


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_two_threads_do_what_one_does() -> None:
    assert same(outcomes(2), outcomes(1))


def _send_outcomes(pipe: Connection, num_threads: int) -> None:
    pipe.send([tensor.numpy() for tensor in outcomes(num_threads)])


def in_a_forked_process(num_threads: int) -> None:
    wanted = outcomes(num_threads)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send_outcomes, args=(sender, num_threads))
    process.start()
    try:
        assert receiver.poll(60), "the forked process hangs"
        assert same([torch.from_numpy(array) for array in receiver.recv()], wanted)
    finally:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_forked_process_goes_on(num_threads: int) -> None:
    """Runs in a fresh interpreter: other tests load libraries whose threads do not survive a fork."""
    script = f"import test_cpu_device\ntest_cpu_device.in_a_forked_process({num_threads})\nprint('done')"
    assert _run(script).split() == ["done"]


@pytest.mark.slow
def test_threads_start_only_where_several_are_configured() -> None:
    script = """
import threading, test_cpu_device
for count in (1, 2):
    test_cpu_device.outcomes(count)
    print(threading.active_count())
"""
    assert _run(script).split() == ["1", "2"]


def test_a_failure_in_another_thread_is_raised() -> None:
    def work(first: int, _: int) -> None:
        if first == 1:
            raise LookupError("the second thread")

    with pytest.raises(LookupError, match="the second thread"):
        in_threads(3, work)


def test_interrupts_are_raised_when_all_threads_have_ended() -> None:
    main, ended = threading.get_ident(), []

    def work(first: int, _: int) -> None:
        for _ in range(3 * (first == 1)):
            time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.05)
        ended.append(first)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes start with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            in_threads(3, work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(ended) in ([0, 1, 2], [1, 2])  # the first may have been interrupted itself


@pytest.mark.slow
def test_nothing_is_compiled_or_loaded_for_a_request() -> None:
    script = """
import numba, torch, test_cpu_device
from guideway_cpu.kernels import argmax_kernel, choose_kernel, forbid_kernel
from numba.core import event
device = test_cpu_device.CpuDevice()
kernels = forbid_kernel(), choose_kernel(), argmax_kernel()
print([len(kernel.signatures) for kernel in kernels])
with event.install_recorder("numba:compile") as recorded:
    test_cpu_device.outcomes(1)
    logits, bitmask, rows = test_cpu_device.batch(num_rows=3, width=33)
    device.apply_bitmask(logits.T.contiguous().T, bitmask.numpy(), rows.to(torch.int16).numpy())
    print(len(recorded.buffer))
    numba.njit(lambda: 0)()
    print(len(recorded.buffer) > 0)
print([len(kernel.signatures) for kernel in kernels])
"""
    assert _run(script).splitlines() == ["[1, 1, 1]", "0", "True", "[1, 1, 1]"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_memory_is_taken(dtype: torch.dtype) -> None:
    device, (logits, bitmask, rows) = CpuDevice(), batch(dtype)
    device.apply_bitmask(logits, bitmask, rows)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        device.apply_bitmask(logits, bitmask, rows)
    assert sum(abs(item.self_cpu_memory_usage) for item in profile.key_averages()) == 0
    tracemalloc.start()
    device.apply_bitmask(logits, bitmask, rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000


def test_another_device_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="on 'cpu' only; for 'cuda' take the backend 'torch'"):
        CpuDevice("cuda")


def test_rows_the_logits_do_not_have_are_refused() -> None:
    logits, bitmask, _ = batch(num_rows=2, width=40)
    before = logits.clone()
    for number in (2, -2, 2**31 - 1):
        with pytest.raises(IndexError, match="a row that the logits do not have"):
            CpuDevice().apply_bitmask(logits, bitmask, torch.tensor([number]))
    with pytest.raises(ValueError, match="3 rows to mask, but only 2 masks"):
        CpuDevice().apply_bitmask(logits, bitmask, torch.tensor([0, 1, -1]))
    with pytest.raises(ValueError, match="3 rows to mask, but only 2 masks"):
        CpuDevice().masked_argmax(logits, bitmask, torch.tensor([0, 1, -1]), 40)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("number", [12, -2, -(2**31), 2**31 - 1])
def test_one_row_the_logits_do_not_have_leaves_the_others_alone(number: int, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    logits, bitmask, rows = batch()
    before = logits.clone()
    rows[-1] = number
    for numbers in (rows, rows.long(), rows.numpy()):
        with pytest.raises(IndexError, match="a row that the logits do not have"):
            CpuDevice().apply_bitmask(logits, bitmask, numbers)
        with pytest.raises(IndexError, match="a row that the logits do not have"):
            CpuDevice().masked_argmax(logits, bitmask, numbers, logits.shape[1])
    assert torch.equal(logits, before)


def test_more_tokens_than_the_logits_are_wide_are_refused() -> None:
    logits = torch.zeros(3, 64)
    for view in (logits[:1], logits[:1, :40], logits[:, ::2]):
        width = view.shape[1]
        for number in (width + 1, 128, -1):
            with pytest.raises(ValueError, match=f"at most {width}, the width of the logits, not {number}"):
                CpuDevice().masked_argmax(view, np.full((1, 4), -1, dtype=np.int32), torch.tensor([0]), number)


def test_other_dtypes_are_refused() -> None:
    bitmask, rows = torch.zeros(1, 2, dtype=torch.int32), torch.tensor([1])
    for operation in (CpuDevice().apply_bitmask, lambda *arguments: CpuDevice().masked_argmax(*arguments, 64)):
        for other in (torch.zeros(2, 64, dtype=torch.float64), np.zeros((2, 64), dtype=np.float32)):
            with pytest.raises(TypeError, match=r"one of torch.float32, torch.float16, torch.bfloat16, not .*float"):
                operation(other, bitmask, rows)
        logits = torch.ones(2, 64)
        for words in (bitmask.short(), bitmask.long(), bitmask.short().numpy(), bitmask.numpy().view(np.uint32)):
            with pytest.raises(TypeError, match=f"a bitmask must be of int32, not {words.dtype}"):
                operation(logits, words, rows)
        for numbers in (rows.float(), rows.double().numpy(), rows.bool()):
            with pytest.raises(TypeError, match=f"rows must be integers, not {numbers.dtype}"):
                operation(logits, bitmask, numbers)
        assert torch.equal(logits, torch.ones(2, 64))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.uint64, ">i4", ">i8"])
def test_rows_of_any_integers(dtype: Any) -> None:
    bitmask, rows = torch.tensor([[5]], dtype=torch.int32), np.array([1], dtype=dtype)
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 2)
    assert [tensor.tolist() for tensor in CpuDevice().masked_argmax(logits, bitmask, rows, 4)] == [[3, 2], [4.0, 3.0]]
    assert CpuDevice().apply_bitmask(logits, bitmask, rows)[1].tolist() == [1.0, -torch.inf, 3.0, -torch.inf]


def test_the_bits_of_infinity() -> None:
    for dtype, number in INFINITY.items():
        assert torch.tensor(torch.inf, dtype=dtype).view(DTYPES[dtype]).item() == number


MASK_ONE = """
import torch
from guideway_cpu.device import CpuDevice
print(CpuDevice().apply_bitmask(torch.zeros(1, 4), torch.tensor([[5]], dtype=torch.int32), torch.tensor([0])).tolist())
"""


@pytest.mark.slow
def test_it_runs_where_nothing_can_be_cached(tmp_path: Path) -> None:
    shutil.copytree(
        Path(guideway_cpu.__file__).parent, tmp_path / "guideway_cpu", ignore=shutil.ignore_patterns("__*__")
    )
    shutil.copy(guideway_cpu.__file__, tmp_path / "guideway_cpu")
    (tmp_path / "guideway_cpu" / "__pycache__").touch()
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": f"{os.devnull}/cache", "NUMBA_CACHE_DIR": ""}
    assert _run(MASK_ONE, folder=tmp_path, **nowhere) == "[[0.0, -inf, 0.0, -inf]]\n"


@pytest.mark.slow
def test_several_processes_compile_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", MASK_ONE]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=300)[0] for process in running] == ["[[0.0, -inf, 0.0, -inf]]\n"] * 3
    cached = list(tmp_path.rglob("*.nbi"))
    assert len(cached) == 3
    hits = "[sum(kernel().stats.cache_hits.values()) for kernel in (forbid_kernel, choose_kernel, argmax_kernel)]"
    loaded = f"{MASK_ONE}\nfrom guideway_cpu.kernels import argmax_kernel, choose_kernel, forbid_kernel\nprint({hits})"
    assert _run(loaded, NUMBA_CACHE_DIR=str(tmp_path)).splitlines()[-1] == "[1, 1, 1]"


def _run(script: str, folder: Path = Path(__file__).parent, **environment: str) -> str:
    """Return the output of a script in a new interpreter that imports the modules of `folder` first."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    ).stdout
