"""The errors of a command line that is wrong by itself."""

from __future__ import annotations

from guideway.errors import GuidewayError, InvalidRequest

__all__ = ["WrongUsage", "WrongValue"]


class WrongUsage(GuidewayError):
    """A value on the command line is wrong by itself, whatever files and models hold: the exit status is 2."""


class WrongValue(InvalidRequest, WrongUsage):
    """A constraint or an input is wrong in the command line itself."""
