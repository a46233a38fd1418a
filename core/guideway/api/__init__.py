"""The names that plugins may import. Needs only the standard library, NumPy and pluggy.

Names are imported on first use, so a program that only lists plugins stays light.
"""
# ruff: noqa: F403, F405 - `__all__` lists the exports

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway.api.attention import *
    from guideway.api.bitmask import *
    from guideway.api.device import *
    from guideway.api.forward import *
    from guideway.api.grammar import *
    from guideway.api.hooks import *
    from guideway.api.hookspecs import *
    from guideway.api.modifier import *
    from guideway.api.options import *
    from guideway.api.processes import *
    from guideway.api.provisional import *
    from guideway.api.records import *
    from guideway.api.steps import *
    from guideway.api.types import *
    from guideway.api.vocabulary import *
    from guideway.api.worker import *
    from guideway.api.workflow import *
    from guideway.errors import *

CONTRACT = "1.0"
"""Version of the contract that this core implements. A class that declares a newer minor version is refused."""

_MODULES = (
    *("guideway.errors", "guideway.api.types", "guideway.api.hooks", "guideway.api.hookspecs", "guideway.api.options"),
    *("guideway.api.processes", "guideway.api.records"),
    *("guideway.api.provisional", "guideway.api.attention", "guideway.api.workflow", "guideway.api.worker"),
    *("guideway.api.vocabulary", "guideway.api.steps", "guideway.api.grammar", "guideway.api.bitmask"),
    *("guideway.api.modifier", "guideway.api.device", "guideway.api.forward"),
)
"""Modules that export the names, searched in this order; modules that do not import NumPy are first."""

__all__ = [
    "ATTENTION_CAPABILITIES",
    "ATTENTION_TOLERANCES",
    "CONTINUE",
    "CONTRACT",
    "FINISH",
    "MAX_INDENTATION",
    "PARTS",
    "WHITESPACE",
    "Array",
    "ArrayOps",
    "AttentionBackend",
    "AttentionLayout",
    "Call",
    "Choice",
    "Companion",
    "CompiledGrammar",
    "Completion",
    "ConformanceError",
    "Constraint",
    "DeadEnd",
    "DeviceBackend",
    "Download",
    "Draw",
    "Encoder",
    "Example",
    "Executor",
    "Fault",
    "Feedback",
    "FillJob",
    "FinishReason",
    "ForwardOutput",
    "ForwardStep",
    "GenerationResult",
    "Grammar",
    "GrammarExample",
    "GrammarStrategy",
    "GuidewayError",
    "InputProcessor",
    "InvalidConfiguration",
    "InvalidGrammar",
    "InvalidRequest",
    "JsonObject",
    "JsonSchema",
    "LimitExceeded",
    "LogitModifier",
    "LogitTransform",
    "Logprobs",
    "Loss",
    "Losses",
    "Matcher",
    "Model",
    "ModelFolder",
    "ModelInfo",
    "ModelRunner",
    "ModifierContext",
    "Need",
    "OnUnenforced",
    "Outcome",
    "OutputProcessor",
    "Payload",
    "PluginConflict",
    "PluginError",
    "PluginLoadError",
    "PluginNotFound",
    "PluginUnavailable",
    "Prepared",
    "PropertiesOrder",
    "Records",
    "Regex",
    "Request",
    "RequestProcessor",
    "RunnerLimits",
    "Sampler",
    "SamplingParams",
    "SequenceInfo",
    "SequencesFailed",
    "Stage",
    "Step",
    "StepBatch",
    "StepBuilder",
    "StepInput",
    "StepOutput",
    "StructuralTag",
    "Submission",
    "Support",
    "Task",
    "TokenLists",
    "TokenLogprobs",
    "UnsupportedCapability",
    "UnsupportedGrammar",
    "ValidationContext",
    "Vocabulary",
    "Warp",
    "Whitespace",
    "WorkScheduler",
    "Worker",
    "WorkerContext",
    "WorkerLost",
    "WorkerMixin",
    "WorkerStep",
    "Workflow",
    "WorkflowContext",
    "WorkflowRunner",
    "excerpt",
    "fail",
    "hookimpl",
    "hookspec",
    "in_killable_host",
    "padded_size",
    "parse_options",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, _MODULES):
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
