"""Correct device backends of unusual design, which must be certified, and the oracles for their results."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from guideway.api import ArrayOps, DeviceBackend, InvalidConfiguration
from guideway.api.device import FUSED_OPERATIONS
from guideway.devices.numpy.device import NumpyDevice, NumpyOps
from guideway.devices.torch.device import TorchDevice
from guideway_conformance.device import oracles
from guideway_conformance.device.golden import GOLDEN
from guideway_conformance.isolation import Host
from guideway_conformance.registry import TIERS, Obligation, Tier, checks
from guideway_conformance.runner import run
from guideway_conformance.subjects import Settings
from guideway_conformance.target import Target
from mistakes.devices import Fused, Tensors
from numpy.typing import NDArray

from tests.support.jax_device import JaxDevice
from tests.support.stages import everyday

# A device with read-only arrays. It shares no code with the reference, computes in float64 where it may, returns
# indices in any dtype and equal values in any order, and is found by its own default device.


def freeze(array: Any) -> Any:
    array = np.array(array)
    array.flags.writeable = False
    return array


class AbacusOps(ArrayOps):
    def asarray(self, array: NDArray[Any]) -> Any:
        return freeze(array)

    def add_at(self, x: Any, rows: Any, columns: Any, values: Any) -> Any:
        lines = x.tolist()
        for row, column, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True):
            lines[row][column] += value
        return freeze(np.array(lines).reshape(x.shape).astype(x.dtype))

    def scale_rows(self, x: Any, rows: Any, factors: Any) -> Any:
        every = np.ones((len(x), 1))
        every[rows, 0] = factors
        return freeze((x * every).astype(x.dtype))

    def where_rows(self, x: Any, rows: Any, condition: Any, values: Any) -> Any:
        conditions = np.broadcast_to(condition, (len(rows), x.shape[1]))
        wanted = np.broadcast_to(values, conditions.shape)
        lines = list(x)
        for i, row in enumerate(rows.tolist()):
            lines[row] = np.choose(conditions[i], [lines[row], wanted[i].astype(x.dtype)])
        return freeze(np.stack(lines))

    def gather(self, x: Any, rows: Any, columns: Any = None) -> Any:
        taken = np.take(x, rows, axis=0)
        return freeze(taken if columns is None else np.take_along_axis(taken, columns.astype(np.int64), axis=1))

    def scatter(self, x: Any, rows: Any, columns: Any, values: Any) -> Any:
        changed = x.copy()
        for row, line, some in zip(rows, columns, values, strict=True):
            changed[row, line] = some
        return freeze(changed)

    def cumsum(self, x: Any) -> Any:
        return freeze(np.add.accumulate(x.astype(np.float64), axis=1))

    def forbid_from(self, x: Any, column: int) -> Any:
        return freeze(np.concatenate([x[:, :column], np.full_like(x[:, column:], -np.inf)], axis=1))

    def exp(self, x: Any) -> Any:
        return freeze(np.power(np.e, x, dtype=np.float64))

    def log(self, x: Any) -> Any:
        return freeze(np.where(x > 0, np.log2(np.where(x > 0, x, 1), dtype=np.float64) * np.log(2), -np.inf))

    def log_softmax(self, x: Any) -> Any:
        x = x.astype(np.float64)
        return freeze(x - np.logaddexp.reduce(x, axis=1, keepdims=True))

    def topk(self, x: Any, k: int) -> tuple[Any, Any]:
        columns = np.argsort(x, axis=1, kind="stable")[:, ::-1][:, :k].astype(np.int16 if x.shape[1] < 99 else np.int32)
        return freeze(np.take_along_axis(x, columns.astype(np.int64), axis=1)), freeze(columns)

    def argmax(self, x: Any) -> Any:
        return freeze(np.array([row.index(max(row)) for row in x.tolist()], dtype=np.uint32))

    def categorical(self, logprobs: Any, uniforms: Any) -> Any:
        drawn = []
        for row, uniform in zip(logprobs.astype(np.float64), uniforms.astype(np.float64), strict=True):
            columns = np.flatnonzero(np.isfinite(row))
            sums = np.exp(row[columns] - row.max()).cumsum()
            drawn.append(columns[np.searchsorted(sums, uniform * sums[-1], side="right")])
        return freeze(np.array(drawn, dtype=np.int32))

    def uniform(self, seeds: Any, sequences: Any, positions: Any, purpose: int, width: int) -> Any:
        blocks = np.arange(-(-width // 4), dtype=np.uint64)
        lines = []
        for seed, sequence, position in zip(seeds.tolist(), sequences.tolist(), positions.tolist(), strict=True):
            a, b, c, d = blocks, *(np.full_like(blocks, word % 2**32) for word in (position, sequence, purpose))
            low, high = seed % 2**32, (seed >> 32) % 2**32
            for _ in range(10):
                left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
                a, c = right // 2**32 ^ b ^ np.uint64(low), left // 2**32 ^ d ^ np.uint64(high)
                b, d = right % 2**32, left % 2**32
                low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
            lines.append(np.stack([a, b, c, d], axis=1).ravel()[:width])
        return freeze(((np.array(lines) // 2**9 + 0.5) / 2**23).astype(np.float32))

    def unpack_bitmask(self, bitmask: Any, width: int) -> Any:
        allowed = np.zeros((len(bitmask), width), dtype=np.bool_)
        for token in range(min(width, 32 * bitmask.shape[1])):
            allowed[:, token] = bitmask[:, token // 32] & np.int32(np.uint32(1 << token % 32).view(np.int32)) != 0
        return freeze(allowed)


class Lazy:
    """Read-only arrays, which may be read at any later time."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = arrays

    def result(self) -> Mapping[str, NDArray[Any]]:
        return {name: np.asarray(array) for name, array in self.arrays.items()}


