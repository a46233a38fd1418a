"""The operations of `ArrayOps` that change some values of an array and leave the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from guideway.api.steps import Array

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, Host, expect_bits, expect_equal
from guideway_conformance.device.calls import listed
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

# All values are small multiples of a quarter, and sums and products of a few of them: every library gets them exactly
# right, in float16 too.

ROWS = [3, 0, 2]
MANY = 131_072


def _x(rows: int = 4, width: int = 37) -> Host:
    return oracles.logits(40, rows, width)


@check("device")
def add_at_adds(subject: DeviceSubject) -> None:
    """`add_at` adds ``values[i]`` at ``x[rows[i], columns[i]]`` and changes nothing else."""
    rows, columns, values = [3, 0, 0, 2], [36, 1, 5, 0], [0.5, -2.0, 4.0, 1.25]
    _expect_added(subject.bench(), np.ones((4, 37), dtype=np.float32), rows, columns, values)
    _expect_added(subject.bench(), np.ones((4, 37), dtype=np.float32), [], [], [])


@check("device")
def add_at_repeated_pairs(subject: DeviceSubject) -> None:
    """`add_at` adds every value where a pair of row and column repeats."""
    rows, columns = [1, 0, 1, 1, 0, 1], [2, 2, 2, 3, 2, 2]
    _expect_added(subject.bench(), np.zeros((2, 5), dtype=np.float32), rows, columns, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


@check("device")
def add_at_minus_infinity(subject: DeviceSubject) -> None:
    """`add_at` leaves -inf at -inf, where it adds and elsewhere, whatever finite value of float32 it adds to x of
    whatever type, and an added -inf forbids."""
    x = np.array([[-np.inf, 1, -np.inf], [2, -np.inf, 3]], dtype=np.float32)
    _expect_added(subject.bench(), x, [0, 1, 1, 0], [0, 1, 2, 0], [8.0, 0.5, -np.inf, -8.0])
    bench = subject.bench()
    x = np.array([[-np.inf, 1, 2, -np.inf]], dtype=np.float32)
    for dtype in subject.floats:
        for value in (1e5, 3e38, float(np.finfo(np.float32).max)):  # more than float16 holds, the last also bfloat16
            values = bench.array([value, value / 2, 1.0], np.float32)
            columns = bench.ints([0, 3, 1])
            got = bench.ops.add_at(bench.floats(x, dtype), bench.ints([0, 0, 0]), columns, values)
            expect_equal(bench.read(got), [[-np.inf, 2, 2, -np.inf]], f"add_at of {value:g} where {dtype} holds -inf")


def _expect_added(bench: Bench, x: Host, rows: list[int], columns: list[int], values: list[float]) -> None:
    wanted = x.copy()
    for row, column, value in zip(rows, columns, values, strict=True):
        wanted[row, column] += np.float32(value)
    got = bench.ops.add_at(bench.floats(x), bench.ints(rows), bench.ints(columns), bench.array(values, np.float32))
    pairs = list(zip(rows, columns, strict=True))
    expect_equal(bench.read(got), wanted, f"add_at of {values} at {pairs}")


@check("device")
def scale_rows_scales(subject: DeviceSubject) -> None:
    """`scale_rows` multiplies row ``rows[i]`` by ``factors[i]``, whatever the order, and leaves the other rows."""
    x, factors = np.where(np.isneginf(_x()), 3.0, _x()).astype(np.float32), np.array([2.0, 0.5, 3.0], dtype=np.float32)
    wanted = x.copy()
    for row, factor in zip(ROWS, factors, strict=True):
        wanted[row] *= factor
    bench = subject.bench()
    got = bench.ops.scale_rows(bench.floats(x), bench.ints(ROWS), bench.array(factors))
    expect_equal(bench.read(got), wanted, f"scale_rows of rows {ROWS} by {factors.tolist()}")


@check("device")
def scale_rows_minus_infinity(subject: DeviceSubject) -> None:
    """`scale_rows` leaves -inf at -inf."""
    x = np.array([[-np.inf, 1.0], [2.0, -np.inf], [-np.inf, -np.inf]], dtype=np.float32)
    bench = subject.bench()
    got = bench.ops.scale_rows(bench.floats(x), bench.ints([2, 0]), bench.array([0.5, 4.0], np.float32))
    expect_equal(bench.read(got), [[-np.inf, 4], [2, -np.inf], [-np.inf, -np.inf]], "scale_rows of rows with -inf")


@check("device")
def where_rows_chooses(subject: DeviceSubject) -> None:
    """`where_rows` writes ``values[i]`` into row ``rows[i]`` where ``condition[i]`` holds, and nothing elsewhere."""
    shape = (3, 37)
    condition = np.random.default_rng(41).random(shape) < 0.5
    _expect_chosen(subject.bench(), condition, oracles.logits(42, *shape))


@check("device")
def where_rows_minus_infinity(subject: DeviceSubject) -> None:
    """`where_rows` lets nothing of what is not chosen through, be it -inf or NaN."""
    condition = np.random.default_rng(43).random((3, 37)) < 0.5
    values = np.where(condition, oracles.logits(44, 3, 37), np.float32(np.nan))
    _expect_chosen(subject.bench(), condition, values)


@check("device")
def where_rows_broadcasts(subject: DeviceSubject) -> None:
    """`where_rows` broadcasts condition and values to ``[len(rows), width]``."""
    bench, rng = subject.bench(), np.random.default_rng(45)
    for condition_shape, values_shape in (
        ((1, 37), (3, 37)),
        ((3, 1), (1, 37)),
        ((3, 37), (3, 1)),
        ((3, 1), (3, 1)),
        ((37,), (1, 1)),
        ((3, 37), (37,)),
        ((3, 37), ()),
    ):
        condition = rng.random(condition_shape) < 0.5
        _expect_chosen(bench, condition, np.asarray(rng.integers(-9, 9, values_shape), dtype=np.float32))
    x, line = oracles.logits(47, 3, 3), np.array([1, -np.inf, 2], dtype=np.float32)
    got = bench.ops.where_rows(bench.floats(x), bench.ints([2, 0, 1]), True, bench.array(line))
    expect_equal(bench.read(got), np.stack([line] * 3), "where_rows of 3 values in 3 rows of 3 columns")


@check("device")
def where_rows_plain_condition(subject: DeviceSubject) -> None:
    """`where_rows` takes a plain bool for a condition."""
    bench = subject.bench()
    for condition in (True, False):
        x, values = _x(), oracles.logits(46, 3, 37)
        wanted = x.copy()
        if condition:
            wanted[ROWS] = values
        got = bench.ops.where_rows(bench.floats(x), bench.ints(ROWS), condition, bench.array(values))
        expect_equal(bench.read(got), wanted, f"where_rows where {condition}")


@check("device", tier="extended")
def where_rows_plain_value(subject: DeviceSubject) -> None:
    """`where_rows` takes a plain number for values, which broadcasts, as a host's own filters give it."""
    bench = subject.bench()
    condition = np.random.default_rng(47).random((3, 37)) < 0.5
    for value in (0.0, -np.inf):
        x = _x()
        wanted = x.copy()
        wanted[ROWS] = np.where(condition, np.float32(value), x[ROWS])
        got = bench.ops.where_rows(bench.floats(x), bench.ints(ROWS), bench.array(condition), value)
        expect_equal(bench.read(got), wanted, f"where_rows with the value {value}")


