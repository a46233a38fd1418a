"""Numbers of every size at every place, and with all digits: each operation on wide rows of each type in which one
number stands out, early, in the middle or late, and on numbers that need every bit of their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Host, expect_close, expect_equal
from guideway_conformance.device.operations import CLOSE, OPERATIONS, Given, Size, operations_of
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []

LARGEST = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}
"""By type: the largest finite number."""
LEAST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
"""By type: the smallest positive number, without those that much hardware takes for 0."""
ULP = {"float32": 2.0**-22, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""By type: what a 3 and the next number are apart."""
WIDE, WIDEST = 9_001, 33_003

Kind: TypeAlias = "tuple[float | None, float]"
"""The number that a row has in all places but one (None: quarters between -3 and 3, and -inf), and the one there."""
Rows: TypeAlias = "list[tuple[Kind, int]]"
"""The kind of each row, and the place of the number that stands out."""


def _moved(dtype: str) -> list[Kind]:
    most, least = LARGEST[dtype], LEAST[dtype]
    return [(None, one) for one in (np.nan, np.inf, -np.inf, most, -most, least, -least)]


def _chosen(dtype: str) -> list[Kind]:
    most = LARGEST[dtype]
    return [
        *((None, one) for one in (most, 400.0, 3.0 + ULP[dtype], np.inf)),
        *((-np.inf, one) for one in (-most, 0.0)),
        *((-most, -most / 2), (0.0, LEAST[dtype])),
    ]


def _considered(dtype: str) -> list[Kind]:
    return [(None, np.nan), *_chosen(dtype)]


def _weighed(dtype: str) -> list[Kind]:
    """Rows in which one number weighs more than all others."""
    return [(None, 400.0), (-1024.0, -512.0), (-8192.0, 8192.0), (-np.inf, -LARGEST[dtype]), (None, 2.0**15)]


def _normalized(dtype: str) -> list[Kind]:
    return [*_weighed(dtype), (None, 20.0), (-1024.0, -1016.0), (0.0, 0.0), (0.0, -400.0)]


def _summed(_dtype: str) -> list[Kind]:
    """Numbers whose sums float32 holds, in whatever order they are added, and float16 does not."""
    return [(0.25, 2.0), (1.0, 2.0**15), (4096.0, 2.0**15), (2.0, 0.0)]


def _exponents(dtype: str) -> list[Kind]:
    return [(None, one) for one in ((11.0, -9.0, -15.0) if dtype == "float16" else (87.0, -86.0, -20.0))]


def _positive(dtype: str) -> list[Kind]:
    return [(2.0, one) for one in (LARGEST[dtype], LEAST[dtype], 3 * LEAST[dtype], 2.0**-14, 0.0, np.inf)]


def _warped(_dtype: str) -> list[Kind]:
    return [(None, one) for one in (np.nan, np.inf, -np.inf, 1.5 * 2.0**15, -(2.0**15), 2.0**-24)]


KINDS: Mapping[str, Callable[[str], list[Kind]]] = {
    **dict.fromkeys(("where_rows", "gather", "gather of columns", "scatter", "forbid_from"), _moved),
    **dict.fromkeys(("asarray", "from_logits", "upload", "apply_bitmask", "apply_token_lists"), _moved),
    **dict.fromkeys(("topk", "argmax"), _chosen),
    **dict.fromkeys(("masked_argmax", "masked_sample"), _considered),
    "categorical": _weighed,
    "log_softmax": _normalized,
    "cumsum": _summed,
    "exp": _exponents,
    "log": _positive,
    "scale_rows": lambda _: [(None, np.inf), (None, -np.inf), (None, 2.0), (-np.inf, 1.0)],
    "add_at": lambda dtype: [(None, one) for one in (-np.inf, LARGEST[dtype], -LARGEST[dtype], 2.0**-14)],
    "warp_masked": _warped,
}
"""By operation: the rows that it is called with, of a type."""


def _x(rows: Rows, width: int, seed: int) -> Host:
    x = oracles.logits(seed, len(rows), width)
    for line, ((rest, one), place) in zip(x, rows, strict=True):
        if rest is not None:
            line[:] = rest
        line[place] = one
    return x


def _scale(hosts: dict[str, Any], _: Rows) -> None:
    """Factors that float16 does not hold, beside numbers that it holds before and after."""
    for i, row in enumerate(hosts["rows"].tolist()):
        size, factor = ((2.0**12, 2.0**-30), (2.0**-12, 2.0**17), (1.0, 0.5))[i % 3]
        hosts["x"][row] *= np.float32(size)
        hosts["factors"][i] = factor


