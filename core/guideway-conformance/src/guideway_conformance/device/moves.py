"""Checks of what a backend says of itself, and of arrays that go to its device and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from threading import Thread
from typing import Any

import numpy as np
from guideway.api import DeviceBackend, InvalidConfiguration, Payload
from guideway.api.steps import Array
from guideway.plugins.contract import check_built

from guideway_conformance.availability import expect_reasons
from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, Host, expect_bits, expect_equal
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

TOO_LARGE_FOR_INT32 = 2**62 + 1
LARGE = 70_000
"""Numbers of a row of which a backend may think that a copy is dear."""
PAIRS, PATIENCE = 12, 5.0
"""So many pairs of backends are used in turn and closed, and so many seconds each call may take."""
LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax", "jaxlib": "jax"}
"""By the first name of the module in which the type of an array is defined: the library it is an array of."""
ACCELERATORS = ("cuda", "cuda:99", "mps", "xpu", "tpu")
"""Devices that a library may know and have none of."""


@check("device", tier="smoke")
def says_whether_it_can_run(subject: DeviceSubject) -> None:
    """`available` is None or the reason why the backend cannot run here, and never raises, not even where a package
    that it imports is not installed."""
    expect_reasons(subject.component)


@check("device", tier="smoke")
def arrays_go_and_come(subject: DeviceSubject) -> None:
    """`download` brings back what `asarray` puts on the device, numbers without an axis among them, each array by its
    name."""
    bench = subject.bench()
    for host in _hosts().values():
        expect_equal(bench.read(bench.ops.asarray(host.copy())), host, f"an array of {host.dtype}")
    alone = bench.ops.asarray(np.array(2.5, dtype=np.float32))
    expect_equal(bench.read(alone), 2.5, "a number without an axis, which `asarray` and `download` moved,")
    hosts = {"one": np.ones((4,), dtype=np.float32), "two": np.zeros((2, 2), dtype=np.float32)}
    back = bench.backend.download({name: bench.ops.asarray(host.copy()) for name, host in hosts.items()}).result()
    for name, host in hosts.items():
        expect_equal(np.array(back[name]), host, f"{name!r} of two arrays of one download")


@check("device")
def names_itself(subject: DeviceSubject) -> None:
    """A backend has a name, the name of its device and that of the array library its arrays are of."""
    bench = subject.bench()
    for attribute in ("name", "arrays", "device"):
        value = getattr(bench.backend, attribute, None)
        expect(isinstance(value, str) and value, f"its `{attribute}` is {value!r}")
    kind = type(bench.array([1.0], np.float32))
    library = LIBRARIES.get(kind.__module__.partition(".")[0], bench.backend.arrays)
    named = bench.backend.arrays
    expect(named == library, f"its `arrays` is {named!r}, and its arrays are {kind.__module__}.{kind.__qualname__}")


@check("device")
def operations_can_be_called(subject: DeviceSubject) -> None:
    """Operations of `ops` can be called as the contract's are, by position."""
    check_built("device", subject.backend())


@check("device")
def says_whether_shapes_are_static(subject: DeviceSubject) -> None:
    """`static_shapes` is True or False."""
    static = subject.backend().static_shapes
    expect(isinstance(static, bool), f"its `static_shapes` is {static!r}")


@check("device")
def refuses_unknown_devices(subject: DeviceSubject) -> None:
    """A device that does not exist is an `InvalidConfiguration`, also one whose name begins like that of one that does,
    and an accelerator that is missing."""
    subject.require_hardware()
    real = subject.backend_outside()
    for name in ("no-such-device", "no-such-device:0", f"{real.device}x", *ACCELERATORS):
        try:
            built = subject.component(name)
        except InvalidConfiguration:
            continue
        except Exception as error:
            raise AssertionError(f"the device {name!r} raised {type(error).__name__}: {error}") from None
        expect(name in ACCELERATORS, f"it takes {name!r} for a device")
        built.close()
    real.close()


