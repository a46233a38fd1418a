"""guideway: a plugin ecosystem for structured output and logit modification in LLM inference.

Names are imported on first use, so that ``import guideway`` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway.api.errors import GuidewayError, InvalidConfiguration, InvalidRequest, PluginError
    from guideway.api.types import (
        Choice,
        Completion,
        FinishReason,
        GenerationResult,
        Grammar,
        JsonObject,
        JsonSchema,
        Regex,
        SamplingParams,
        StructuralTag,
        TokenLogprobs,
    )
    from guideway.engine.async_engine import AsyncEngine, AsyncGeneration
    from guideway.engine.config import EngineConfig
    from guideway.engine.engine import Engine, EngineBusy, EngineClosed, QueueFull
    from guideway.engine.generation import Chunk, Generation
    from guideway.plugins.selection import PluginSettings

__version__ = "0.1.0.dev0"

__all__ = [
    "AsyncEngine",
    "AsyncGeneration",
    "Choice",
    "Chunk",
    "Completion",
    "Engine",
    "EngineBusy",
    "EngineClosed",
    "EngineConfig",
    "FinishReason",
    "Generation",
    "GenerationResult",
    "Grammar",
    "GuidewayError",
    "InvalidConfiguration",
    "InvalidRequest",
    "JsonObject",
    "JsonSchema",
    "PluginError",
    "PluginSettings",
    "QueueFull",
    "Regex",
    "SamplingParams",
    "StructuralTag",
    "TokenLogprobs",
]

_HOME_OF = {
    "AsyncEngine": "guideway.engine.async_engine",
    "AsyncGeneration": "guideway.engine.async_engine",
    "Chunk": "guideway.engine.generation",
    "Engine": "guideway.engine.engine",
    "EngineBusy": "guideway.engine.engine",
    "EngineClosed": "guideway.engine.engine",
    "EngineConfig": "guideway.engine.config",
    "Generation": "guideway.engine.generation",
    "GuidewayError": "guideway.api.errors",
    "InvalidConfiguration": "guideway.api.errors",
    "InvalidRequest": "guideway.api.errors",
    "PluginError": "guideway.api.errors",
    "PluginSettings": "guideway.plugins.selection",
    "QueueFull": "guideway.engine.engine",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_HOME_OF.get(name, "guideway.api.types"))
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers"):
            message = f"guideway.{name} needs {error.name}, which is not installed: pip install 'guideway[engine]'"
            raise ModuleNotFoundError(message, name=error.name) from error
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
