"""The conformance suite, which is a distribution of its own: ``pip install 'guideway[conformance]'``.

A plugin's tests say ``from guideway.conformance import conformance``; what the names mean is told in
`guideway_conformance`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway_conformance import Settings, conformance

__all__ = ["Settings", "conformance"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("guideway_conformance"), name)
    except ModuleNotFoundError as error:
        if error.name == "guideway_conformance":
            message = "the conformance suite is not installed: pip install 'guideway[conformance]'"
            raise ModuleNotFoundError(message, name=error.name) from error
        raise