def _expect_chosen(bench: Bench, condition: Host, values: Host) -> None:
    x = _x()
    wanted = x.copy()
    wanted[ROWS] = np.where(condition, values, x[ROWS])
    got = bench.ops.where_rows(bench.floats(x), bench.ints(ROWS), bench.array(condition), bench.array(values))
    what = f"where_rows of condition {list(condition.shape)} and values {list(values.shape)} in rows {ROWS}"
    expect_equal(bench.read(got), wanted, what)


@check("device")
def gather_rows(subject: DeviceSubject) -> None:
    """`gather` without columns takes whole rows, in the order asked for, a row also twice."""
    bench, x = subject.bench(), _x()
    for rows in ([2, 0, 3], [1, 1, 0], [0, 1, 2, 3], [3, 1, 0, 2], [2, 2, 0, 0], [0, 1, 2, 3, 0], []):
        got = bench.ops.gather(bench.floats(x), bench.ints(rows))
        expect_equal(bench.read(got), x[np.array(rows, dtype=np.int64)], f"gather of rows {rows}")


@check("device")
def gather_columns(subject: DeviceSubject) -> None:
    """`gather` with columns takes ``x[rows[i], columns[i, j]]``."""
    bench, x = subject.bench(), _x()
    rows, columns = np.array([2, 0, 2]), np.array([[36, 0], [5, 5], [1, 30]])
    wanted = [[x[row, column] for column in line] for row, line in zip(rows, columns, strict=True)]
    got = bench.ops.gather(bench.floats(x), bench.ints(rows), bench.ints(columns))
    expect_equal(bench.read(got), wanted, f"gather of columns {columns.tolist()} in rows {rows.tolist()}")


