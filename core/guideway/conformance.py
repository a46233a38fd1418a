"""The conformance suite, from a separate distribution: ``pip install 'guideway[conformance]'``.

A plugin's tests use ``from guideway.conformance import conformance``. `guideway_conformance` documents the names.
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
