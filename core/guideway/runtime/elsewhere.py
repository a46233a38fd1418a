"""The interface between the runtime and work in other processes. The runtime knows nothing else about them, but for the
`Home` of each strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from guideway.api.modifier import LogitModifier
from guideway.runtime.admission.checking import Judge
from guideway.runtime.constraints.home import Home

__all__ = ["Hosts"]


class Hosts(Protocol):
    """Processes that can be killed one by one, for strategies, modifiers and the check of texts."""

    @property
    def failure(self) -> str | None:
        """Why no process can be started at the moment, or None."""

    homes: Mapping[str, Home]
    """The homes of strategies by name."""
    classes: Mapping[str, type[LogitModifier[Any]]]
    """The classes of modifiers by name."""

    @property
    def judge(self) -> Judge: ...

    def start_soon(self) -> None:
        """Start the processes that the first call would wait for, in the background."""

    def announce(self, modifier: str, steps: Sequence[tuple[Any, tuple[int, ...], Any]]) -> None:
        """Announce calls of `accept`, as (state, token ids, feedback), so that one command serves all."""
