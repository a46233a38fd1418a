"""Hosts: processes that work for a serving process and may be killed, so that what crashes, hangs or eats the memory
there costs one request and not the server.

`HostedStrategy` stands in the serving process for a strategy that lives in hosts, and obeys the same contract::

    serving process                 fork server                       forked from it
    HostedStrategy ─ GrammarHosts ─ imports and builds strategies ─┬─ compile hosts: supports, compile
                                                                   └─ matcher hosts: one, and one for slow sequences;
                                                                      shared memory

`HostedModifier` does so for a modifier, whose states live in one host, and `HostedJudge` validates finished texts. The
names are imported on first use: the fork server needs only a part of the package, and has to start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guideway_hosts.hosts import GrammarHosts
    from guideway_hosts.joining import share_fork_server
    from guideway_hosts.modifiers.hosts import ModifierHosts
    from guideway_hosts.texts import HostedJudge

__all__ = ["GrammarHosts", "HostedJudge", "ModifierHosts", "share_fork_server"]

_MODULES = {
    "GrammarHosts": "guideway_hosts.hosts",
    "HostedJudge": "guideway_hosts.texts",
    "ModifierHosts": "guideway_hosts.modifiers.hosts",
    "share_fork_server": "guideway_hosts.joining",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
