"""Configuration of an engine, from Python or from a file, environment variables and flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from guideway.api import OnUnenforced, Whitespace
from guideway.api.options import known_fields_only, short_repr
from guideway.api.reasoning import ReasoningConfig
from guideway.errors import InvalidConfiguration
from guideway.plugins.configuration import component_name, components
from guideway.plugins.index import PluginIndex
from guideway.plugins.limits import Limits
from guideway.plugins.selection import PluginSettings

from guideway_engine.config_sources import Configuration, from_arguments, read_layers
from guideway_engine.model_folder import LoadFormat
from guideway_engine.settings import KIND_OF, EngineSettings, is_decode

__all__ = ["EngineArguments", "EngineConfig", "config_of"]


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineSettings):
    """Configuration of an `Engine`. Raises `InvalidConfiguration`, which names the field.

    Immutable, `options` included: it keeps and returns copies. It can be hashed and pickled. Components are named
    ``name``, or ``distribution/name`` if two distributions offer one of that name.
    """

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> EngineConfig:
        """Return a configuration from four sources: `arguments`, which are fields of this class, override environment
        variables (``GUIDEWAY_MAX_NUM_SEQS=8``), which override a TOML file, which overrides the defaults.

        `path` is the TOML file; None: the one named by GUIDEWAY_CONFIG, if any. `environ` defaults to
        `os.environ`. Raises `InvalidConfiguration`, which names the source of the wrong value.
        """
        layers = read_layers(path, os.environ if environ is None else environ, from_arguments(arguments))
        return Configuration.of(layers).build(cls)

    def components(self) -> tuple[str, ...]:
        """Return the selected components of the kinds that take options, as ``kind.name``, sorted."""
        return components(self, KIND_OF)

    def selection(self, index: PluginIndex) -> tuple[tuple[str, str], ...]:
        """Return (kind, address) of each selected component except hooks. Includes the model if it is a component of
        `index` and not a folder, and the workflow if it is a plugin."""
        found = []
        for name, kind in KIND_OF.items():
            value = getattr(self, name)
            if kind == "workflow" and (value is None or is_decode(value)):
                continue
            found += [(kind, address) for address in ([value] if isinstance(value, str) else value or ())]
        name = component_name("model", self.model)
        if index.named("model", name) and not Path(self.model).expanduser().is_dir():
            found.append(("model", self.model))
        return tuple(found)


class EngineArguments(TypedDict, total=False):
    """Keyword arguments for the fields of `EngineConfig` except `model`: ``Engine("demo", max_num_seqs=8)``."""

    workflow: str | None
    grammar: tuple[str, ...] | None
    modifiers: tuple[str, ...]
    worker_mixins: tuple[str, ...]
    device_backend: str
    device: str
    dtype: str
    load_format: LoadFormat
    runner: str
    executor: str
    max_num_seqs: int
    max_model_len: int | None
    kv_cache_tokens: int | None
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    isolate_tenants: bool
    max_waiting: int
    num_speculative_tokens: int
    forced_tokens: Literal["auto", "exact", "canonical", "off"]
    split_special_tokens: bool
    grammar_host: Literal["auto", "process", "inline"]
    modifier_host: Literal["process", "inline"]
    host_environment: tuple[str, ...]
    compile_threads: int
    grammar_cache_bytes: int
    whitespace: Whitespace
    short_budget: Literal["refuse", "cut"]
    reasoning: ReasoningConfig
    on_unenforced: OnUnenforced
    limits: Limits
    options: Mapping[str, Mapping[str, Any]]
    plugins: PluginSettings


def config_of(model: str | os.PathLike[str] | EngineConfig, arguments: EngineArguments) -> EngineConfig:
    """Return the configuration of an engine. Raises `InvalidConfiguration`, and TypeError for an argument that is not a
    field, naming the closest field."""
    if isinstance(model, EngineConfig):
        if arguments:
            name = next(iter(arguments))
            raise InvalidConfiguration(
                f"an engine takes an EngineConfig or a model with settings, and {name} is given beside an "
                f"EngineConfig; write Engine(dataclasses.replace(config, {name}=...)), or Engine(model, {name}=...)",
                field=name,
            )
        return model
    if not isinstance(model, str | os.PathLike):
        raise InvalidConfiguration(
            f"an engine is made from a model or an EngineConfig, not {short_repr(model)}; write Engine('demo', "
            "max_num_seqs=...) or Engine(EngineConfig(model='demo', max_num_seqs=...))",
            field="model",
        )
    return EngineConfig(model=os.fspath(model), **arguments)
