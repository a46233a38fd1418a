"""From a configuration to the parts of an engine: plugins selected, loaded and built, model and runtime made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from guideway.api.errors import (
    GuidewayError,
    InvalidConfiguration,
    PluginLoadError,
    PluginNotFound,
    PluginUnavailable,
)
from guideway.api.hooks import ValidationContext
from guideway.api.modifier import ModifierContext, WorkerContext
from guideway.api.steps import Need
from guideway.api.types import Request
from guideway.constraints.runtime import Runtime
from guideway.constraints.vocabulary import build_vocabulary
from guideway.engine.config import EngineConfig
from guideway.engine.worker import Worker
from guideway.pipeline import Pipeline
from guideway.plugins import Hook, Hooks, Plugins

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from guideway.engine.model_runner import ModelRunner

__all__ = ["Parts", "assemble"]

T = TypeVar("T")

OFFERS = frozenset({Need.HIDDEN_STATES, Need.BITMASK, Need.HISTORY, Need.COMPANIONS, Need.UNIFORM, Need.FEEDBACK})
"""What this engine can give to modifiers."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of."""

    tokenizer: PreTrainedTokenizerFast
    runtime: Runtime
    worker: Worker
    hooks: Hooks


def assemble(config: EngineConfig) -> Parts:
    """Load and build everything. Raises `InvalidConfiguration` or `PluginError`; a selected plugin that is broken
    is never replaced by another."""
    from guideway.engine.model_loader import load

    plugins = Plugins(settings=config.plugins)
    # plugins first: a misspelt name should not cost the loading of a model
    strategies = {address: plugins.load("grammar", address) for address in config.grammar}
    modifiers = {address: plugins.load("modifier", address) for address in config.modifiers}
    backend = plugins.load("device", config.device_backend)
    hooks = plugins.hooks()
    if (reason := _build(f"device.{backend.name}", backend.available)) is not None:
        raise PluginUnavailable(
            f"device {backend.name!r} cannot run here: {reason}", plugin=f"device.{config.device_backend}"
        )
    device = _build(f"device.{backend.name}", lambda: backend(config.device))

    model, tokenizer = load(model_path(config.model, plugins), config.dtype, config.device)
    runner = _runner(model, config)
    stops = getattr(model.generation_config, "eos_token_id", None)
    vocabulary = build_vocabulary(
        tokenizer,
        logits_width=runner.logits_width,
        stop_token_ids=[] if stops is None else [stops] if isinstance(stops, int) else stops,
    )

    context = ModifierContext(
        vocabulary=vocabulary, max_num_sequences=config.max_num_seqs, max_model_len=runner.cache.max_length
    )
    runtime = Runtime(
        context,
        strategies={
            cls.name: _build(f"grammar.{cls.name}", partial(cls, vocabulary, _options(config, "grammar", cls.name)))
            for cls in strategies.values()
        },
        modifiers=[
            _build(f"modifier.{cls.name}", partial(cls, _options(config, "modifier", cls.name), context))
            for cls in modifiers.values()
        ],
        validators=[(hook.plugin, partial(_validate, hook)) for hook in hooks.validate_request],
        offers=OFFERS,
        model=config.model,
        cache_bytes=config.grammar_cache_bytes,
        compile_threads=config.compile_threads,
    )
    worker_context = WorkerContext(device=device, vocabulary_size=len(vocabulary), logits_width=vocabulary.logits_width)
    worker = Worker(runner, Pipeline(runtime.modifier_classes(), worker_context))
    return Parts(tokenizer, runtime, worker, hooks)


def model_path(model: str, plugins: Plugins) -> Path:
    """The folder of an installed model component or of a path. Raises `InvalidConfiguration`."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith((".", "/", "~", "\\")):
        raise InvalidConfiguration(f"there is no model {model!r}: there is no such folder", field="model")
    try:
        component = plugins.load("model", model)
    except PluginNotFound as error:
        if "/" in model:
            why = (
                "it is neither a folder nor an installed component, and guideway downloads nothing; fetch it first "
                f"(hf download {model} --local-dir FOLDER) and give the folder"
            )
        else:
            why = f"it is no folder, and {str(error)[:1].lower()}{str(error)[1:]}"
        raise InvalidConfiguration(f"there is no model {model!r}: {why}", field="model") from error
    return _build(f"model.{component.name}", lambda: component().path())


def _runner(model: PreTrainedModel, config: EngineConfig) -> ModelRunner:
    """The runner, as long as the configuration or else the model says. Raises `InvalidConfiguration`."""
    from guideway.engine.model_runner import ModelRunner, context_length

    max_length = config.max_model_len or context_length(model)
    if max_length is None:
        raise InvalidConfiguration(
            "the model does not say how long its context is; set max_model_len", field="max_model_len"
        )
    try:
        return ModelRunner(model, num_slots=config.max_num_seqs, max_length=max_length)
    except InvalidConfiguration as error:
        if error.field != "max_length":
            raise
        raise InvalidConfiguration(
            f"max_model_len cannot be {max_length} with this model: {error}", field="max_model_len"
        ) from error


def _options(config: EngineConfig, kind: str, name: str) -> dict[str, Any]:
    return dict(config.options.get(f"{kind}.{name}", {}))


def _validate(hook: Hook, request: Request, context: ValidationContext) -> None:
    hook(request=request, context=context)


def _build(plugin: str, make: Callable[[], T]) -> T:
    """``make()``; what is not guideway's own error becomes a `PluginLoadError` that names the plugin."""
    try:
        return make()
    except GuidewayError:
        raise
    except Exception as error:
        raise PluginLoadError(
            f"{plugin} failed while it was built: {type(error).__name__}: {error}", plugin=plugin
        ) from error
