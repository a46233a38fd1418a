"""Requests of a storm, each with what happens to it and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from guideway import SamplingParams
from guideway_engine.generation import Generation

__all__ = ["Plan"]


@dataclass
class Plan:
    """One request and its planned events."""

    prompt: list[int]
    params: SamplingParams
    tenant: str = ""
    abort_at: int | None = None
    fork_at: int | None = None
    generation: Generation | None = None
    forked_at: list[int] = field(default_factory=list)
    """Length of the first output at each fork."""

    def act(self) -> None:
        """Fork or abort when the output has the planned length."""
        assert self.generation is not None
        first = self.generation._group.sequences[0]
        if first.completion is not None:
            return
        if self.fork_at is not None and len(first.output) >= self.fork_at:
            self.fork_at = None
            length = len(first.output)
            try:
                self.generation.fork()
            except ValueError as error:
                assert "slots are in use" in str(error)
            else:
                self.forked_at.append(length)
        if self.abort_at is not None and len(first.output) >= self.abort_at:
            self.generation.abort()
