"""All that is changed in vLLM, in one place: three seams, each checked before anything is changed.

=====================================  ================================================================================
``InputProcessor``                     ``__init__``, ``_validate_params``, ``process_inputs``
``SchedulerConfig.get_scheduler_cls``  the scheduler's class, and through it the structured-output manager's
``WorkerWrapperBase.init_device``      the model runner of each worker, once it is there
=====================================  ================================================================================

What they lead to does nothing unless ``additional_config`` has the key ``guideway``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from guideway.api import PluginUnavailable

__all__ = ["install", "missing_seams"]

REASONING = ("request", "spec_tokens", "spec_tokens_committed")

NEEDED: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.input_processor:InputProcessor.__init__": ("vllm_config",),
    "vllm.v1.engine.input_processor:InputProcessor._validate_params": ("params",),
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": ("params",),
    "vllm.config:SchedulerConfig.get_scheduler_cls": (),
    "vllm.v1.core.sched.scheduler:Scheduler.__init__": ("vllm_config", "structured_output_manager"),
    "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": ("scheduler_output",),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ("scheduler_output", "model_runner_output"),
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
"""Where the guest hangs, and the parameters it relies on."""

BEFORE = {
    "vllm.v1.structured_output:StructuredOutputManager._get_constraint_bounds": "_get_constraint_start",
}
"""What a seam was called in vLLM before 0.32; it takes the same parameters."""


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
    _wrap("vllm.config:SchedulerConfig.get_scheduler_cls", _around_get_scheduler_cls)
    _wrap("vllm.v1.worker.worker_base:WorkerWrapperBase.init_device", _around_init_device)


def missing_seams() -> list[str]:
    """What this vLLM has not got, one line each."""
    missing = []
    for path, parameters in NEEDED.items():
        function = _known(path)
        if function is None:
            missing.append(f"it has no {path}")
            continue
        has = inspect.signature(function).parameters
        if lacking := [name for name in parameters if name not in has]:
            missing.append(f"{path} takes no {', '.join(lacking)}")
    return missing


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
    """The class, the name of its method, and the method."""
    module, _, qualified = path.partition(":")
    class_name, _, method = qualified.partition(".")
    cls = getattr(import_module(module), class_name)
    return cls, method, getattr(cls, method)


def _wrap(path: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    cls, method, function = _found(path)
    if not getattr(function, "guideway", False):
        wrapped = wraps(function)(around(function))
        wrapped.guideway = True  # type: ignore[attr-defined]
        setattr(cls, method, wrapped)


def _around_init(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        from guideway_vllm.frontend import FrontEnd

        self.guideway = FrontEnd.of(self.vllm_config)
        if self.guideway is not None:
            weakref.finalize(self, self.guideway.close)  # vLLM never says that it is done with one

    return wrapped


def _around_validate_params(validate_params: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if self.guideway is not None:
            params = self.guideway.hidden(params)
        return validate_params(self, params, *args, **kwargs)

    return wrapped


def _around_process_inputs(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = process_inputs(self, *args, **kwargs)
        if self.guideway is not None:
            self.guideway.admit(request)
        return request

    return wrapped


def _around_get_scheduler_cls(get_scheduler_cls: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> Any:
        from guideway_vllm.scheduler import with_guest

        return with_guest(get_scheduler_cls(self))

    return wrapped


def _around_init_device(init_device: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> None:
        init_device(self)
        from guideway_vllm.worker import attach

        attach(self.worker, self.vllm_config)

    return wrapped
