"""The conformance suite: checks that a plugin keeps its contract.

``guideway conform KIND.NAME`` runs it, as does `conformance` in a plugin's own tests. Needs ``guideway[conformance]``.
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
