"""Importing and creating the parts of a workflow."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from guideway.api.options import parse_options
from guideway.api.workflow import (
    PARTS,
    InputProcessor,
    OutputProcessor,
    RequestProcessor,
    StepBuilder,
    Workflow,
    WorkflowContext,
    WorkflowRunner,
    WorkScheduler,
)
from guideway.errors import InvalidConfiguration, contain, text_of
from guideway.plugins import PluginPlan, bootstrap_worker
from guideway.plugins.building import building

__all__ = ["Parts", "WorkflowWorkers", "addresses", "load_part", "make_parts", "options_of"]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that run in the caller's process."""

    input_processor: InputProcessor
    request_processor: RequestProcessor
    scheduler: WorkScheduler
    step_builder: StepBuilder
    output_processor: OutputProcessor


def addresses(workflow: type[Workflow], given: Mapping[str, Any]) -> dict[str, str]:
    """Return the import path of each part: the workflow's default, or the one in the options `given`. Raises
    `InvalidConfiguration`."""
    found = {**workflow.parts, **{part: given[part] for part in PARTS if part in given}}
    for part in PARTS:
        if not isinstance(found.get(part), str) or ":" not in found[part]:
            raise InvalidConfiguration(
                f"{part} of workflow {workflow.name!r} must be 'module:Class', not {found.get(part)!r}",
                field=f"options.workflow.{workflow.name}.{part}",
            )
    return found


def options_of(workflow: type[Workflow], given: Mapping[str, Any]) -> Any:
    """Return the options of the workflow, an instance of its `options`. Raises `InvalidConfiguration`."""
    own = {name: value for name, value in given.items() if name not in PARTS}
    return parse_options(workflow.options, own, where=f"workflow.{workflow.name}")


def make_parts(workflow: type[Workflow], places: Mapping[str, str], context: WorkflowContext) -> Parts:
    """Create all parts but the runner, which the workers create. Raises `InvalidConfiguration` for a part that cannot
    be imported, and `PluginLoadError` for one that fails in its constructor."""
    return Parts(**{part: make_part(workflow.name, part, places[part], context) for part in Parts.__slots__})


def make_part(workflow: str, part: str, address: str, context: WorkflowContext) -> Any:
    """Create one part. Raises the errors of `make_parts`."""
    base = PARTS[part]
    cls = load_part(workflow, part, address, base, f"guideway.api.{base.__name__}")
    with building(f"workflow.{workflow}"):
        return cls(context)


def load_part(workflow: str, part: str, address: str, base: type, base_name: str) -> type[Any]:
    """Return the class of a part, which must derive from `base`. Raises `InvalidConfiguration`."""
    where = f"{part} {address!r} of workflow {workflow!r}"
    try:
        cls = pkgutil.resolve_name(address)
    except BaseException as error:  # any error of a foreign module
        contain(error)
        raise InvalidConfiguration(
            f"{where} cannot be imported: {text_of(error)}", field=f"options.workflow.{workflow}.{part}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise InvalidConfiguration(
            f"{where} is no subclass of {base_name}", field=f"options.workflow.{workflow}.{part}"
        )
    return cls


@dataclass(frozen=True, slots=True)
class WorkflowWorkers:
    """Factory of workers in any process; an executor calls it as ``workers(rank, num_workers)``."""

    plan: PluginPlan
    workflow: str
    runner: str
    context: WorkflowContext

    def __call__(self, rank: int, num_workers: int) -> WorkflowRunner:
        """Return a worker that has not loaded its model. Raises `PluginError` and `InvalidConfiguration`."""
        if num_workers > 1:
            raise InvalidConfiguration(
                f"the workflow {self.workflow!r} runs on one worker, not on {num_workers}", field="executor"
            )
        bootstrap_worker(self.plan)
        return cast("WorkflowRunner", make_part(self.workflow, "runner", self.runner, self.context))
