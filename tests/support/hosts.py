"""Grammar hosts for the hostile strategy, and the runtime of a host over them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guideway.devices.numpy.device import NumpyDevice
from guideway.plugins import Plugins
from guideway.plugins.limits import Limits
from guideway.runtime.grammar_hosts.hosts import GrammarHosts
from guideway.runtime.grammar_hosts.matchers import MatcherHost
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.distributions import install
from tests.support.fake_host import FakeHost
from tests.support.hostility import VOCABULARY
from tests.support.processes import memory_of

__all__ = ["Makes", "inline", "makes_hosts", "private_bytes", "served"]

Makes = Callable[..., GrammarHosts]


@contextmanager
def makes_hosts(folder: Path, names: Sequence[str], limits: Limits) -> Iterator[Makes]:
    """What makes hosts for these strategies, the hostile one among them, which is installed in the folder; they are
    closed in the end."""
    install(folder, "hostile", {"grammar.hostile": "tests.support.hostile_strategy"})
    sys.path.insert(0, str(folder))
    opened: list[GrammarHosts] = []

    def make(
        limits: Limits = limits,
        options: dict[str, Any] | None = None,
        *,
        variables: Sequence[str] = (),
        sits_out: bool = False,
    ) -> GrammarHosts:
        plugins = Plugins()
        records = [plugins.resolve("grammar", name) for name in names]
        classes = [plugins.load("grammar", name) for name in names]
        hosts = GrammarHosts(
            classes,
            records,
            VOCABULARY,
            options or {},
            num_compilers=2,
            path=sys.path,
            limits=limits,
            variables=variables,
            sits_out=sits_out,
        )
        opened.append(hosts)
        return hosts

    try:
        yield make
    finally:
        sys.path.remove(str(folder))
        for hosts in opened:
            for name in hosts.strategies:
                hosts.close(name)


def served(hosts: GrammarHosts, **options: Any) -> FakeHost:
    """What serves with these."""
    return FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=hosts.strategies, **options)


def inline(name: str = "reference", **options: Any) -> FakeHost:
    """What serves without: with the reference under this name."""
    strategies = {name: ReferenceStrategy(VOCABULARY, {})}
    return FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=strategies, **options)


def private_bytes(host: MatcherHost, lane: int = 0) -> int:
    """Memory that a process of it shares with none: that for all, or 1: for those who were slow."""
    process = host._lanes[lane].host
    assert process is not None
    return memory_of(process.pid)[1]
