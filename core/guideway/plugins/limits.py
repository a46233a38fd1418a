"""Limits of what the work of plugins may cost: the ``[limits]`` part of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from guideway.api.options import Range, check_fields, known_fields_only

__all__ = ["Limits"]

Seconds: TypeAlias = Annotated[float, Range(above=0), math.isfinite, "a number of seconds above 0"]


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the work of plugins. Work that misses one of these fails the request it was for. Raises
    `InvalidConfiguration`.

    Where nothing else is said, time is that of a processor, so that a busy machine fails nobody; by the clock, for what
    waits or was stopped, `wall_factor` times as much.
    """

    admission_seconds: Seconds = 10.0
    """The seconds that admitting a request may take by the clock."""
    compile_seconds: Seconds = 10.0
    """Processor time of compiling a constraint; the same of a modifier's compile."""
    start_seconds: Seconds = 1.0
    """Processor time of a modifier's start, for which a step waits."""
    step_seconds: Seconds = 0.5
    """Processor time of one sequence in a modifier's prepare or accept."""
    fill_seconds: Seconds = 0.5
    """Processor time of one sequence's masks in one step, in a grammar host; accepting its tokens counts too."""
    late_seconds: Seconds = 0.05
    """Processor time after which the rows of a sequence are late; it sits steps out."""
    late_fills: Annotated[int, Range(1)] = 20
    """The number of times that the rows of one sequence may be late; 3 times where others have to wait for them."""
    request_seconds: Seconds | None = None
    """The seconds that a request may take by the clock, from its admission to its end; None: as long as it takes."""
    wall_factor: Annotated[float, Range(1), math.isfinite, "a number of at least 1"] = 10.0
    """The factor by which each of them may take longer by the clock."""
    memory_bytes: Annotated[int, Range(1 << 20)] = 2 << 30
    """The bytes that a grammar or modifier host may allocate beyond what it starts with."""
    total_memory_bytes: Annotated[int, Range(1 << 20)] | None = None
    """The bytes that all hosts of a process may hold together beyond what they start with. Over that, the largest idle
    host is ended if that is enough, else the largest of all, whose work is tried again before it fails. None: a quarter
    of the memory that the process may use."""
    remembered_seconds: Seconds = 300.0
    """The seconds for which a constraint that missed a limit, or killed a host, is refused."""

    def __post_init__(self) -> None:
        check_fields(self, table="limits")
