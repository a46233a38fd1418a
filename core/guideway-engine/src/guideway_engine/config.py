"""What an operator chooses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guideway.api.options import known_fields_only
from guideway.errors import InvalidConfiguration
from guideway.plugins.configuration import check_int, components, freeze_components
from guideway.plugins.selection import PluginSettings

__all__ = ["KIND_OF", "EngineConfig"]

DTYPES = ("auto", "float32", "float16", "bfloat16", "float64", "float", "half", "double")
"""Types of weights a model can compute in, as torch names them."""

KIND_OF = {
    "grammar": "grammar",
    "modifiers": "modifier",
    "worker_mixins": "worker",
    "device_backend": "device",
    "executor": "executor",
    "runner": "runner",
}
"""The fields that choose components which take options, and the kind of each."""

LEAST = {
    "max_num_seqs": 1,
    "max_model_len": 2,
    "kv_cache_tokens": 2,
    "max_num_batched_tokens": 1,
    "max_waiting": 1,
    "num_speculative_tokens": 0,
    "compile_threads": 1,
    "grammar_cache_bytes": 0,
}
"""The fields that are whole numbers, and the least of each."""

MAX_NUM_SEQS = 65_536
"""What is kept for each sequence that may run is made at the start, and this is beyond what one step can compute."""


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The configuration of an `Engine`. Raises `InvalidConfiguration`, naming the field.

    It never changes, `options` included: it holds copies and gives out copies. It can be hashed and pickled.

    Components are named as ``name``, or ``distribution/name`` where two distributions offer one of that name.
    """

    model: str
    """An installed model component, such as ``demo``, or the path of a folder ``transformers`` can load; an
    `os.PathLike` becomes text."""
    grammar: tuple[str, ...] = ()
    """Grammar strategies, in order of preference."""
    modifiers: tuple[str, ...] = ()
    """Logit modifiers that requests may use."""
    worker_mixins: tuple[str, ...] = ()
    """Worker mixins, in the order their methods are called."""
    device_backend: str = "torch"
    """The device component that applies masks and draws."""
    device: str = "cpu"
    """Where the model runs, in the words of the device's library."""
    dtype: str = "float32"
    """Type of the weights; ``auto``: as stored."""
    runner: str = "transformers"
    """The component that runs the model."""
    executor: str = "local"
    """Where the workers run: ``local``, in this process, or ``process``, in processes of their own."""
    max_num_seqs: int = 32
    """How many sequences run at once."""
    max_model_len: int | None = None
    """The most tokens of a prompt and its continuation together; None: the model's own context."""
    kv_cache_tokens: int | None = None
    """How many tokens the KV cache holds; None: all that `max_num_seqs` sequences can need, but at most 65,536, or
    one sequence's need where that is more."""
    max_num_batched_tokens: int = 2048
    """How many tokens pass through the model in one step, at most; long prompts are computed in pieces of this size."""
    enable_prefix_caching: bool = True
    """Whether prompts that begin alike share what was computed; changes speed, never tokens."""
    max_waiting: int = 1024
    """How many sequences may wait before more of the same or a worse priority are turned away."""
    num_speculative_tokens: int = 0
    """How many tokens to draft ahead by prompt lookup and verify in one step; changes speed, never tokens."""
    compile_threads: int = 2
    """How many constraints compile at once."""
    grammar_cache_bytes: int = 512 << 20
    """How much memory finished grammars may keep for reuse."""
    # not in the hash: the values may be of any type, and equal configurations have equal hashes without them
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Options of components by ``kind.name``, such as ``{"grammar.llguidance": {...}}``."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """Which plugins may run, and which hooks do."""

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
        for name in ("model", "device_backend", "device", "dtype", "runner", "executor"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise InvalidConfiguration(f"{name} must be a string that is not empty, not {value!r}", field=name)
        if self.dtype not in DTYPES:
            raise InvalidConfiguration(
                f"dtype must be {', '.join(DTYPES[:4])} or {DTYPES[4]}, not {self.dtype!r}", field="dtype"
            )
        for name, least in LEAST.items():
            if getattr(self, name) is not None or name not in ("max_model_len", "kv_cache_tokens"):
                check_int(name, getattr(self, name), least)
        if self.max_num_seqs > MAX_NUM_SEQS:
            raise InvalidConfiguration(
                f"max_num_seqs must be at most {MAX_NUM_SEQS:,}, not {self.max_num_seqs:,}; further requests wait "
                "(max_waiting), however many there are",
                field="max_num_seqs",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidConfiguration(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but each of max_num_seqs "
                f"({self.max_num_seqs}) sequences computes at least one token a step; raise it to as many",
                field="max_num_batched_tokens",
            )
        if not isinstance(self.enable_prefix_caching, bool):
            raise InvalidConfiguration(
                f"enable_prefix_caching must be true or false, not {self.enable_prefix_caching!r}",
                field="enable_prefix_caching",
            )
        freeze_components(self, KIND_OF)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> EngineConfig:
        """A configuration from four sources: `arguments`, which are this class's fields, over environment variables
        (``GUIDEWAY_MAX_NUM_SEQS=8``) over a TOML file over defaults.

        `path` is the TOML file; None: the one GUIDEWAY_CONFIG names, if it does. `environ` is the environment; None:
        this process's. Raises `InvalidConfiguration`, which says where the wrong value stands.
        """
        from guideway_engine.config_sources import Configuration, from_arguments, read_layers

        layers = read_layers(path, os.environ if environ is None else environ, from_arguments(arguments))
        return Configuration.of(layers).engine_config()

    def components(self) -> tuple[str, ...]:
        """What is used of the kinds that take options, as ``kind.name``, sorted."""
        return components(self, KIND_OF)
