"""The error of a command line that is wrong by itself."""

from __future__ import annotations

from guideway.errors import GuidewayError

__all__ = ["WrongUsage"]


class WrongUsage(GuidewayError):
    """A value on the command line is wrong by itself, whatever files and models hold: the exit status is 2."""
