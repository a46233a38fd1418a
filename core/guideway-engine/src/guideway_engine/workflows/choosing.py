"""Choose the workflow that serves a model, and say which others could, or why not."""

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
"""Workflows of other distributions serve a model only where they are named."""


def open_workflow(config: EngineConfig, plugins: Plugins) -> Serving | None:
    """The workflow that the configuration or the model asks for, in service; None: `DECODE`, which the engine itself
    leads through its steps. Raises `InvalidConfiguration` and `PluginError`."""
    if config.workflow is None or is_decode(config.workflow):
        # all that is not certified is one error: before the model, a plugin too, is asked for
        plugins.require(config.selection(plugins.index))
    model = ModelFolder.read(model_path(config.model, plugins, config.load_format))
    workflow = choose(config.workflow, model, plugins)
    _check_options(workflow, model, config)
    if workflow is DecodeWorkflow:
        return None
    from guideway_engine.workflows.serving import Serving

    return Serving(workflow, config.workflow or f"{OURS}/{workflow.name}", model, config, plugins)


def choose(name: str | None, model: ModelFolder, plugins: Plugins) -> type[Workflow]:
    """The workflow `name`; or, if that is None, the one the model is for. Raises `InvalidConfiguration` if it does not
    serve the model, and `PluginError`."""
    if name is None:
        if is_causal(model) and model.json("modules.json") is None:
            return _decode(plugins)
        said = verdicts(model, plugins)
        name = next((name for name, why in said.items() if why is None), None)
        if name is None:
            if is_causal(model):
                return _decode(plugins)
            raise InvalidConfiguration(_unserved(model, said), field="model")
        return _loaded(plugins, name)
    if is_decode(name):
        return _decode(plugins)  # the runner says what it can run
    workflow: type[Workflow] = plugins.load("workflow", name)
    if why := workflow.supports(model):
        raise InvalidConfiguration(
            f"the workflow {workflow.name!r} cannot serve {model.architecture} ({str(model.path)!r}): {why}",
            field="workflow",
        )
    return workflow


def _check_options(workflow: type[Workflow], model: ModelFolder, config: EngineConfig) -> None:
    """Raise `InvalidConfiguration` for options of another workflow than the one that the model is opened with."""
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
    """Each workflow of the engine's own besides `DECODE`, and why it does not serve the model; None if it does. Parts
    are not imported."""
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
            found[name] = _loaded(plugins, name).supports(model)
        except PluginError as error:
            found[name] = str(error)
    return found


def _loaded(plugins: Plugins, name: str) -> type[Workflow]:
    workflow: type[Workflow] = plugins.load("workflow", f"{OURS}/{name}")
    return workflow


def _decode(plugins: Plugins) -> type[Workflow]:
    """`DECODE`, which has no checks, so that it needs no verdict. Raises `PluginUnavailable` if it is denied."""
    resolve(plugins.index, plugins.settings, "workflow", f"{OURS}/{DECODE}")
    return DecodeWorkflow


def _unserved(model: ModelFolder, said: Mapping[str, str | None]) -> str:
    reasons = "".join(f"\n  {name}: {why}" for name, why in said.items())
    return (
        f"model {str(model.path)!r} holds {model.architecture}, which is not a causal language model, and no workflow "
        f"serves it{reasons}"
    )