class Abacus(DeviceBackend):
    name = "beads"
    arrays = "numpy"

    def __init__(self, device: str = "abacus:0") -> None:
        if re.fullmatch(r"abacus(:[0-9]+)?", device) is None:
            raise InvalidConfiguration(f"{device!r} is no abacus", field="device")
        super().__init__(device)
        self.ops = AbacusOps()

    def from_logits(self, logits: Any) -> Any:
        return freeze(logits.float() if hasattr(logits, "detach") else logits)

    def apply_bitmask(self, logits: Any, bitmask: Any, rows: Any) -> Any:
        forbidden = np.zeros(logits.shape, dtype=np.bool_)
        entries = rows >= 0
        forbidden[rows[entries]] = ~self.ops.unpack_bitmask(bitmask[entries], logits.shape[1])
        return freeze(np.where(forbidden, np.array(-np.inf, dtype=logits.dtype), logits))

    def download(self, arrays: Mapping[str, Any]) -> Lazy:
        return Lazy(dict(arrays))


# A device with its own arrays, which are not NumPy arrays, are stored by columns, and whose parts are copies. Its
# device has the backend's name.


class Sheet:
    def __init__(self, values: Any) -> None:
        self.memory = np.asfortranarray(values) if np.ndim(values) else np.array(values)

    dtype = property(lambda self: self.memory.dtype)
    shape = property(lambda self: self.memory.shape)

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, index: Any) -> Sheet:
        return Sheet(self.memory[plain(index)].copy())

    def sum(self, axis: int) -> Sheet:
        return Sheet(self.memory.sum(axis=axis))

    def reshape(self, *shape: int) -> Sheet:
        return Sheet(self.memory.reshape(*shape))


def plain(value: Any) -> Any:
    return value.memory if isinstance(value, Sheet) else value


for word in ("add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne"):
    function = getattr(operator, word)
    setattr(Sheet, f"__{word}__", lambda x, y, f=function: Sheet(f(plain(x), plain(y))))
    setattr(Sheet, f"__r{word}__", lambda x, y, f=function: Sheet(f(plain(y), plain(x))))


def lift(name: str) -> Any:
    def call(_: Any, *arguments: Any) -> Any:
        found = getattr(NumpyOps(), name)(*map(plain, arguments))
        return tuple(map(Sheet, found)) if isinstance(found, tuple) else Sheet(found)

    return call


class SheetOps(ArrayOps):
    add_at, scale_rows, where_rows, gather = map(lift, ("add_at", "scale_rows", "where_rows", "gather"))
    scatter, cumsum, forbid_from, exp = map(lift, ("scatter", "cumsum", "forbid_from", "exp"))
    log, log_softmax, topk, argmax = map(lift, ("log", "log_softmax", "topk", "argmax"))
    categorical, uniform, unpack_bitmask = map(lift, ("categorical", "uniform", "unpack_bitmask"))

    def asarray(self, array: NDArray[Any]) -> Sheet:
        return Sheet(array.copy())


class Sheets(DeviceBackend):
    name = "sheets"
    arrays = "sheets"

    def __init__(self, device: str) -> None:
        if device != "sheets":
            raise InvalidConfiguration(f"there is no {device}", field="device")
        super().__init__(device)
        self.ops = SheetOps()

    def from_logits(self, logits: Any) -> Sheet:
        return logits if isinstance(logits, Sheet) else Sheet(NumpyDevice().from_logits(logits).copy())

    def apply_bitmask(self, logits: Sheet, bitmask: Sheet, rows: Sheet) -> Sheet:
        return Sheet(NumpyDevice().apply_bitmask(logits.memory, plain(bitmask), plain(rows)))

    def download(self, arrays: Mapping[str, Sheet]) -> Lazy:
        return Lazy({name: sheet.memory.copy() for name, sheet in arrays.items()})


class Elsewhere(Abacus):
    """Only for a device with a name that cannot be guessed."""

    def __init__(self, device: str) -> None:
        if device != "abacus:7":
            raise InvalidConfiguration(f"{device!r} is not the seventh abacus", field="device")
        super().__init__(device)


# A device that works only inside its scope, as hosts always are. The scope must not be skipped either.


