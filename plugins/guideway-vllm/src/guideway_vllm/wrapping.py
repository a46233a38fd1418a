"""Finding a method of vLLM by its path, ``module:Class.method``, and standing around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

__all__ = ["found", "lacks", "wrap"]

BEFORE = {
    "vllm.v1.structured_output:StructuredOutputManager._get_constraint_bounds": "_get_constraint_start",
}
"""The names of seams in vLLM before 0.32; it takes the same parameters."""


def lacks(path: str, parameters: tuple[str, ...]) -> str | None:
    """Return what this vLLM has not got of a seam; None: nothing."""
    function = _known(path)
    if function is None:
        return f"it has no {path}"
    has = inspect.signature(_called(function)).parameters
    lacking = [name for name in parameters if name not in has]
    return f"{path} takes no {', '.join(lacking)}" if lacking else None


def _known(path: str) -> Callable[..., Any] | None:
    """The method, under this name or the one it had before."""
    names = [path]
    if path in BEFORE:
        names.append(f"{path.rpartition('.')[0]}.{BEFORE[path]}")
    for name in names:
        try:
            return found(name)[2]
        except (ImportError, AttributeError):
            continue
    return None


def found(path: str) -> tuple[Any, str, Callable[..., Any]]:
    """Return the class, the name of its method or property, and that; of a function, its module."""
    module, _, qualified = path.partition(":")
    class_name, _, name = qualified.rpartition(".")
    holder: Any = import_module(module)
    if class_name:
        holder = getattr(holder, class_name)
    return holder, name, getattr(holder, name)


def wrap(path: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what `around` makes of a method, or of what a property calls, in its place, once."""
    holder, name, there = found(path)
    function = _called(there)
    if not getattr(function, "guideway", False):
        wrapped = wraps(function)(around(function))
        wrapped.guideway = True  # type: ignore[attr-defined]
        setattr(holder, name, property(wrapped) if isinstance(there, property) else wrapped)


def _called(there: Any) -> Callable[..., Any]:
    """The function that is called, of a property, too."""
    function: Any = there.fget if isinstance(there, property) else there
    return function  # type: ignore[no-any-return]
