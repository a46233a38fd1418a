"""Settings of an engine: the fields of the configuration and their allowed values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from guideway.api import OnUnenforced, Whitespace
from guideway.api.options import Range, check_fields
from guideway.api.reasoning import ReasoningConfig
from guideway.errors import InvalidConfiguration
from guideway.plugins.configuration import LISTS, Name, Names, Options, component_name, freeze_components
from guideway.plugins.limits import Limits
from guideway.plugins.selection import PluginSettings

from guideway_engine.model_folder import LoadFormat

__all__ = ["DECODE", "KIND_OF", "EngineSettings", "is_decode"]

Positive: TypeAlias = Annotated[int, Range(1)]

DTYPES = ("auto", "float32", "float16", "bfloat16", "float64", "float", "half", "double")
"""Data types of weights that a model can compute in, as torch names them."""

DECODE = "decode"
"""Name of the workflow that generates text."""


def is_decode(workflow: str) -> bool:
    """Return whether the address of a workflow refers to `DECODE`."""
    return component_name("workflow", workflow) == DECODE and workflow.rpartition("/")[0] in ("", "guideway-engine")


KIND_OF = {
    "grammar": "grammar",
    "modifiers": "modifier",
    "worker_mixins": "worker",
    "device_backend": "device",
    "executor": "executor",
    "runner": "runner",
    "workflow": "workflow",
}
"""Fields that choose components with options, and the kind of each."""

MAX_NUM_SEQS = 65_536
"""Maximum of `max_num_seqs`. Memory for each sequence is allocated at the start, and this is more than one step can
compute."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Fields of an `EngineConfig`, which can also be read from files, environment variables and flags."""

    model: Name
    """An installed model component, such as ``demo``, or the path of a folder ``transformers`` can load; an
    `os.PathLike` is converted to text."""
    workflow: Name | None = None
    """Workflow that serves the model: ``decode``, ``embed``, ``rerank``, ``classify``; None: chosen by the model."""
    grammar: Names | None = None
    """Grammar strategies, in order of preference; None: guideway's own that are installed."""
    modifiers: Names = ()
    """Logit modifiers that requests may use, in their order within a stage, after the grammar mask."""
    worker_mixins: Names = ()
    """Worker mixins, in the order in which their methods are called."""
    # full names: another distribution's component of the same name is used only if it is selected
    device_backend: Name = "guideway/torch"
    """Device component that applies masks and samples."""
    device: Name = "cpu"
    """Device that the model runs on, as its library names it."""
    dtype: Name = "float32"
    """Data type of the weights; ``auto``: as stored."""
    load_format: LoadFormat = "safetensors"
    """Files of weights: ``safetensors``; ``auto``: ``.bin`` too, pickles that may run code."""
    runner: Name = "guideway-engine/transformers"
    """Component that runs the model."""
    executor: Name = "guideway-engine/local"
    """Place of the workers: ``local``, in this process, or ``process``, in their own."""
    max_num_seqs: Positive = 32
    """Number of sequences that run at once."""
    max_model_len: Annotated[int, Range(2)] | None = None
    """Maximum number of tokens of a prompt and its output together; None: the model's context length."""
    kv_cache_tokens: Annotated[int, Range(2)] | None = None
    """Number of tokens in the KV cache; None: enough for `max_num_seqs` sequences, but at most 65,536, or for one
    sequence if that needs more."""
    max_num_batched_tokens: Positive = 2048
    """Maximum number of tokens computed in one step; longer prompts are computed in chunks of this size."""
    enable_prefix_caching: bool = True
    """Reuse of the computation for common prefixes of prompts; changes speed, never tokens."""
    isolate_tenants: bool = False
    """Isolation of tenants: no shared prefixes or grammars, so that timing reveals nothing about others."""
    max_waiting: Positive = 1024
    """Sequences that may wait; more of the same or a lower priority are refused."""
    num_speculative_tokens: Annotated[int, Range(0)] = 0
    """Tokens to draft by prompt lookup and verify in one step; changes speed, never tokens."""
    forced_tokens: Literal["auto", "exact", "canonical", "off"] = "auto"
    """Forced tokens: ``auto`` or ``exact``, ``canonical`` (split as by the tokenizer), or ``off``. ``auto`` is
    ``exact`` where that pays."""
    split_special_tokens: bool = True
    """Encoding of special tokens in chat messages as plain text. If False, ``<|im_end|>`` in a message is the token, so
    its author can end the message and speak in another role. In prompts given as text it is always the token."""
    grammar_host: Literal["auto", "process", "inline"] = "auto"
    """Place of grammar strategies: grammar hosts (``process``), or this process (``inline``). ``auto`` is ``process``
    where hosts can be used."""
    modifier_host: Literal["process", "inline"] = "inline"
    """Place of modifiers' states: ``process``, in modifier hosts, or ``inline``, in this process."""
    host_environment: Names = ()
    """Patterns of environment variables to pass to hosts in addition to the usual ones, such as ``LMFE_*``."""
    compile_threads: Positive = 2
    """Number of constraints that are compiled at once."""
    grammar_cache_bytes: Annotated[int, Range(0)] = 512 << 20
    """Bytes of memory for compiled grammars kept for reuse."""
    whitespace: Whitespace = "bounded"
    """White space between JSON tokens, unless a request sets it."""
    short_budget: Literal["refuse", "cut"] = "refuse"
    """Policy if no output fits into a request's tokens: ``refuse`` it, or let it be ``cut``."""
    reasoning: ReasoningConfig = field(default_factory=ReasoningConfig)
    """Settings for ending the model's reasoning."""
    on_unenforced: OnUnenforced = "report"
    """Policy for a constraint that cannot be fully enforced, unless a request sets it."""
    limits: Limits = field(default_factory=Limits)
    """Limits on the work of plugins."""
    # not hashed, since values may be of any type; equal configurations still have equal hashes
    options: Options = field(default_factory=dict, hash=False)
    """Options of components by ``kind.name``, such as ``{"grammar.llguidance": {...}}``."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """Plugins that may run, and the selected hooks."""

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
        for name in LISTS:
            if isinstance(value := getattr(self, name), str) and value:
                object.__setattr__(self, name, (value,))
        check_fields(self)
        if self.dtype not in DTYPES:
            raise InvalidConfiguration(
                f"dtype must be {', '.join(DTYPES[:4])} or {DTYPES[4]}, not {self.dtype!r}", field="dtype"
            )
        if self.max_num_seqs > MAX_NUM_SEQS:
            raise InvalidConfiguration(
                f"max_num_seqs must be at most {MAX_NUM_SEQS:,}, not {self.max_num_seqs:,}; further requests wait in "
                "the queue (max_waiting)",
                field="max_num_seqs",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidConfiguration(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but each of max_num_seqs "
                f"({self.max_num_seqs}) sequences computes at least one token per step; raise it to "
                f"{self.max_num_seqs}",
                field="max_num_batched_tokens",
            )
        freeze_components(self, KIND_OF)
