"""All changes to vLLM except its HTTP server (`over_http`). Every place is checked before anything is changed.

`WRAPPED` lists the methods. None of the changes has an effect unless ``additional_config`` has the key ``guideway``.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeAlias

from guideway.api import PluginUnavailable
from guideway.errors import Unhealthy

from guideway_vllm.answers import add_up, is_recorded, report_of, set_report, shutdown_error, with_records
from guideway_vllm.drafts import around_create_speculative_config
from guideway_vllm.health import METHOD, unhealthy
from guideway_vllm.metrics import METHOD as SAMPLES
from guideway_vllm.metrics import samples
from guideway_vllm.steps import ATTRIBUTE, RECORDS
from guideway_vllm.wrapping import lacks, look_up, wrap

__all__ = ["install", "missing_seams"]

log = logging.getLogger("vllm.guideway")

PROCESSED = ("request_id", "prompt", "params")
REASONING = ("request", "spec_tokens", "spec_tokens_committed")

Around: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns the replacement of a method."""


def install() -> None:
    """Change vLLM in this process, once. Raises `PluginUnavailable`, naming vLLM's version and all missing methods,
    without having changed anything."""
    if missing := missing_seams():
        import vllm

        raise PluginUnavailable(
            f"guideway-vllm cannot run in vLLM {vllm.__version__}: {'; '.join(missing)}. Use a version that "
            "docs/hosts/vllm.md lists, or keep the plugin from loading (VLLM_PLUGINS)",
            plugin="host.vllm",
        )
    for path, (_, around) in WRAPPED.items():
        wrap(path, around)
    core, _, _ = look_up("vllm.v1.engine.core:EngineCore.shutdown")
    for name, method in {METHOD: unhealthy, SAMPLES: samples}.items():
        setattr(core, name, method)


def missing_seams() -> list[str]:
    """Return one line for each method or parameter that this vLLM lacks."""
    return [why for path, parameters in NEEDED.items() if (why := lacks(path, parameters)) is not None]


