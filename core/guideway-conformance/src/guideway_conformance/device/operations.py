"""All operations of a device, with sample arguments and what each has to give for them.

Checks that ask the same of every operation go through `OPERATIONS`: who adds one to the contract lists it here, and all
of them ask it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from guideway.api import Draw, Payload
from guideway.api.bitmask import TokenLists
from guideway.api.device import FUSED_OPERATIONS
from guideway.api.steps import Array

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, Host, expect_bits, expect_close, expect_equal
from guideway_conformance.device.calls import listed
from guideway_conformance.subjects import expect

__all__ = ["CLOSE", "INDICES", "OPERATIONS", "Given", "Operation", "Size", "operations_of"]

Given: TypeAlias = Mapping[str, Any]
"""Arguments by name: on the host, or moved to the device."""

INDICES = ("rows", "columns", "added_rows", "added_columns")
"""Arguments that may be int32 or int64."""
CLOSE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""The most that a function of numbers of a type, which need not compute in a wider one, may be off."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the array that an operation is called with."""

    rows: int = 4
    width: int = 37
    every: bool = False
    """True if all rows are changed or read: else it is all but one, where there are several."""

    @property
    def some(self) -> int:
        """The number of rows that are changed or read."""
        return self.rows if self.every else max(1, self.rows - 1)


