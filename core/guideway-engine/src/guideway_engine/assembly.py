"""Building the parts of an engine from a configuration: plugins, workers and runtime."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api.forward import ModelInfo, RunnerLimits
from guideway.api.modifier import ModifierContext
from guideway.api.provisional import Call, Executor
from guideway.api.steps import Need
from guideway.errors import InvalidConfiguration, PluginLoadError, contain, text_of
from guideway.plugins import Hooks, Plugins
from guideway.plugins.building import building
from guideway.plugins.configuration import component_name
from guideway.runtime.plan import RuntimePlan, placement
from guideway.runtime.runtime import Runtime
from guideway.vocabulary import build_vocabulary

from guideway_engine.chat import ChatTemplate
from guideway_engine.config import EngineConfig
from guideway_engine.environment import numerics, planned
from guideway_engine.model_path import model_path
from guideway_engine.prompts import PromptReader, most_bytes
from guideway_engine.scheduling.buddy import power_of_two
from guideway_engine.scheduling.kv_cache import KVCache
from guideway_engine.strategies import with_strategies
from guideway_engine.worker import WORKER, WorkerSettings, WorkerSpec

__all__ = ["Assembled", "assemble"]

log = logging.getLogger("guideway_engine")

OFFERS = frozenset(Need) - {Need.SCHEDULER_DRAW}
"""Needs of modifiers that this engine can meet."""

MOST_FORCED = 16
"""Maximum number of forced tokens of a sequence in one step."""

MAX_DEFAULT_CELLS = 1 << 16
"""Maximum number of tokens in the KV cache unless the configuration sets it."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts that `decode` is built from."""

    prompts: PromptReader
    runtime: Runtime
    executor: Executor
    cache: KVCache
    hooks: Hooks
    info: ModelInfo
    num_forced_tokens: int
    """Maximum number of forced tokens of a sequence in a step."""
    restart: Callable[[], Iterator[Call]]
    """Starts new workers in place of lost ones, one call at a time, and brings them to the state after start-up: ready
    for a step, with empty caches."""


def assemble(config: EngineConfig, plugins: Plugins | None = None, *, worker: str = WORKER) -> Assembled:
    """Load and build everything that `config` selects.

    `plugins` must have the settings `config.plugins`; `worker` is the import path of the workers' class. Raises
    `InvalidConfiguration` or `PluginError`; a selected plugin that is broken is never replaced by another. If something
    fails, all parts built before it are closed.
    """
    from guideway_engine.runners.transformers.model_loader import load_tokenizer

    plugins = plugins or Plugins(settings=config.plugins)
    config = with_strategies(config)
    # plugins first: a misspelled name should fail before the model is loaded; one error names all that are not
    # certified
    plugins.require(config.selection(plugins.index))
    spec = _worker_spec(config, plugins, worker)
    strategies = [plugins.load("grammar", address) for address in config.grammar or ()]
    modifiers = [plugins.load("modifier", address) for address in config.modifiers]
    make_executor: type[Executor] = plugins.load("executor", config.executor)
    hooks = plugins.hooks()

    options = _options(config, "executor", make_executor.name)
    executor_id = f"executor.{make_executor.name}"
    try:
        with building(executor_id):
            executor = make_executor(spec, options)
    except PluginLoadError as error:
        if error.plugin == executor_id:  # perhaps it could not send the options to the workers
            for address, its_own in spec.mixins:
                _check_pickles(f"worker.{component_name('worker', address)}", its_own)
        raise
    try:
        tokenizer = load_tokenizer(spec.model)
        info: ModelInfo = executor.submit("load").result()
        max_length = _max_length(config, info)
        cache = _cache(config, max_length)
        vocabulary = build_vocabulary(
            tokenizer, logits_width=info.logits_width, stop_token_ids=list(info.stop_token_ids)
        )
        # a device that compiles for each shape has as many rows as configured drafts need
        most_forced = config.num_speculative_tokens if info.static_shapes else MOST_FORCED
        num_forced = 0 if config.forced_tokens == "off" else most_forced
        context = ModifierContext(vocabulary=vocabulary, max_num_sequences=cache.num_slots, max_model_len=max_length)
        runtime = RuntimePlan(
            context=context,
            strategies=strategies,
            modifiers=modifiers,
            options=config.options,
            offers=OFFERS,
            model=config.model,
            cache_bytes=config.grammar_cache_bytes,
            compile_threads=config.compile_threads,
            grammar_host=config.grammar_host,
            modifier_host=config.modifier_host,
            host_environment=config.host_environment,
            isolate_tenants=config.isolate_tenants,
            limits=config.limits,
            # "canonical" tokens must depend only on the constraint, not on time
            sits_out=config.forced_tokens != "canonical",
            whitespace=config.whitespace,
            short_budget=config.short_budget,
            reasoning=config.reasoning,
            on_unenforced=config.on_unenforced,
            forced_tokens=config.forced_tokens,
            num_forced_tokens=num_forced,
        ).build(hooks)
        try:
            settings = WorkerSettings(
                modifiers=runtime.modifier_classes(),
                example_steps=runtime.example_steps() if info.static_shapes else (),
                vocabulary_size=len(vocabulary),
                limits=RunnerLimits(
                    num_cells=cache.num_cells,
                    max_length=max_length,
                    max_num_tokens=config.max_num_batched_tokens,
                    max_num_rows=config.max_num_seqs * (1 + config.num_speculative_tokens),
                ),
            )
            special = frozenset(vocabulary.special_tokens) if config.split_special_tokens else None
            template = ChatTemplate(tokenizer, special)
            prompts = PromptReader(tokenizer, template, most_bytes(tokenizer, vocabulary, max_length))
            _start(executor, settings)
        except BaseException:
            runtime.close()
            raise
    except BaseException:
        executor.close()
        raise

    def restart() -> Iterator[Call]:
        executor.restart()
        yield executor.submit("load")
        yield executor.submit("start", settings)

    facts = [*(f"{name}={value}" for name, value in numerics().items()), placement(config.grammar_host, runtime)]
    log.info("%s", spec.plan.summary("its own engine", *facts))
    return Assembled(prompts, runtime, executor, cache, hooks, info, num_forced, restart)