def _add(hosts: dict[str, Any], rows: Rows) -> None:
    ones = np.array([one for (_, one), _ in rows], dtype=np.float32)
    hosts["added_rows"] = np.arange(len(rows), dtype=np.int32)
    hosts["added_columns"] = np.array([place for _, place in rows], dtype=np.int32)
    hosts["values"] = np.where(np.isfinite(ones), -ones / 2, 1).astype(np.float32)


def _take(hosts: dict[str, Any], rows: Rows) -> None:
    for columns, row in zip(hosts["columns"], hosts["rows"].tolist(), strict=True):
        _, place = rows[row]
        if place not in columns.tolist():
            columns[1] = place


def _write(hosts: dict[str, Any], rows: Rows) -> None:
    _take(hosts, rows)
    hosts["table"][:, 1] = [rows[(row + 1) % len(rows)][0][1] for row in hosts["rows"].tolist()]


def _choose(hosts: dict[str, Any], rows: Rows) -> None:
    for i, row in enumerate(hosts["rows"].tolist()):
        (_, one), place = rows[(row + 1) % len(rows)]
        hosts["values"][i, place] = one
        hosts["condition"][i, place] = i % 3 > 0


def _mask(hosts: dict[str, Any], rows: Rows) -> None:
    """Allow the number that stands out in three rows of four."""
    for words, row in zip(hosts["bitmask"], hosts["rows"].tolist(), strict=True):
        _, place = rows[row]
        bit = np.uint32(1 << place % 32)
        word = words[place // 32 : place // 32 + 1].view(np.uint32)
        word[:] = word & ~bit if row % 4 == 3 else word | bit
    if "num_tokens" in hosts:
        hosts["num_tokens"] = hosts["x"].shape[1]
    if "temperatures" in hosts:
        hosts["temperatures"][:] = np.arange(len(rows)) % 2


def _warp(hosts: dict[str, Any], rows: Rows) -> None:
    _mask(hosts, rows)
    hosts["factors"][:] = np.resize(np.array([2.0**17, 2.0**-30, 0.5], dtype=np.float32), len(rows))


FITTED: Mapping[str, Callable[[dict[str, Any], Rows], None]] = {
    "scale_rows": _scale,
    "add_at": _add,
    "gather of columns": _take,
    "scatter": _write,
    "where_rows": _choose,
    **dict.fromkeys(("apply_bitmask", "masked_argmax", "masked_sample"), _mask),
    "warp_masked": _warp,
}
"""By operation: makes the other arguments fit the rows."""


def _expect_exp(given: Given, got: Sequence[Host], dtype: str, what: str) -> None:
    wanted = np.exp(given["x"].astype(np.float64))
    expect_close(got[0], wanted, what, CLOSE[dtype])
    small = np.abs(got[0] - wanted) <= 4 * CLOSE[dtype] * wanted + LEAST[dtype]
    first = np.flatnonzero(~small)[:1]
    expect(small.all(), f"{what}, of {given['x'].flat[first]}, is {got[0].flat[first]} instead of {wanted.flat[first]}")


def _expect_normalized(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    x = given["x"].astype(np.float64)
    shifted = x - x.max(axis=1, keepdims=True)
    wanted = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    most = np.abs(np.where(np.isfinite(x), x, 0)).max(axis=1)
    most[np.isneginf(x).sum(axis=1) == x.shape[1] - 1] = 0  # one finite value, which is exact
    for line, row, size in zip(got[0], wanted, most, strict=True):
        # a sum of one number after another loses half a bit of the largest with each
        expect_close(line, row, what, 1e-5 + 2e-7 * float(size) + len(row) * 2.0**-25)


def _expect_heaviest(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    expect_equal(got[0], given["x"].argmax(axis=1), f"the columns of {what}, of which one weighs more than all others,")


EXPECTED: Mapping[str, Callable[[Given, Sequence[Host], str, str], None]] = {
    "exp": _expect_exp,
    "log_softmax": _expect_normalized,
    "categorical": _expect_heaviest,
}
"""By operation: what takes the place of its own `expect`, which is not for so large or small numbers."""


def _operations(subject: DeviceSubject) -> list[str]:
    return [name for name in operations_of(subject.declared(subject.component)) if name in KINDS]


def _expect_extremes(subject: DeviceSubject, name: str, dtype: str, width: int, seed: int) -> None:
    operation, bench, kinds = OPERATIONS[name], subject.bench(), KINDS[name](dtype)
    if "x" in operation.stays and dtype == "bfloat16":  # which no array of the host is of
        return
    places = [0, width // 2 + 1, width - 1]
    times = 1 if KINDS[name] is _moved or width == WIDEST else 3
    rows: Rows = [(kind, places[(i + j + seed) % 3]) for i, kind in enumerate(kinds) for j in range(times)]
    hosts = operation.hosts(seed, Size(rows=len(rows), width=width, every=True))
    hosts["x"] = _x(rows, width, seed)
    if name in FITTED:
        FITTED[name](hosts, rows)
    if "x" in operation.stays:
        hosts["x"] = hosts["x"].astype(dtype)
    given = {key: operation.moved(bench, key, host, dtype) for key, host in hosts.items()}
    what = f"{name} of {dtype}[{len(rows)}, {width}]"
    before = bench.read(given["x"]).dtype if operation.keeps else None
    got = [bench.read(array) for array in operation.call(bench, given)]
    EXPECTED.get(name, operation.expect)(hosts, got, dtype, what)
    expect(before is None or got[0].dtype == before, f"{what} gives {got[0].dtype} instead of {before}")


@check("device", tier="extended", seconds=240)
def operations_at_extremes(subject: DeviceSubject) -> None:
    """Every operation takes the largest and smallest numbers of each type that it is for, be they where they may in
    rows of thousands of columns, factors of float32 that float16 does not hold among them."""
    for number, name in enumerate(_operations(subject)):
        for dtype in subject.floats:
            _expect_extremes(subject, name, dtype, WIDE, number)


@check("device", tier="stress", seconds=240)
def extremes_of_large_vocabularies(subject: DeviceSubject) -> None:
    """Every operation takes the largest and smallest numbers of each type that it is for in rows of 33,003 columns."""
    for number, name in enumerate(_operations(subject)):  # each of one type, as many libraries compile for each
        _expect_extremes(subject, name, subject.floats[number % len(subject.floats)], WIDEST, number)


def _irregular(dtype: str, size: Size, seed: int, *, positive: bool) -> Host:
    """Numbers with all digits of a type, most of them between -30 and 30, a fifth of them -inf unless `positive`."""
    rng = np.random.default_rng([seed, 3])
    x = (rng.normal(size=(size.rows, size.width)) * 8).astype(np.float32)
    if dtype == "float16":
        x = x.astype(np.float16).astype(np.float32)
    elif dtype == "bfloat16":
        x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if positive:
        x[x < 0] *= -1
        x[x < 0.125] = 0.125
        return x
    x[rng.random(x.shape) < 0.2] = -np.inf
    x[np.arange(size.rows), rng.integers(0, size.width, size.rows)] = 1.5
    return x


def _expect_added(given: Given, got: Sequence[Host], dtype: str, what: str) -> None:
    wanted = given["x"].astype(np.float64)
    np.add.at(wanted, (given["added_rows"], given["added_columns"]), given["values"])
    expect_close(got[0], wanted, what, CLOSE[dtype])


def _expect_sums(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    expect_close(got[0], np.cumsum(given["x"], axis=1, dtype=np.float64), what, 2e-5)


def _expect_warped(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    x = oracles.considered(given["x"], given["bitmask"].tolist(), given["rows"].tolist(), given["x"].shape[1])
    np.add.at(x, (given["added_rows"], given["added_columns"]), given["values"])
    expect_close(got[0], x * given["factors"][:, None], what)


IRREGULAR: Mapping[str, Callable[[Given, Sequence[Host], str, str], None]] = {
    "log_softmax": _expect_normalized,
    "add_at": _expect_added,
    "cumsum": _expect_sums,
    "warp_masked": _expect_warped,
}
"""By operation: what takes the place of its own `expect`, which is for numbers whose sums are exact."""


@check("device", tier="extended", seconds=120)
def operations_of_all_digits(subject: DeviceSubject) -> None:
    """Every operation takes numbers that need all digits of their type: those that it moves or chooses from keep their
    bits, and what it computes of them is as close as of round ones."""
    size = Size(rows=5, width=300, every=True)
    bench = subject.bench()
    for number, name in enumerate(_operations(subject)):
        operation = OPERATIONS[name]
        if name == "categorical":  # whose borders would be no numbers that each device tells apart
            continue
        for dtype in subject.floats:
            if "x" in operation.stays and dtype == "bfloat16":
                continue
            hosts = operation.hosts(number, size)
            hosts["x"] = _irregular(dtype, size, number, positive=name in ("log", "cumsum"))
            if name == "exp":
                hosts["x"] = np.minimum(hosts["x"], 8)  # float16 holds no exponential of more than 11
            if "x" in operation.stays:
                hosts["x"] = hosts["x"].astype(dtype)
            given = {key: operation.moved(bench, key, host, dtype) for key, host in hosts.items()}
            got = [bench.read(array) for array in operation.call(bench, given)]
            what = f"{name} of {dtype} numbers with all digits"
            IRREGULAR.get(name, operation.expect)(hosts, got, dtype, what)
