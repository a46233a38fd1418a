"""Errors in the command line itself."""

from __future__ import annotations

from guideway.errors import GuidewayError, InvalidRequest

__all__ = ["WrongUsage", "WrongValue"]


class WrongUsage(GuidewayError):
    """A value on the command line is invalid, independent of files and models. The exit status is 2."""


class WrongValue(InvalidRequest, WrongUsage):
    """A constraint or an input on the command line is invalid."""
