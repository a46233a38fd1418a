"""What an operator chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guideway.api.errors import InvalidConfiguration
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
        for name in ("grammar", "modifiers"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(item, str) for item in value):
                raise InvalidConfiguration(f"{name} must be a list of names, not {value!r}", field=name)
            if len(set(value)) != len(value):
                raise InvalidConfiguration(f"{name} names a component twice: {', '.join(value)}", field=name)
            object.__setattr__(self, name, tuple(value))
        for name in ("max_num_seqs", "max_prefill_tokens", "compile_threads"):
            _check_int(name, getattr(self, name), 1)
        for name in ("num_draft_tokens", "grammar_cache_bytes"):
            _check_int(name, getattr(self, name), 0)
        if self.max_model_len is not None:
            _check_int("max_model_len", self.max_model_len, 2)
        chosen = {f"grammar.{n.rpartition('/')[2]}" for n in self.grammar}
        chosen |= {f"modifier.{n.rpartition('/')[2]}" for n in self.modifiers}
        for component in self.options:
            if component not in chosen:
                raise InvalidConfiguration(
                    f"options are given for {component!r}, which this configuration does not use; "
                    f"used: {', '.join(sorted(chosen)) or 'none'}",
                    field=f"options.{component}",
                )


def _check_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidConfiguration(f"{name} must be a whole number of at least {least}, not {value!r}", field=name)
