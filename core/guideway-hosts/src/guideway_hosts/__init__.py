"""Hosts: processes that work for a serving process and may be killed, so that what crashes, hangs or eats the memory
there costs one request and not the server.

`HostedStrategy` stands in the serving process for a strategy that lives in hosts, and `HostedModifier` for a modifier.
Both obey the contracts that they stand for::

    serving process        fork server                    forked from it
    HostedStrategy ─┐                                   ┌─ compile hosts, which hold nothing: supports, compile, texts
    HostedModifier ─┴ Hosts ─ imports and builds plugins ┼─ matcher hosts: one, and one for slow sequences
                                                        └─ one host for the states of each modifier

The names are imported on first use: the fork server needs only a part of the package, and has to start fast.
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
