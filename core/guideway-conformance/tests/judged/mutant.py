"""A plugin with one mistake, as a change of one that is correct."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One mistake, as an author would make it."""

    name: str
    plugin: str
    """``module.Class`` in `judged.plugins`."""
    text: str
    wrong: str
    """The text that stands in the place of `text`."""
    promise: str
    """The sentence of the contract that it breaks."""
    first: str = ""
    """The check that caught it in the first run, before any was changed for it."""
    reason: str = ""
    """Why it survived then, and what is so now."""
    now: str = ""
    """The check that catches it since one was changed for it."""
    survives: bool = False
    """True if it still does."""
    correct: bool = False
    """True if it breaks no promise after all: then nothing may be said against it."""
