"""The kinds of components."""

from __future__ import annotations

import re
from dataclasses import dataclass

from guideway.api import CONTRACT

__all__ = ["GROUP", "GROUP_PREFIX", "HOOKS", "KINDS", "Kind", "normalize"]

GROUP_PREFIX = "guideway.v"
GROUP = GROUP_PREFIX + CONTRACT.split(".")[0]
"""The entry-point group of this core's major contract version."""

NAME = re.compile(r"[a-z][a-z0-9_-]*")
"""The pattern of a component's name."""

HOOKS = "hooks"
"""The only kind that is enabled by name instead of selected, and that is not a class."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of component, with its hook and base class."""

    name: str
    hook: str
    """The hook of `guideway.api.hookspecs` that returns the class; empty for `HOOKS`."""
    base: str
    """The class of `guideway.api` that components inherit from; empty for `HOOKS`."""
    provisional: bool = False
    """True if the contract may change within this major version."""
    unchecked: bool = False
    """True if the conformance suite has no checks for the kind yet."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("grammar", "guideway_grammar_strategy", "GrammarStrategy"),
        Kind("device", "guideway_device_backend", "DeviceBackend"),
        Kind("modifier", "guideway_logit_modifier", "LogitModifier"),
        Kind("worker", "guideway_worker_mixin", "WorkerMixin"),
        Kind(HOOKS, "", ""),
        Kind("workflow", "guideway_workflow", "Workflow", provisional=True),
        Kind("attention", "guideway_attention_backend", "AttentionBackend", provisional=True),
        Kind("executor", "guideway_executor", "Executor", provisional=True, unchecked=True),
        Kind("model", "guideway_model", "Model", provisional=True, unchecked=True),
        Kind("runner", "guideway_model_runner", "ModelRunner", provisional=True, unchecked=True),
    )
}


def normalize(distribution: str) -> str:
    """Normalize a distribution's name (PEP 503): ``My_Plugin.x`` becomes ``my-plugin-x``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
