"""Operations that a backend may fuse: that it says which, and what they have in common; two of the four."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from guideway.api import DeviceBackend
from guideway.api.bitmask import TokenLists
from guideway.api.device import FUSED_OPERATIONS
from guideway.api.steps import Array

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, Host, expect_close, expect_equal
from guideway_conformance.device.calls import CALLS, Case, listed
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MANY = 131_072


def default(operation: str) -> Callable[[DeviceSubject], None]:
    """The refusal of an operation: it is not overridden, so that nobody takes it for one that is fused."""

    def refuse(subject: DeviceSubject) -> None:
        own = getattr(subject.component, operation)
        expect(
            own is getattr(DeviceBackend, operation),
            f"it has its own {operation}, which no host calls, as it is not in `fused`",
        )

    return refuse


@check("device")
def declares_what_it_fuses(subject: DeviceSubject) -> None:
    """`fused` is a frozenset of names of optional operations, each of which the class implements itself."""
    fused = subject.component.fused
    expect(isinstance(fused, frozenset), f"its `fused` is {fused!r} instead of a frozenset")
    unknown = sorted(map(str, fused - set(FUSED_OPERATIONS)))
    expect(not unknown, f"its `fused` has {unknown}, and there are {', '.join(FUSED_OPERATIONS)}")
    for operation in sorted(fused):
        own = getattr(subject.component, operation)
        expect(own is not getattr(DeviceBackend, operation), f"its `fused` has {operation}, which is the default one")


@check("device", trait=DeviceSubject.fused)
def fused_padding(subject: DeviceSubject) -> None:
    """Entries whose row is -1 are padding to fused operations too, wherever and however many they are."""
    bench = subject.bench()
    for operation in sorted(subject.declared(subject.component)):
        for rows in ([2, -1, -1], [-1, 3, -1, 0, -1, -1], [-1] * 4):
            words = oracles.bitmask(90, len(rows), 2) | 2
            words[np.array(rows) == -1] = 0
            logits = bench.floats(oracles.logits(91, 4, 64))
            CALLS[operation](bench, Case(logits=logits, bitmask=words, rows=np.array(rows), num_tokens=64))


@check("device", trait=DeviceSubject.fused)
def fused_host_arrays(subject: DeviceSubject) -> None:
    """Fused operations take bitmask and rows as arrays of the host as well."""
    bench = subject.bench()
    for operation in sorted(subject.declared(subject.component)):
        words, rows = oracles.bitmask(92, 3, 4)[:, ::2], np.array([3, -1, 0])
        logits = bench.floats(oracles.logits(93, 4, 50))
        CALLS[operation](
            bench, Case(logits=logits, bitmask=words, rows=rows, num_tokens=50, moved=lambda _, array: array)
        )


@check("device", trait=DeviceSubject.fused, seconds=60)
def fused_floats(subject: DeviceSubject) -> None:
    """Fused operations take logits of float16 and bfloat16 as they do those of float32."""
    bench = subject.bench()
    for operation in sorted(subject.declared(subject.component)):
        for dtype in subject.floats:
            for width in (1, 33, 1000):
                logits = bench.floats(oracles.logits(94, 4, width), dtype)
                words = oracles.bitmask(95, 3, -(-width // 32))
                CALLS[operation](bench, Case(logits=logits, bitmask=words, rows=np.array([3, 0, 2]), num_tokens=width))


@check("device", trait=DeviceSubject.fused)
def fused_only_read(subject: DeviceSubject) -> None:
    """Fused operations change neither bitmask nor rows, and a choice of tokens leaves the logits too."""
    bench = subject.bench()
    for operation in sorted(subject.declared(subject.component)):
        words, rows = oracles.bitmask(96, 3, 2), np.array([4, 0, 3], dtype=np.int32)
        moved: dict[int, Array] = {}

        def move(bench: Bench, array: Host, moved: dict[int, Array] = moved) -> Array:
            return moved.setdefault(array.size, bench.ints(array))

        case = Case(
            logits=bench.floats(oracles.logits(97, 5, 60)),
            bitmask=words.copy(),
            rows=rows.copy(),
            num_tokens=60,
            moved=move,
        )
        before = bench.read(case.logits)
        CALLS[operation](bench, case)
        kept = {"bitmask": (case.bitmask, words), "rows": (case.rows, rows)}
        if moved:
            kept["bitmask on the device"] = bench.read(moved[words.size]), words
            kept["rows on the device"] = bench.read(moved[rows.size]), rows
        if operation.startswith("masked"):
            kept["logits"] = bench.read(case.logits), before
        for name, (got, wanted) in kept.items():
            expect_equal(got, wanted, f"the {name} after {operation}")


@check("device", tier="extended", trait=DeviceSubject.fused, seconds=60)
def fused_many_rows(subject: DeviceSubject) -> None:
    """Fused operations treat hundreds of rows as they do one."""
    bench, rows = subject.bench(), np.random.default_rng(89).permutation(320)[:300].astype(np.int32)
    for operation in sorted(subject.declared(subject.component)):
        words = oracles.bitmask(107, 300, 2) | 2
        case = Case(logits=bench.floats(oracles.logits(108, 320, 40)), bitmask=words, rows=rows, num_tokens=40)
        CALLS[operation](bench, case)


@check("device", tier="extended", trait=DeviceSubject.fused, seconds=60)
def fused_views(subject: DeviceSubject) -> None:
    """Fused operations take logits that are part of another array, with gaps between rows or columns."""
    takes: dict[str, Callable[[Array], Array]] = {
        "columns 7 to 57": lambda base: base[:, 7:57],
        "every other row": lambda base: base[::2],
        "every other column": lambda base: base[:, 1::2],
    }
    bench = subject.bench()
    for operation in sorted(subject.declared(subject.component)):
        for name, take in takes.items():
            logits = take(bench.floats(oracles.logits(98, 12, 130)))
            width = logits.shape[1]
            words = oracles.bitmask(99, 3, -(-width // 32))
            case = Case(logits=logits, bitmask=words, rows=np.array([4, 0, 5]), num_tokens=width)
            try:
                CALLS[operation](bench, case)
            except AssertionError as error:
                raise AssertionError(f"the logits were {name} of an array, and {error}") from None


@check("device", tier="stress", trait=DeviceSubject.fused, seconds=120)
def fused_large_vocabularies(subject: DeviceSubject) -> None:
    """Fused operations reach every part of 131,072 tokens."""
    bench = subject.bench()
    for operation in sorted(subject.declared(subject.component)):
        width = MANY - 5  # no multiple of anything
        x, words = oracles.logits(100, 2, width), oracles.bitmask(101, 1, MANY // 32)
        for row, column in enumerate((70_001, 120_000)):
            x[row, [column, width - 1]] = 30.0  # far behind all else, the first of two equals
            words[:, column // 32] = words[:, (width - 1) // 32] = -1
        CALLS[operation](bench, Case(logits=bench.floats(x), bitmask=words, rows=np.array([1]), num_tokens=width))


@check("device", capability="apply_token_lists", refusal=default("apply_token_lists"))
def token_lists_are_masks(subject: DeviceSubject) -> None:
    """`apply_token_lists` forbids what a list refuses, or all but what it allows, as `apply_bitmask` would."""
    bench = subject.bench()
    for width in (1, 33, 200):
        for rows in ([1, 3, 0, 2], [4], []):
            words = oracles.bitmask(102, len(rows), -(-width // 32))
            case = Case(
                logits=bench.floats(oracles.special("float32", 6, width)),
                bitmask=words,
                rows=np.array(rows, dtype=np.int32),
                num_tokens=width,
            )
            CALLS["apply_token_lists"](bench, case)


@check("device", capability="apply_token_lists", refusal=default("apply_token_lists"))
def token_lists_without_tokens(subject: DeviceSubject) -> None:
    """An empty list allows nothing, or refuses nothing."""
    bench, rows = subject.bench(), np.array([2, 0, 1], dtype=np.int32)
    for allow in ([True, False, True], [True, True, True], [False, False, False]):
        lists = TokenLists(np.zeros(4, dtype=np.int32), np.empty(0, dtype=np.int32), np.array(allow))
        before = oracles.special("float32", 4, 70)
        got = bench.read(bench.backend.apply_token_lists(bench.floats(before), lists, rows))
        words = np.where(np.array(allow)[:, None], 0, np.full((3, 3), -1)).astype(np.int32)
        bench.expect_loop(before, got, words, rows)


@check("device", capability="apply_token_lists", refusal=default("apply_token_lists"))
def token_lists_past_the_width(subject: DeviceSubject) -> None:
    """Tokens of a list past the width of the logits mean nothing, not even in the next row."""
    bench, width = subject.bench(), 50
    words = oracles.bitmask(103, 4, 4) | 2
    before, rows = oracles.logits(104, 6, width), np.array([3, 0, 2, 1], dtype=np.int32)
    got = bench.read(bench.backend.apply_token_lists(bench.floats(before), listed(words, 128), rows))
    bench.expect_loop(before, got, words, rows)


@check("device", capability="warp_masked", refusal=default("warp_masked"))
def warp_masked_warps(subject: DeviceSubject) -> None:
    """`warp_masked` masks, then adds, then multiplies each row by its factor, all in float32."""
    bench = subject.bench()
    for rows in ([1, 3, 0], [], [4]):
        logits, words = bench.floats(oracles.logits(105, 5, 64)), oracles.bitmask(106, len(rows), 2)
        CALLS["warp_masked"](
            bench, Case(logits=logits, bitmask=words, rows=np.array(rows, dtype=np.int32), num_tokens=64)
        )
    halves = bench.floats(np.array([[60000.0, 1.0], [2048.0, 2.0]]), "float16")
    triples = bench.ints([1]), bench.ints([0]), bench.array([0.5], np.float32)
    factors = bench.array([4.0, 1.0], np.float32)
    got = bench.read(bench.backend.warp_masked(halves, bench.ints([[-1]]), bench.ints([0]), triples, factors))
    expect_close(got, [[240000.0, 4.0], [2048.5, 2.0]], "warp_masked of float16")


@check("device", capability="warp_masked", refusal=default("warp_masked"))
def warp_masked_minus_infinity(subject: DeviceSubject) -> None:
    """A token that the mask or the model forbids is -inf after `warp_masked`, whatever finite value is added and
    whatever the factor, which is positive."""
    bench, width = subject.bench(), 40
    x = np.ones((3, width), dtype=np.float32)
    x[1, ::3] = -np.inf
    words, rows = np.full((2, 2), 5, dtype=np.int32), np.array([2, 0])
    everywhere = np.arange(3).repeat(width), np.tile(np.arange(width), 3), np.full(3 * width, 1e30)
    triples = bench.ints(everywhere[0]), bench.ints(everywhere[1]), bench.array(everywhere[2], np.float32)
    factors = bench.array([1e-30, 1e-3, 1e3], np.float32)
    got = bench.read(bench.backend.warp_masked(bench.floats(x), bench.ints(words), bench.ints(rows), triples, factors))
    forbidden = np.isneginf(oracles.considered(x, words.tolist(), rows.tolist(), width))
    expect(np.isneginf(got[forbidden]).all(), f"{np.isfinite(got[forbidden]).sum()} forbidden logits are finite")
    expect(np.isfinite(got[~forbidden]).all(), "some allowed logits are not finite")


@check("device", capability="warp_masked", refusal=default("warp_masked"))
def warp_masked_added(subject: DeviceSubject) -> None:
    """To `warp_masked` nothing at all may be added, or several values to one logit."""
    bench, x = subject.bench(), np.arange(12, dtype=np.float32).reshape(3, 4)
    factors = np.array([1.0, 0.5, 2.0], dtype=np.float32)
    none = np.empty(0, dtype=np.int32)
    rows, columns, values = [1, 1, 0, 1, 2], [2, 2, 0, 2, 3], [1.0, 2.0, 4.0, 8.0, 16.0]
    mask = bench.ints(np.full((1, 1), -1)), bench.ints([1])
    wanted = x.copy()
    np.add.at(wanted, (rows, columns), values)
    cases: list[tuple[str, tuple[Array, Array, Array] | None, Host]] = [
        ("nothing added", None, x),
        ("no values added", (bench.ints(none), bench.ints(none), bench.array(none, np.float32)), x),
        ("values added", (bench.ints(rows), bench.ints(columns), bench.array(values, np.float32)), wanted),
    ]
    for name, added, sums in cases:
        got = bench.read(bench.backend.warp_masked(bench.floats(x), *mask, added, bench.array(factors)))
        expect_close(got, sums * factors[:, None], f"warp_masked with {name}")