@check("device")
def scope_of_each_step(subject: DeviceSubject) -> None:
    """A host enters `scope()` anew for each step, and uses arrays of one step in the next; steps may overlap, and each
    has a scope of its own."""
    backend = subject.backend_outside()
    one, other = backend.scope(), backend.scope()
    expect(one is not other or isinstance(one, nullcontext), "two steps have the same scope, and they may overlap")
    bench, x = Bench(backend), oracles.logits(85, 3, 40)
    with backend.scope():
        words, rows = bench.ints(oracles.bitmask(86, 2, 2)), bench.ints([2, 0])
    for _ in range(3):
        with backend.scope():
            logits = bench.backend.apply_bitmask(bench.floats(x), words, rows)
            bench.expect_loop(x, bench.read(logits), oracles.bitmask(86, 2, 2), np.array([2, 0]))


@check("device")
def asarray_of_any_memory(subject: DeviceSubject) -> None:
    """`asarray` takes host arrays of any shape and memory layout, read-only ones among them."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = base.copy()
    frozen.flags.writeable = False
    bench = subject.bench()
    for name, host in {
        "every other column": base[:, ::2],
        "columns": base[:, 1:4],
        "a transposed array": base.T,
        "a reversed array": base[::-1],
        "a read-only array": frozen,
        "a read-only row of it": frozen[2],
        "a single number": np.array(2.5, dtype=np.float32),
        "no rows": base[:0],
        "three axes": base.reshape(2, 3, 4),
        "one number for all": np.broadcast_to(np.float32(3), (2, 3)),
    }.items():
        expect_equal(bench.read(bench.ops.asarray(host)), host, name)


@check("device")
def asarray_keeps_dtypes(subject: DeviceSubject) -> None:
    """Arrays of float32, float16, int32, int64 and bool are of the same dtype when they come back."""
    bench = subject.bench()
    for host in _hosts().values():
        expect_bits(bench.read(bench.array(host)), host, f"an array of {host.dtype}")


@check("device")
def from_logits_keeps_values(subject: DeviceSubject) -> None:
    """`from_logits` gives the model's logits with their values and shape."""
    bench = subject.bench()
    for dtype in ("float32", "float16"):
        for rows, width in ((1, 1), (3, 40), (2, 1000)):
            source = oracles.special(dtype, rows, width)
            got = bench.read(bench.backend.from_logits(bench.array(source)))
            expect_equal(got, source, f"logits of {dtype}[{rows}, {width}]")


TAKES: dict[str, Callable[[Any], Any]] = {
    "an array": lambda base: base,
    "columns 7 to 57 of an array": lambda base: base[:, 7:57],
    "every other row of an array": lambda base: base[::2],
    "every other column of an array": lambda base: base[:, 1::2],
    "a transposed array": lambda base: base.T,
}


BACKWARDS: dict[str, Callable[[Any], Any]] = {
    "an array with its last row first": lambda base: base[::-1],
    "an array with its last column first": lambda base: base[:, ::-1],
    "every other row of an array, the last one first,": lambda base: base[::-2],
    "columns 57 to 7 of an array": lambda base: base[:, 57:7:-1],
    "a transposed array, both ways backwards,": lambda base: base[::-1, ::-1].T,
}
"""Ways to take an array that only NumPy has: with strides below 0."""


def _in_all_rows(row: Host) -> Host:
    """`row` in each of 12 rows, all in the same memory, which nothing forbids to write to."""
    return np.lib.stride_tricks.as_strided(row, (12, len(row)), (0, row.itemsize))


