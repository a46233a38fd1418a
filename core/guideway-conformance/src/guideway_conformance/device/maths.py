"""The operations of `ArrayOps` that compute something from all of a row, or of any array."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from guideway.api.steps import Array

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, Host, expect_close, expect_equal
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MANY = 131_072


@check("device")
def arithmetic(subject: DeviceSubject) -> None:
    """The operators ``+ - * /``, comparisons and ``.sum(axis=...)`` mean on its arrays what they mean in NumPy."""
    bench = subject.bench()
    a, b = np.array([[1.0, -2.0, 0.5], [4.0, 8.0, -1.5]], np.float32), np.array([[2.0], [-4.0]], np.float32)
    x, y = bench.array(a), bench.array(b)
    for name, got, wanted in (
        ("x + y", x + y, a + b),
        ("x - y", x - y, a - b),
        ("x * y", x * y, a * b),
        ("x / y", x / y, a / b),
        ("x - 1", x - 1, a - 1),
        ("0 - x", 0 - x, 0 - a),
        ("1 / x", 1 / x, 1 / a),
        ("x < y", x < y, a < b),
        ("x <= -2", x <= -2, a <= -2),
        ("x > y", x > y, a > b),
        ("x >= 1", x >= 1, a >= 1),
        ("x == 4", x == 4, a == 4),
        ("x != 4", x != 4, a != 4),
        ("x.sum(axis=0)", x.sum(axis=0), a.sum(axis=0)),
        ("x.sum(axis=1)", x.sum(axis=1), a.sum(axis=1)),
        ("(x > y).sum(axis=1)", (x > y).sum(axis=1), (a > b).sum(axis=1)),
    ):
        expect_close(bench.read(got), wanted, name)


@check("device", tier="extended")
def mixed_precision(subject: DeviceSubject) -> None:
    """An array of float16 and one of float32 add up in float32, as in NumPy: so hosts widen logits."""
    bench = subject.bench()
    tiny = np.full((1, 1), 2.0**-20, dtype=np.float32)
    got = bench.read(bench.array([[1.0, 2.0]], np.float16) + bench.array(tiny))
    expect_equal(got, [[1 + 2.0**-20, 2 + 2.0**-20]], "the sum of float16 and float32")


@check("device")
def cumsum_sums(subject: DeviceSubject) -> None:
    """`cumsum` gives running sums along each row."""
    bench = subject.bench()
    x = np.where(np.isneginf(oracles.logits(50, 3, 70)), 0.25, oracles.logits(50, 3, 70))
    wanted = [[math.fsum(row[: i + 1]) for i in range(len(row))] for row in x.tolist()]
    expect_equal(bench.read(bench.ops.cumsum(bench.floats(x))), wanted, "cumsum of multiples of a quarter")


@check("device")
def cumsum_precision(subject: DeviceSubject) -> None:
    """`cumsum` adds up in at least float32, also numbers of float16."""
    bench = subject.bench()
    for dtype in ("float32", "float16"):
        got = bench.read(bench.ops.cumsum(bench.floats(np.ones((2, 5000)), dtype)))
        # float32 holds integers up to 2**24 exactly, in whatever order it adds them
        expect_equal(got, np.tile(np.arange(1.0, 5001.0), (2, 1)), f"cumsum of 5000 ones of {dtype}")


@check("device", tier="extended", trait=DeviceSubject.bfloat16)
def bfloat16_precision(subject: DeviceSubject) -> None:
    """`cumsum` and `log_softmax` compute in at least float32, also from numbers of bfloat16."""
    bench = subject.bench()
    got = bench.read(bench.ops.cumsum(bench.floats(np.ones((1, 1000)), "bfloat16")))
    expect_equal(got, [np.arange(1.0, 1001.0)], "cumsum of 1000 ones of bfloat16")
    _expect_log_softmax(bench, oracles.logits(51, 2, 1000), "bfloat16")


@check("device")
def exp_elementwise(subject: DeviceSubject) -> None:
    """`exp` is elementwise, for arrays of any shape; of -inf it is 0."""
    bench = subject.bench()
    for x in _shapes([-np.inf, -1.0, 0.0, 3.0, -80.0, 10.5]):
        wanted = np.array([math.exp(value) for value in x.flat]).reshape(x.shape)
        expect_close(bench.read(bench.ops.exp(bench.array(x))), wanted, f"exp of {x.tolist()}")
    small = bench.read(bench.ops.exp(bench.array([-20.0, -np.inf], np.float32)))
    expect(abs(small[0] / math.exp(-20) - 1) < 1e-4, f"exp(-20) is {small[0]}")
    expect(small[1] == 0, f"exp(-inf) is {small[1]}")


@check("device")
def log_elementwise(subject: DeviceSubject) -> None:
    """`log` is the natural logarithm, elementwise, for arrays of any shape."""
    bench = subject.bench()
    for x in _shapes([1.0, 0.5, 2.0, 1e-20, 3.25, 1e20]):
        wanted = np.array([math.log(value) for value in x.flat]).reshape(x.shape)
        expect_close(bench.read(bench.ops.log(bench.array(x))), wanted, f"log of {x.tolist()}")


@check("device")
def log_of_zero(subject: DeviceSubject) -> None:
    """`log` of 0 is -inf, without a warning."""
    bench = subject.bench()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = bench.read(bench.ops.log(bench.array([[0.0, 1.0]], np.float32)))
    expect_equal(got, [[-np.inf, 0.0]], "log of 0 and 1")
    warned = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
    expect(not warned, f"log of 0 warns: {warned[:1]}")


def _shapes(values: list[float]) -> list[Host]:
    x = np.array(values, dtype=np.float32)
    return [x, x.reshape(2, 3), x.reshape(1, 3, 2), x[:0], x[2].reshape(())]


@check("device")
def log_softmax_of_rows(subject: DeviceSubject) -> None:
    """`log_softmax` is ``x - log(sum(exp(x)))`` of each row, and -inf stays -inf."""
    bench = subject.bench()
    for seed, (rows, width) in enumerate(((1, 1), (3, 33), (2, 1000))):
        _expect_log_softmax(bench, oracles.logits(52 + seed, rows, width), "float32")


@check("device")
def log_softmax_of_large_logits(subject: DeviceSubject) -> None:
    """`log_softmax` neither overflows nor vanishes where a whole row is large or small, such as logits over a small
    temperature: its probabilities still sum to 1."""
    bench = subject.bench()
    for offset in (1000.0, -1000.0):
        _expect_log_softmax(bench, oracles.logits(55, 2, 40) + np.float32(offset), "float32")
    for size in (1e6, -1e6, 1e8, -1e8):
        got = bench.read(bench.ops.log_softmax(bench.floats(np.full((2, 1000), size))))
        expect_close(got, np.full((2, 1000), -math.log(1000)), f"log_softmax of 1000 logits of {size:g}", 1e-3)


@check("device")
def log_softmax_of_one_token(subject: DeviceSubject) -> None:
    """`log_softmax` of a row of -inf and one finite value is exactly 0 there and -inf elsewhere."""
    x = np.full((4, 100), -np.inf, dtype=np.float32)
    x[[0, 1, 2, 3], [7, 99, 0, 50]] = [1e4, -1e4, 0.1, -3.7]
    bench = subject.bench()
    wanted = np.where(np.isfinite(x), 0, -np.inf)
    expect_equal(bench.read(bench.ops.log_softmax(bench.floats(x))), wanted, "log_softmax of a single allowed token")


@check("device")
def log_softmax_precision(subject: DeviceSubject) -> None:
    """`log_softmax` computes in at least float32, also from numbers of float16."""
    bench = subject.bench()
    _expect_log_softmax(bench, oracles.logits(56, 2, 1000), "float16")
    rng = np.random.default_rng(72)
    for dtype in ("float16", "float32"):  # numbers whose differences need more digits or range than float16 has
        for x in (rng.normal(size=(3, 1000)) * 8, [[10.0, 0.003, 0.1]], [[100.0, 1.01, 99.97]], [[6e4, -6e4, 0.0]]):
            held = np.array(x, dtype=dtype).astype(np.float32)
            _expect_log_softmax(bench, held, dtype)
    # more than float16 can sum
    _expect_log_softmax(bench, np.zeros((1, 70_000), dtype=np.float32), "float16")


def _expect_log_softmax(bench: Bench, x: Host, dtype: str) -> None:
    wanted = np.array([oracles.log_softmax(row) for row in x.tolist()])
    # Subtracting a logarithm from the values themselves rounds as coarsely as those are; that is float32 too.
    most = float(np.abs(x[np.isfinite(x)]).max())
    got = bench.read(bench.ops.log_softmax(bench.floats(x, dtype)))
    expect_close(got, wanted, f"log_softmax of {list(x.shape)} {dtype} around {most:g}", 1e-5 + 2e-7 * most)


@check("device")
def topk_values(subject: DeviceSubject) -> None:
    """`topk` gives the k largest values of each row in descending order, for every k up to the width."""
    bench = subject.bench()
    for dtype in ("float32", "float16"):
        x = oracles.logits(57, 3, 50)
        for k in (1, 5, 49, 50):
            values, _ = bench.ops.topk(bench.floats(x, dtype), k)
            expect_equal(bench.read(values), -np.sort(-x, axis=1)[:, :k], f"the values of topk of k = {k} in {dtype}")
    x = oracles.logits(50, 2, 1000)
    for k in (20, 65, 257, 999, 1000):
        values, _ = bench.ops.topk(bench.floats(x), k)
        expect_equal(bench.read(values), -np.sort(-x, axis=1)[:, :k], f"the values of topk of k = {k} of 1000 columns")


@check("device")
def topk_columns(subject: DeviceSubject) -> None:
    """`topk` gives the columns its values are from, no column twice."""
    bench = subject.bench()
    for width, k in ((50, 1), (50, 5), (50, 50), (1000, 300), (1000, 1000)):
        x = oracles.logits(58, 3, width)
        values, columns = (bench.read(array) for array in bench.ops.topk(bench.floats(x), k))
        expect(columns.dtype.kind in "iu", f"the columns of topk are {columns.dtype}")
        expect(columns.shape == (3, k), f"the columns of topk of k = {k} have shape {columns.shape}")
        for row, line in enumerate(columns.tolist()):
            expect(len(set(line)) == k, f"of k = {k} columns of topk only {len(set(line))} differ")
            expect(min(line) >= 0 and max(line) < width, f"a column of topk is none of the array's {width}")
            expect_equal(values[row], x[row, line], f"the values of topk beside those of its columns in row {row}")


@check("device")
def argmax_of_rows(subject: DeviceSubject) -> None:
    """`argmax` gives the column of each row's largest value."""
    bench = subject.bench()
    for dtype in ("float32", "float16"):
        # -inf, and finite values of which no two are equal and the smallest is the largest in magnitude
        x = np.stack([np.random.default_rng(seed).permutation(300) for seed in range(4)]).astype(np.float32) - 200
        x[x < -150] = -np.inf
        wanted = [row.index(max(row)) for row in x.tolist()]
        _expect_columns(bench.read(bench.ops.argmax(bench.floats(x, dtype))), wanted, f"argmax of {dtype}")


