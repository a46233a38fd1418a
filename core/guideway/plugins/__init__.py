"""The plugin system: index, selection, loading, and the plan every worker is checked against.

`Plugins` is what a host needs. Names are imported on first use, and nothing here imports NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway.plugins.hooks import Hook, Hooks
    from guideway.plugins.index import PluginIndex, PluginRecord, Problem
    from guideway.plugins.manager import Plugins, bootstrap_worker
    from guideway.plugins.plan import PluginPlan
    from guideway.plugins.selection import PluginSettings

__all__ = [
    "Hook",
    "Hooks",
    "PluginIndex",
    "PluginPlan",
    "PluginRecord",
    "PluginSettings",
    "Plugins",
    "Problem",
    "bootstrap_worker",
]

_HOME_OF = {
    "Hook": "hooks",
    "Hooks": "hooks",
    "PluginIndex": "index",
    "PluginPlan": "plan",
    "PluginRecord": "index",
    "PluginSettings": "selection",
    "Plugins": "manager",
    "Problem": "index",
    "bootstrap_worker": "manager",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