def _start(executor: Executor, settings: WorkerSettings) -> None:
    """Send `settings` to the workers. Raises their errors, and `InvalidConfiguration` or `PluginLoadError` for a
    modifier that cannot be sent to them."""
    try:
        started = executor.submit("start", settings)
    except BaseException as error:  # any error of pickling; executors that do not pickle do not raise here
        contain(error)
        for modifier, options in settings.modifiers:
            _check_pickles(f"modifier.{modifier.name}", options, modifier)
        raise
    started.result()


def _check_pickles(component: str, options: Mapping[str, Any], cls: type | None = None) -> None:
    """Raise `PluginLoadError` if the class of a component cannot be sent to another process, and `InvalidConfiguration`
    if its options cannot."""
    try:
        pickle.dumps(cls)
    except BaseException as error:
        contain(error)
        raise PluginLoadError(
            f"{component} cannot be sent to the worker processes, because its class does not pickle: {text_of(error)}",
            plugin=component,
        ) from error
    try:
        pickle.dumps(options)
    except BaseException as error:
        contain(error)
        raise InvalidConfiguration(
            f"the options of {component} cannot be sent to the worker processes: {text_of(error)}; use plain values",
            field=f"options.{component}",
        ) from error


def _worker_spec(config: EngineConfig, plugins: Plugins, worker: str) -> WorkerSpec:
    """Return the specification of the workers. Resolves their plugins without importing them, because workers may run
    elsewhere."""
    for kind, address in (("device", config.device_backend), ("runner", config.runner)):
        name = plugins.resolve(kind, address).name
        if options := _options(config, kind, name):
            raise InvalidConfiguration(
                f"{kind} {name!r} takes no options; remove {', '.join(sorted(options))}",
                field=f"options.{kind}.{name}",
            )
    mixins = [(address, plugins.resolve("worker", address)) for address in config.worker_mixins]
    selection = [("device", config.device_backend), ("runner", config.runner)]
    selection += [("grammar", address) for address in config.grammar or ()]
    selection += [("modifier", address) for address in config.modifiers]
    selection += [("worker", address) for address in config.worker_mixins]
    folder = model_path(config.model, plugins, config.load_format)
    return WorkerSpec(
        worker=worker,
        plan=plugins.plan(selection, planned(config, folder)),
        model=str(folder),
        dtype=config.dtype,
        runner=config.runner,
        device_backend=config.device_backend,
        device=config.device,
        mixins=[(address, _options(config, "worker", record.name)) for address, record in mixins],
    )


def _max_length(config: EngineConfig, info: ModelInfo) -> int:
    """Return the maximum number of tokens of one sequence, from the configuration or else the model. Raises
    `InvalidConfiguration`."""
    max_length = config.max_model_len or info.max_context
    if max_length is None:
        raise InvalidConfiguration(
            "the model's configuration has no context length; set max_model_len", field="max_model_len"
        )
    if info.max_context is not None and max_length > info.max_context:
        raise InvalidConfiguration(
            f"max_model_len is {max_length}, but the context length of this model is {info.max_context}; lower it",
            field="max_model_len",
        )
    return max_length


def _cache(config: EngineConfig, max_length: int) -> KVCache:
    """Create the KV cache's bookkeeping, with twice as many slots as sequences run, because preempted sequences keep
    theirs."""
    least = power_of_two(max_length)
    num_cells = config.kv_cache_tokens
    if num_cells is None:
        num_cells = max(least, min(config.max_num_seqs * least, MAX_DEFAULT_CELLS))  # regions are powers of two
    if num_cells < least:
        raise InvalidConfiguration(
            f"kv_cache_tokens must be at least {least}, so that one sequence of {max_length} tokens fits, not "
            f"{num_cells}; raise it, or lower max_model_len",
            field="kv_cache_tokens",
        )
    return KVCache(
        num_slots=2 * config.max_num_seqs,
        num_cells=num_cells,
        max_length=max_length,
        enable_prefix_caching=config.enable_prefix_caching,
        isolate_tenants=config.isolate_tenants,
    )


def _options(config: EngineConfig, kind: str, name: str) -> dict[str, Any]:
    return dict(config.options.get(f"{kind}.{name}", {}))
