"""The frozen plan of the parent process, with which every worker verifies that it runs the same plugins."""

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
from guideway.plugins.operator_files import is_file
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
"""The kinds of components that act on requests, with their names in a host's start-up line."""


@dataclass(frozen=True, slots=True, order=True)
class PlannedPlugin:
    """One component of a plan."""

    id: str
    version: str
    value: str
    digest: str
    """The digest of the code; see `guideway.plugins.digest`."""
    libraries: tuple[str, ...] = ()
    """The distributions that its own requires, such as ``torch 2.13.0``, since most of its behavior is theirs."""

    @staticmethod
    def of(record: PluginRecord) -> PlannedPlugin:
        """Return the component as currently installed."""
        libraries = required_versions(record.requires)
        value = record.value.rpartition("/")[2] if record.is_file else record.value  # on each machine another folder
        return PlannedPlugin(record.id, record.version, value, record.digest, libraries)


@dataclass(frozen=True)
class PluginPlan:
    """The components that a host will use, the versions of everything that affects their behavior, and the
    configuration.

    Contains only plain values, so it pickles. Every worker gets it as the argument of `bootstrap_worker`.
    """

    plugins: tuple[PlannedPlugin, ...]
    settings: PluginSettings
    configuration: str
    """sha256 of the configuration as canonical JSON."""
    files: tuple[tuple[str, str], ...] = ()
    """Kind and address of each component in an operator's own file."""
    contract: str = CONTRACT
    guideway: str = __version__

    @staticmethod
    def build(
        records: Iterable[PluginRecord], settings: PluginSettings, configuration: Mapping[str, Any]
    ) -> PluginPlan:
        """Build the plan for `records`. Raises `InvalidConfiguration` if `configuration` does not consist of plain
        JSON values, since other values cannot be compared reliably."""
        try:
            text = json.dumps(configuration, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(
                f"the configuration must be made of plain JSON values: {error}", field="configuration"
            ) from error
        records = list(records)
        planned = sorted({PlannedPlugin.of(record) for record in records})
        files = sorted({(record.kind, record.value) for record in records if record.is_file})
        return PluginPlan(tuple(planned), settings, sha256(text.encode()), tuple(files))

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 (hex) of everything except the folders of files: equal on machines that behave the same."""
        facts = asdict(replace(self, files=()))
        del facts["files"]
        facts["settings"] |= {"lock": PluginSettings.lock, "enable": self._enabled()}
        return sha256(json.dumps(facts, sort_keys=True).encode())

    def summary(self, host: str, *more: str) -> str:
        """Return the line that `host` logs at start-up: the components that act on requests, `more` facts, and the
        fingerprint."""
        told = []
        for kind, what in ACTING.items():
            acting = [f"{p.id} {p.version}" for p in self.plugins if p.id.partition("/")[2].startswith(f"{kind}.")]
            told.append(f"{what} {', '.join(acting) or 'none'}")
        told.extend(more)
        return f"guideway {self.guideway} in {host}: {'; '.join(told)}; fingerprint {self.fingerprint}"

    def differences(self, other: PluginPlan) -> tuple[str, ...]:
        """Return one row for each difference from `other`; empty if the fingerprints are equal."""
        return tuple(f"{what}: want {want}, have {have}" for what, want, have in self._rows(other))

    def _enabled(self) -> tuple[str, ...]:
        """Return `PluginSettings.enable` without the folders of files."""
        return tuple(name.rpartition("/")[2] if is_file(name) else name for name in self.settings.enable)

    def _rows(self, other: PluginPlan) -> Iterator[tuple[str, str, str]]:
        yield from differing(self, other, "guideway", "contract", "configuration")
        if self._enabled() != other._enabled():
            yield "plugins.enable", repr(self._enabled()), repr(other._enabled())
        for option, want, have in differing(self.settings, other.settings, "allow", "deny", "require"):
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
    """Yield the attributes that differ, with both values."""
    for name in names:
        want, have = getattr(one, name), getattr(other, name)
        if want != have:
            yield name, want, have
