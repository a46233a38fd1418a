"""guideway: a plugin ecosystem for structured output and logit modification in LLM inference.

Names are imported on first use, so ``import guideway`` is light.
"""
# ruff: noqa: F403, F405 - `__all__` lists the exports

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from guideway.version import __version__

if TYPE_CHECKING:
    from guideway_engine.async_engine import *
    from guideway_engine.config import *
    from guideway_engine.engine import *
    from guideway_engine.extract import *
    from guideway_engine.generation import *
    from guideway_engine.task_results import *

    from guideway.api.reasoning import *
    from guideway.api.records import *
    from guideway.api.types import *
    from guideway.errors import *
    from guideway.plugins.limits import *
    from guideway.plugins.selection import *

__all__ = [
    "AsyncEngine",
    "AsyncGeneration",
    "Choice",
    "Chunk",
    "Classification",
    "Completion",
    "Embedding",
    "Engine",
    "EngineBusy",
    "EngineClosed",
    "EngineConfig",
    "FinishReason",
    "Generation",
    "GenerationResult",
    "Grammar",
    "GuidewayError",
    "InvalidAnswer",
    "InvalidConfiguration",
    "InvalidRequest",
    "JsonObject",
    "JsonSchema",
    "Limits",
    "PluginError",
    "PluginSettings",
    "QueueFull",
    "ReasoningConfig",
    "Records",
    "Regex",
    "SamplingParams",
    "Score",
    "StructuralTag",
    "TokenLogprobs",
    "Unhealthy",
    "__version__",
    "extract",
]

_MODULES = (
    *("guideway.errors", "guideway.api.types", "guideway.api.records", "guideway.api.reasoning"),
    *("guideway.plugins.limits", "guideway.plugins.selection"),
    *("guideway_engine.config", "guideway_engine.task_results", "guideway_engine.engine"),
    *("guideway_engine.generation", "guideway_engine.async_engine", "guideway_engine.extract"),
)
"""Modules that export the names, searched in this order; the lighter ones are first."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = next(module for module in map(import_module, _MODULES) if name in module.__all__)
    except ModuleNotFoundError as error:
        if error.name == "guideway_engine":
            message = f"guideway.{name} needs guideway's engine, which is not installed: pip install 'guideway[engine]'"
            raise ModuleNotFoundError(message, name=error.name) from error
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
