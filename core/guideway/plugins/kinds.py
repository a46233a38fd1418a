"""The kinds of component, and the two ways an operator writes a component's address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from guideway.api import CONTRACT

__all__ = ["GROUP", "GROUP_PREFIX", "HOOKS", "KINDS", "Kind", "normalize"]

GROUP_PREFIX = "guideway.v"
GROUP = GROUP_PREFIX + CONTRACT.split(".")[0]
"""The entry-point group of this core's contract major."""

NAME = re.compile(r"[a-z][a-z0-9_-]*")
"""The pattern of a component's name."""

HOOKS = "hooks"
"""The one kind that is enabled by name instead of selected, and returns no class."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The hook through which one kind of component is reached, and the class it has to be."""

    name: str
    hook: str
    """The hook of `guideway.api.hookspecs` that returns the class; empty for `HOOKS`."""
    base: str
    """The class of `guideway.api` it has to inherit from; empty for `HOOKS`."""
    provisional: bool = False
    """True if its contract may still change inside this major version."""
    unchecked: bool = False
    """True if the conformance suite has no checks for it yet."""


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
    """The one spelling of a distribution's name (PEP 503): ``My_Plugin.x`` is ``my-plugin-x``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
