"""All that is changed in vLLM, in one place: six seams, each checked before anything is changed.

=====================================  ================================================================================
``InputProcessor``                     ``__init__``, ``_validate_params``, ``process_inputs``
``AsyncLLM``                           ``add_request``, so that a server tries requests beside its event loop, and
                                       ``check_health``, which asks ``EngineCore`` by a method more
``EngineCore.__init__``                once it has started, the plans of its workers are compared with its own
``AsyncLLM``, ``LLMEngine``            ``generate``; ``add_request``, ``step``: finished texts that are to be checked
``SchedulerConfig.get_scheduler_cls``  the scheduler's class, and through it the structured-output manager's
``WorkerWrapperBase.init_device``      the model runner of each worker, once it is there
what asks xgrammar in the server       ``validate_structural_tag_payload``, ``_xgrammar_supports``
requests and streams in the server     ``to_sampling_params``; ``chat_completion_stream_generator``,
                                       ``completion_stream_generator``
=====================================  ================================================================================

What they lead to does nothing unless ``additional_config`` has the key ``guideway``.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from importlib import import_module
from typing import Any

from guideway.api import InvalidConfiguration, PluginUnavailable
from guideway.errors import Unhealthy

from guideway_vllm.answers import Noted
from guideway_vllm.health import METHOD, unhealthy
from guideway_vllm.requests import ON_UNENFORCED_KEY, is_strict

__all__ = ["install", "missing_seams"]

log = logging.getLogger("vllm.guideway")

PROCESSED = ("request_id", "prompt", "params")
REASONING = ("request", "spec_tokens", "spec_tokens_committed")

NEEDED: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.input_processor:InputProcessor.__init__": ("vllm_config",),
    "vllm.v1.engine.input_processor:InputProcessor._validate_params": ("params",),
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": PROCESSED,
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": PROCESSED,
    "vllm.v1.engine.async_llm:AsyncLLM.generate": ("prompt", "sampling_params", "request_id"),
    "vllm.v1.engine.async_llm:AsyncLLM.check_health": (),
    "vllm.v1.engine.async_llm:AsyncLLM.get_supported_tasks": (),
    "vllm.v1.engine.core_client:AsyncMPClient.call_utility_async": ("method",),
    "vllm.v1.engine.llm_engine:LLMEngine.add_request": PROCESSED,
    "vllm.v1.engine.llm_engine:LLMEngine.step": (),
    "vllm.v1.engine.core:EngineCore.__init__": (),
    "vllm.v1.engine.core:EngineCore.shutdown": (),
    "vllm.v1.executor.abstract:Executor.collective_rpc": ("method",),
    "vllm.config:SchedulerConfig.get_scheduler_cls": (),
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
    "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device": (),
    "vllm.v1.worker.worker_base:WorkerBase.shutdown": (),
}
"""The places where the guest hangs, and the parameters it relies on."""

BEFORE = {
    "vllm.v1.structured_output:StructuredOutputManager._get_constraint_bounds": "_get_constraint_start",
}
"""The names of seams in vLLM before 0.32; it takes the same parameters."""


def install() -> None:
    """Change vLLM in this process, once. Raises `PluginUnavailable`, naming vLLM's version and every seam that is
    missing; nothing is changed then."""
    if missing := missing_seams():
        import vllm

        raise PluginUnavailable(
            f"guideway-vllm cannot run in vLLM {vllm.__version__}: {'; '.join(missing)}. Use a version that "
            "docs/hosts/vllm.md lists, or keep the plugin from loading (VLLM_PLUGINS)",
            plugin="host.vllm",
        )
    _wrap("vllm.v1.engine.input_processor:InputProcessor.__init__", _around_init)
    _wrap("vllm.v1.engine.input_processor:InputProcessor._validate_params", _around_validate_params)
    _wrap("vllm.v1.engine.input_processor:InputProcessor.process_inputs", _around_process_inputs)
    _wrap("vllm.v1.engine.async_llm:AsyncLLM.add_request", _around_add_request)
    _wrap("vllm.v1.engine.async_llm:AsyncLLM.generate", _around_generate)
    _wrap("vllm.v1.engine.async_llm:AsyncLLM.check_health", _around_check_health)
    _wrap("vllm.v1.engine.llm_engine:LLMEngine.add_request", _around_offline_add_request)
    _wrap("vllm.v1.engine.llm_engine:LLMEngine.step", _around_offline_step)
    _wrap("vllm.v1.engine.core:EngineCore.__init__", _around_core_init)
    setattr(_found("vllm.v1.engine.core:EngineCore.__init__")[0], METHOD, unhealthy)
    _wrap("vllm.config:SchedulerConfig.get_scheduler_cls", _around_get_scheduler_cls)
    _wrap("vllm.v1.worker.worker_base:WorkerWrapperBase.init_device", _around_init_device)


def missing_seams() -> list[str]:
    """List what this vLLM has not got, one line each."""
    return [why for path, parameters in NEEDED.items() if (why := _lacks(path, parameters)) is not None]


def _lacks(path: str, parameters: tuple[str, ...]) -> str | None:
    """Return what this vLLM has not got of a seam; None: nothing."""
    function = _known(path)
    if function is None:
        return f"it has no {path}"
    has = inspect.signature(function).parameters
    lacking = [name for name in parameters if name not in has]
    return f"{path} takes no {', '.join(lacking)}" if lacking else None


def _known(path: str) -> Callable[..., Any] | None:
    """The method, under this name or the one it had before."""
    names = [path]
    if path in BEFORE:
        names.append(f"{path.rpartition('.')[0]}.{BEFORE[path]}")
    for name in names:
        try:
            return _found(name)[2]
        except (ImportError, AttributeError):
            continue
    return None


def _found(path: str) -> tuple[Any, str, Callable[..., Any]]:
    """The class, the name of its method, and the method; of a function, its module."""
    module, _, qualified = path.partition(":")
    class_name, _, name = qualified.rpartition(".")
    holder: Any = import_module(module)
    if class_name:
        holder = getattr(holder, class_name)
    return holder, name, getattr(holder, name)


def _wrap(path: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    holder, name, function = _found(path)
    if not getattr(function, "guideway", False):
        wrapped = wraps(function)(around(function))
        wrapped.guideway = True  # type: ignore[attr-defined]
        setattr(holder, name, wrapped)


def _around_init(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        from guideway_vllm.frontend import FrontEnd

        self.guideway = FrontEnd.of(self.vllm_config)
        if self.guideway is not None:
            weakref.finalize(self, self.guideway.close)  # vLLM never says that it is done with one
            try:
                _change_server(self.guideway.strict_refuses)
            except BaseException:
                self.guideway.close()
                raise
            _SERVING.add(self.guideway)

    return wrapped


_SERVING: weakref.WeakSet[Any] = weakref.WeakSet()
"""The front ends of this process."""


def _change_server(strict_refuses: bool) -> None:
    """Change what only a server over HTTP has, and not in every version: what is lost without it is logged. Raises
    `InvalidConfiguration` where that was asked for."""
    import vllm

    for path, (around, parameters, lost) in IN_SERVER.items():
        if (why := _lacks(path, parameters)) is None:
            _wrap(path, around)
        elif strict_refuses and around is _around_to_sampling_params:
            raise InvalidConfiguration(
                f"strict_refuses is on, and {lost} in vLLM {vllm.__version__}: {why}; leave it out, and have clients "
                f"set {ON_UNENFORCED_KEY}",
                field="strict_refuses",
            )
        else:
            log.warning("in vLLM %s %s: %s", vllm.__version__, lost, why)


def _around_to_sampling_params(to_sampling_params: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = to_sampling_params(self, *args, **kwargs)
        if any(front_end.strict_refuses for front_end in _SERVING) and is_strict(self):
            params.extra_args = {ON_UNENFORCED_KEY: "refuse", **(params.extra_args or {})}
        return params

    return wrapped


def _around_stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(stream)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not _SERVING:
            return stream(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        noted = Noted(given.arguments["result_generator"], given.arguments["request"].n or 1)
        given.arguments["result_generator"] = noted
        return noted.added_to(stream(*given.args, **given.kwargs))

    return wrapped


def _around_validate_tag(validate: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(payload: Any, *, parameter: str) -> None:
        if not (_SERVING and isinstance(payload, str)):  # what is no text is refused unread
            validate(payload, parameter=parameter)

    return wrapped


def _around_xgrammar_supports(supports: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(structured_outputs: Any) -> bool:
        from guideway_vllm.requests import is_bearable
        from guideway_vllm.stock.xgrammar.backend import Xgrammar

        # where it is not, the constraint stands alone and meets its limits like any other
        bearable = not _SERVING or is_bearable(structured_outputs, Xgrammar.limits)
        return bearable and bool(supports(structured_outputs))

    return wrapped


def _around_validate_params(validate_params: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if self.guideway is not None:
            params = self.guideway.hidden(params)
        return validate_params(self, params, *args, **kwargs)

    return wrapped


_ADMIT: ContextVar[Callable[[Any], None] | None] = ContextVar("_ADMIT", default=None)
"""The function that `process_inputs` calls with a request, where that is not to try it."""


def _around_process_inputs(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, request_id: str, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        request = process_inputs(self, request_id, prompt, *args, **kwargs)
        if self.guideway is not None:
            admit = _ADMIT.get() or partial(self.guideway.admit, text=_text_of(prompt))
            admit(request)
        return request

    return wrapped


def _around_add_request(add_request: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(add_request)

    async def wrapped(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        processor = self.input_processor
        rendered = isinstance(prompt, dict) and "type" in prompt
        # what is not rendered yet vLLM itself processes in a thread
        if processor.guideway is None or not rendered or not processor.guideway.judges(params):
            return await add_request(self, request_id, prompt, params, *args, **kwargs)
        given = signature.bind(self, request_id, prompt, params, *args, **kwargs).arguments
        known = inspect.signature(processor.process_inputs).parameters
        passed = {name: value for name, value in given.items() if name in known}
        tasks = await self.get_supported_tasks()

        def processed() -> Any:
            with _admitting(lambda _: None):
                return processor.process_inputs(**passed, supported_tasks=tasks)

        tried = await processor.guideway.admit_beside(processed, _text_of(prompt))

        def take_over(request: Any) -> None:
            request.sampling_params.structured_outputs = tried.sampling_params.structured_outputs

        with _admitting(take_over):
            return await add_request(self, request_id, prompt, params, *args, **kwargs)

    return wrapped


def _around_generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        guideway = self.input_processor.guideway
        judge = None if guideway is None else guideway.judge(sampling_params)
        outputs = generate(self, prompt, sampling_params, request_id, *args, **kwargs)
        return outputs if judge is None else judge.judged(outputs)

    return wrapped


_JUDGES: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""By engine what checks the outputs of its requests, offline, where there is one loop for all."""