def _expect_taken(bench: Bench, logits: Array, source: Host, what: str) -> None:
    """Expect that `from_logits` gives the values of `source`, as an array that can be masked."""
    got = bench.backend.from_logits(logits)
    expect_equal(bench.read(got).astype(source.dtype), source, what)
    width = source.shape[1]
    words, rows = oracles.bitmask(87, 2, -(-width // 32)), np.array([2, 0])
    before = bench.read(got)
    bench.expect_loop(before, bench.read(bench.masked(got, words, rows)), words, rows)


@check("device")
def from_logits_of_numpy(subject: DeviceSubject) -> None:
    """`from_logits` takes NumPy arrays of float32 and float16, in whatever order they lie in memory, also where rows
    share all of it."""
    bench = subject.bench()
    for dtype in ("float32", "float16"):
        for name, take in {**TAKES, **BACKWARDS}.items():
            source = take(oracles.special(dtype, 12, 130))
            _expect_taken(bench, take(oracles.special(dtype, 12, 130)), source, f"{name} of NumPy in {dtype}")
        row = oracles.special(dtype, 1, 130)[0]
        _expect_taken(bench, _in_all_rows(row.copy()), np.tile(row, (12, 1)), f"rows in one memory in {dtype}")
        frozen = np.broadcast_to(row.copy(), (12, 130))
        _expect_taken(bench, frozen, np.tile(row, (12, 1)), f"one row for all, of NumPy in {dtype}")


@check("device", trait=DeviceSubject.torch, seconds=60)
def from_logits_of_torch(subject: DeviceSubject) -> None:
    """`from_logits` takes tensors of torch on the CPU, in whatever order they lie in memory, as models give them, also
    where rows share all of it, as those of ``expand`` do."""
    import torch

    bench = subject.bench()
    for name, take in TAKES.items():
        source = oracles.special("float32", 12, 130)
        _expect_taken(bench, take(torch.from_numpy(source.copy())), take(source), f"{name} of torch")
    row = oracles.special("float32", 1, 130)
    expanded = torch.from_numpy(row.copy()).expand(12, -1)
    _expect_taken(bench, expanded, np.tile(row, (12, 1)), "one row of torch, expanded to 12")


@check("device", trait=DeviceSubject.torch, seconds=60)
def from_logits_of_torch_in_16_bits(subject: DeviceSubject) -> None:
    """`from_logits` takes tensors of torch of float16 and bfloat16: where the device does not hold such numbers, it
    makes them wider ones of the same values."""
    import torch

    bench = subject.bench()
    source = oracles.logits(88, 3, 40)
    source[0, :4] = [2.0**-10, -65504.0, 2.0**-14, 1 + 2.0**-9]  # what bfloat16 does not hold
    _expect_taken(bench, torch.from_numpy(source.copy()).half(), source, "logits of float16")
    source[0, :4] = [2.0**100, 2.0**-100, -(2.0**100), 1 + 2.0**-7]  # what float16 does not hold
    _expect_taken(bench, torch.from_numpy(source.copy()).bfloat16(), source, "logits of bfloat16")


@check("device", trait=DeviceSubject.bfloat16)
def from_logits_of_bfloat16(subject: DeviceSubject) -> None:
    """`from_logits` takes logits of bfloat16, and `download` brings their values back."""
    bench = subject.bench()
    source = oracles.logits(80, 3, 40)
    source[0, :4] = [2.0**100, 2.0**-100, -(2.0**100), 1 + 2.0**-7]  # what float16 or fewer bits do not hold
    expect_equal(bench.read(bench.floats(source, "bfloat16")).astype(np.float32), source, "logits of bfloat16")


@check("device")
def upload_keeps_payloads(subject: DeviceSubject) -> None:
    """`upload` gives a payload with the same rows, arrays and shared arrays by the same names, however they lie in
    memory, and leaves its argument."""
    bench = subject.bench()
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    layouts: dict[str, Host] = {
        "transposed": base.reshape(6, 4).T,
        "in the order of Fortran": np.asfortranarray(base),
        "every other one": base[:, ::2],
        "reversed": base[::-1, ::-1],
        "with swapped axes": base.reshape(3, 4, 2).swapaxes(0, 1),
    }
    for name, array in layouts.items():
        got = bench.backend.upload(Payload(np.arange(4, dtype=np.int32), {"a": array}, {"b": array[0]}))
        expect_equal(bench.read(got.arrays["a"]), array, f"an array of the payload, {name} in memory")
        expect_equal(bench.read(got.shared["b"]), array[0], f"a shared array of the payload, {name} in memory")
    payload = _payload()
    uploaded = bench.backend.upload(payload)
    _expect_payload(bench, uploaded, _payload())
    for name, host in _flat(payload).items():
        expect(isinstance(host, np.ndarray), f"`{name}` of the payload that was uploaded is {type(host).__name__} now")
        expect_equal(host, _flat(_payload())[name], f"`{name}` of the payload that was uploaded")


@check("device")
def upload_takes_parts(subject: DeviceSubject) -> None:
    """`upload` takes each part of a payload, as `Payload.take` cuts it, on its own, an empty one too."""
    bench = subject.bench()
    for rows in ([3], [0, 4], [0, 1, 3, 4], [2]):
        chosen = np.array(rows, dtype=np.int32)
        _expect_payload(bench, bench.backend.upload(_payload().take(chosen)), _payload().take(chosen))


@check("device")
def upload_reads_anew(subject: DeviceSubject) -> None:
    """`upload` reads a payload's memory anew each time: a modifier writes its next step there."""
    bench = subject.bench()
    payload = _payload()
    bench.read(bench.backend.upload(payload).arrays["value"])
    payload.arrays["value"][:] = 0.125
    payload.rows[:] = [7, 5, 6, 8]
    payload.shared["scale"][...] = 0.75
    uploaded = bench.backend.upload(payload)
    expect_equal(bench.read(uploaded.arrays["value"]), payload.arrays["value"], "an array that was written anew")
    expect_equal(bench.read(uploaded.rows), payload.rows, "rows that were written anew")
    expect_equal(bench.read(uploaded.shared["scale"]), 0.75, "a shared array that was written anew")


@check("device")
def upload_has_read(subject: DeviceSubject) -> None:
    """`upload` has read the host's memory when it returns, which may be written to at once."""
    bench = subject.bench()
    payload = _payload()
    uploaded = bench.backend.upload(payload)
    for host in _flat(payload).values():
        host[...] = 0
    _expect_payload(bench, uploaded, _payload())
    large = np.arange(4 * LARGE, dtype=np.float32).reshape(4, LARGE)
    payload = Payload(np.arange(4, dtype=np.int32), {"table": large}, {"shared": large[0].copy()})
    wanted = {"table": large.copy(), "shared": large[0].copy()}
    uploaded = bench.backend.upload(payload)
    for host in _flat(payload).values():
        host[...] = 0
    expect_equal(bench.read(uploaded.arrays["table"]), wanted["table"], f"an array of {large.nbytes} bytes")
    expect_equal(bench.read(uploaded.shared["shared"]), wanted["shared"], f"a shared array of {large[0].nbytes} bytes")


@check("device")
def uploads_stay(subject: DeviceSubject) -> None:
    """The payload that `upload` returned does not change when it is called again, be it with one of the same shapes:
    those of one step are uploaded before the first is applied."""
    bench = subject.bench()
    hosts = [
        Payload(
            np.array([number, 0, 9], dtype=np.int32),
            {"value": np.full((3, width), number + 0.5, np.float32), "seed": np.arange(3) + number},
            {"scale": np.array(2.0 * number, dtype=np.float32)},
        )
        for width in (2, 500)
        for number in range(1, 5)
    ]
    uploaded = [bench.backend.upload(payload) for payload in hosts]
    for got, wanted in zip(uploaded, hosts, strict=True):
        _expect_payload(bench, got, wanted)


def _payload() -> Payload:
    return Payload(
        rows=np.array([3, 0, 4, 1], dtype=np.int32),
        arrays={
            "value": np.array([[1.5, -np.inf], [0.0, 2.0], [4.0, 8.0], [-1.0, 0.5]], dtype=np.float32),
            "seed": np.array([TOO_LARGE_FOR_INT32, 5, -1, 2**40]),
            "words": np.array([[-1, 0], [-(2**31), 7], [1, 2], [3, 4]], dtype=np.int32),
            "flag": np.array([True, False, False, True]),
        },
        shared={"scale": np.array(0.25, dtype=np.float32), "table": np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2]},
    )


def _flat(payload: Payload) -> Mapping[str, Host]:
    named = {f"arrays/{name}": array for name, array in payload.arrays.items()}
    return {"rows": payload.rows, **named, **{f"shared/{name}": array for name, array in payload.shared.items()}}


def _expect_payload(bench: Bench, got: Payload, wanted: Payload) -> None:
    for field in ("arrays", "shared"):
        names, wanted_names = (sorted(getattr(payload, field)) for payload in (got, wanted))
        expect(names == wanted_names, f"`{field}` of the uploaded payload has {names} instead of {wanted_names}")
    back = bench.backend.download(_flat(got)).result()
    for name, host in _flat(wanted).items():
        expect_bits(np.array(back[name]), np.ascontiguousarray(host).reshape(host.shape), f"`{name}` of the payload")


@check("device")
def download_names_and_types(subject: DeviceSubject) -> None:
    """`download` gives NumPy arrays of exactly the names it was given, each with its own values, whatever the caller
    does with its dict by then."""
    bench = subject.bench()
    hosts: dict[str, Host] = {
        "b": np.array([1, 2], dtype=np.float32),
        "a": np.array([[3], [4]], dtype=np.float32),
        "a/b": np.array([5], dtype=np.int32),
        "none": np.empty(0, dtype=np.float32),
    }
    back = bench.backend.download({name: bench.array(host) for name, host in hosts.items()}).result()
    expect(sorted(back) == sorted(hosts), f"of {sorted(hosts)} it brought {sorted(back)}")
    for name, host in hosts.items():
        expect(isinstance(back[name], np.ndarray), f"{name!r} came back as {type(back[name]).__name__}")
        expect_bits(np.array(back[name]), host, f"{name!r}")
    asked = {"large": bench.floats(np.ones((8, 1 << 18))), "last": bench.ints([7])}
    under_way = [bench.backend.download(asked) for _ in range(2)]
    asked.clear()  # the caller's, who collects those of the next step in it
    for download in under_way:
        found = download.result()
        expect(sorted(found) == ["large", "last"], f"with the caller's dict cleared it brought {sorted(found)}")
        expect_equal(np.array(found["last"]), [7], "the last array of a dict that was cleared")
    nothing = bench.backend.download({}).result()
    expect(len(nothing) == 0, f"the download of nothing brought {sorted(nothing)}")


@check("device")
def download_results_stay(subject: DeviceSubject) -> None:
    """A download may be asked for its `result` twice, and its arrays stay as they were when it began, also those that
    are part of an array, or logits of a model."""
    bench = subject.bench()
    x, y = bench.floats(np.ones((2, 3))), bench.floats(np.full((2, 3), 4.0))
    first, second = bench.backend.download({"x": x}), bench.backend.download({"x": y})
    kept = first.result()["x"]
    everything = bench.ints([0, 1])
    twos = bench.array(np.full((2, 3), 2.0), np.float32)
    for array in (x, y):
        bench.read(bench.ops.where_rows(array, everything, True, twos))
    expect_equal(kept, np.ones((2, 3)), "what was downloaded before the array was overwritten")
    for _ in range(2):
        expect_equal(first.result()["x"], np.ones((2, 3)), "the result, asked for again")
        expect_equal(second.result()["x"], np.full((2, 3), 4.0), "what was on its way when the array was overwritten")
    for source, make in _sources(subject, bench).items():
        host = oracles.logits(89, 6, 40)
        x = make(host)
        parts = {name: take(x) for name, take in PARTS.items()}
        download = bench.backend.download(parts)
        bench.read(bench.ops.forbid_from(x, 0))
        for name, take in PARTS.items():
            expect_equal(
                download.result()[name], take(host), f"{name} of {source}, overwritten since its download began"
            )


PARTS: dict[str, Callable[[Any], Any]] = {
    "all": lambda x: x,
    "some rows": lambda x: x[1:3],
    "the first rows": lambda x: x[:2],
    "a row": lambda x: x[2],
    "the first row": lambda x: x[0],
    "the last row, as an array of one": lambda x: x[-1:],
    "some columns": lambda x: x[:, 3:9],
    "every other row": lambda x: x[::2],
    "a column": lambda x: x[:, 4],
    "all, in another shape": lambda x: x.reshape(3, 80),
    "some rows, in one line": lambda x: x[2:4].reshape(80),
    "all, with another axis": lambda x: x[:, None],
}
"""Parts of an array that a host may download, by what they are called."""


def _sources(subject: DeviceSubject, bench: Bench) -> dict[str, Callable[[Host], Array]]:
    """Make an array of the device with the values of an array, in each way that there is."""

    def computed(host: Host) -> Array:
        return bench.ops.gather(bench.floats(host), bench.ints(np.arange(len(host))))

    found: dict[str, Callable[[Host], Array]] = {
        "an array that `asarray` moved": bench.array,
        "logits of the device": bench.floats,
        "logits of NumPy": lambda host: bench.backend.from_logits(host.copy()),
        "an array that was computed": computed,
    }
    if subject.torch in subject.traits(subject.component):
        import torch

        found["logits of torch"] = lambda host: bench.backend.from_logits(torch.from_numpy(host.copy()))
    return found


@check("device")
def backends_are_independent(subject: DeviceSubject) -> None:
    """Two backends do not share state: what one does changes nothing of the other's arrays."""
    one, other = subject.bench(), subject.bench()
    rows = np.array([1, 0])
    first, second = oracles.bitmask(81, 2, 2), oracles.bitmask(82, 2, 2)
    x, y = one.floats(oracles.logits(83, 3, 64)), other.floats(oracles.logits(84, 3, 64))
    before, before_other = one.read(x), other.read(y)
    masks = one.ints(first), other.ints(second)
    at = one.ints(rows), other.ints(rows)
    x = one.backend.apply_bitmask(x, masks[0], at[0])
    y = other.backend.apply_bitmask(y, masks[1], at[1])
    downloads = one.backend.download({"x": x}), other.backend.download({"x": y})
    one.expect_loop(before, np.array(downloads[0].result()["x"]), first, rows)
    other.expect_loop(before_other, np.array(downloads[1].result()["x"]), second, rows)


def _hosts() -> dict[str, Host]:
    return {
        "float32": np.array([[1.5, -np.inf, 1e30], [0.0, 2.0**-20, np.inf]], dtype=np.float32),
        "float16": np.array([1.5, -2.0, 65504.0], dtype=np.float16),
        "int32": np.array([[-1, 0], [-(2**31), 2**31 - 1]], dtype=np.int32),
        "int64": np.array([TOO_LARGE_FOR_INT32, -5]),
        "bool": np.array([True, False, True]),
    }


@check("device")
def closing_ends_one_backend(subject: DeviceSubject) -> None:
    """A backend closes without an error, used or unused, and others of its class go on, in whatever order they were
    used."""
    _expect_pairs_end(subject)
    subject.backend_outside().close()
    closing = subject.bench()
    source, words, rows = oracles.logits(41, 3, 200), oracles.bitmask(42, 2, 7), np.array([2, 0])
    other = subject.bench()
    for bench in (closing, other):
        bench.expect_masked(bench.floats(source), words, rows)
    subject.leave_scopes()
    _within(closing.backend.close, "`close` of one of two backends")
    for bench in (subject.bench(), Bench(subject.entered(other.backend))):
        bench.expect_masked(bench.floats(source), words, rows)


def _expect_pairs_end(subject: DeviceSubject) -> None:
    """Fail if one of two backends that were used in turn cannot be closed, or takes the other with it."""
    rng = np.random.default_rng(43)
    for _ in range(PAIRS):
        pair = [subject.backend_outside() for _ in range(2)]
        for number in [*rng.integers(0, 2, 6).tolist(), 0, 1]:
            _within(partial(_expect_downloaded, pair[number]), "a download of one of two backends")
        first = pair.pop(int(rng.integers(2)))
        _within(first.close, "`close` of one of two backends that were used in turn")
        _within(partial(_expect_downloaded, pair[0]), "a download after another backend was closed")
        _within(pair[0].close, "`close` of the second of two backends")


def _expect_downloaded(backend: DeviceBackend) -> None:
    with backend.scope():
        bench = Bench(backend)
        expect_equal(bench.read(bench.array([1.5, 2.5], np.float32)), [1.5, 2.5], "a download of one of two backends")


def _within(call: Callable[[], object], what: str) -> None:
    """Do `call` in a thread of its own. Fails if it does not end."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    expect(not thread.is_alive(), f"{what} did not end within {PATIENCE:.0f} seconds")
    if raised:
        raise raised[0]
