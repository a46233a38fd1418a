"""Choosing the workflow that serves a model, with reasons why others do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from guideway.api.workflow import ModelFolder, Workflow
from guideway.errors import InvalidConfiguration, PluginError
from guideway.plugins import Plugins
from guideway.plugins.selection import denial, resolve

from guideway_engine.config import EngineConfig
from guideway_engine.decoding.workflow import DecodeWorkflow, is_causal
from guideway_engine.model_path import model_path
from guideway_engine.settings import DECODE, is_decode

if TYPE_CHECKING:
    from guideway_engine.workflows.serving import Serving

__all__ = ["choose", "open_workflow", "verdicts"]

OURS = "guideway-engine"
"""Distribution whose workflows are chosen automatically; others must be selected by name."""


def open_workflow(config: EngineConfig, plugins: Plugins) -> Serving | None:
    """Open the workflow selected by the configuration or the model. Return None for `DECODE`, which the engine itself
    drives. Raises `InvalidConfiguration` and `PluginError`."""
    if config.workflow is None or is_decode(config.workflow):
        # report all uncertified components in one error, before loading the model, which is a plugin too
        plugins.require(config.selection(plugins.index))
    model = ModelFolder.read(model_path(config.model, plugins, config.load_format))
    workflow = choose(config.workflow, model, plugins)
    _check_options(workflow, model, config)
    if workflow is DecodeWorkflow:
        return None
    from guideway_engine.workflows.serving import Serving

    return Serving(workflow, config.workflow or f"{OURS}/{workflow.name}", model, config, plugins)


def choose(name: str | None, model: ModelFolder, plugins: Plugins) -> type[Workflow]:
    """Return the workflow `name`, or if that is None, the one for the model. Raises `InvalidConfiguration` if it does
    not serve the model, and `PluginError`."""
    if name is None:
        if is_causal(model) and model.json("modules.json") is None:
            return _decode(plugins)
        said = verdicts(model, plugins)
        name = next((name for name, why in said.items() if why is None), None)
        if name is None:
            if is_causal(model):
                return _decode(plugins)
            raise InvalidConfiguration(_describe_unserved(model, said), field="model")
        return _load(plugins, name)
    if is_decode(name):
        return _decode(plugins)  # the runner checks which models it can run
    workflow: type[Workflow] = plugins.load("workflow", name)
    if why := workflow.supports(model):
        raise InvalidConfiguration(
            f"the workflow {workflow.name!r} cannot serve {model.architecture} ({str(model.path)!r}): {why}",
            field="workflow",
        )
    return workflow


def _check_options(workflow: type[Workflow], model: ModelFolder, config: EngineConfig) -> None:
    """Raise `InvalidConfiguration` for options of a workflow other than `workflow`."""
    component = f"workflow.{workflow.name}"
    for name in config.options:
        if name.startswith("workflow.") and name != component:
            raise InvalidConfiguration(
                f"options are given for {name!r}, and {model.architecture} ({str(model.path)!r}) is opened with the "
                f"workflow {workflow.name!r}; give them for {component!r}, or choose the other one with "
                f"workflow={name.removeprefix('workflow.')!r}",
                field=f"options.{name}",
            )


def verdicts(model: ModelFolder, plugins: Plugins) -> Mapping[str, str | None]:
    """Return for each of the engine's workflows except `DECODE` why it does not serve the model; None if it does. Does
    not import their parts."""
    names = [
        record.name
        for record in plugins.index.records
        if record.kind == "workflow"
        and record.distribution == OURS
        and record.name != DECODE
        and denial(plugins.settings, record) is None
    ]
    found: dict[str, str | None] = {}
    for name in sorted(names):
        try:
            found[name] = _load(plugins, name).supports(model)
        except PluginError as error:
            found[name] = str(error)
    return found


def _load(plugins: Plugins, name: str) -> type[Workflow]:
    workflow: type[Workflow] = plugins.load("workflow", f"{OURS}/{name}")
    return workflow


def _decode(plugins: Plugins) -> type[Workflow]:
    """Return `DECODE`, which needs no certification. Raises `PluginUnavailable` if it is denied."""
    resolve(plugins.index, plugins.settings, "workflow", f"{OURS}/{DECODE}")
    return DecodeWorkflow


def _describe_unserved(model: ModelFolder, said: Mapping[str, str | None]) -> str:
    reasons = "".join(f"\n  {name}: {why}" for name, why in said.items())
    return (
        f"model {str(model.path)!r} holds {model.architecture}, which is not a causal language model, and no workflow "
        f"serves it{reasons}"
    )
