"""The modifier hosts of one runtime."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from guideway.api.bitmask import num_words
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.errors import InvalidConfiguration, text_of
from guideway.plugins.index import PluginRecord
from guideway.plugins.limits import Limits
from guideway.runtime.elsewhere import Home

from guideway_hosts.fork_server import HostSource, module_path
from guideway_hosts.modifiers.home import Home as StatesHome
from guideway_hosts.modifiers.modifier import HostedModifier
from guideway_hosts.modifiers.serving import ModifierSpec
from guideway_hosts.pool import Pool

__all__ = ["ModifierHosts"]


class ModifierHosts:
    """Hosts for the modifiers of `records`, which name the `classes`; `strategies` are those they compile with,
    `variables` as in `GrammarHosts`. Builds them in another process. Raises what building them raises."""

    def __init__(
        self,
        classes: Sequence[type[LogitModifier[Any]]],
        records: Sequence[PluginRecord],
        strategies: Sequence[PluginRecord],
        context: ModifierContext,
        options: Mapping[str, Mapping[str, Any]],
        *,
        num_compilers: int,
        path: Sequence[str] | None = None,
        limits: Limits | None = None,
        variables: Sequence[str] = (),
    ) -> None:
        self._limits = limits = limits or Limits()
        names = [f"modifier.{cls.name}" for cls in classes] + [f"grammar.{record.name}" for record in strategies]
        its_own = {name: dict(options.get(name, {})) for name in names}
        for name, given in its_own.items():
            _check_sent(name, given)
        words = num_words(context.vocabulary.logits_width)
        spec = ModifierSpec(
            module_path() if path is None else tuple(path),
            tuple(variables),
            (*strategies, *records),
            words,
            context,
            its_own,
        )
        self._source = HostSource(spec, limits)
        self._pool = Pool("compile", self._source, num_compilers)
        self._homes = {cls.name: StatesHome(cls.name, self._source, limits) for cls in classes}
        self._lock = threading.Lock()
        self._open = set(self._homes)
        try:
            self._source.start()
        except BaseException:
            self._source.close()
            raise
        self.modifiers = {
            cls.name: HostedModifier(cls, its_own[f"modifier.{cls.name}"], context, self) for cls in classes
        }
        """By name, what a runtime is given in place of the modifiers."""
        self.classes = {cls.name: cls for cls in classes}
        """The plugins' classes."""
        self.homes: Mapping[str, Home] = {}
        """No strategy is here."""

    @property
    def failure(self) -> str | None:
        """Why no host could be started the last time; None if one could, or none was needed yet."""
        return self._source.failure

    def start_soon(self) -> None:
        """They were started with the runtime."""

    def announce(self, modifier: str, steps: Sequence[tuple[Any, tuple[int, ...], Any]]) -> None:
        """Let a modifier take what is final of several sequences in one command."""
        self.modifiers[modifier].take(steps)

    def home(self, name: str) -> StatesHome:
        """Return where the states of a modifier live."""
        return self._homes[name]

    def look(self, method: str, name: str, *arguments: Any) -> Any:
        """Return what a modifier says of a request, in a host that holds nothing. Raises what it raises, and
        `HostDied`."""
        seconds = self._limits.compile_seconds
        if method != "compile":  # by the clock as long as an admission
            seconds = self._limits.admission_seconds / self._limits.wall_factor
        found, _ = self._pool.call(method, name, *arguments, seconds=seconds)
        return found

    def close(self, name: str) -> None:
        """End the states of a modifier, and all hosts with those of the last one."""
        self._homes[name].close()
        with self._lock:
            self._open.discard(name)
            if self._open:
                return
        self._pool.close()
        self._source.close()


def _check_sent(name: str, options: Mapping[str, Any]) -> None:
    try:
        pickle.dumps(options)
    except Exception as error:
        raise InvalidConfiguration(
            f"the options of {name} cannot be sent to its host: {text_of(error)}; give plain values, or set "
            "modifier_host to 'inline'",
            field=f"options.{name}",
        ) from error
