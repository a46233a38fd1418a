"""What work in a grammar host may cost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HostLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Beyond one of these a host is killed, and the request it worked for fails.

    Time is that of a processor, so that a busy machine fails nobody; the limits of wall time, for what waits or was
    stopped, are many times longer.
    """

    compile_seconds: float = 10.0
    """Of `GrammarStrategy.compile` and `supports`."""
    fill_seconds: float = 0.5
    """Of what one sequence needs for one step: accepting its tokens and filling its rows."""
    wall_factor: float = 10.0
    """How many times as long each of them may take by the clock."""
    memory_bytes: int = 2 << 30
    """What a host may allocate beyond what it has from the start."""
    remembered_seconds: float = 300.0
    """How long a constraint that broke a limit, or killed a host, is refused at once."""
