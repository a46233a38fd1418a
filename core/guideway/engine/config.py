"""What an operator chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guideway.api.errors import InvalidConfiguration
from guideway.api.steps import GRAMMAR_MASK
from guideway.plugins.selection import PluginSettings

__all__ = ["EngineConfig"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The configuration of an `Engine`. Raises `InvalidConfiguration`, naming the field.

    Components are named as ``name``, or ``distribution/name`` where two distributions offer one of that name.
    """

    model: str
    """An installed model component, such as ``demo``, or the path of a folder ``transformers`` can load."""
    grammar: tuple[str, ...] = ()
    """Grammar strategies, in order of preference."""
    modifiers: tuple[str, ...] = ()
    """Logit modifiers that requests may use."""
    device_backend: str = "torch"
    """The device component that applies masks and draws."""
    device: str = "cpu"
    """Where the model runs, in the words of the device's library."""
    dtype: str = "float32"
    """Type of the weights; ``auto``: as stored."""
    max_num_seqs: int = 32
    """How many sequences run at once."""
    max_model_len: int | None = None
    """The most tokens of a prompt and its continuation together; None: the model's own context."""
    max_prefill_tokens: int = 4096
    """How many prompt tokens may join in one step, unless a single prompt is longer."""
    num_draft_tokens: int = 0
    """How many tokens to draft ahead by prompt lookup and verify in one step; changes speed, never tokens."""
    compile_threads: int = 2
    """How many constraints compile at once."""
    grammar_cache_bytes: int = 512 << 20
    """How much memory finished grammars may keep for reuse."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of components by ``kind.name``, such as ``{"grammar.llguidance": {...}}``."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """Which plugins may run, and which hooks do."""

    def __post_init__(self) -> None:
        for name in ("model", "device_backend", "device"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise InvalidConfiguration(f"{name} must be a string that is not empty, not {value!r}", field=name)
        used: set[str] = set()
        for name, kind in (("grammar", "grammar"), ("modifiers", "modifier")):
            object.__setattr__(self, name, _checked_names(name, kind, getattr(self, name)))
            used |= {f"{kind}.{_bare(kind, address)}" for address in getattr(self, name)}
        if not isinstance(self.plugins, PluginSettings):
            raise InvalidConfiguration(f"plugins must be PluginSettings, not {self.plugins!r}", field="plugins")
        for name in ("max_num_seqs", "max_prefill_tokens", "compile_threads"):
            _check_int(name, getattr(self, name), 1)
        for name in ("num_draft_tokens", "grammar_cache_bytes"):
            _check_int(name, getattr(self, name), 0)
        if self.max_model_len is not None:
            _check_int("max_model_len", self.max_model_len, 2)
        self._check_options(used)

    def _check_options(self, used: set[str]) -> None:
        if not isinstance(self.options, Mapping):
            raise InvalidConfiguration(
                f"options must map 'kind.name' to the component's options, not {self.options!r}", field="options"
            )
        for component, options in self.options.items():
            if component not in used:
                raise InvalidConfiguration(
                    f"options are given for {component!r}, which this configuration does not use; "
                    f"used: {', '.join(sorted(used)) or 'none'}",
                    field=f"options.{component}",
                )
            if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
                raise InvalidConfiguration(
                    f"the options of {component!r} must map names to values, not {options!r}",
                    field=f"options.{component}",
                )


def _checked_names(field_name: str, kind: str, addresses: object) -> tuple[str, ...]:
    """`addresses` of components, no two of one name: options, payloads and results go by name."""
    if isinstance(addresses, str) or not isinstance(addresses, Sequence):
        raise InvalidConfiguration(f"{field_name} must be a list of names, not {addresses!r}", field=field_name)
    names: dict[str, str] = {}
    for address in addresses:
        if not isinstance(address, str):
            raise InvalidConfiguration(f"{field_name} must be a list of names, not {addresses!r}", field=field_name)
        name = _bare(kind, address)
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


def _bare(kind: str, address: str) -> str:
    """The component's name in ``name``, ``kind.name`` or ``distribution/name``."""
    return address.rpartition("/")[2].removeprefix(f"{kind}.")


def _check_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidConfiguration(f"{name} must be a whole number of at least {least}, not {value!r}", field=name)
