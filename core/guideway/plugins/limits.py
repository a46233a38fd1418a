"""Limits of the work of plugins: the ``[limits]`` table of a configuration."""

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
    """Limits of the work of plugins. Work that exceeds a limit fails its request. Raises `InvalidConfiguration`.

    Unless stated otherwise, limits are in seconds of processor time, so that a busy machine does not fail requests.
    The limit of wall time, for work that waits or was stopped, is `wall_factor` times as much.
    """

    admission_seconds: Seconds = 10.0
    """Wall time of admitting a request, in seconds."""
    compile_seconds: Seconds = 10.0
    """Processor time of compiling a constraint, or of a modifier's compile."""
    start_seconds: Seconds = 1.0
    """Processor time of a modifier's start, during which the step waits."""
    step_seconds: Seconds = 0.5
    """Processor time of one sequence in a modifier's prepare or accept."""
    fill_seconds: Seconds = 0.5
    """Processor time of one sequence's masks in one step, in a grammar host; accepting its tokens counts too."""
    late_seconds: Seconds = 0.05
    """Processor time after which the rows of a sequence are late; the sequence then skips steps."""
    late_fills: Annotated[int, Range(1)] = 20
    """Maximum number of times that the rows of one sequence may be late; 3 if other sequences must wait for them."""
    request_seconds: Seconds | None = None
    """Wall time of a request from its admission to its end, in seconds; None: no limit."""
    wall_factor: Annotated[float, Range(1), math.isfinite, "a number of at least 1"] = 10.0
    """Limit of wall time, as a multiple of the limit of processor time."""
    memory_bytes: Annotated[int, Range(1 << 20)] = 2 << 30
    """Maximum bytes that a grammar or modifier host may allocate after its start."""
    total_memory_bytes: Annotated[int, Range(1 << 20)] | None = None
    """Maximum bytes that all hosts of a process together may allocate after their start. Beyond it, the largest idle
    host is ended if that is enough, or else the largest host, whose work is retried before it fails. None: a quarter of
    the memory that the process may use."""
    remembered_seconds: Seconds = 300.0
    """Seconds for which a constraint that exceeded a limit, or killed a host, is refused."""

    def __post_init__(self) -> None:
        check_fields(self, table="limits")
