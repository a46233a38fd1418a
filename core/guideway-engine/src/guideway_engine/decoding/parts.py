"""Creating the parts of `decode`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from guideway.errors import close_each
from guideway.plugins import Plugins
from guideway.plugins.building import building

from guideway_engine.assembly import Assembled, assemble
from guideway_engine.config import EngineConfig
from guideway_engine.decoding.inputs import DecodeInputs
from guideway_engine.decoding.requests import DecodeRequests
from guideway_engine.decoding.workflow import DecodeWorkflow
from guideway_engine.scheduling.scheduler import Scheduler
from guideway_engine.scheduling.sequence import SequenceGroup
from guideway_engine.scheduling.stepper import Stepper
from guideway_engine.workflows.parts import addresses, load_part, options_of

__all__ = ["Decoder", "make_decoder"]

PLUGIN = f"workflow.{DecodeWorkflow.name}"


@dataclass(frozen=True, slots=True)
class Decoder:
    """The parts of `decode` that an engine calls, and the objects they are built from."""

    inputs: DecodeInputs
    requests: DecodeRequests
    scheduler: Scheduler
    assembled: Assembled


def make_decoder(config: EngineConfig, plugins: Plugins, on_finish: Callable[[SequenceGroup], None]) -> Decoder:
    """Create the parts that the configuration names. `on_finish` is called with each request that has ended. Raises
    `InvalidConfiguration` and `PluginError`."""
    given = config.options.get(PLUGIN, {})
    places = addresses(DecodeWorkflow, given)
    options_of(DecodeWorkflow, given)
    # before the model is loaded; the workers import their own class
    classes = {part: _class_of(part, place) for part, place in places.items() if part != "runner"}
    found = assemble(config, plugins, worker=places["runner"])
    try:
        with building(PLUGIN):
            return Decoder(
                classes["input_processor"](found.prompts, found.runtime),
                classes["request_processor"](found.prompts, found.runtime, config),
                _scheduler(classes, found, config, on_finish),
                found,
            )
    except BaseException:
        close_each([("runtime", found.runtime.close), ("executor", found.executor.close)])
        raise


def _scheduler(
    classes: dict[str, type[Any]],
    found: Assembled,
    config: EngineConfig,
    on_finish: Callable[[SequenceGroup], None],
) -> Scheduler:
    steps = classes["step_builder"](found.runtime, found.cache)
    outputs = classes["output_processor"](found.runtime)
    made: Scheduler = classes["scheduler"](
        found.runtime,
        Stepper(found.runtime, found.executor, found.cache, steps, outputs),
        found.cache,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_speculative_tokens=config.num_speculative_tokens,
        num_forced_tokens=found.num_forced_tokens,
        on_finish=on_finish,
        restart=found.restart,
    )
    return made


def _class_of(part: str, place: str) -> type[Any]:
    own = DecodeWorkflow.parts[part]
    return load_part(DecodeWorkflow.name, part, place, pkgutil.resolve_name(own), own.replace(":", "."))
