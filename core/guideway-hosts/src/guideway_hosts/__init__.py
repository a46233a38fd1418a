"""Hosts: processes that work for a serving process and may be killed. If a plugin crashes, hangs or uses too much
memory in a host, one request fails, and the server continues.

`HostedStrategy` is the proxy in the serving process for a strategy in hosts, and `HostedModifier` for a modifier. Both
obey the same contracts as the plugins::

    serving process        fork server                    forked from it
    HostedStrategy ─┐                                   ┌─ compile hosts, without state: supports, compile, texts
    HostedModifier ─┴ Hosts ─ imports and builds plugins ┼─ matcher hosts: one, and one for slow sequences
                                                        └─ one host for the states of each modifier

A `ForkServer` starts hosts, and ends them all with the last plugin. A `Host` is one process: it is asked, waited for
within its limits, and ended. A `Pool` has the hosts for calls without state. A `Room` is a host of objects, started
again when it is lost: the matchers have one, and the states of each modifier.

The names are imported on first use, because the fork server needs only a part of the package and must start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway_hosts.hosts import Hosts
    from guideway_hosts.joining import share_fork_server

__all__ = ["Hosts", "share_fork_server"]

_MODULES = {"Hosts": "guideway_hosts.hosts", "share_fork_server": "guideway_hosts.joining"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
