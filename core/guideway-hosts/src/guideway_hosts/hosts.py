"""The hosts of one runtime: where constraints compile, matchers and states of modifiers live, and finished texts are
checked."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from guideway.api.grammar import GrammarStrategy
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.types import JsonSchema
from guideway.api.vocabulary import Vocabulary
from guideway.errors import (
    GuidewayError,
    close_each,
    contain,
)
from guideway.plugins.building import build_strategies
from guideway.plugins.index import PluginRecord
from guideway.plugins.limits import Limits
from guideway.runtime.elsewhere import Home

from guideway_hosts.fork_server import HostSource, module_path
from guideway_hosts.matchers import MatcherHost
from guideway_hosts.modifier import HostedModifier, States
from guideway_hosts.plugins import Spec
from guideway_hosts.pool import Pool
from guideway_hosts.strategy import HostedStrategy, Refused, Shared

__all__ = ["Hosts"]

SMALL = Vocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b""],
    stop_token_ids=frozenset({256}),
    special_tokens={256: "</s>"},
)
"""Every byte, and an end."""


class Hosts:
    """Hosts for these strategies and modifiers, by class where they are installed. The first call starts them, or
    `start_soon`. They are given the environment variables that match `variables`, beside the usual ones. Raises, for
    a plugin that cannot be built, what building it raises. `fills`: False where constraints are only tried."""

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
        self._limits = limits = limits or Limits()
        records = (*strategies.values(), *modifiers.values())
        ids = [*(f"grammar.{cls.name}" for cls in strategies), *(f"modifier.{cls.name}" for cls in modifiers)]
        its_own = {each: dict(options.get(each, {})) for each in ids}
        places = module_path() if path is None else tuple(path)
        self._source = HostSource(Spec(places, tuple(variables), records, context, its_own), limits)
        self._pool = Pool("compile", self._source, num_compilers)
        self._is_starting = False
        self.refused = Refused(limits.remembered_seconds)
        self.matchers = MatcherHost(self._source, limits, self.refused.remember, sits_out=sits_out, loads=fills)
        """The hosts where matchers live."""
        self.shared = Shared(self._pool, self.matchers, self.refused, limits, self.close)
        self._lock = threading.Lock()
        self._open = set(ids)
        if modifiers or not _can_be_built(list(strategies), its_own):
            try:
                self._source.start()  # which says why, or that the small vocabulary was the reason
            except BaseException:
                self._source.close()
                raise
        self.strategies = {
            cls.name: HostedStrategy(cls, context.vocabulary, its_own[f"grammar.{cls.name}"], self.shared)
            for cls in strategies
        }
        """By name, what a runtime is given in place of the strategies."""
        self.modifiers = {
            cls.name: HostedModifier(
                cls,
                its_own[f"modifier.{cls.name}"],
                context,
                States(cls.name, self._source, limits),
                self._pool,
                limits,
                self.close,
            )
            for cls in modifiers
        }
        """By name, what a runtime is given in place of the modifiers."""
        self.homes: Mapping[str, Home] = self.strategies
        self.classes: Mapping[str, type[LogitModifier[Any]]] = {cls.name: cls for cls in modifiers}
        self.judge = Judge(self._pool, self, limits)

    @property
    def failure(self) -> str | None:
        """Why a call would have no host now; None if it would, or none was needed yet."""
        return "grammar hosts are being started" if self._is_starting else self._source.failure

    def start_soon(self) -> None:
        """Start beside what else is done the hosts that the first constraint would wait for."""
        if not self.strategies:
            return
        self._is_starting = True
        try:
            threading.Thread(target=self._start, name="guideway-starts-hosts", daemon=True).start()
        except RuntimeError:  # no thread is left: the first constraint starts them
            self._is_starting = False

    def _start(self) -> None:
        try:
            self._pool.start()
            self.matchers.start()
        except GuidewayError:  # it is logged, and the next one is told
            pass
        finally:
            self._is_starting = False

    def close(self, plugin: str) -> None:
        """Nobody uses a plugin any more: end all hosts with the last one."""
        with self._lock:
            self._open.discard(plugin)
        self.end_unused()

    def end_unused(self) -> None:
        """End all hosts, unless a plugin is in use."""
        with self._lock:
            if self._open:
                return
        self.matchers.close()
        self._pool.close()
        self._source.close()

    # Modifiers

    def announce(self, modifier: str, steps: Sequence[tuple[Any, tuple[int, ...], Any]]) -> None:
        """Let a modifier take what is final of several sequences in one command."""
        self.modifiers[modifier].take(steps)


class Judge:
    """Validates finished texts in hosts that hold nothing."""

    def __init__(self, pool: Pool, hosts: Hosts, limits: Limits) -> None:
        self.pool = pool
        self._hosts = hosts
        self._seconds = limits.compile_seconds
        self._closed = False

    def __call__(self, schema: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
        if self._closed:
            raise GuidewayError("the check of texts is closed")
        found, _ = self.pool.call("judge", schema, text, enforces_formats, seconds=self._seconds)
        return found if isinstance(found, bool) else None

    def close(self) -> None:
        """Kill the hosts that are at work on it."""
        self._closed = True
        self.pool.give_up("judge")
        self._hosts.end_unused()


def _can_be_built(classes: Sequence[type[GrammarStrategy]], options: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether strategies can be built over a small vocabulary: that tells what is wrong with their options, and
    takes no process."""
    try:
        built = build_strategies(classes, SMALL, options)
    except BaseException as error:
        contain(error)
        return False
    close_each([(f"grammar.{name}", strategy.close) for name, strategy in built.items()])
    return True