@check("device")
def gather_copies(subject: DeviceSubject) -> None:
    """`gather` returns a copy: a later change of it does not change its source, nor the other way round."""
    bench, x = subject.bench(), oracles.logits(48, 3, 4)
    every = [0, 1, 2]
    columns = np.tile(np.arange(4), (3, 1))
    sevens = bench.array(np.full((3, 4), 7), np.float32)
    for name, taken_columns in (("rows", None), ("columns", bench.ints(columns))):
        source = bench.floats(x)
        taken = bench.ops.gather(source, bench.ints(every), taken_columns)
        changed = bench.ops.where_rows(source, bench.ints(every), True, sevens)
        expect_equal(bench.read(taken), x, f"the {name} gathered before their source was overwritten")
        taken = bench.ops.gather(changed, bench.ints(every), taken_columns)
        bench.ops.forbid_from(taken, 0)
        expect_equal(bench.read(changed), np.full((3, 4), 7), f"the source of {name} that were overwritten")
    source = bench.floats(x)
    taken = bench.ops.gather(source, bench.ints([1]))
    bench.read(bench.ops.where_rows(source, bench.ints(every), True, sevens))
    expect_equal(bench.read(taken), x[1:2], "the one row gathered before its source was overwritten")
    takes: dict[str, Callable[[Any], Any]] = {"rows": lambda x: x[1:], "columns": lambda x: x[:, 1:3]}
    for name, take in takes.items():
        source = bench.floats(x)
        taken = bench.ops.gather(take(source), bench.ints([0, 1]))
        bench.read(bench.ops.where_rows(source, bench.ints(every), True, sevens))
        expect_equal(bench.read(taken), take(x)[:2], f"the rows gathered from some {name}, overwritten since,")


@check("device")
def scatter_writes(subject: DeviceSubject) -> None:
    """`scatter` writes ``values[i, j]`` at ``x[rows[i], columns[i, j]]`` and changes nothing else."""
    _expect_scattered(subject.bench(), [2, 0], [[36, 0, 7], [1, 2, 35]], [[1.5, -np.inf, 2.0], [0.25, 4.0, -3.0]])


@check("device")
def scatter_repeated_rows(subject: DeviceSubject) -> None:
    """`scatter` takes a row several times, as long as no pair of row and column repeats."""
    _expect_scattered(subject.bench(), [1, 3, 1], [[4, 5], [4, 5], [6, 0]], [[1, 2], [3, 4], [5, 6]])


def _expect_scattered(bench: Bench, rows: list[int], columns: list[list[int]], values: list[list[float]]) -> None:
    x = _x()
    wanted = x.copy()
    for row, line, some in zip(rows, columns, values, strict=True):
        for column, value in zip(line, some, strict=True):
            wanted[row, column] = value
    got = bench.ops.scatter(bench.floats(x), bench.ints(rows), bench.ints(columns), bench.array(values, np.float32))
    expect_equal(bench.read(got), wanted, f"scatter of {values} to columns {columns} of rows {rows}")


@check("device")
def forbid_from_forbids(subject: DeviceSubject) -> None:
    """`forbid_from` sets the columns from `column` on to -inf in every row, and the columns before keep their bits."""
    bench = subject.bench()
    for dtype in ("float32", "float16"):
        for column in (0, 1, 20, 36, 37):
            x = bench.floats(oracles.special("float32", 3, 37), dtype)
            wanted = bench.read(x)
            wanted[:, column:] = -np.inf
            expect_bits(bench.read(bench.ops.forbid_from(x, column)), wanted, f"forbid_from of column {column}")


