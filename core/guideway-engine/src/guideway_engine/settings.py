"""The choices of an operator: the fields of the configuration, and what each may be."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from guideway.api import OnUnenforced, Whitespace
from guideway.api.options import Range, check_fields
from guideway.api.reasoning import ReasoningConfig
from guideway.errors import InvalidConfiguration
from guideway.plugins.configuration import Name, Names, Options, component_name, freeze_components
from guideway.plugins.limits import Limits
from guideway.plugins.selection import PluginSettings

from guideway_engine.model_folder import LoadFormat

__all__ = ["DECODE", "KIND_OF", "EngineSettings", "is_decode"]

Positive: TypeAlias = Annotated[int, Range(1)]

DTYPES = ("auto", "float32", "float16", "bfloat16", "float64", "float", "half", "double")
"""Types of weights a model can compute in, as torch names them."""

DECODE = "decode"
"""The workflow that generates text."""


def is_decode(workflow: str) -> bool:
    """Return whether the address of a workflow means `DECODE`."""
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
"""The fields that choose components which take options, and the kind of each."""

MAX_NUM_SEQS = 65_536
"""The most sequences that may run. What is kept for each is made at the start, and this is beyond what one step can
compute."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The fields of an `EngineConfig`, which can be read from several sources besides."""

    model: Name
    """An installed model component, such as ``demo``, or the path of a folder ``transformers`` can load; an
    `os.PathLike` becomes text."""
    workflow: Name | None = None
    """The workflow that serves the model: ``decode``, ``embed``, ``rerank``, ``classify``; None: the one it is for."""
    grammar: Names = ()
    """Grammar strategies, in order of preference."""
    modifiers: Names = ()
    """Logit modifiers that requests may use, in the order in which those of one stage act, after the grammar mask."""
    worker_mixins: Names = ()
    """Worker mixins, in the order their methods are called."""
    # defaults name components in full: a stranger's of the same name acts only where it is selected
    device_backend: Name = "guideway/torch"
    """The device component that applies masks and draws."""
    device: Name = "cpu"
    """The device that the model runs on, in the words of the device's library."""
    dtype: Name = "float32"
    """Type of the weights; ``auto``: as stored."""
    load_format: LoadFormat = "safetensors"
    """Files of weights: ``safetensors``; ``auto``: ``.bin`` too, pickles that may run code."""
    runner: Name = "guideway-engine/transformers"
    """The component that runs the model."""
    executor: Name = "guideway-engine/local"
    """The place of workers: ``local``, this process, or ``process``, their own."""
    max_num_seqs: Positive = 32
    """The number of sequences that run at once."""
    max_model_len: Annotated[int, Range(2)] | None = None
    """The most tokens of a prompt and its continuation together; None: the model's own context."""
    kv_cache_tokens: Annotated[int, Range(2)] | None = None
    """The number of tokens that the KV cache holds; None: all that `max_num_seqs` sequences can need, but at most
    65,536, or one sequence's need where that is more."""
    max_num_batched_tokens: Positive = 2048
    """The most tokens that pass through the model in one step; long prompts are computed in pieces of this size."""
    enable_prefix_caching: bool = True
    """True if prompts that begin alike share what was computed; changes speed, never tokens."""
    isolate_tenants: bool = False
    """True: tenants share neither prefixes nor grammars, so their timing tells nothing of others."""
    max_waiting: Positive = 1024
    """The sequences that may wait before more of the same or a lower priority are turned away."""
    num_speculative_tokens: Annotated[int, Range(0)] = 0
    """The number of tokens to draft ahead by prompt lookup and verify in one step; changes speed, never tokens."""
    forced_tokens: Literal["exact", "canonical", "off"] = "exact"
    """Forced tokens: ``exact``, ``canonical`` (cut as the tokenizer cuts text), or ``off``, one step each."""
    split_special_tokens: bool = True
    """True if special tokens written out in chat messages are text; False: ``<|im_end|>`` in a message is the token, so
    that who writes a message can end it and speak in another role. In a prompt that is text it is the token always."""
    grammar_host: Literal["process", "inline"] = "process"
    """The place of grammar strategies: ``process``, grammar hosts, or ``inline``, this process."""
    modifier_host: Literal["process", "inline"] = "inline"
    """The place where modifiers keep their states: ``process``, in modifier hosts, or ``inline``, here."""
    host_environment: Names = ()
    """Environment variables that hosts are given beside the usual ones, as patterns: ``LMFE_*``."""
    compile_threads: Positive = 2
    """The number of constraints that compile at once."""
    grammar_cache_bytes: Annotated[int, Range(0)] = 512 << 20
    """The bytes of memory that finished grammars may keep for reuse."""
    whitespace: Whitespace = "bounded"
    """White space between JSON tokens where a request does not say."""
    short_budget: Literal["refuse", "cut"] = "refuse"
    """The policy where no output fits into a request's tokens: ``refuse`` it, or have it ``cut``."""
    reasoning: ReasoningConfig = field(default_factory=ReasoningConfig)
    """The settings of how the reasoning of the model ends."""
    on_unenforced: OnUnenforced = "report"
    """The policy for a constraint that cannot be enforced in full, where a request does not say."""
    limits: Limits = field(default_factory=Limits)
    """Limits of what the work of plugins may cost."""
    # not in the hash: the values may be of any type, and equal configurations have equal hashes without them
    options: Options = field(default_factory=dict, hash=False)
    """Options of components by ``kind.name``, such as ``{"grammar.llguidance": {...}}``."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """The plugins that may run, and the hooks that do."""

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
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
        # a model may say itself which workflow serves it: `choosing` checks then whether the options are for that one
        freeze_components(self, KIND_OF, undecided=None if self.workflow else "workflow")
