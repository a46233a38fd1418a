"""What an operator chooses."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guideway.api.errors import InvalidConfiguration
from guideway.api.steps import GRAMMAR_MASK
from guideway.plugins.selection import PluginSettings

__all__ = ["KIND_OF", "EngineConfig", "component_name", "did_you_mean"]

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
    "num_draft_tokens": 0,
    "compile_threads": 1,
    "grammar_cache_bytes": 0,
}
"""The fields that are whole numbers, and the least of each."""

MAX_NUM_SEQS = 65_536
"""What is kept for each sequence that may run is made at the start, and this is beyond what one step can compute."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The configuration of an `Engine`. Raises `InvalidConfiguration`, naming the field.

    It never changes, `options` included: it holds copies and gives out copies. It can be hashed and pickled.

    Components are named as ``name``, or ``distribution/name`` where two distributions offer one of that name.
    """

    model: str
    """An installed model component, such as ``demo``, or the path of a folder ``transformers`` can load."""
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
    prefix_caching: bool = True
    """Whether prompts that begin alike share what was computed; changes speed, never tokens."""
    max_waiting: int = 1024
    """How many sequences may wait for their turn before more are turned away."""
    num_draft_tokens: int = 0
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
        for name in ("model", "device_backend", "device", "dtype", "runner", "executor"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise InvalidConfiguration(f"{name} must be a string that is not empty, not {value!r}", field=name)
        if self.dtype not in DTYPES:
            raise InvalidConfiguration(
                f"dtype must be {', '.join(DTYPES[:4])} or {DTYPES[4]}, not {self.dtype!r}", field="dtype"
            )
        for name in ("grammar", "modifiers", "worker_mixins"):
            object.__setattr__(self, name, _checked_names(name, getattr(self, name)))
        for name, least in LEAST.items():
            if getattr(self, name) is not None or name not in ("max_model_len", "kv_cache_tokens"):
                _check_int(name, getattr(self, name), least)
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
        if not isinstance(self.prefix_caching, bool):
            raise InvalidConfiguration(
                f"prefix_caching must be true or false, not {self.prefix_caching!r}", field="prefix_caching"
            )
        if not isinstance(self.plugins, PluginSettings):
            raise InvalidConfiguration(f"plugins must be PluginSettings, not {self.plugins!r}", field="plugins")
        self._check_options()
        self._freeze_options()

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
        from guideway.engine.config_sources import Configuration, from_arguments, read_layers

        layers = read_layers(path, os.environ if environ is None else environ, from_arguments(arguments))
        return Configuration.of(layers).engine_config()

    def components(self) -> tuple[str, ...]:
        """What is used of the kinds that take options, as ``kind.name``, sorted."""
        used = []
        for name, kind in KIND_OF.items():
            value = getattr(self, name)
            used += [
                f"{kind}.{component_name(kind, address)}" for address in ([value] if isinstance(value, str) else value)
            ]
        return tuple(sorted(used))

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise InvalidConfiguration(
                f"options must map 'kind.name' to the component's options, not {self.options!r}", field="options"
            )
        used = self.components()
        for component, options in self.options.items():
            if component not in used:
                raise InvalidConfiguration(
                    f"options are given for {component!r}, which this configuration does not use; "
                    f"{did_you_mean(component, used)}used: {', '.join(used)}",
                    field=f"options.{component}",
                )
            if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
                raise InvalidConfiguration(
                    f"the options of {component!r} must map names to values, not {options!r}",
                    field=f"options.{component}",
                )

    def _freeze_options(self) -> None:
        try:
            options = _Frozen({component: _Frozen(options) for component, options in self.options.items()})
        except RecursionError as error:
            raise InvalidConfiguration("options are nested too deeply", field="options") from error
        object.__setattr__(self, "options", options)


class _Frozen(Mapping[str, Any]):
    """A mapping that never changes. Unlike `types.MappingProxyType` it can be pickled, and a list that it holds can
    be taken out and changed without changing it."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = {key: _copied(value) for key, value in items.items()}

    def __getitem__(self, key: str) -> Any:
        return _copied(self._items[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


def _copied(value: Any) -> Any:
    """`value` with copies of all mappings, lists, tuples and sets in it; other objects are kept as they are."""
    if isinstance(value, _Frozen):
        return value
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple, set):  # not a named tuple, which is not made from a list
        return type(value)([_copied(item) for item in value])
    return value


def did_you_mean(word: object, known: Iterable[str], prefix: str = "") -> str:
    """``did you mean 'this'? `` if a known word is close to `word`; else nothing. Both are without `prefix`."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"did you mean '{prefix}{close[0]}'? " if close else ""


def _checked_names(field_name: str, addresses: object) -> tuple[str, ...]:
    """`addresses` of components, no two of one name: options, payloads and results go by name."""
    kind = KIND_OF[field_name]
    if isinstance(addresses, str) or not isinstance(addresses, Sequence):
        raise InvalidConfiguration(f"{field_name} must be a list of names, not {addresses!r}", field=field_name)
    names: dict[str, str] = {}
    for address in addresses:
        if not isinstance(address, str) or not address:
            raise InvalidConfiguration(f"{field_name} must be a list of names, not {addresses!r}", field=field_name)
        name = component_name(kind, address)
        if name in names:
            raise InvalidConfiguration(
                f"{field_name} has {kind} {name!r} twice: {names[name]!r} and {address!r}", field=field_name
            )
        if field_name == "modifiers" and name == GRAMMAR_MASK:
            raise InvalidConfiguration(
                f"modifiers has {address!r}, but the name {name!r} is reserved for the grammar mask", field=field_name
            )
        names[name] = address
    return tuple(addresses)


def component_name(kind: str, address: str) -> str:
    """The component's name in ``name``, ``kind.name`` or ``distribution/name``."""
    return address.rpartition("/")[2].removeprefix(f"{kind}.")


def _check_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidConfiguration(f"{name} must be a whole number of at least {least}, not {value!r}", field=name)
