"""Short digests of requests, by which a resumed run recognizes answers to the same request in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guideway.api.types import Constraint, SamplingParams
from guideway.errors import GuidewayError
from guideway.plugins.configuration import component_name
from guideway.plugins.operator_files import digest_of, is_file

from guideway_engine import model_folder
from guideway_engine.command_line import config
from guideway_engine.config import EngineConfig
from guideway_engine.config_sources import Configuration
from guideway_engine.environment import numerics
from guideway_engine.fields import fields_of

if TYPE_CHECKING:  # commands that embed must not import modules that decode
    from guideway_engine.command_line.jobs import Job
    from guideway_engine.command_line.task_inputs import Entry

__all__ = ["of_entries", "of_jobs"]

FOR_TASKS = ("model", "workflow", "runner", "dtype", "max_model_len")
"""Fields of the configuration that affect the results of a task. Fields for speed, limits and paths do not."""
FOR_TEXT = (
    *FOR_TASKS,
    *("grammar", "modifiers", "worker_mixins", "forced_tokens", "split_special_tokens"),
    *("whitespace", "short_budget", "reasoning", "on_unenforced"),
)
"""Fields of the configuration that affect an answer."""

OPTIONS = ("grammar", "modifier", "worker", "runner", "workflow")
"""Kinds of components whose options affect results."""

OF_SPEED = frozenset({"driver", "attention", "max_step_tokens", "max_step_requests", "max_input_bytes"})
"""Options of workflows that do not affect results."""

CHARACTERS = 16


def of_jobs(jobs: list[Job], configuration: Configuration, ours: Collection[str | None] = ()) -> dict[str, str]:
    """Return by id the digest of each job, which covers its prompt and all settings that affect its answer. The files
    `ours`, of input and output, are not counted as files of the model if they are in its folder."""
    built = configuration.build(EngineConfig)
    settings = _settings(built, FOR_TEXT, ours)
    for name, source in (("grammar", config.INSTALLED), ("modifiers", config.OF_PROMPTS)):
        chosen = configuration.settings.get((name,))
        if chosen is not None and chosen.source == source:  # these depend on the other prompts
            settings.pop(name, None)
    return {job.id: _of_job(job, settings, built.modifiers) for job in jobs}


def of_entries(
    entries: list[Entry],
    task: str,
    configuration: Configuration,
    params: Mapping[str, Any],
    ours: Collection[str | None] = (),
) -> dict[str, str]:
    """Return by id the digest of each text of a task, which covers all settings that affect its result; `ours` as in
    `of_jobs`."""
    settings = _settings(configuration.build(EngineConfig), FOR_TASKS, ours)
    given = {name: value for name, value in params.items() if value is not None}
    return {entry.id: _digest(task, entry.value, given, settings) for entry in entries}


def _of_job(job: Job, settings: Mapping[str, Any], modifiers: tuple[str, ...]) -> str:
    params = _unlike_defaults(job.params, SamplingParams)
    params.pop("priority", None)
    used = params.get("modifiers")
    if isinstance(used, Mapping):
        order = [name for name in (component_name("modifier", address) for address in modifiers) if name in used]
        params["modifiers"] = [order, used]
    if isinstance(job.params.constraint, Constraint):
        params["constraint"] = _of_constraint(job.params.constraint)
    return _digest("generate", job.prompt, params, settings, job.tenant)


def _of_constraint(constraint: Constraint) -> Any:
    try:
        return [constraint.kind, constraint.source(), getattr(constraint, "whitespace", None)]
    except GuidewayError:  # the constraint is refused, so the prompt is always asked again
        return None


def _settings(built: EngineConfig, names: tuple[str, ...], ours: Collection[str | None]) -> dict[str, Any]:
    """Return the values of these fields and of options. Defaults are left out, so that later versions can add
    fields."""
    settings = {name: value for name, value in _unlike_defaults(built, EngineConfig).items() if name in names}
    if Path(built.model).expanduser().is_dir():
        folder = Path(built.model).expanduser().resolve()
        no_part = {_resolve(path) for path in ours if path is not None}
        files = [
            [name, digest] for name, digest in model_folder.digests(folder).items() if folder / name not in no_part
        ]
        settings["model"] = [str(folder), *files]
    options = {
        each: {name: value for name, value in given.items() if not (kind == "workflow" and name in OF_SPEED)}
        for each, given in built.options.items()
        if (kind := each.partition(".")[0]) in OPTIONS
    }
    options = {each: given for each, given in options.items() if given}
    own = {each: digest_of(each) for each in (*(built.grammar or ()), *built.modifiers) if is_file(each)}
    more = {"options": options, "numerics": numerics(), "plugin_files": own}
    return settings | {name: value for name, value in more.items() if value}


def _resolve(path: str) -> Path | None:
    try:
        return Path(path).resolve()
    except ValueError:  # a NUL; opening the file reports it
        return None


def _unlike_defaults(values: Any, cls: type) -> dict[str, Any]:
    found = {
        name: getattr(values, name) for name, field in fields_of(cls).items() if getattr(values, name) != field.default
    }
    return {name: int(each) if isinstance(each, float) and each.is_integer() else each for name, each in found.items()}


def _digest(*what: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return _unlike_defaults(value, type(value)) if is_dataclass(value) else str(value)

    try:
        text = json.dumps(what, default=plain, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # for example keys of several types: the request is refused
        text = ""
    return hashlib.sha256(text.encode()).hexdigest()[:CHARACTERS]
