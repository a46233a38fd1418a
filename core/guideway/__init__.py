"""guideway: a plugin ecosystem for structured output and logit modification in LLM inference.

Names are imported on first use, so that ``import guideway`` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from guideway.version import __version__

if TYPE_CHECKING:
    from guideway_engine.async_engine import AsyncEngine, AsyncGeneration
    from guideway_engine.config import EngineConfig
    from guideway_engine.engine import Engine, EngineBusy, EngineClosed, QueueFull
    from guideway_engine.generation import Chunk, Generation

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
    from guideway.errors import GuidewayError, InvalidConfiguration, InvalidRequest, PluginError
    from guideway.plugins.selection import PluginSettings

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
    "__version__",
]

_HOME_OF = {
    "AsyncEngine": "guideway_engine.async_engine",
    "AsyncGeneration": "guideway_engine.async_engine",
    "Chunk": "guideway_engine.generation",
    "Engine": "guideway_engine.engine",
    "EngineBusy": "guideway_engine.engine",
    "EngineClosed": "guideway_engine.engine",
    "EngineConfig": "guideway_engine.config",
    "Generation": "guideway_engine.generation",
    "GuidewayError": "guideway.errors",
    "InvalidConfiguration": "guideway.errors",
    "InvalidRequest": "guideway.errors",
    "PluginError": "guideway.errors",
    "PluginSettings": "guideway.plugins.selection",
    "QueueFull": "guideway_engine.engine",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_HOME_OF.get(name, "guideway.api.types"))
    except ModuleNotFoundError as error:
        if error.name == "guideway_engine":
            message = f"guideway.{name} is of guideway's engine, which is not installed: pip install 'guideway[engine]'"
            raise ModuleNotFoundError(message, name=error.name) from error
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