class ShelvedOps(AbacusOps):
    def __init__(self, depth: list[int]) -> None:
        self.depth = depth

    def __getattribute__(self, name: str) -> Any:
        if name != "depth" and not self.depth:
            raise RuntimeError(f"{name} of an abacus that is on its shelf")
        return super().__getattribute__(name)


class Shelved(Abacus):
    def __init__(self, device: str = "abacus:0") -> None:
        super().__init__(device)
        self.depth: list[int] = []
        self.ops = ShelvedOps(self.depth)

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.depth.append(1)
        try:
            yield
        finally:
            self.depth.pop()

    def from_logits(self, logits: Any) -> Any:
        self.ops.asarray(np.zeros(1))
        return super().from_logits(logits)

    def apply_bitmask(self, logits: Any, bitmask: Any, rows: Any) -> Any:
        self.ops.asarray(np.zeros(1))
        return super().apply_bitmask(logits, bitmask, rows)

    def download(self, arrays: Mapping[str, Any]) -> Lazy:
        self.ops.asarray(np.zeros(1))
        return super().download(arrays)


class Absent(Abacus):
    @classmethod
    def available(cls) -> str | None:
        return "there is no abacus in this room"


def failures(cls: type, settings: Settings | None = None, up_to: Tier = TIERS[-1]) -> list[str]:
    report = run(Target.of_class(cls, settings), up_to=up_to)
    found = [f"{r.obligation.check}: {r.outcome}: {r.detail}" for r in report.results if r.outcome != "pass"]
    assert (report.verdict == "certified") == (not found)
    return found


CORRECT = (Abacus, Shelved, Sheets, Tensors, Fused)


@pytest.mark.slow
@pytest.mark.parametrize("cls", CORRECT)
def test_correct_backends_are_certified(cls: type) -> None:
    assert not failures(cls)


@pytest.mark.slow
def test_a_backend_on_jax_is_certified() -> None:
    assert not failures(JaxDevice)


# Backends with the default implementations of fused operations, which must work on any device.


def by_default(operation: str) -> Any:
    function = getattr(DeviceBackend, operation)
    return lambda self, *arguments: function(self, *arguments)


class FusedAbacus(Abacus):
    fused = frozenset(FUSED_OPERATIONS)


class FusedSheets(Sheets):
    fused = frozenset(FUSED_OPERATIONS)


class FusedTensors(TorchDevice):
    fused = frozenset(FUSED_OPERATIONS)


class FusedJax(JaxDevice):
    fused = frozenset(FUSED_OPERATIONS)


for cls in (FusedAbacus, FusedSheets, FusedTensors, FusedJax):
    for name in FUSED_OPERATIONS:
        setattr(cls, name, by_default(name))


@pytest.mark.parametrize("cls", everyday((FusedAbacus, FusedSheets, FusedTensors, FusedJax)))
def test_default_operations_are_certified(cls: type) -> None:
    of_fused = [check for check in checks("device") if check.capability or check.trait == "fused"]
    fused = [check.id for check in of_fused if check.tier != "stress"]
    with Host(Target.of_class(cls)) as host:
        results = list(host.run([Obligation(check_id) for check_id in fused]))
    assert not [f"{r.obligation.check}: {r.detail}" for r in results if r.outcome != "pass"]


@pytest.mark.slow
def test_a_device_is_taken_from_the_settings() -> None:
    assert not failures(Elsewhere, Settings(device="abacus:7"), "core")


@pytest.mark.slow
def test_a_device_nobody_can_guess_has_to_be_named() -> None:
    found = failures(Elsewhere)
    assert "conformance.toml" in found[0]
    assert "'cpu' is not the seventh abacus" in found[0]


@pytest.mark.slow
def test_nothing_is_certified_without_the_hardware() -> None:
    report = run(Target.of_class(Absent), up_to="core")
    met = {result.obligation.check for result in report.results if result.outcome == "pass"}
    of_the_class = {result.obligation.check for result in report.results if result.obligation.mode == "refusal"}
    assert met == of_the_class | {"device.says_whether_it_can_run", "device.declares_what_it_fuses"}
    assert {result.outcome for result in report.results} == {"pass", "not_run"}
    assert report.verdict == "incomplete"


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_oracle_knows_the_published_answers(counter: str, key: str, answer: str) -> None:
    (first, *rest), (low, high), wanted = ([int(word, 16) for word in text.split()] for text in (counter, key, answer))
    assert list(oracles.philox((first, *rest), (low, high))) == wanted


@pytest.mark.parametrize("case", GOLDEN)
def test_the_oracle_agrees_with_what_was_written_by_hand(case: Any) -> None:
    forbidden = oracles.forbidden(case.words, case.rows, (case.num_rows, case.width))
    for row in range(case.num_rows):
        allowed = tuple(np.flatnonzero(~forbidden[row]).tolist())
        assert allowed == (case.allowed[case.rows.index(row)] if row in case.rows else tuple(range(case.width)))
