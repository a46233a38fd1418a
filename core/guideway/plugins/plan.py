"""What the parent process resolved, frozen, so that every worker can prove that it runs the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import guideway
from guideway.api import CONTRACT
from guideway.api.errors import InvalidConfiguration, PluginError
from guideway.plugins.digest import file_digest
from guideway.plugins.index import PluginIndex, PluginRecord
from guideway.plugins.kinds import HOOKS
from guideway.plugins.selection import PluginSettings

if TYPE_CHECKING:
    from guideway.plugins.manager import Plugins

__all__ = ["PlannedPlugin", "PluginPlan", "bootstrap_worker"]


@dataclass(frozen=True, slots=True, order=True)
class PlannedPlugin:
    """One component of a plan."""

    id: str
    version: str
    value: str
    digest: str
    """Of its files; see `guideway.plugins.digest.file_digest`."""

    @staticmethod
    def of(record: PluginRecord) -> PlannedPlugin:
        """The component as it is installed now."""
        return PlannedPlugin(record.id, record.version, record.value, file_digest(record))


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
    guideway: str = guideway.__version__

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
        return PluginPlan(tuple(planned), settings, hashlib.sha256(text.encode()).hexdigest())

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) over all of it, but for where the lock file lies: equal on two machines that will do the
        same."""
        facts = asdict(replace(self, settings=replace(self.settings, lock=PluginSettings.lock)))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def summary(self, host: str) -> str:
        """The one line that `host` logs when it has started: what acts on its requests, and the fingerprint, which
        is the same on every machine that does the same."""
        told = []
        for kind, what in (("grammar", "strategies"), ("modifier", "modifiers"), (HOOKS, "hooks")):
            acting = [f"{p.id} {p.version}" for p in self.plugins if p.id.partition("/")[2].startswith(f"{kind}.")]
            told.append(f"{what} {', '.join(acting) or 'none'}")
        return f"guideway {self.guideway} in {host}: {'; '.join(told)}; fingerprint {self.fingerprint}"

    def differences(self, other: PluginPlan) -> tuple[str, ...]:
        """One row for each thing `other` has different; empty if the fingerprints are equal."""
        return tuple(f"{what}: want {want}, have {have}" for what, want, have in self._rows(other))

    def _rows(self, other: PluginPlan) -> Iterator[tuple[str, str, str]]:
        for name in ("guideway", "contract", "configuration"):
            if getattr(self, name) != getattr(other, name):
                yield name, getattr(self, name), getattr(other, name)
        for option in ("enable", "allow", "deny", "require"):
            want, have = getattr(self.settings, option), getattr(other.settings, option)
            if want != have:
                yield f"plugins.{option}", repr(want), repr(have)
        mine, theirs = ({plugin.id: plugin for plugin in plan.plugins} for plan in (self, other))
        for plugin_id in sorted(mine.keys() | theirs.keys()):
            if plugin_id not in theirs:
                yield plugin_id, mine[plugin_id].version, "nothing: it is not installed or not selected"
            elif plugin_id not in mine:
                yield plugin_id, "nothing", theirs[plugin_id].version
            else:
                for name in ("version", "value", "digest"):
                    want, have = getattr(mine[plugin_id], name), getattr(theirs[plugin_id], name)
                    if want != have:
                        yield f"{plugin_id} {name}", want, have


_BOOTSTRAPPED: dict[tuple[int, str], Plugins] = {}


def bootstrap_worker(plan: PluginPlan) -> Plugins:
    """What every worker calls first, however it was started: check that what is installed here is what `plan` says,
    and return the plugins, limited to those of the plan. Imports none of them.

    Raises `PluginError` with a row for each difference. Cheap when called again in the same process.
    """
    from guideway.plugins.manager import Plugins

    # not a plain flag: a forked child inherits this table, and has to check for itself
    key = (os.getpid(), plan.fingerprint)
    if key not in _BOOTSTRAPPED:
        index = PluginIndex.scan()
        wanted = {plugin.id for plugin in plan.plugins}
        here = PluginPlan(
            tuple(sorted(PlannedPlugin.of(record) for record in index.records if record.id in wanted)),
            plan.settings,
            plan.configuration,
        )
        differences = plan.differences(here)
        if differences:
            rows = "\n  ".join(differences)
            raise PluginError(
                f"process {os.getpid()} does not have the plugins its parent planned:\n  {rows}\n"
                "install the same versions in every environment that runs workers",
                plugin=next(
                    (p.id for p in plan.plugins if any(row.startswith(p.id) for row in differences)), "guideway"
                ),
            )
        # the parent has checked the verdicts, of files with these very digests
        settings = replace(plan.settings, require="installed", allow=tuple(sorted(wanted)))
        _BOOTSTRAPPED[key] = Plugins(index, settings)
    return _BOOTSTRAPPED[key]
