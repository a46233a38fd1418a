"""Functions that find a vLLM method by its path, ``module:Class.method``, and wrap it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

__all__ = ["find", "lacks", "look_up", "wrap"]

BEFORE = {
    "vllm.v1.structured_output:StructuredOutputManager._get_constraint_bounds": "_get_constraint_start",
}
"""Names of methods in vLLM before 0.32, with the same parameters."""


def lacks(path: str, parameters: tuple[str, ...]) -> str | None:
    """Return what this vLLM lacks of a method and parameters, or None."""
    function = find(path)
    if function is None:
        return f"it has no {path}"
    has = inspect.signature(_function_of(function)).parameters
    lacking = [name for name in parameters if name not in has]
    return f"{path} takes no {', '.join(lacking)}" if lacking else None


def find(path: str) -> Callable[..., Any] | None:
    """Return the member of a class or module at ``module:name``, under this name or its older one, or None."""
    names = [path]
    if path in BEFORE:
        names.append(f"{path.rpartition('.')[0]}.{BEFORE[path]}")
    for name in names:
        try:
            return look_up(name)[2]
        except (ImportError, AttributeError):
            continue
    return None


def look_up(path: str) -> tuple[Any, str, Callable[..., Any]]:
    """Return the class, the name of its method or property, and the member itself; for a function, its module
    instead."""
    module, _, qualified = path.partition(":")
    class_name, _, name = qualified.rpartition(".")
    holder: Any = import_module(module)
    if class_name:
        holder = getattr(holder, class_name)
    return holder, name, getattr(holder, name)


def wrap(path: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method, or the getter of a property, by the result of `around`, once."""
    holder, name, there = look_up(path)
    function = _function_of(there)
    if not getattr(function, "guideway", False):
        wrapped = wraps(function)(around(function))
        wrapped.guideway = True  # type: ignore[attr-defined]
        setattr(holder, name, property(wrapped) if isinstance(there, property) else wrapped)


def _function_of(there: Any) -> Callable[..., Any]:
    """Return the function that is called, for a property its getter."""
    function: Any = there.fget if isinstance(there, property) else there
    return function  # type: ignore[no-any-return]