@check("device")
def donates_or_keeps(subject: DeviceSubject) -> None:
    """Unless `donates` is True, the argument of an operation that may change it is afterwards what was returned, or as
    it was: a host has that to go back to. Only the logits given to `warp_masked` may hold anything."""
    bench = subject.bench()
    ops, donates, x = bench.ops, bench.backend.donates, _x()
    expect(isinstance(donates, bool), f"its `donates` is {donates!r}")
    if donates:
        return
    rows, columns = bench.ints(ROWS), bench.ints([[36, 0], [5, 7], [1, 30]])
    numbers, table = bench.array([2.0, 0.5, 4.0], np.float32), bench.array(oracles.logits(49, 3, 2))
    condition = bench.array(np.random.default_rng(39).random((3, 37)) < 0.5)
    words = bench.ints(oracles.bitmask(36, 3, 2))
    calls: dict[str, Callable[[Array], Array]] = {
        "add_at": lambda y: ops.add_at(y, rows, bench.ints([36, 0, 5]), numbers),
        "scale_rows": lambda y: ops.scale_rows(y, rows, numbers),
        "where_rows": lambda y: ops.where_rows(y, rows, condition, bench.array(oracles.logits(38, 3, 37))),
        "scatter": lambda y: ops.scatter(y, rows, columns, table),
        "forbid_from": lambda y: ops.forbid_from(y, 20),
        "apply_bitmask": lambda y: bench.backend.apply_bitmask(y, words, rows),
    }
    if "apply_token_lists" in subject.declared(subject.component):
        lists, chosen = listed(oracles.bitmask(36, 3, 2), 37), np.array(ROWS, dtype=np.int32)
        calls["apply_token_lists"] = lambda y: bench.backend.apply_token_lists(y, lists, chosen)
    for dtype in ("float32", "float16"):
        for name, call in calls.items():
            given = bench.floats(x, dtype)
            before = bench.read(given)
            returned = bench.read(call(given))
            try:
                after = bench.read(given)
            except Exception as error:
                lost = f"the argument of {name} is lost ({type(error).__name__}: {error}), and `donates` is False"
                raise AssertionError(lost) from None
            same = any(np.array_equal(after, kept) for kept in (before, returned))
            expect(same, f"the argument of {name} in {dtype} is neither what it was nor what was returned")


@check("device")
def what_raises_changes_nothing(subject: DeviceSubject) -> None:
    """An operation of `ops` that raises leaves its arguments as they were, as where there are fewer values than places;
    but for an index outside, whose effect is undefined."""
    bench, x = subject.bench(), _x()
    ops, rows, columns = bench.ops, bench.ints(ROWS), bench.ints([[36, 0], [5, 7], [1, 30]])
    two, table, wide = bench.array([2.0, 0.5], np.float32), bench.array([[1, 2], [3, 4]], np.float32), _x(2)
    calls: dict[str, Callable[[Array], Array]] = {
        "add_at": lambda y: ops.add_at(y, rows, bench.ints([36, 0, 5]), two),
        "scale_rows": lambda y: ops.scale_rows(y, rows, two),
        "where_rows": lambda y: ops.where_rows(y, rows, True, bench.array(wide)),
        "scatter": lambda y: ops.scatter(y, rows, columns, table),
    }
    for name, call in calls.items():
        given = bench.floats(x)
        try:
            call(given)
        except Exception:
            expect_equal(bench.read(given), x, f"the argument of {name}, which raised for want of values")


@check("device", tier="stress", seconds=60)
def changes_of_large_vocabularies(subject: DeviceSubject) -> None:
    """The operations that change or gather rows reach each part of 131,072 columns."""
    bench, x = subject.bench(), np.where(np.isneginf(_x(2, MANY)), 0.25, _x(2, MANY)).astype(np.float32)
    ops, places = bench.ops, np.array([0, 4_095, 8_192, 32_767, 32_768, 65_535, 65_537, 100_001, MANY - 1])
    rows, columns = np.arange(len(places)) % 2, bench.ints(np.stack([places, places[::-1]]))
    values = np.arange(1.0, 1.0 + len(places), dtype=np.float32)
    table, both = np.stack([values, -values]), bench.ints([1, 0])
    added, scaled, written = x.copy(), x * np.array([[2.0], [0.5]], np.float32), x.copy()
    added[rows, places] += values
    written[[[1], [0]], [places, places[::-1]]] = table
    condition = np.random.default_rng(38).random((2, MANY)) < 0.5
    chosen = x.copy()
    chosen[[1, 0]] = np.where(condition, x, x[[1, 0]])
    for name, got, wanted in (
        ("add_at", ops.add_at(bench.floats(x), bench.ints(rows), bench.ints(places), bench.array(values)), added),
        ("scale_rows", ops.scale_rows(bench.floats(x), both, bench.array([0.5, 2.0], np.float32)), scaled),
        ("where_rows", ops.where_rows(bench.floats(x), both, bench.array(condition), bench.array(x)), chosen),
        ("gather", ops.gather(bench.floats(x), both), x[[1, 0]]),
        ("gather of columns", ops.gather(bench.floats(x), both, columns), x[[[1], [0]], [places, places[::-1]]]),
        ("scatter", ops.scatter(bench.floats(x), both, columns, bench.array(table)), written),
    ):
        expect_equal(bench.read(got), wanted, f"{name} of {MANY} columns")
    for column in (4_097, 70_001, MANY - 1):
        forbidden = x.copy()
        forbidden[:, column:] = -np.inf
        got = bench.read(ops.forbid_from(bench.floats(x), column))
        expect_equal(got, forbidden, f"forbid_from of column {column} of {MANY}")


