"""The plan that the parent process resolved, frozen, so that every worker can prove that it runs the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from guideway.api import CONTRACT
from guideway.errors import InvalidConfiguration
from guideway.plugins.digest import sha256
from guideway.plugins.index import PluginRecord
from guideway.plugins.kinds import HOOKS
from guideway.plugins.requirements import required_versions
from guideway.plugins.selection import PluginSettings
from guideway.version import __version__

__all__ = ["PlannedPlugin", "PluginPlan", "differing"]


ACTING = {
    "grammar": "strategies",
    "modifier": "modifiers",
    "worker": "worker mixins",
    HOOKS: "hooks",
    "device": "device",
}
"""The kinds of what acts on requests, as a host's one line calls them."""


@dataclass(frozen=True, slots=True, order=True)
class PlannedPlugin:
    """One component of a plan."""

    id: str
    version: str
    value: str
    digest: str
    """The digest of its code; see `guideway.plugins.digest`."""
    libraries: tuple[str, ...] = ()
    """The distributions that its own requires, such as ``torch 2.13.0``: what a component does is mostly theirs."""

    @staticmethod
    def of(record: PluginRecord) -> PlannedPlugin:
        """The component as it is installed now."""
        libraries = required_versions(record.requires)
        return PlannedPlugin(record.id, record.version, record.value, record.digest, libraries)


@dataclass(frozen=True)
class PluginPlan:
    """The components a host will use, the versions of everything that decides how they behave, and the configuration.

    Plain values only: it pickles, and goes to every worker as the argument of `bootstrap_worker`.
    """

    plugins: tuple[PlannedPlugin, ...]
    settings: PluginSettings
    configuration: str
    """sha256 of the configuration as canonical JSON."""
    contract: str = CONTRACT
    guideway: str = __version__

    @staticmethod
    def build(
        records: Iterable[PluginRecord], settings: PluginSettings, configuration: Mapping[str, Any]
    ) -> PluginPlan:
        """The plan for `records`. Raises `InvalidConfiguration` if `configuration` is not made of plain JSON values,
        because then equal configurations could not be told from different ones."""
        try:
            text = json.dumps(configuration, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(
                f"the configuration must be made of plain JSON values: {error}", field="configuration"
            ) from error
        planned = sorted({PlannedPlugin.of(record) for record in records})
        return PluginPlan(tuple(planned), settings, sha256(text.encode()))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) over all of it, but for where the lock file lies: equal on two machines that will do the
        same."""
        facts = asdict(replace(self, settings=replace(self.settings, lock=PluginSettings.lock)))
        return sha256(json.dumps(facts, sort_keys=True).encode())

    def summary(self, host: str, *more: str) -> str:
        """The one line that `host` logs when it has started: what acts on its requests, what it has `more` to say, and
        the fingerprint, which is the same on every machine that does the same."""
        told = []
        for kind, what in ACTING.items():
            acting = [f"{p.id} {p.version}" for p in self.plugins if p.id.partition("/")[2].startswith(f"{kind}.")]
            told.append(f"{what} {', '.join(acting) or 'none'}")
        told.extend(more)
        return f"guideway {self.guideway} in {host}: {'; '.join(told)}; fingerprint {self.fingerprint}"

    def differences(self, other: PluginPlan) -> tuple[str, ...]:
        """One row for each thing `other` has different; empty if the fingerprints are equal."""
        return tuple(f"{what}: want {want}, have {have}" for what, want, have in self._rows(other))

    def _rows(self, other: PluginPlan) -> Iterator[tuple[str, str, str]]:
        yield from differing(self, other, "guideway", "contract", "configuration")
        for option, want, have in differing(self.settings, other.settings, "enable", "allow", "deny", "require"):
            yield f"plugins.{option}", repr(want), repr(have)
        mine, theirs = ({plugin.id: plugin for plugin in plan.plugins} for plan in (self, other))
        for plugin_id in sorted(mine.keys() | theirs.keys()):
            if plugin_id not in theirs:
                yield plugin_id, mine[plugin_id].version, "nothing: it is not installed or not selected"
            elif plugin_id not in mine:
                yield plugin_id, "nothing", theirs[plugin_id].version
            else:
                for name, want, have in differing(
                    mine[plugin_id], theirs[plugin_id], "version", "value", "digest", "libraries"
                ):
                    yield f"{plugin_id} {name}", want, have


def differing(one: object, other: object, *names: str) -> Iterator[tuple[str, Any, Any]]:
    """Those attributes that are not equal, with both values."""
    for name in names:
        want, have = getattr(one, name), getattr(other, name)
        if want != have:
            yield name, want, have
