"""The hosts of one runtime: they compile constraints, keep matchers and states of modifiers, and check finished
texts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from guideway.api.grammar import GrammarStrategy
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.types import JsonSchema
from guideway.api.vocabulary import Vocabulary
from guideway.errors import GuidewayError, close_each, contain
from guideway.plugins.building import build_strategies
from guideway.plugins.index import PluginRecord
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.home import Home
from guideway.runtime.work.wanted import asking

from guideway_hosts.fork_server import ForkServer, module_path
from guideway_hosts.host import Host
from guideway_hosts.matchers import MatcherHost
from guideway_hosts.modifier import HostedModifier
from guideway_hosts.plugins import Spec
from guideway_hosts.pool import Pool
from guideway_hosts.strategy import HostedStrategy, Shared

__all__ = ["Hosts"]

SMALL = Vocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b""],
    stop_token_ids=frozenset({256}),
    special_tokens={256: "</s>"},
)
"""A vocabulary of all bytes and a stop token, for trying whether strategies can be built."""


class Hosts:
    """Hosts for strategies and modifiers, given by their class with the record of the installed plugin.

    The first call starts them, or `start_soon`. They get the environment variables that match `variables`, in addition
    to the usual ones. Set `fills=False` if constraints are only compiled. Raises the error of a plugin that cannot be
    built.
    """

    def __init__(
        self,
        context: ModifierContext,
        strategies: Mapping[type[GrammarStrategy], PluginRecord],
        modifiers: Mapping[type[LogitModifier[Any]], PluginRecord],
        options: Mapping[str, Mapping[str, Any]],
        *,
        num_compilers: int,
        path: Sequence[str] | None = None,
        limits: Limits | None = None,
        variables: Sequence[str] = (),
        sits_out: bool = False,
        fills: bool = True,
    ) -> None:
        limits = limits or Limits()
        records = (*strategies.values(), *modifiers.values())
        ids = [*(f"grammar.{cls.name}" for cls in strategies), *(f"modifier.{cls.name}" for cls in modifiers)]
        its_own = {each: dict(options.get(each, {})) for each in ids}
        places = module_path() if path is None else tuple(path)
        self._server = ForkServer(Spec(places, tuple(variables), records, context, its_own), limits)
        self._pool = Pool(self._server, num_compilers)
        self._fills = fills
        self._starting: list[Future[Host]] = []
        """The first hosts, if they were started in advance."""
        self.matchers = MatcherHost(self._server, sits_out=sits_out, loads=fills)
        """The hosts with the matchers."""
        self.shared = Shared(self._pool, self.matchers, self.close)
        self._lock = threading.Lock()
        self._open = set(ids)
        if modifiers or not _can_be_built(list(strategies), its_own):
            try:
                self._server.start()  # raises the real error, or succeeds if only the small vocabulary was the problem
            except BaseException:
                self._server.close()
                raise
        self.strategies = {
            cls.name: HostedStrategy(cls, context.vocabulary, its_own[f"grammar.{cls.name}"], self.shared)
            for cls in strategies
        }
        """By name the proxies that the runtime uses in place of the strategies."""
        self.modifiers = {
            cls.name: HostedModifier(
                cls,
                its_own[f"modifier.{cls.name}"],
                context,
                self._server,
                self._pool,
                self.close,
            )
            for cls in modifiers
        }
        """By name the proxies that the runtime uses in place of the modifiers."""
        self.homes: Mapping[str, Home] = self.strategies
        self.classes: Mapping[str, type[LogitModifier[Any]]] = {cls.name: cls for cls in modifiers}
        self.judge = Judge(self._pool, self)

    @property
    def failure(self) -> str | None:
        """Why a call could not get a host now; None if it could, or no host was needed yet."""
        is_starting = not all(host.done() for host in self._starting)
        return "grammar hosts are being started" if is_starting else self._server.failure

    def start_soon(self) -> None:
        """Start the hosts that the first constraint would wait for, in a thread."""
        if self.strategies:
            with suppress(GuidewayError):  # closed, or no thread is left: the first constraint says so
                self._starting.append(self._pool.start_soon())
                if self._fills:
                    self._starting.append(self.matchers.common.start_soon())

    def close(self, plugin: str) -> None:
        """Close a plugin. The last one ends all hosts."""
        with self._lock:
            self._open.discard(plugin)
        self.end_unused()

    def end_unused(self) -> None:
        """End all hosts if every plugin is closed."""
        with self._lock:
            if self._open:
                return
        self.matchers.close()
        self._pool.close()
        self._server.close()

    # Modifiers

    def announce(self, modifier: str, steps: Sequence[tuple[Any, tuple[int, ...], Any]]) -> None:
        """Send the final tokens of several sequences to a modifier in one command."""
        self.modifiers[modifier].take(steps)


class Judge:
    """Validates finished texts in hosts without state."""

    def __init__(self, pool: Pool, hosts: Hosts) -> None:
        self.pool = pool
        self._hosts = hosts
        self._closed = False

    def __call__(self, schema: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
        if self._closed:
            raise GuidewayError("the check of texts is closed")
        with asking(lambda: not self._closed):
            found, _ = self.pool.call("judge", schema, text, enforces_formats, seconds=self.pool.limits.compile_seconds)
        return found if isinstance(found, bool) else None

    def close(self) -> None:
        """Let the hosts that are checking texts be killed."""
        self._closed = True
        self._hosts.end_unused()


def _can_be_built(classes: Sequence[type[GrammarStrategy]], options: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether strategies can be built over a small vocabulary. This finds wrong options without starting a
    process."""
    try:
        built = build_strategies(classes, SMALL, options)
    except BaseException as error:
        contain(error)
        return False
    close_each([(f"grammar.{name}", strategy.close) for name, strategy in built.items()])
    return True
