"""One conformance suite for every plugin: the program that checks what the contracts say.

``guideway conform KIND.NAME`` runs it, and in a plugin's own tests `conformance`. Needs ``guideway[conformance]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway_conformance.pytest_factory import conformance
    from guideway_conformance.subjects import Settings

__all__ = ["Settings", "conformance"]


def __getattr__(name: str) -> Any:
    if name == "conformance":
        from guideway_conformance.pytest_factory import conformance

        return conformance
    if name == "Settings":
        from guideway_conformance.subjects import Settings

        return Settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
