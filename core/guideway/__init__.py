"""guideway: a plugin ecosystem for structured output and logit modification in LLM inference.

Names are imported on first use, so that ``import guideway`` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway.api.types import (
        Choice,
        FinishReason,
        GenerationResult,
        Grammar,
        JsonObject,
        JsonSchema,
        Regex,
        SamplingParams,
        StructuralTag,
    )
    from guideway.engine.config import EngineConfig
    from guideway.engine.engine import Engine

__version__ = "0.1.0.dev0"

__all__ = [
    "Choice",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "GenerationResult",
    "Grammar",
    "JsonObject",
    "JsonSchema",
    "Regex",
    "SamplingParams",
    "StructuralTag",
]

_HOME_OF = {
    "Engine": "guideway.engine.engine",
    "EngineConfig": "guideway.engine.config",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF.get(name, "guideway.api.types")), name)
    globals()[name] = value
    return value
