"""A running workflow: its parts, its worker and its driver."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from guideway.api.hooks import ValidationContext
from guideway.api.options import mismatch
from guideway.api.provisional import Executor
from guideway.api.workflow import ModelFolder, Task, Workflow, WorkflowContext
from guideway.errors import InvalidConfiguration, InvalidRequest, Unhealthy, UnsupportedCapability, close_each
from guideway.plugins import Plugins
from guideway.plugins.building import building

from guideway_engine.config import EngineConfig
from guideway_engine.environment import planned
from guideway_engine.settings import EngineSettings
from guideway_engine.workflows.computing import Computing
from guideway_engine.workflows.driver import Driver, mode_for
from guideway_engine.workflows.hooks import Listening
from guideway_engine.workflows.parts import WorkflowWorkers, addresses, make_parts, options_of

__all__ = ["Serving"]

log = logging.getLogger("guideway_engine")

OF_ENGINE = ("embed", "rerank", "classify")
"""Tasks that `Engine` has a method for."""

SHARED = ("model", "device", "dtype", "load_format", "executor", "max_model_len", "workflow", "options", "plugins")
"""Fields of a configuration that apply to every workflow; the others are for decoding only."""


class Serving:
    """Runs the tasks of one workflow, found by `address`, for any number of threads. Raises `InvalidConfiguration` and
    `PluginError`."""

    def __init__(
        self, workflow: type[Workflow], address: str, model: ModelFolder, config: EngineConfig, plugins: Plugins
    ) -> None:
        _check_fields(workflow, config)
        self.workflow = workflow
        self._model = model
        self._ids = itertools.count()
        where = f"workflow.{workflow.name}"
        given = dict(config.options.get(where, {}))
        mode = mode_for(given.pop("driver", "auto"), where)
        places, options = addresses(workflow, given), options_of(workflow, given)
        context = WorkflowContext(
            model=model,
            max_model_len=_max_length(workflow, model, config.max_model_len),
            dtype=config.dtype,
            device=config.device,
            options=options,
        )
        plan = plugins.plan([("workflow", address)], planned(config, model.path))
        listening = Listening(
            plugins.hooks(),
            ValidationContext(
                model=config.model,
                max_model_len=context.max_model_len,
                vocabulary_size=int(model.config.get("vocab_size") or 0),
                grammars=(),
                modifiers=(),
            ),
        )
        make_executor: type[Executor] = plugins.load("executor", config.executor)
        executor_options = dict(config.options.get(f"executor.{make_executor.name}", {}))
        with building(f"executor.{make_executor.name}"):
            self._executor = make_executor(
                WorkflowWorkers(plan, workflow.name, places["runner"], context), executor_options
            )
        try:
            # meanwhile the parts are created, if the worker is in another process
            loading = self._executor.submit("load")
            parts = make_parts(workflow, places, context)
            loading.result()
        except BaseException:
            self._executor.close()
            raise
        self._computing = Computing(workflow.name, parts, self._executor)
        self._driver = Driver(parts, self._computing, listening, mode)
        log.info("workflow %s serves %s, driven %s", workflow.name, model.architecture, mode)

    def run(
        self, kind: str, values: Iterable[Any], params: Mapping[str, Any], *, priority: int = 0, tenant: str = ""
    ) -> Iterator[Any]:
        """Yield the result of each value, in order, for a task of this kind. Reads `values` as results are consumed.
        Raises `UnsupportedCapability` for a task that the workflow does not serve, and `InvalidRequest` for errors that
        concern all values."""
        if kind not in self.workflow.tasks:
            raise UnsupportedCapability(
                f"this engine runs the workflow {self.workflow.name!r}, which serves {', '.join(self.workflow.tasks)} "
                f"and not {kind}",
                field="workflow",
            )
        for name, value, hint in (("priority", priority, int), ("tenant", tenant, str)):
            if wrong := mismatch(name, value, hint):
                raise InvalidRequest(wrong, field=name)
        given = {name: value for name, value in params.items() if value is not None}
        tasks = (
            Task(
                request_id=f"request-{number}",
                kind=kind,
                value=value,
                params=given,
                priority=priority,
                tenant=tenant,
                arrival=number,
            )
            for value, number in zip(values, self._ids, strict=False)
        )
        return self._driver.run(tasks, live=isinstance(values, Iterator))

    @property
    def architecture(self) -> str:
        """Class name of the model."""
        return self._model.architecture

    @property
    def calls(self) -> str:
        """Methods of an engine that the workflow serves, for messages."""
        return ", ".join(f"{task}()" if task in OF_ENGINE else f"run({task!r}, ...)" for task in self.workflow.tasks)

    def check_health(self) -> None:
        """Raise `Unhealthy` if a part has failed and nothing has been computed since."""
        if broken := self._driver.broken or self._computing.failure:
            raise Unhealthy(f"a part of the workflow {self.workflow.name!r} is broken: {broken}")

    def close(self) -> None:
        """End all tasks and close the worker."""
        close_each([("driver", self._driver.close), ("executor", self._executor.close)])


def _check_fields(workflow: type[Workflow], config: EngineConfig) -> None:
    """Raise `InvalidConfiguration` for a field that would have no effect."""
    default = EngineSettings(model=config.model)
    for name in EngineSettings.__dataclass_fields__:
        if name not in SHARED and getattr(config, name) != getattr(default, name):
            raise InvalidConfiguration(
                f"{name} is about generating text, and the workflow {workflow.name!r} generates none; leave it out",
                field=name,
            )


def _max_length(workflow: type[Workflow], model: ModelFolder, asked: int | None) -> int:
    longest = workflow.max_length(model)
    if asked is not None and asked > longest:
        raise InvalidConfiguration(
            f"max_model_len cannot be {asked} with this model: its context is {longest}", field="max_model_len"
        )
    return asked or workflow.default_length(model)
