"""Grammar hosts for the hostile strategy, and a `FakeHost` that uses them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guideway.api.modifier import ModifierContext
from guideway.devices.numpy.device import NumpyDevice
from guideway.plugins import Plugins
from guideway.plugins.limits import Limits
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_hosts.hosts import Hosts
from guideway_hosts.room import Room

from tests.support.distributions import install
from tests.support.fake_host import FakeHost
from tests.support.hostility import VOCABULARY
from tests.support.processes import memory_of

__all__ = ["Makes", "inline", "makes_hosts", "private_bytes", "served"]

Makes = Callable[..., Hosts]


@contextmanager
def makes_hosts(folder: Path, names: Sequence[str], limits: Limits) -> Iterator[Makes]:
    """Yield a function that makes hosts for these strategies, including the hostile one, which is installed in
    `folder`. Close the hosts at the end."""
    install(folder, "hostile", {"grammar.hostile": "tests.support.hostile_strategy"})
    sys.path.insert(0, str(folder))
    opened: list[Hosts] = []

    def make(
        limits: Limits = limits,
        options: dict[str, Any] | None = None,
        *,
        variables: Sequence[str] = (),
        sits_out: bool = False,
        fills: bool = True,
    ) -> Hosts:
        plugins = Plugins()
        records = [plugins.resolve("grammar", name) for name in names]
        classes = [plugins.load("grammar", name) for name in names]
        hosts = Hosts(
            ModifierContext(vocabulary=VOCABULARY, max_num_sequences=16, max_model_len=256),
            dict(zip(classes, records, strict=True)),
            {},
            options or {},
            num_compilers=2,
            path=sys.path,
            limits=limits,
            variables=variables,
            sits_out=sits_out,
            fills=fills,
        )
        opened.append(hosts)
        return hosts

    try:
        yield make
    finally:
        sys.path.remove(str(folder))
        for hosts in opened:
            for name in hosts.strategies:
                hosts.close(f"grammar.{name}")


def served(hosts: Hosts, **options: Any) -> FakeHost:
    """Return a host with these grammar hosts."""
    return FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=hosts.strategies, hosts=hosts, **options)


def inline(name: str = "reference", **options: Any) -> FakeHost:
    """Return a host without grammar hosts, with the reference strategy under this name."""
    strategies = {name: ReferenceStrategy(VOCABULARY, {})}
    return FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=strategies, **options)


def private_bytes(room: Room) -> int:
    """Return the bytes that a process of matchers does not share."""
    assert room.host is not None
    return memory_of(room.host.pid)[1]