def _around_init(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        from guideway_vllm.frontend import FrontEnd

        self.guideway = FrontEnd.of(self.vllm_config)
        if self.guideway is not None:
            weakref.finalize(self, self.guideway.close)  # vLLM does not close input processors

    return wrapped


def _around_offline_init(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.input_processor.guideway is not None:
            self.input_processor.guideway.start_hosts()

    return wrapped


def _around_async_init(init: Callable[..., Any]) -> Callable[..., Any]:
    """Change the HTTP server too, whose modules take a second to import, so not for an engine that has no server."""

    def wrapped(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        from guideway_vllm.config import GuestConfig

        config = GuestConfig.of(vllm_config)
        if config is not None:
            from guideway_vllm.over_http import SERVING, change_server

            change_server(config.strict_refuses)  # may refuse, so before the engine core starts
        init(self, vllm_config, *args, **kwargs)
        if config is not None:
            SERVING.add(self.input_processor.guideway)
            self.input_processor.guideway.start_hosts()

    return wrapped


def _around_validate_params(validate_params: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if (guideway := getattr(self, "guideway", None)) is not None:  # vLLM's own tests call it on other objects
            params = guideway.without_constraint(params)
        return validate_params(self, params, *args, **kwargs)

    return wrapped


_PROCESS: ContextVar[Callable[[Callable[[], Any]], Any] | None] = ContextVar("_PROCESS", default=None)
"""While set, it is called with vLLM's `process_inputs`, and returns the request in its place. Nothing is admitted."""


def _around_process_inputs(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, request_id: str, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        make = partial(process_inputs, self, request_id, prompt, *args, **kwargs)
        if (process := _PROCESS.get()) is not None:
            return process(make)
        request = make()
        if self.guideway is not None:
            self.guideway.admit(request, _text_of(prompt))
        return request

    return wrapped


def _around_add_request(add_request: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(add_request)

    async def wrapped(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        guideway = self.input_processor.guideway
        with _raise_shutdown_error(guideway):
            if guideway is None or not guideway.is_tried(params):
                return await add_request(self, request_id, prompt, params, *args, **kwargs)
            tried = None
            records: list[Any] = []
            if isinstance(prompt, dict) and "type" in prompt:  # unrendered prompts are processed in a thread by vLLM
                given = signature.bind(self, request_id, prompt, params, *args, **kwargs).arguments
                tried = await _try_request(self, given, records)
            with _processing(None if tried is None else lambda _: tried):
                queue = await add_request(self, request_id, prompt, params, *args, **kwargs)
            guideway.report_start(request_id, records)
            return queue

    return wrapped


async def _try_request(self: Any, given: dict[str, Any], records: list[Any]) -> Any:
    """Make a request for the engine core and try it, outside the event loop. Returns the request. `records` is for
    observers."""
    processor = self.input_processor
    known = _parameters(type(processor).process_inputs)
    passed = {name: value for name, value in given.items() if name in known}
    tasks = await self.get_supported_tasks()

    def make() -> Any:
        with _processing(lambda process: process()):
            return processor.process_inputs(**passed, supported_tasks=tasks)

    return await processor.guideway.admit_async(given["request_id"], make, _text_of(given["prompt"]), records)


@cache
def _parameters(method: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a method's parameters, without the first, ``self``."""
    return frozenset(list(inspect.signature(method).parameters)[1:])


@contextmanager
def _raise_shutdown_error(guideway: Any) -> Iterator[None]:
    """During shutdown, raise an error that says so instead of one about a dead engine."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError:
        if guideway is None or not guideway.ending:
            raise
        raise shutdown_error() from None


def _around_generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        guideway = self.input_processor.guideway
        outputs = generate(self, prompt, sampling_params, request_id, *args, **kwargs)
        if guideway is None:
            return outputs
        if (judge := guideway.judge(sampling_params)) is not None:
            outputs = judge.judge_stream(outputs)
        return outputs if guideway.observers is None else guideway.observers.watch(request_id, outputs)

    return wrapped


def _around_dead_error(dead_error: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> BaseException:
        guideway = self.input_processor.guideway
        return dead_error(self) if guideway is None or not guideway.ending else shutdown_error()

    return wrapped


def _around_shutdown(shutdown: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        guideway = getattr(getattr(self, "input_processor", None), "guideway", None)
        if guideway is not None:
            guideway.ending = True
        try:
            if guideway is not None and getattr(self.vllm_config, "shutdown_timeout", 0) == 0:
                _announce_shutdown(self)
        finally:
            shutdown(self, *args, **kwargs)
        if guideway is not None:
            _announce_shutdown(self)  # requests that arrived in the meantime

    return wrapped


def _announce_shutdown(engine: Any) -> None:
    """Stop reading the core's outputs, in which it aborts requests, and raise the shutdown error in all waiting
    callers: vLLM would drop the end of a stream without tokens."""
    if (handler := getattr(engine, "output_handler", None)) is None:
        return

    def tell() -> None:
        handler.cancel()
        engine.output_processor.propagate_error(shutdown_error())

    with suppress(RuntimeError):  # the loop is closed, and nothing waits
        handler.get_loop().call_soon_threadsafe(tell)


_JUDGES: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""By engine, the checks of the outputs of its requests, offline, where one loop serves all."""


def _around_offline_add_request(add_request: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        added = add_request(self, request_id, prompt, params, *args, **kwargs)
        if (guideway := self.input_processor.guideway) is not None:
            guideway.report_start(request_id)
            if (judge := guideway.judge(params)) is not None:
                _JUDGES.setdefault(self, {})[request_id] = judge
        return added

    return wrapped


def _around_offline_step(step: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> Any:
        outputs = step(self)
        guideway, judges = self.input_processor.guideway, _JUDGES.get(self, {})
        if guideway is None or (guideway.observers is None and not judges):
            return outputs
        for output in outputs:
            if (judge := judges.get(output.request_id)) is not None:
                judge.judge_now(output)
            if output.finished:
                judges.pop(output.request_id, None)
            if guideway.observers is not None:
                guideway.observers.take(output)
        if not self.has_unfinished_requests():  # some may have been aborted
            judges.clear()
            if guideway.observers is not None:
                guideway.observers.end_all()
        return outputs

    return wrapped


def _around_make_request_output(make: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(make)
    place = list(signature.parameters).index("kv_transfer_params") - 1

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("kv_transfer_params", args[place] if len(args) > place else None)
        if RECORDS in (given or {}) or is_recorded(self):
            bound = signature.bind(self, *args, **kwargs)
            ended = bound.arguments["finish_reason"] is not None
            bound.arguments["kv_transfer_params"] = given = with_records(self, given or {}, ended=ended)
            result = make(*bound.args, **bound.kwargs)
        else:
            result = make(self, *args, **kwargs)
        if (report := (given or {}).get(ATTRIBUTE)) is not None or (self.parent_req is not None and result is not None):
            with _log_errors():
                _store_report(self, result, report)
        return result

    return wrapped


def _store_report(state: Any, result: Any, report: dict[str, Any] | None) -> None:
    """Store the report of the output of `state`, if it has ended. `result` is returned to the caller now, unless it is
    None."""
    parent = state.parent_req
    if result is not None:
        outputs = result.outputs
    elif parent is not None:  # with one answer for all outputs, finished ones wait there for the others
        outputs = parent.output_aggregator
    else:  # it has not ended
        return
    ended = [one for one in outputs if one is not None and one.finish_reason is not None]
    if report is not None and (own := next((one for one in ended if one.index == state.request_index), None)):
        set_report(own, report)
    if parent is not None and result is not None and ended:
        add_up(result)


@contextmanager
def _log_errors() -> Iterator[None]:
    """Log errors of report handling: a bug there must not break the loop that all outputs pass through."""
    try:
        yield
    except Exception:
        log.exception("guideway: what is told of an output is lost")


def _around_add_output(add: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the reports when unread results are merged: vLLM keeps the last one's field."""

    def wrapped(self: Any, next_output: Any, *args: Any, **kwargs: Any) -> None:
        reports = {one.index: known for one in (*self.outputs, *next_output.outputs) if (known := report_of(one))}
        add(self, next_output, *args, **kwargs)
        if reports:
            with _log_errors():
                for one in self.outputs:
                    if one.index in reports:
                        set_report(one, reports[one.index])
                add_up(self)

    return wrapped


def _around_check_health(check_health: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(self: Any) -> None:
        await check_health(self)
        if self.input_processor.guideway is not None:
            from vllm.v1.engine.exceptions import EngineDeadError  # a server answers a probe with status 503 for it

            try:
                self.input_processor.guideway.check_health()
                await self.input_processor.guideway.core_health.check(self.engine_core)
            except Unhealthy as error:
                log.error("unhealthy: %s", error)
                raise EngineDeadError from error

    return wrapped


@contextmanager
def _processing(process: Callable[[Callable[[], Any]], Any] | None) -> Iterator[None]:
    token = _PROCESS.set(process)
    try:
        yield
    finally:
        _PROCESS.reset(token)


def _text_of(prompt: Any) -> str | None:
    """Return the text of a prompt, if vLLM knows it."""
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return text if isinstance(text, str) else None


def _around_get_scheduler_cls(get_scheduler_cls: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> Any:
        from guideway_vllm.scheduler import with_guest

        return with_guest(get_scheduler_cls(self))

    return wrapped


def _around_initialize_kv_caches(initialize: Callable[..., Any]) -> Callable[..., Any]:
    """Check the workers in the first method of a core that runs after they have started. A core in a process of its own
    loads plugins during ``__init__``."""

    def wrapped(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        initialized = initialize(self, vllm_config, *args, **kwargs)
        from guideway_vllm.ranks import check_ranks

        try:
            check_ranks(self.model_executor, vllm_config)
        except BaseException:
            self.model_executor.shutdown()
            raise
        return initialized

    return wrapped


def _around_init_device(init_device: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> None:
        init_device(self)
        from vllm.config import set_current_vllm_config

        from guideway_vllm.worker import attach

        with set_current_vllm_config(self.vllm_config):  # some constructors ask for it
            attach(self.worker, self.vllm_config)

    return wrapped


WRAPPED: dict[str, tuple[tuple[str, ...], Around]] = {
    "vllm.v1.engine.input_processor:InputProcessor.__init__": (("vllm_config",), _around_init),
    "vllm.v1.engine.input_processor:InputProcessor._validate_params": (("params",), _around_validate_params),
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": (PROCESSED, _around_process_inputs),
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": (PROCESSED, _around_add_request),
    "vllm.v1.engine.async_llm:AsyncLLM.generate": (("prompt", "sampling_params", "request_id"), _around_generate),
    "vllm.v1.engine.async_llm:AsyncLLM.check_health": ((), _around_check_health),
    "vllm.v1.engine.async_llm:AsyncLLM.dead_error": ((), _around_dead_error),
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": ((), _around_shutdown),
    "vllm.v1.engine.llm_engine:LLMEngine.add_request": (PROCESSED, _around_offline_add_request),
    "vllm.v1.engine.llm_engine:LLMEngine.step": ((), _around_offline_step),
    "vllm.v1.engine.output_processor:RequestState.make_request_output": (
        ("finish_reason", "kv_transfer_params"),
        _around_make_request_output,
    ),
    "vllm.outputs:RequestOutput.add": (("next_output",), _around_add_output),
    "vllm.v1.engine.core:EngineCore._initialize_kv_caches": (("vllm_config",), _around_initialize_kv_caches),
    "vllm.v1.engine.async_llm:AsyncLLM.__init__": (("vllm_config",), _around_async_init),
    "vllm.v1.engine.llm_engine:LLMEngine.__init__": ((), _around_offline_init),
    "vllm.engine.arg_utils:EngineArgs.create_speculative_config": ((), around_create_speculative_config),
    "vllm.config:SchedulerConfig.get_scheduler_cls": ((), _around_get_scheduler_cls),
    "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device": ((), _around_init_device),
}
"""Methods to wrap, each with the parameters it relies on."""

NEEDED = {path: parameters for path, (parameters, _) in WRAPPED.items()} | {
    "vllm.v1.engine.output_processor:OutputProcessor.propagate_error": ("e",),
    "vllm.v1.engine.async_llm:AsyncLLM.get_supported_tasks": (),
    "vllm.v1.engine.core_client:AsyncMPClient.call_utility_async": ("method",),
    "vllm.v1.engine.core:EngineCore.shutdown": (),
    "vllm.v1.executor.abstract:Executor.collective_rpc": ("method",),
    "vllm.v1.core.sched.scheduler:Scheduler.__init__": ("vllm_config", "structured_output_manager"),
    "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": ("scheduler_output",),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ("scheduler_output", "model_runner_output"),
    "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids": ("draft_token_ids",),
    "vllm.v1.core.sched.scheduler:Scheduler.finish_requests": ("request_ids", "finished_status"),
    "vllm.v1.core.sched.scheduler:Scheduler._free_request": ("request",),
    "vllm.v1.structured_output:StructuredOutputManager.grammar_init": ("request",),
    "vllm.v1.structured_output:StructuredOutputManager.grammar_bitmask": (
        "requests",
        "structured_output_request_ids",
        "scheduled_spec_decode_tokens",
    ),
    "vllm.v1.structured_output:StructuredOutputManager.accept_tokens": ("request", "new_token_ids"),
    "vllm.v1.structured_output:StructuredOutputManager.validate_tokens": ("request", "spec_tokens"),
    "vllm.v1.structured_output:StructuredOutputManager._get_constraint_bounds": REASONING,
    "vllm.v1.structured_output:StructuredOutputManager.clear_backend": (),
    "vllm.v1.worker.worker_base:WorkerBase.shutdown": (),
}
"""The same with methods that the guest calls or overrides."""
