"""The plugin system: index, selection, loading, and the plan that every worker is checked against.

Hosts use `Plugins`. Importing this package imports neither NumPy nor a plugin.
"""

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
