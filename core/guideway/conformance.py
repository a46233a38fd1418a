"""The conformance suite, which is a distribution of its own: ``pip install 'guideway[conformance]'``.

A plugin's tests say ``from guideway.conformance import conformance``; what the names mean is told in
`guideway_conformance`.
"""

from __future__ import annotations

try:
    from guideway_conformance import Settings, conformance
except ModuleNotFoundError as error:
    if error.name == "guideway_conformance":
        message = "the conformance suite is not installed: pip install 'guideway[conformance]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    raise

__all__ = ["Settings", "conformance"]
