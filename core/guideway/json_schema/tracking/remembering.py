"""Results that a method returns again for equal arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["remember"]

M = TypeVar("M", bound=Callable[..., Any])


def remember(method: M) -> M:
    """Return a method that is called once for equal arguments in the life of its object."""

    @wraps(method)
    def remembered(self: Any, *arguments: Hashable) -> Any:
        found = self.__dict__.setdefault("_remembered", {})
        key = method, arguments
        if key not in found:
            found[key] = method(self, *arguments)
        return found[key]

    return cast("M", remembered)