@check("device", tier="extended")
def changes_of_no_rows(subject: DeviceSubject) -> None:
    """The operations that change rows change nothing where they are given none, as for an empty part of a payload."""
    bench, x = subject.bench(), _x(3, 5)
    ops, rows, table = bench.ops, bench.ints([]), bench.array(np.empty((0, 5)), np.float32)
    y = ops.scale_rows(bench.floats(x), rows, bench.array([], np.float32))
    y = ops.where_rows(y, rows, bench.array(np.empty((0, 5)), np.bool_), table)
    y = ops.where_rows(y, rows, True, table)
    y = ops.scatter(y, rows, bench.ints(np.empty((0, 5))), table)
    y = ops.add_at(y, rows, rows, bench.array([], np.float32))
    expect_equal(bench.read(y), x, "an array none of whose rows was to be changed")
    taken = bench.read(ops.gather(y, rows, bench.ints(np.empty((0, 2)))))
    expect(taken.shape == (0, 2), f"gather of two columns of no rows has shape {taken.shape}")


@check("device", tier="extended")
def changes_of_integers_and_bools(subject: DeviceSubject) -> None:
    """`gather`, `scatter` and `where_rows` take arrays of integers and bools too, and keep their dtype and all of their
    bits."""
    bench = subject.bench()
    ops, rows, columns = bench.ops, bench.ints([2, 0]), bench.ints([[1, 0], [2, 1]])
    x = np.array([[5, 2**30 + 1, 0], [2**24 + 1, 0, -(2**30) - 3], [0, 2**30 + 3, 9]])
    condition = np.array([[True, False, True], [False, True, True]])
    for dtype in (np.int32, np.int64, np.bool_):
        host = x.astype(dtype)
        chosen, written = host.copy(), host.copy()
        chosen[[2, 0]] = np.where(condition, host[[1, 1]], host[[2, 0]])
        written[[[2], [0]], [[1, 0], [2, 1]]] = host[:2, :2]
        values, table = bench.array(host[[1, 1]]), bench.array(host[:2, :2])
        for name, got, wanted in (
            ("gather", ops.gather(bench.array(host), rows), host[[2, 0]]),
            ("gather of columns", ops.gather(bench.array(host), rows, columns), host[[[2], [0]], [[1, 0], [2, 1]]]),
            ("where_rows", ops.where_rows(bench.array(host), rows, bench.array(condition), values), chosen),
            ("scatter", ops.scatter(bench.array(host), rows, columns, table), written),
        ):
            expect_bits(bench.read(got), wanted, f"{name} of {host.dtype}")


@check("device", tier="extended")
def float16_changes(subject: DeviceSubject) -> None:
    """The operations that change an array keep its dtype, and take values and factors of float32 for one of float16."""
    _expect_kept(subject.bench(), "float16")


@check("device", tier="extended", trait=DeviceSubject.bfloat16)
def bfloat16_changes(subject: DeviceSubject) -> None:
    """The operations that change an array keep its dtype, and take values and factors of float32 for one of
    bfloat16."""
    _expect_kept(subject.bench(), "bfloat16")


