"""The host-neutral runtime: admission, compilation, masking, per-sequence states, journal and replay.

Names are imported on first use, because a grammar host needs only a part of the package and has to start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway.runtime.admission.admission import Admission
    from guideway.runtime.plan import RuntimePlan
    from guideway.runtime.runtime import CLOSING, Runtime
    from guideway.runtime.sequences.journal import Journal
    from guideway.vocabulary import build_vocabulary

__all__ = ["CLOSING", "Admission", "Journal", "Runtime", "RuntimePlan", "build_vocabulary"]

_MODULES = {
    "CLOSING": "guideway.runtime.runtime",
    "Admission": "guideway.runtime.admission.admission",
    "Journal": "guideway.runtime.sequences.journal",
    "Runtime": "guideway.runtime.runtime",
    "RuntimePlan": "guideway.runtime.plan",
    "build_vocabulary": "guideway.vocabulary",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