@check("device")
def argmax_of_equals(subject: DeviceSubject) -> None:
    """`argmax` gives the first column where several hold the largest value."""
    bench = subject.bench()
    x = np.zeros((5, 1000), dtype=np.float32)
    x[1, [999, 3, 500]], x[2, [700, 701]], x[3, 1:] = 2.5, 1.0, 4.0
    x[4] = -np.inf
    few = np.random.default_rng(69).integers(0, 3, (200, 16))
    for dtype in ("float32", "float16"):
        _expect_columns(bench.read(bench.ops.argmax(bench.floats(x, dtype))), [0, 3, 700, 1, 0], f"argmax of {dtype}")
        for width in (1, 2, 15, 16):
            some = few[:, :width]
            got = bench.read(bench.ops.argmax(bench.floats(some, dtype)))
            _expect_columns(got, some.argmax(axis=1).tolist(), f"argmax of 0, 1 and 2 in rows of {width} {dtype}")
        for width in (32, 33, 128, 4096, 10_000):
            wide = np.tile(few.reshape(-1), (3, 4))[:, :width] * np.array([[0], [1], [1]])
            wide[2, [width // 2 + 3, width - 1]] = 9
            got = bench.read(bench.ops.argmax(bench.floats(wide, dtype)))
            wanted = [0, int(wide[1].argmax()), width // 2 + 3]
            _expect_columns(got, wanted, f"argmax of few different values in {width} columns of {dtype}")


@check("device", tier="stress", seconds=60)
def computing_of_large_vocabularies(subject: DeviceSubject) -> None:
    """`cumsum`, `exp`, `log`, `unpack_bitmask` and `argmax` treat each of 131,072 columns as they do the first, and of
    equals far apart `argmax` finds the first."""
    bench = subject.bench()
    x = (np.random.default_rng(70).integers(0, 9, (2, MANY)) / 4).astype(np.float32)
    sums = np.cumsum(x, axis=1, dtype=np.float64)
    # the sums are multiples of a quarter below 2**18: float32 holds them, in whatever order they are added
    expect_equal(bench.read(bench.ops.cumsum(bench.floats(x))), sums, f"cumsum of {MANY} columns")
    expect_close(bench.read(bench.ops.exp(bench.array(x))), np.exp(x.astype(np.float64)), f"exp of {MANY} columns")
    got = bench.read(bench.ops.log(bench.array(x + 1)))
    expect_close(got, np.log1p(x.astype(np.float64)), f"log of {MANY} columns")
    words = oracles.bitmask(71, 2, MANY // 32)
    wanted = ~oracles.forbidden(words.tolist(), range(2), (2, MANY - 5))
    got = bench.read(bench.ops.unpack_bitmask(bench.ints(words), MANY - 5))
    expect_equal(got, wanted, f"unpack_bitmask to {MANY - 5} tokens")
    places = [(5, 9_000), (4_095, 4_096), (16_384, 131_071), (65_535, 65_537), (70_000, 100_000)]
    ties = np.zeros((len(places), MANY), dtype=np.float32)
    for row, columns in enumerate(places):
        ties[row, list(columns)] = 3.0
    first = [columns[0] for columns in places]
    for dtype in ("float32", "float16"):
        got = bench.read(bench.ops.argmax(bench.floats(ties, dtype)))
        _expect_columns(got, first, f"argmax of {MANY} columns of {dtype}, two of them equal,")


@check("device")
def choosing_only_reads(subject: DeviceSubject) -> None:
    """`argmax`, `topk` and `categorical` leave the array they choose from as it is."""
    bench, x = subject.bench(), oracles.logits(59, 3, 40)
    array = bench.floats(x)
    for name in ("argmax", "topk", "categorical"):
        if name == "argmax":
            bench.ops.argmax(array)
        elif name == "topk":
            bench.ops.topk(array, 5)
        else:
            bench.ops.categorical(array, bench.array([0.25, 0.5, 0.75], np.float32))
        expect_equal(bench.read(array), x, f"the array after {name}")


@check("device")
def computing_only_reads(subject: DeviceSubject) -> None:
    """`cumsum`, `exp`, `log`, `log_softmax`, `gather`, `unpack_bitmask` and `uniform` leave their arguments as they
    are."""
    bench = subject.bench()
    for name, call in _calls(bench).items():
        hosts = _arguments(name, 67)
        given = [bench.array(host) for host in hosts]
        call(given)
        for array, host in zip(given, hosts, strict=True):
            expect_equal(bench.read(array), host, f"an argument of {name} after the call")


@check("device")
def results_stay(subject: DeviceSubject) -> None:
    """The result of an operation does not change when the operation is called again, nor when the array it was computed
    from is changed."""
    bench = subject.bench()
    for name, call in _calls(bench).items():
        given = [bench.array(host) for host in _arguments(name, 67)]
        first = call(given)
        kept = bench.read(first)
        second = bench.read(call([bench.array(host) for host in _arguments(name, 68)]))
        expect(not np.array_equal(kept, second), f"{name} of two different arrays gives the same twice")
        expect_equal(bench.read(first), kept, f"what {name} returned before it was called again")
        if name not in OF_INTEGERS:
            width = _arguments(name, 67)[0].shape[1]
            sevens = bench.array(np.full((1, width), 7), np.float32)
            bench.read(bench.ops.where_rows(given[0], bench.ints([0, 1, 2]), True, sevens))
            expect_equal(bench.read(first), kept, f"what {name} returned before its argument was changed")


OF_INTEGERS = ("uniform", "unpack_bitmask")


def _calls(bench: Bench) -> dict[str, Callable[[list[Array]], Array]]:
    """Call the operations that do not change their arguments with each of the arrays that `_arguments` gives for it."""
    ops, one = bench.ops, bench.ints([1])
    uniforms = bench.array([0.25, 0.5, 0.75], np.float32)
    return {
        "cumsum": lambda given: ops.cumsum(given[0]),
        "exp": lambda given: ops.exp(given[0]),
        "log": lambda given: ops.log(given[0]),
        "log_softmax": lambda given: ops.log_softmax(given[0]),
        "topk": lambda given: ops.topk(given[0], 40)[0],
        "the columns of topk": lambda given: ops.topk(given[0], 40)[1],
        "argmax": lambda given: ops.argmax(given[0]),
        "categorical": lambda given: ops.categorical(given[0], uniforms),
        "gather": lambda given: ops.gather(given[0], one),
        "unpack_bitmask": lambda given: ops.unpack_bitmask(given[0], 60),
        "uniform": lambda given: ops.uniform(given[0], given[1], given[2], 4, 6),
    }


def _arguments(name: str, seed: int) -> list[Host]:
    if name == "uniform":
        return [np.array([seed, 2**40]), np.array([1, seed], dtype=np.int32), np.array([3, 4], dtype=np.int32)]
    if name == "unpack_bitmask":
        return [np.random.default_rng(seed).integers(-(2**31), 2**31, (3, 2)).astype(np.int32)]
    return [np.random.default_rng(seed).permutation(120).reshape(3, 40).astype(np.float32) / 8 + 1]


@check("device")
def unpack_bitmask_bits(subject: DeviceSubject) -> None:
    """`unpack_bitmask` gives ``bool[rows, width]``: whether each token's bit is set."""
    bench = subject.bench()
    for seed, width in enumerate((1, 31, 32, 33, 100)):
        words = oracles.bitmask(60 + seed, 4, -(-width // 32))
        got = bench.read(bench.ops.unpack_bitmask(bench.ints(words), width))
        expect(got.dtype == np.bool_, f"unpack_bitmask gives {got.dtype}")
        wanted = ~oracles.forbidden(words.tolist(), range(4), (4, width))
        expect_equal(got, wanted, f"unpack_bitmask of {words.shape[1]} words to {width} tokens")


@check("device")
def unpack_bitmask_widths(subject: DeviceSubject) -> None:
    """`unpack_bitmask` forbids tokens past the last word and ignores bits past the width."""
    bench = subject.bench()
    words = oracles.bitmask(66, 3, 2)
    words[:, -1] = -1
    for width in (200, 96, 65, 40, 20):
        got = bench.read(bench.ops.unpack_bitmask(bench.ints(words), width))
        wanted = ~oracles.forbidden(words.tolist(), range(3), (3, width))
        expect_equal(got, wanted, f"unpack_bitmask of 2 words to {width} tokens")


def _expect_columns(got: Host, wanted: list[int], what: str) -> None:
    expect(got.dtype.kind in "iu", f"{what} gives {got.dtype} instead of integers")
    expect(got.shape == (len(wanted),), f"{what} has shape {got.shape} instead of {(len(wanted),)}")
    expect(got.tolist() == wanted, f"{what} gives columns {got.tolist()} instead of {wanted}")