def _expect_kept(bench: Bench, dtype: str) -> None:
    ops, rows, columns = bench.ops, bench.ints([1, 0]), bench.ints([[2, 0], [1, 2]])
    numbers = bench.array([2.0, 0.5], np.float32)
    table = bench.array([[2.0, -np.inf], [0.5, 1.0]], np.float32)
    wide = bench.array([[8.0, -np.inf, 6.0]], np.float32)
    x = np.array([[1.0, -np.inf, 3.0], [-4.0, 5.0, -np.inf]], dtype=np.float32)
    calls: dict[str, tuple[Callable[[Array], Array], object]] = {
        "add_at": (
            lambda y: ops.add_at(y, rows, bench.ints([0, 2]), numbers),
            [[1, -np.inf, 3.5], [-2, 5, -np.inf]],
        ),
        "scale_rows": (lambda y: ops.scale_rows(y, rows, numbers), [[0.5, -np.inf, 1.5], [-8, 10, -np.inf]]),
        "where_rows": (lambda y: ops.where_rows(y, rows, True, wide), [[8, -np.inf, 6], [8, -np.inf, 6]]),
        "gather": (lambda y: ops.gather(y, rows), [[-4, 5, -np.inf], [1, -np.inf, 3]]),
        "scatter": (lambda y: ops.scatter(y, rows, columns, table), [[1, 0.5, 1], [-np.inf, 5, 2]]),
        "forbid_from": (lambda y: ops.forbid_from(y, 1), [[1, -np.inf, -np.inf], [-4, -np.inf, -np.inf]]),
    }
    for name, (call, wanted) in calls.items():
        given = bench.floats(x, dtype)
        before = bench.read(given).dtype
        got = bench.read(call(given))
        expect(got.dtype == before, f"{name} made {got.dtype} of {before}")
        expect_equal(got, np.array(wanted, dtype=np.float32), f"{name} of {dtype}")


@check("device", tier="extended")
def changes_take_either_integer(subject: DeviceSubject) -> None:
    """Rows and columns are integers: int32 and int64 mean the same."""
    bench, x = subject.bench(), _x(3, 5)
    ops = bench.ops
    for dtype in (np.int32, np.int64):
        rows, columns = bench.array([2, 1], dtype), bench.array([[4, 1], [0, 3]], dtype)
        got = bench.read(ops.gather(bench.floats(x), rows, columns))
        expect_equal(got, [[x[2, 4], x[2, 1]], [x[1, 0], x[1, 3]]], f"gather by {dtype.__name__}")
        y = ops.scatter(bench.floats(np.zeros((3, 5))), rows, columns, bench.array([[1, 2], [3, 4]], np.float32))
        y = ops.add_at(y, rows, bench.array([4, 0], dtype), bench.array([8, 8], np.float32))
        y = ops.scale_rows(y, rows, bench.array([2, 4], np.float32))
        y = ops.where_rows(y, bench.array([0], dtype), True, bench.array([[5]], np.float32))
        expect_equal(bench.read(y), [[5] * 5, [44, 0, 0, 16, 0], [0, 4, 0, 0, 18]], f"changes by {dtype.__name__}")


@check("device", tier="extended")
def indices_are_only_read(subject: DeviceSubject) -> None:
    """An operation changes neither rows, columns and values nor factors and conditions, which callers use again."""
    bench = subject.bench()
    ops = bench.ops
    hosts = {
        "rows": np.array([2, 0], dtype=np.int32),
        "columns": np.array([1, 4], dtype=np.int32),
        "table": np.array([[1, 3], [4, 0]], dtype=np.int32),
        "values": np.array([2.0, 0.5], dtype=np.float32),
        "written": np.array([[2.0, -np.inf], [0.5, 1.0]], dtype=np.float32),
        "condition": np.array([[True], [False]]),
        "rest": np.array([[1.0] * 5, [-np.inf] * 5], dtype=np.float32),
    }
    given = {name: bench.array(host) for name, host in hosts.items()}
    rows = given["rows"]
    for _ in range(2):
        x = bench.floats(_x(3, 5))
        x = ops.add_at(x, rows, given["columns"], given["values"])
        x = ops.scale_rows(x, rows, given["values"])
        x = ops.scatter(x, rows, given["table"], given["written"])
        x = ops.where_rows(x, rows, given["condition"], given["rest"])
        ops.gather(x, rows, given["table"])
        for name, host in hosts.items():
            expect_equal(bench.read(given[name]), host, f"{name} after they were used")
