"""The messages between the serving process and a modifier host beside what any host is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from guideway.api.steps import Fault, Payload
from guideway.api.types import Constraint, SequenceInfo
from guideway.errors import ConformanceError
from numpy.typing import NDArray

from guideway_hosts.messages import MAX_FRAME

__all__ = ["Birth", "Command", "Given", "Job", "Recipe", "Step", "packed", "unpacked"]

Step: TypeAlias = tuple[tuple[int, ...], Mapping[str, NDArray[Any]] | None]
"""Final tokens of one step, and the feedback."""


@dataclass(frozen=True, slots=True)
class Given:
    """The facts that a grammar is made from."""

    strategy: str
    source: Constraint | bytes


@dataclass(frozen=True, slots=True)
class Recipe:
    """The facts that a value of `LogitModifier.compile` is made from, where the host does not have it."""

    number: int
    request: bytes
    """Pickled."""
    grammar: Given | None


@dataclass(frozen=True, slots=True)
class Birth:
    """The facts that a state is made from, at its first use in a host."""

    request: bytes
    """Pickled."""
    sequence: SequenceInfo
    compiled: Recipe | None
    steps: tuple[Step, ...]
    """Accepted before."""
    forks: tuple[int, ...]
    """After how many of these steps it was forked, and the fork went on."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence's state in a command."""

    state: int
    birth: Birth | None
    """The birth of a state that the command makes."""


@dataclass(frozen=True, slots=True)
class Command:
    """The beginning of every command to the host of a modifier's states."""

    modifier: str
    jobs: Sequence[Job]
    told: Sequence[tuple[str, int]]
    """The events since the last one, in order: ``release``, ``forget`` or ``unload`` and a number."""


def packed(payload: Payload) -> tuple[dict[str, Any], bytes]:
    """A checked payload as JSON, and the bytes of its arrays."""
    data: list[bytes] = []

    def described(name: str, array: NDArray[Any]) -> list[Any]:
        if np.dtype(array.dtype.str) != array.dtype:
            raise ConformanceError(
                f"payload array {name!r} is of type {array.dtype}, which cannot leave a modifier host; use one of "
                "NumPy's own types, or set modifier_host to 'inline'"
            )
        data.append(array.tobytes())
        return [array.dtype.str, list(array.shape)]

    words = {
        "rows": described("rows", payload.rows),
        "arrays": {name: described(name, array) for name, array in payload.arrays.items()},
        "shared": {name: described(name, array) for name, array in payload.shared.items()},
        "faults": [[i, fault.plugin, fault.phase, fault.message] for i, fault in payload.faults.items()],
    }
    found = b"".join(data)
    if len(found) > MAX_FRAME:
        raise ConformanceError(f"a payload has {len(found)} bytes; a modifier host can send at most {MAX_FRAME}")
    return words, found


def unpacked(words: Mapping[str, Any], data: bytes) -> Payload:
    """Return what `packed` packed, in arrays of its own. Raises KeyError, TypeError and ValueError for what is none."""
    at = 0

    def read(described: Sequence[Any]) -> NDArray[Any]:
        nonlocal at
        dtype, shape = np.dtype(str(described[0])), tuple(int(length) for length in described[1])
        size = dtype.itemsize * math.prod(shape)
        if dtype.hasobject or min(shape, default=0) < 0 or at + size > len(data):
            raise ValueError(f"no array {described!r} in {len(data)} bytes")
        array = np.frombuffer(data, dtype, math.prod(shape), at) if size else np.empty(shape, dtype)
        at += size
        return array.reshape(shape).copy()

    rows = read(words["rows"])
    arrays = {str(name): read(described) for name, described in words["arrays"].items()}
    shared = {str(name): read(described) for name, described in words["shared"].items()}
    faults = {int(i): Fault(str(plugin), str(phase), str(said)) for i, plugin, phase, said in words["faults"]}
    return Payload(rows, arrays, shared, faults)
