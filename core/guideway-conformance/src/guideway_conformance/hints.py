"""The types of the options that a plugin reads, as the suite finds them out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, get_type_hints

from guideway.api import parse_options

__all__ = ["Hints", "hints_read"]

Hints = dict[str, Any]
"""The type hints of options, by name."""


@contextmanager
def hints_read() -> Iterator[Hints]:
    """The type hints of all options that this thread reads with `parse_options` meanwhile."""
    found: Hints = {}

    def called(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code is parse_options.__code__:
            cls = frame.f_locals["cls"]
            hints = get_type_hints(cls, include_extras=True)
            found.update({field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init})

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)