Drawn: TypeAlias = "Callable[[np.random.Generator, Size], Any]"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: what it takes, how it is called, what it gives."""

    arguments: Mapping[str, Drawn]
    """By name, in order: draws a sample on the host. Each fits whatever is drawn for the others of the same size."""
    call: Callable[[Bench, Given], Sequence[Array]]
    expect: Callable[[Given, Sequence[Host], str, str], None]
    """Fails if the results are not what the arguments (on the host) ask for. Its last arguments are the type of x and
    what to call the results."""
    changes: bool = False
    """True if its argument x is dead after the call."""
    keeps: bool = False
    """True if its result is of the type of x."""
    stays: tuple[str, ...] = ()
    """The arguments that remain on the host."""

    def hosts(self, seed: int, size: Size, changed: str = "") -> dict[str, Any]:
        """Samples: the same for the same seed, but for the argument `changed`, which is another one."""
        found = {}
        for number, (name, drawn) in enumerate(self.arguments.items()):
            found[name] = drawn(np.random.default_rng([seed, number]), size)
            if name == changed:
                found[name] = _other(drawn, found[name], size)
        return found

    def moved(self, bench: Bench, name: str, host: Any, dtype: str = "float32") -> Any:
        """The argument on the device; x in `dtype`."""
        if name in self.stays or not isinstance(host, np.ndarray):
            return host
        return bench.floats(host, dtype) if name == "x" else bench.array(host)


def _other(drawn: Drawn, host: Any, size: Size) -> Any:
    for seed in range(100):
        found = drawn(np.random.default_rng([seed, 99]), size)
        if not _same(found, host):
            return found
    return host  # of a size so small that there is no other


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, TokenLists):
        return all(_same(getattr(one, name), getattr(other, name)) for name in ("offsets", "token_ids", "allow"))
    return bool(np.array_equal(one, other))


def _x(rng: np.random.Generator, size: Size) -> Host:
    return oracles.logits(int(rng.integers(1 << 30)), size.rows, size.width)


def _finite(rng: np.random.Generator, size: Size) -> Host:
    return (rng.integers(1, 25, (size.rows, size.width)) / 4).astype(np.float32)


def _rows(rng: np.random.Generator, size: Size) -> Host:
    return rng.permutation(size.rows)[: size.some].astype(np.int32)


def _padded_rows(rng: np.random.Generator, size: Size) -> Host:
    """Rows with an entry of padding among them, as many whatever is drawn."""
    return np.insert(_rows(rng, size), int(rng.integers(size.some + 1)), -1).astype(np.int32)


def _each_row(kind: type, *choices: float) -> Drawn:
    return lambda rng, size: rng.choice(np.array(choices, dtype=kind), size.rows)


def _each_of_some(*choices: float) -> Drawn:
    return lambda rng, size: rng.choice(np.array(choices, dtype=np.float32), size.some)


def _columns(rng: np.random.Generator, size: Size) -> Host:
    return np.stack([rng.permutation(size.width)[:3] for _ in range(size.some)]).astype(np.int32)


def _table(rng: np.random.Generator, size: Size) -> Host:
    return (rng.integers(-12, 13, (size.some, min(3, size.width))) / 4).astype(np.float32)


def _words(rng: np.random.Generator, size: Size) -> Host:
    """Masks that each allow a token, for as many rows as `_padded_rows` draws."""
    words = oracles.bitmask(int(rng.integers(1 << 30)), size.some + 1, -(-size.width // 32))
    words[:, 0] |= 1
    return words


def _log_weights(rng: np.random.Generator, size: Size) -> Host:
    """Rows of 1, 2, 4 or 8 columns that are equally probable: the borders are exact in every type."""
    count = min(8, 1 << (size.width.bit_length() - 1))
    found = np.full((size.rows, size.width), -np.inf, dtype=np.float32)
    for row in found:
        row[rng.permutation(size.width)[:count]] = 1.5
    return found


def _integers(rng: np.random.Generator, size: Size) -> Host:
    return rng.integers(-(1 << 20), 1 << 20, size.rows).astype(np.int32)


def _seeds(rng: np.random.Generator, size: Size) -> Host:
    return rng.integers(-(1 << 62), 1 << 62, size.rows)


def _up_to_width(rng: np.random.Generator, size: Size) -> int:
    return int(rng.integers(1, size.width + 1))


def _purpose(rng: np.random.Generator, _size: Size) -> int:
    return int(rng.integers(1 << 31))


def _added(kind: str) -> Drawn:
    def drawn(rng: np.random.Generator, size: Size) -> Host:
        return rng.integers(0, getattr(size, kind), 9).astype(np.int32)

    return drawn


def _values(rng: np.random.Generator, _size: Size) -> Host:
    return (rng.integers(1, 9, 9) / 4).astype(np.float32)


def _lists(rng: np.random.Generator, size: Size) -> TokenLists:
    return listed(_words(rng, size), size.width)


def _one(result: Array) -> tuple[Array]:
    return (result,)


def _keeps(wanted: Callable[[Given, Host], Any]) -> Callable[[Given, Sequence[Host], str, str], None]:
    """Expect what `wanted` makes of the arguments and a copy of x, with equal values."""

    def compare(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
        expect_equal(got[0], wanted(given, given["x"].astype(np.float64)), what)

    return compare


def _near(wanted: Callable[[Given], Any], wide: bool = False) -> Callable[[Given, Sequence[Host], str, str], None]:
    def compare(given: Given, got: Sequence[Host], dtype: str, what: str) -> None:
        expect_close(got[0], wanted(given), what, CLOSE["float32" if wide else dtype])

    return compare


def _exactly(wanted: Callable[[Given], Host]) -> Callable[[Given, Sequence[Host], str, str], None]:
    return lambda given, got, _dtype, what: expect_bits(got[0], wanted(given), what)


def _index(wanted: Callable[[Given], Host]) -> Callable[[Given, Sequence[Host], str, str], None]:
    def compare(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
        expect(got[0].dtype.kind in "iu", f"{what} is {got[0].dtype} instead of integers")
        expect_equal(got[0], wanted(given), what)

    return compare


def _with(x: Host, change: Callable[[Host], object]) -> Host:
    change(x)
    return x


def _where(given: Given, x: Host) -> Host:
    rows = given["rows"]
    return _with(x, lambda x: x.__setitem__(rows, np.where(given["condition"], given["values"], x[rows])))


def _masked(given: Given, x: Host) -> Host:
    return _with(x, lambda x: x.__setitem__(_forbidden(given, x), -np.inf))


def _forbidden(given: Given, x: Host) -> Host:
    return oracles.forbidden(given["bitmask"].tolist(), given["rows"].tolist(), x.shape)


def _listed(given: Given, x: Host) -> Host:
    return _masked({**given, "bitmask": given["lists"].bitmask(x.shape[1])}, x)


def _warped(given: Given, x: Host) -> Host:
    x = _masked(given, x)
    np.add.at(x, (given["added_rows"], given["added_columns"]), given["values"])
    return _with(x, lambda x: np.multiply(x, given["factors"][:, None], out=x))


def _considered(given: Given) -> Host:
    return oracles.considered(
        given["x"].astype(np.float64), given["bitmask"].tolist(), given["rows"].tolist(), given["num_tokens"]
    )


def _expect_largest(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    x = _considered(given)
    expect_equal(got[1], x.max(axis=1), f"the logits of {what}")
    some = np.isfinite(x.max(axis=1)) | np.isposinf(x.max(axis=1))  # else any column may be given
    expect_equal(got[0][some], x.argmax(axis=1)[some], f"the columns of {what}")


def _expect_drawn(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    x = _considered(given)
    expect_equal(got[1], x.max(axis=1), f"the logits of {what}")
    hot = given["temperatures"] != 0
    scores = x.copy()
    uniforms = _uniforms({**given, "width": x.shape[1]})
    scores[hot] = oracles.scores(x[hot], given["temperatures"][hot], uniforms[hot])
    for row in np.flatnonzero(np.isfinite(x.max(axis=1)) | np.isposinf(x.max(axis=1))).tolist():
        line, column = scores[row], int(got[0][row])
        near = hot[row] and line[column] >= line.max() - 1e-5 * max(1.0, abs(line.max()))
        expect(near or column == line.argmax(), f"{what} draws {column} in row {row} and not {line.argmax()}")


def _uniforms(given: Given) -> Host:
    seeds, sequences, positions = (given[name].tolist() for name in ("seeds", "sequences", "positions"))
    return oracles.uniforms(seeds, sequences, positions, given["purpose"], given["width"])


def _expect_top(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    values, columns = got
    x, k = given["x"], given["k"]
    expect_equal(values, -np.sort(-x, axis=1)[:, :k], f"the values of {what}")
    expect_equal(np.take_along_axis(x, columns.astype(np.int64), axis=1), values, f"the columns of {what}, looked up,")
    expect(all(len(set(line)) == k for line in columns.tolist()), f"{what} gives a column twice")


def _uploaded(bench: Bench, given: Given) -> Sequence[Array]:
    payload = Payload(given["rows"], {"values": given["table"]}, {"shared": given["x"]})
    moved = bench.backend.upload(payload)
    return moved.rows, moved.arrays["values"], moved.shared["shared"]


def _expect_uploaded(given: Given, got: Sequence[Host], _dtype: str, what: str) -> None:
    for name, array in zip(("rows", "table", "x"), got, strict=True):
        expect_bits(array, given[name], f"{name} of {what}")


MASK: Mapping[str, Drawn] = {"x": _x, "bitmask": _words, "rows": _padded_rows}
PLACES: Mapping[str, Drawn] = {"seeds": _seeds, "sequences": _integers, "positions": _integers, "purpose": _purpose}

OPERATIONS: Mapping[str, Operation] = {
    "add_at": Operation(
        arguments={"x": _x, "added_rows": _added("rows"), "added_columns": _added("width"), "values": _values},
        call=lambda bench, a: _one(bench.ops.add_at(a["x"], a["added_rows"], a["added_columns"], a["values"])),
        expect=_keeps(
            lambda a, x: _with(x, lambda x: np.add.at(x, (a["added_rows"], a["added_columns"]), a["values"]))
        ),
        changes=True,
        keeps=True,
    ),
    "scale_rows": Operation(
        arguments={"x": _x, "rows": _rows, "factors": _each_of_some(0.5, 2.0, 4.0, 0.25)},
        call=lambda bench, a: _one(bench.ops.scale_rows(a["x"], a["rows"], a["factors"])),
        expect=_keeps(lambda a, x: _with(x, lambda x: x.__setitem__(a["rows"], x[a["rows"]] * a["factors"][:, None]))),
        changes=True,
        keeps=True,
    ),
    "where_rows": Operation(
        arguments={
            "x": _x,
            "rows": _rows,
            "condition": lambda rng, size: rng.random((size.some, size.width)) < 0.5,
            "values": lambda rng, size: (rng.integers(-12, 13, (size.some, size.width)) / 4).astype(np.float32),
        },
        call=lambda bench, a: _one(bench.ops.where_rows(a["x"], a["rows"], a["condition"], a["values"])),
        expect=_keeps(_where),
        changes=True,
        keeps=True,
    ),
    "gather": Operation(
        arguments={"x": _x, "rows": _rows},
        call=lambda bench, a: _one(bench.ops.gather(a["x"], a["rows"])),
        expect=_keeps(lambda a, x: x[a["rows"]]),
        keeps=True,
    ),
    "gather of columns": Operation(
        arguments={"x": _x, "rows": _rows, "columns": _columns},
        call=lambda bench, a: _one(bench.ops.gather(a["x"], a["rows"], a["columns"])),
        expect=_keeps(lambda a, x: x[a["rows"][:, None], a["columns"]]),
        keeps=True,
    ),
    "scatter": Operation(
        arguments={"x": _x, "rows": _rows, "columns": _columns, "table": _table},
        call=lambda bench, a: _one(bench.ops.scatter(a["x"], a["rows"], a["columns"], a["table"])),
        expect=_keeps(lambda a, x: _with(x, lambda x: x.__setitem__((a["rows"][:, None], a["columns"]), a["table"]))),
        changes=True,
        keeps=True,
    ),
    "forbid_from": Operation(
        arguments={"x": _x, "column": lambda rng, size: int(rng.integers(size.width + 1))},
        call=lambda bench, a: _one(bench.ops.forbid_from(a["x"], a["column"])),
        expect=_keeps(lambda a, x: _with(x, lambda x: x.__setitem__((slice(None), slice(a["column"], None)), -np.inf))),
        changes=True,
        keeps=True,
    ),
    "cumsum": Operation(
        arguments={"x": _finite},
        call=lambda bench, a: _one(bench.ops.cumsum(a["x"])),
        expect=_keeps(lambda _, x: np.cumsum(x, axis=1)),
    ),
    "exp": Operation(
        arguments={"x": _x},
        call=lambda bench, a: _one(bench.ops.exp(a["x"])),
        expect=_near(lambda a: np.exp(a["x"].astype(np.float64))),
    ),
    "log": Operation(
        arguments={"x": _finite},
        call=lambda bench, a: _one(bench.ops.log(a["x"])),
        expect=_near(lambda a: np.log(a["x"].astype(np.float64))),
    ),
    "log_softmax": Operation(
        arguments={"x": _x},
        call=lambda bench, a: _one(bench.ops.log_softmax(a["x"])),
        expect=_near(lambda a: [oracles.log_softmax(row) for row in a["x"].tolist()], wide=True),
    ),
    "topk": Operation(
        arguments={"x": _x, "k": _up_to_width},
        call=lambda bench, a: bench.ops.topk(a["x"], a["k"]),
        expect=_expect_top,
    ),
    "argmax": Operation(
        arguments={"x": _x},
        call=lambda bench, a: _one(bench.ops.argmax(a["x"])),
        expect=_index(lambda a: a["x"].argmax(axis=1)),
    ),
    "categorical": Operation(
        arguments={"x": _log_weights, "uniforms": _each_row(np.float32, *((np.arange(8) + 0.5) / 8))},
        call=lambda bench, a: _one(bench.ops.categorical(a["x"], a["uniforms"])),
        expect=_index(
            lambda a: np.array(
                [oracles.inverted(w, u) for w, u in zip(np.exp(a["x"]).tolist(), a["uniforms"].tolist(), strict=True)]
            )
        ),
    ),
    "uniform": Operation(
        arguments={**PLACES, "width": _up_to_width},
        call=lambda bench, a: _one(bench.ops.uniform(*(a[name] for name in (*PLACES, "width")))),
        expect=_exactly(_uniforms),
    ),
    "unpack_bitmask": Operation(
        arguments={"bitmask": _words, "width": lambda rng, size: int(rng.integers(1, size.width + 40))},
        call=lambda bench, a: _one(bench.ops.unpack_bitmask(a["bitmask"], a["width"])),
        expect=_exactly(
            lambda a: (
                ~oracles.forbidden(a["bitmask"].tolist(), range(len(a["bitmask"])), (len(a["bitmask"]), a["width"]))
            )
        ),
    ),
    "asarray": Operation(
        arguments={"x": _x},
        call=lambda bench, a: _one(bench.ops.asarray(a["x"])),
        expect=_exactly(lambda a: a["x"]),
        stays=("x",),
    ),
    "from_logits": Operation(
        arguments={"x": _x},
        call=lambda bench, a: _one(bench.backend.from_logits(a["x"])),
        expect=_keeps(lambda _, x: x),
        changes=True,
        keeps=True,
    ),
    "upload": Operation(
        arguments={"x": _finite, "rows": _rows, "table": _table},
        call=_uploaded,
        expect=_expect_uploaded,
        stays=("x", "rows", "table"),
    ),
    "apply_bitmask": Operation(
        arguments=MASK,
        call=lambda bench, a: _one(bench.backend.apply_bitmask(a["x"], a["bitmask"], a["rows"])),
        expect=_keeps(_masked),
        changes=True,
        keeps=True,
    ),
    "apply_bitmask of arrays of the host": Operation(
        arguments=MASK,
        call=lambda bench, a: _one(bench.backend.apply_bitmask(a["x"], a["bitmask"], a["rows"])),
        expect=_keeps(_masked),
        changes=True,
        keeps=True,
        stays=("bitmask", "rows"),
    ),
    "apply_token_lists": Operation(
        arguments={"x": _x, "lists": _lists, "rows": _padded_rows},
        call=lambda bench, a: _one(bench.backend.apply_token_lists(a["x"], a["lists"], a["rows"])),
        expect=_keeps(_listed),
        changes=True,
        keeps=True,
        stays=("rows",),
    ),
    "warp_masked": Operation(
        arguments={
            **MASK,
            "added_rows": _added("rows"),
            "added_columns": _added("width"),
            "values": _values,
            "factors": _each_row(np.float32, 0.5, 2.0, 4.0, 0.25),
        },
        call=lambda bench, a: _one(
            bench.backend.warp_masked(
                *(a["x"], a["bitmask"], a["rows"]),
                (a["added_rows"], a["added_columns"], a["values"]),
                a["factors"],
            )
        ),
        expect=_keeps(_warped),
        changes=True,
    ),
    "masked_argmax": Operation(
        arguments={**MASK, "num_tokens": _up_to_width},
        call=lambda bench, a: bench.backend.masked_argmax(a["x"], a["bitmask"], a["rows"], a["num_tokens"]),
        expect=_expect_largest,
    ),
    "masked_sample": Operation(
        arguments={
            **MASK,
            "num_tokens": _up_to_width,
            "temperatures": _each_row(np.float32, 0.0, 0.5, 1.0, 2.0),
            **PLACES,
        },
        call=lambda bench, a: bench.backend.masked_sample(
            *(a["x"], a["bitmask"], a["rows"], a["num_tokens"]),
            Draw(**{name: a[name] for name in ("temperatures", *PLACES)}),
        ),
        expect=_expect_drawn,
    ),
}
"""By name: the operations of `ArrayOps` and of `DeviceBackend`, those that may be fused among them."""


def operations_of(fused: frozenset[str]) -> dict[str, Operation]:
    """The operations that a host calls of a backend that declares `fused`."""
    return {name: found for name, found in OPERATIONS.items() if name in fused or name not in FUSED_OPERATIONS}