def _around_offline_add_request(add_request: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        added = add_request(self, request_id, prompt, params, *args, **kwargs)
        guideway = self.input_processor.guideway
        if guideway is not None and (judge := guideway.judge(params)) is not None:
            _JUDGES.setdefault(self, {})[request_id] = judge
        return added

    return wrapped


def _around_offline_step(step: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> Any:
        outputs = step(self)
        if judges := _JUDGES.get(self):
            for output in outputs:
                if (judge := judges.get(output.request_id)) is not None:
                    judge.judge_now(output)
                if output.finished:
                    judges.pop(output.request_id, None)
            if not self.has_unfinished_requests():  # some were aborted
                judges.clear()
        return outputs

    return wrapped


def _around_check_health(check_health: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(self: Any) -> None:
        await check_health(self)
        if self.input_processor.guideway is not None:
            from vllm.v1.engine.exceptions import EngineDeadError  # what a server tells a probe with status 503

            try:
                self.input_processor.guideway.check_health()
                await self.input_processor.guideway.core_health.check(self.engine_core)
            except Unhealthy as error:
                log.error("unhealthy: %s", error)
                raise EngineDeadError from error

    return wrapped


@contextmanager
def _admitting(admit: Callable[[Any], None]) -> Iterator[None]:
    token = _ADMIT.set(admit)
    try:
        yield
    finally:
        _ADMIT.reset(token)


def _text_of(prompt: Any) -> str | None:
    """The text of a prompt, where vLLM knows it."""
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return text if isinstance(text, str) else None


def _around_get_scheduler_cls(get_scheduler_cls: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> Any:
        from guideway_vllm.scheduler import with_guest

        return with_guest(get_scheduler_cls(self))

    return wrapped


def _around_core_init(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        from guideway_vllm.ranks import check_ranks

        try:
            check_ranks(self)
        except BaseException:
            self.shutdown()
            raise

    return wrapped


def _around_init_device(init_device: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> None:
        init_device(self)
        from guideway_vllm.worker import attach

        attach(self.worker, self.vllm_config)

    return wrapped


OPENAI = "vllm.entrypoints.openai"
UNHEARD = "`strict` of a request is not heard"
UNTOLD = "streams do not have what guideway tells"

IN_SERVER: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    # it asks xgrammar in its own process while it reads a request, on the event loop, before anything has counted what
    # it asks about, where a crash ends the server
    "vllm.entrypoints.generate.base.protocol:validate_structural_tag_payload": (
        _around_validate_tag,
        ("payload", "parameter"),
        "structural tags may reach xgrammar before they are counted",
    ),
    "vllm.parser.abstract_parser:_xgrammar_supports": (
        _around_xgrammar_supports,
        ("structured_outputs",),
        "constraints beside tools may reach xgrammar before they are counted",
    ),
    f"{OPENAI}.chat_completion.protocol:ChatCompletionRequest.to_sampling_params": (
        _around_to_sampling_params,
        (),
        UNHEARD,
    ),
    f"{OPENAI}.completion.protocol:CompletionRequest.to_sampling_params": (_around_to_sampling_params, (), UNHEARD),
    f"{OPENAI}.responses.protocol:ResponsesRequest.to_sampling_params": (_around_to_sampling_params, (), UNHEARD),
    f"{OPENAI}.chat_completion.serving:OpenAIServingChat.chat_completion_stream_generator": (
        _around_stream,
        ("request", "result_generator"),
        UNTOLD,
    ),
    f"{OPENAI}.completion.serving:OpenAIServingCompletion.completion_stream_generator": (
        _around_stream,
        ("request", "result_generator"),
        UNTOLD,
    ),
}
"""The places that are changed of the server over HTTP, where vLLM has it: the parameters that are relied on, and what
is lost without it. It drops ``strict``, and streams have no field for what guideway tells."""
