"""The results of the kernels against loops in NumPy; on a GPU, or without one in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guideway.api import Draw, InvalidConfiguration, Payload, TokenLists
from guideway.api import bitmask as bits
from guideway.devices.numpy.device import NumpyOps
from guideway_triton.backend import TritonDevice
from guideway_triton.copies import LARGE
from numpy.typing import NDArray
from torch import Tensor

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
on_a_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
INF = np.inf
WIDTH = 2100
"""Two blocks of logits and part of a third, with an incomplete last word."""


@pytest.fixture(scope="module")
def device() -> TritonDevice:
    return TritonDevice(DEVICE)


def random_logits(rows: int, width: int = WIDTH, seed: int = 0) -> NDArray[np.float32]:
    """Return values that every dtype can represent, many of them equal."""
    return np.random.default_rng(seed).integers(-40, 40, (rows, width)).astype(np.float32) / 4


def random_masks(rows: int, width: int = WIDTH, seed: int = 1) -> bits.Bitmask:
    """Return masks with half of the bits set; some words, and one row each, are all ones or nearly all zeros."""
    rng = np.random.default_rng(seed)
    words = rng.integers(-(2**31), 2**31, (rows, bits.num_words(width))).astype(np.int32)
    words[rng.random(words.shape) < 0.3] = bits.FULL
    words[rng.random(words.shape) < 0.3] = 0
    words[0] = bits.FULL
    words[-1] = 0
    words[-1, 1] = 1 << 7
    return words


def put(array: NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
    return torch.tensor(array, dtype=dtype, device=DEVICE)


def masked(x: NDArray[np.float32], bitmask: bits.Bitmask, rows: list[int]) -> NDArray[np.float32]:
    """Return the result of the loop in `DeviceBackend.apply_bitmask`."""
    x, allowed = x.copy(), NumpyOps().unpack_bitmask(bitmask, x.shape[1])
    for i, row in enumerate(rows):
        if row >= 0:
            x[row, ~allowed[i]] = -INF
    return x


def same_bits(got: Tensor, wanted: Tensor) -> bool:
    return got.dtype == wanted.dtype and bool(
        (got.contiguous().view(torch.uint8) == wanted.contiguous().view(torch.uint8)).all()
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("words", [66, 40, 80], ids=lambda words: f"{words}_words")
def test_masks_of_every_dtype_and_width(device: TritonDevice, dtype: torch.dtype, words: int) -> None:
    x, bitmask, rows = random_logits(5), random_masks(3, 32 * words), [3, -1, 0]
    logits = put(x, dtype)
    got = device.apply_bitmask(logits, put(bitmask), put(np.array(rows, dtype=np.int32)))
    assert got is logits
    assert same_bits(got, put(masked(x, bitmask, rows), dtype))


def test_what_is_allowed_keeps_its_bits(device: TritonDevice) -> None:
    odd = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001, 0x7F800000], dtype=np.uint32).view(np.int32)
    logits = put(np.tile(odd, (2, 20))).view(torch.float32)
    before = logits.clone()
    device.apply_bitmask(logits, put(np.array([[-1, 5, -1, -1]], dtype=np.int32)), put(np.array([1])))
    forbidden = torch.zeros(100, dtype=torch.bool, device=DEVICE)
    forbidden[32:64] = True
    forbidden[[32, 34]] = False
    assert same_bits(logits[0], before[0])
    assert same_bits(logits[1], before[1].masked_fill(forbidden, -INF))


@pytest.mark.parametrize("layout", ["columns", "every_other_row", "every_other_column", "transposed"])
def test_masks_of_logits_that_are_views(device: TritonDevice, layout: str) -> None:
    base = put(random_logits(12, 300))
    if layout == "transposed":
        base = base.T.contiguous().T
    view = {
        "columns": base[:, 7:207],
        "every_other_row": base[::2],
        "every_other_column": base[:, 1::2],
        "transposed": base,
    }[layout]
    outside, before = base.clone(), view.cpu().numpy().copy()
    bitmask, rows = random_masks(3, view.shape[1]), [4, 0, 2]
    got = device.apply_bitmask(view, put(bitmask), put(np.array(rows)))
    assert np.array_equal(got.cpu().numpy(), masked(before, bitmask, rows))
    assert int((base != outside).sum()) == int((got.cpu().numpy() != before).sum())


def test_masks_may_be_on_the_host_and_views(device: TritonDevice) -> None:
    x, bitmask, rows = random_logits(3), random_masks(6), np.array([2, 0, 1], dtype=np.int32)
    got = device.apply_bitmask(put(x), bitmask[::2], rows)
    assert np.array_equal(got.cpu().numpy(), masked(x, bitmask[::2], [2, 0, 1]))
    spread = put(np.repeat(bitmask, 2, axis=1))[:, ::2]
    got = device.apply_bitmask(put(x), spread[:3], put(np.repeat(rows, 2))[::2])
    assert np.array_equal(got.cpu().numpy(), masked(x, bitmask[:3], [2, 0, 1]))


def test_nothing_to_mask(device: TritonDevice) -> None:
    x = random_logits(2, 40)
    none = put(np.empty((0, 2), dtype=np.int32)), put(np.empty(0, dtype=np.int32))
    assert np.array_equal(device.apply_bitmask(put(x), *none).cpu().numpy(), x)
    columns, largest = device.masked_argmax(put(x), *none, 40)
    assert columns.tolist() == x.argmax(axis=1).tolist()
    assert largest.tolist() == x.max(axis=1).tolist()
    assert [len(found) for found in device.masked_argmax(put(x[:0]), *none, 40)] == [0, 0]


def test_argmax_chooses_among_what_is_allowed(device: TritonDevice) -> None:
    x, bitmask, rows, num_tokens = random_logits(5), random_masks(3), [3, -1, 0], WIDTH - 40
    wanted = masked(x, bitmask, rows)[:, :num_tokens]
    for dtype in DTYPES:
        logits = put(x, dtype)
        columns, largest = device.masked_argmax(logits, put(bitmask), put(np.array(rows)), num_tokens)
        assert columns.tolist() == wanted.argmax(axis=1).tolist()
        assert largest.tolist() == wanted.max(axis=1).tolist()
        assert same_bits(logits, put(x, dtype))


@pytest.mark.slow
def test_argmax_of_many_rows(device: TritonDevice) -> None:
    x, bitmask = random_logits(300, 40), random_masks(150, 40)
    rows = np.random.default_rng(2).permutation(300)[:150]
    wanted = masked(x, bitmask, rows.tolist())
    columns, _ = device.masked_argmax(put(x), put(bitmask), put(rows), 40)
    assert columns.tolist() == wanted.argmax(axis=1).tolist()


def test_argmax_of_equals_infinities_and_nan(device: TritonDevice) -> None:
    x = np.full((7, WIDTH), -3.0, dtype=np.float32)
    x[0, [1500, 900, 2000]] = 5
    x[1, [5, 6]] = [-0.0, 0.0]
    x[2, [7, 1999]] = INF
    x[3, 1100] = np.nan
    x[4] = -INF
    x[5, 2090] = np.nan
    x[5, 1] = 9
    x[6, :] = -np.arange(WIDTH)[::-1]
    none = np.full((1, bits.num_words(WIDTH)), 0, dtype=np.int32)
    columns, largest = device.masked_argmax(put(x), put(none), put(np.array([6])), 2060)
    assert [columns[i].item() for i in (0, 1, 2, 5)] == [900, 5, 7, 1]
    assert [largest[i].item() for i in (0, 1, 2, 4, 5, 6)] == [5, 0, INF, -INF, 9, -INF]
    assert np.isnan(largest[3].item())
    assert all(0 <= column < 2060 for column in columns.tolist())


def draw_of(temperatures: list[float]) -> tuple[Draw, list[NDArray[Any]]]:
    rows, rng = len(temperatures), np.random.default_rng(4)
    arrays = [
        np.array(temperatures, dtype=np.float32),
        rng.integers(-(2**63), 2**63 - 1, rows),
        rng.integers(0, 2**31, rows).astype(np.int32),
        rng.integers(0, 2**31, rows).astype(np.int32),
    ]
    return Draw(*(put(array) for array in arrays), purpose=2**31 + 9), arrays


@pytest.mark.slow
def test_draws_are_the_gumbel_maximum(device: TritonDevice) -> None:
    temperatures = [0.0, 0.25, 1.0, 1.3, 4.0, 1.0] + [1.0] * 16
    draw, (temperature, *where) = draw_of(temperatures)
    bitmask, rows, num_tokens = random_masks(4), [3, -1, 0, 5], WIDTH - 40
    x = np.random.default_rng(3).normal(size=(22, WIDTH)).astype(np.float32)
    x_masked = masked(x, bitmask, rows)[:, :num_tokens]
    uniforms = NumpyOps().uniform(*where, 2**31 + 9, WIDTH)[:, :num_tokens]
    scores = x_masked / np.where(temperature == 0, 1, temperature)[:, None] - np.log(-np.log(uniforms))
    wanted = np.where(temperature == 0, x_masked.argmax(axis=1), scores.argmax(axis=1))
    logits = put(x)
    columns, largest = device.masked_sample(logits, put(bitmask), put(np.array(rows)), num_tokens, draw)
    assert columns.tolist() == wanted.tolist()
    assert columns[5].item() == 39  # the only one allowed
    assert largest.tolist() == x_masked.max(axis=1).tolist()
    assert same_bits(logits, put(x))


def test_choosing_and_warping_of_views(device: TritonDevice) -> None:
    """Logits are views of every other column, masks have fewer words than the logits, and rows are not adjacent."""
    base = random_logits(4, 2 * WIDTH)
    x, bitmask, rows = base[:, ::2], random_masks(3, 32 * 40), [3, 1, 0]
    logits, there = put(base)[:, ::2], (put(bitmask), put(np.repeat(rows, 2))[::2])
    wanted = masked(x, bitmask, rows)
    columns, largest = device.masked_argmax(logits, *there, WIDTH)
    assert columns.tolist() == wanted.argmax(axis=1).tolist()
    assert largest.tolist() == wanted.max(axis=1).tolist()
    factors = np.array([1.0, 0.5, 2.0, 4.0], dtype=np.float32)
    got = device.warp_masked(logits, *there, None, put(np.repeat(factors, 2))[::2])
    assert np.array_equal(got.cpu().numpy(), wanted * factors[:, None])


@pytest.mark.slow
def test_draws_do_not_depend_on_the_batch(device: TritonDevice) -> None:
    draw, (temperatures, seeds, sequences, positions) = draw_of([1.0] * 6)
    x, bitmask = random_logits(6), random_masks(6)
    together, _ = device.masked_sample(put(x), put(bitmask), put(np.arange(6)), WIDTH, draw)
    for row in (1, 3):
        one = slice(row, row + 1)
        alone = Draw(put(temperatures[one]), put(seeds[one]), put(sequences[one]), put(positions[one]), draw.purpose)
        column, _ = device.masked_sample(put(x[one]), put(bitmask[one]), put(np.array([0])), WIDTH, alone)
        assert column.item() == together[row].item()


def test_uniform_has_the_bits_of_the_reference(device: TritonDevice) -> None:
    seeds = np.array([0, -1, 2**63 - 1, 2**32 + 17])
    sequences = np.array([0, 5, 2**31 - 1, 1], dtype=np.int32)
    positions = np.array([3, 0, 1, 2**31 - 1], dtype=np.int32)
    for purpose, width in ((0, 1), (2**32 - 1, 6), (3, 1030)):
        got = device.ops.uniform(put(seeds), put(sequences), put(positions), purpose, width)
        assert np.array_equal(got.cpu().numpy(), NumpyOps().uniform(seeds, sequences, positions, purpose, width))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_token_lists_are_masks(device: TritonDevice, dtype: torch.dtype) -> None:
    x = random_logits(6)
    listed = [[0, 1023, 1024, 2099, 2100, 9999], [], [5, 2048], [], [1, 2], list(range(1000, 1200))]
    lists = TokenLists(
        offsets=np.cumsum([0, *map(len, listed)]).astype(np.int32),
        token_ids=np.concatenate(listed).astype(np.int32),
        allow=np.array([True, True, False, False, True, False]),
    )
    rows = np.array([4, 1, 0, 3, -1, 5], dtype=np.int32)
    got = device.apply_token_lists(put(x, dtype), lists, rows)
    assert same_bits(got, put(masked(x, lists.bitmask(WIDTH), rows.tolist()), dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_warps_in_float32(device: TritonDevice, dtype: torch.dtype) -> None:
    x, bitmask, rows = random_logits(5), random_masks(4), [3, -1, 0, 2]
    factors = np.array([1.0, 2.0, 1 / 0.7, 0.5, 3.0], dtype=np.float32)
    where = np.array([0, 0, 2, 2, 1]), np.array([1, 1, 39, 40, 2099])
    values = np.array([1.5, 0.25, 2.0, 4.0, -1000.125], dtype=np.float32)
    for added in (None, (put(where[0]), put(where[1]), put(values))):
        wanted = masked(x, bitmask, rows)
        if added is not None:
            np.add.at(wanted, where, values)
        logits = put(x, dtype)
        got = device.warp_masked(logits, put(bitmask), put(np.array(rows)), added, put(factors))
        assert got.dtype == torch.float32
        assert np.array_equal(got.cpu().numpy(), wanted * factors[:, None])
        assert (got.data_ptr() == logits.data_ptr()) == (dtype == torch.float32)


def test_uploads_are_copies_of_any_memory(device: TritonDevice) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    fixed = np.arange(LARGE, dtype=np.int16)
    fixed.flags.writeable = False
    payload = Payload(
        rows=np.array([3, 0], dtype=np.int32),
        arrays={"x": base[::2, ::-1], "flag": np.array([True, False])},
        shared={
            "x": np.array(2**62 + 1),
            "none": np.empty((0, 3), dtype=np.float16),
            "one_for_all": np.broadcast_to(np.float32(3), (2, 3)),
            "large": np.arange(LARGE, dtype=np.int32),
            "large_of_every_other": np.arange(LARGE, dtype=np.int32)[::2],
            "large_that_nobody_may_change": fixed,
        },
    )
    wanted = [np.array(array) for array in (payload.rows, *payload.arrays.values(), *payload.shared.values())]
    there = device.upload(payload)
    base[:] = -1
    payload.rows[:] = -1
    payload.shared["large"][:] = -1
    tensors = [there.rows, *there.arrays.values(), *there.shared.values()]
    assert [*there.arrays, *there.shared] == [*payload.arrays, *payload.shared]
    for tensor, array in zip(tensors, wanted, strict=True):
        assert tensor.device.type == DEVICE
        assert tensor.cpu().numpy().dtype == array.dtype
        assert np.array_equal(tensor.cpu().numpy(), array)


def test_downloads_are_what_the_arrays_were(device: TritonDevice) -> None:
    ids, x = put(np.arange(4)), put(random_logits(2, 8), torch.bfloat16)
    wanted = x.float().cpu().numpy()
    coming = device.download({"ids": ids[::2], "x": x.T})
    ids.zero_()
    x.zero_()
    for _ in range(2):
        assert coming.result()["ids"].tolist() == [0, 2]
        assert np.array_equal(coming.result()["x"], wanted.T)


@pytest.mark.slow
def test_threads_do_not_disturb_one_another() -> None:
    x, bitmask, rows = random_logits(3), random_masks(3), [2, 0, 1]
    wanted = masked(x, bitmask, rows)

    def work(_: int) -> bool:
        mine = TritonDevice(DEVICE)
        at = put(bitmask), put(np.array(rows))
        return all(np.array_equal(mine.apply_bitmask(put(x), *at).cpu().numpy(), wanted) for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_devices_that_are_none() -> None:
    for name in ("meta", "gpu", "cuda:77"):
        with pytest.raises(InvalidConfiguration, match=name):
            TritonDevice(name)


@on_a_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device(device: TritonDevice) -> None:
    x, bitmask, rows = random_logits(6), random_masks(6), np.arange(6, dtype=np.int32)
    draw, arrays = draw_of([1.0] * 6)
    logits = put(x)
    added = put(np.array([0])), put(np.array([1])), put(np.array([1.0], dtype=np.float32))
    lists = TokenLists(np.array([0, 2], dtype=np.int32), np.array([3, 5], dtype=np.int32), np.array([True]))

    def step() -> dict[str, NDArray[Any]]:
        there = device.upload(Payload(rows=rows, arrays={"bitmask": bitmask, "factors": arrays[0]}))
        bits_there, factors = there.arrays["bitmask"], there.arrays["factors"]
        device.apply_token_lists(logits, lists, rows[:1])
        chosen, best = device.masked_sample(logits, bits_there, there.rows, WIDTH, draw)
        greedy, _ = device.masked_argmax(logits, bits_there, there.rows, WIDTH)
        device.apply_bitmask(device.warp_masked(logits, bits_there, there.rows, added, factors), bitmask, rows)
        uniforms = device.ops.uniform(draw.seeds, draw.sequences, draw.positions, 1, 8)
        coming = device.download({"chosen": chosen, "best": best, "greedy": greedy, "uniforms": uniforms})
        torch.cuda.set_sync_debug_mode("default")
        return dict(coming.result())

    first = step()  # compiles, and fills the cache of pinned memory
    torch.cuda.synchronize()
    logits.copy_(put(x))
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(np.array_equal(first[name], again[name]) for name in first)


@on_a_gpu
def test_a_cuda_graph_replays_the_step(device: TritonDevice) -> None:
    x, bitmask, rows = put(random_logits(6)), put(random_masks(6)), put(np.arange(6, dtype=np.int32))
    draw, _ = draw_of([1.0] * 6)
    factors = torch.ones(6, device=DEVICE)

    def step() -> list[Tensor]:
        masked_logits = device.apply_bitmask(x.clone(), bitmask, rows)
        warped = device.warp_masked(x.clone(), bitmask, rows, None, factors)
        drawn = device.masked_sample(x, bitmask, rows, WIDTH, draw)
        return [masked_logits, warped, *drawn, *device.masked_argmax(x, bitmask, rows, WIDTH)]

    step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(put(random_logits(6, seed=7)))
    bitmask.copy_(put(random_masks(6, seed=8)))
    rows.copy_(put(np.array([5, -1, 3, 2, -1, 0], dtype=np.int32)))
    graph.replay()
    for got, wanted in zip(captured, step(), strict=True):
        assert torch.equal(got, wanted)


@on_a_gpu
def test_more_logits_than_an_int32_counts(device: TritonDevice) -> None:
    rows, width = 14_200, 151_936  # 2**31 logits end in row 14,134; 4.3 GB
    logits = torch.zeros(rows, width, dtype=torch.bfloat16, device=DEVICE)
    words = np.full((1, bits.num_words(width)), 0, dtype=np.int32)
    words[0, -1] = 1
    device.apply_bitmask(logits, put(words), put(np.array([rows - 1])))
    assert torch.isneginf(logits).sum().item() == width - 1
    columns, largest = device.masked_argmax(logits, put(words), put(np.array([rows - 1])), width)
    assert (columns[-1].item(), largest[-1].item()) == (width - 32, 0)


def run(code: str, cache: Path) -> str:
    """Return the output of `code` in a process that compiles kernels instead of interpreting them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_interpreter_has_to_be_asked_for(tmp_path: Path) -> None:
    code = """
from guideway.api import InvalidConfiguration
from guideway_triton.backend import TritonDevice
from guideway_triton.copies import LARGE
try:
    TritonDevice("cpu")
except InvalidConfiguration as error:
    print(TritonDevice.available() is None, error)
"""
    available, _, message = run(code, tmp_path).partition(" ")
    assert available == str(HAS_GPU)
    assert "TRITON_INTERPRET=1" in message


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guideway_triton.backend.find_spec", lambda _: None)
    assert "not installed" in str(TritonDevice.available())
    with pytest.raises(InvalidConfiguration, match="not installed"):
        TritonDevice(DEVICE)


COMPILE = """
import sys
import triton
from guideway_triton import kernels
from guideway_triton.launches import EXACT
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {"allow": "i32", "bests": "i64", "bitmask": "i32", "chosen": "i64", "factors": "fp32", "offsets": "i32",
            "out": "fp32", "positions": "i32", "rows": "i32", "scores": "i64", "seeds": "i64", "sequences": "i32",
            "temperatures": "fp32", "token_ids": "i32"}

def compiled(name, logits, target, smallest):
    kernel, signature, constants, attributes = getattr(kernels, name), {}, {}, {}
    fixed = {"block": 1024, "draws": True, "column_stride": 1, "out_column_stride": 1}
    if smallest:  # a launch makes a constant of every 1 and None
        fixed |= dict.fromkeys(("temperatures", "seeds", "sequences", "positions")) if "choose" in name else {}
        fixed |= dict.fromkeys(("width", "num_tokens", "num_words", "mask_stride", "row_stride", "num_blocks"), 1)
        fixed |= {"draws": False, "block": 1 if name == "choose_in_rows" else 1024}
    for number, argument in enumerate(kernel.arg_names):
        if argument in fixed:
            signature[argument], constants[argument] = "constexpr", fixed[argument]
            continue
        pointer = logits if argument == "logits" else POINTERS.get(argument)
        signature[argument] = "i32" if pointer is None else f"*{pointer}"
        if pointer is not None or argument in ("width", "row_stride", "out_row_stride"):
            attributes[number,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options={"num_warps": 4, **EXACT})

for target, binary in ((GPUTarget("cuda", 80, 32), "cubin"), (GPUTarget("cuda", 90, 32), "cubin"),
                       (GPUTarget("hip", "gfx942", 64), "hsaco")):
    for name, logits in CASES:
        done = compiled(name, logits, target, smallest=False)
        assert done.asm[binary], name
        assert compiled(name, logits, target, smallest=True).asm[binary], name
        if binary == "cubin":
            print(name, logits, "\\t", done.asm["ptx"].replace("\\n", " "))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus(tmp_path: Path) -> None:
    """Compile for sm_80, sm_90 and gfx942, even where no such GPU is present."""
    cases = [
        (name, dtype) for name in ("forbid", "forbid_lists", "warp", "choose_in_blocks") for dtype in ("fp32", "bf16")
    ]
    cases += [("uniform", "fp32"), ("choose_in_rows", "fp32")]
    lines = run(f"CASES = {cases!r}\n{COMPILE}", tmp_path).splitlines()
    assert len(lines) == 2 * len(cases)
    for line in lines:
        name, _, ptx = line.partition("\t")
        assert "lg2.approx" not in ptx, f"{name}: a logarithm too coarse for numbers near 1"
        if name.startswith("forbid "):
            assert "st.global.v4" in ptx, f"{name}: words that allow nothing are not stored 16 bytes at a time"
            assert "ld.global.v4" in ptx, f"{name}: the others' logits are not read 16 bytes at a time"
