"""The face of the plugin system: what a host asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from guideway.api.errors import InvalidConfiguration, PluginUnavailable
from guideway.plugins import loading
from guideway.plugins.index import PluginIndex, PluginRecord
from guideway.plugins.kinds import HOOKS
from guideway.plugins.lock import Lock, Standing, certifying_command
from guideway.plugins.selection import PluginSettings, denial, resolve

if TYPE_CHECKING:
    from guideway.api import DeviceBackend, GrammarStrategy, LogitModifier, Model, WorkerMixin
    from guideway.plugins.hooks import Hooks
    from guideway.plugins.plan import PluginPlan

__all__ = ["Plugins"]

State = Literal["discovered", "denied", "incompatible", "conflict", "failed", "loaded"]


class Plugins:
    """What is installed, and what of it the operator wants.

    `index` defaults to a scan of ``sys.path``. Nothing is imported before `load` or `hooks` asks for it.
    """

    def __init__(self, index: PluginIndex | None = None, settings: PluginSettings | None = None) -> None:
        self.index = PluginIndex.scan() if index is None else index
        self.settings = settings or PluginSettings()

    def resolve(self, kind: str, address: str) -> PluginRecord:
        """The record `address` (``name`` or ``distribution/name``) means. Raises `PluginNotFound`, `PluginConflict`,
        or `PluginUnavailable` if the operator's settings forbid it."""
        record = resolve(self.index, self.settings, kind, address)
        if self.settings.require == "certified":
            standing = self._lock.standing(record)
            if not standing.accepted:
                raise PluginUnavailable(
                    f"{record.kind} {record.name!r} ({record}) may not run: [plugins] require = 'certified', and "
                    f"{standing.reason}\n  to certify it: {certifying_command(record, self.settings.lock)}",
                    plugin=record.id,
                )
        return record

    @overload
    def load(self, kind: Literal["grammar"], address: str) -> type[GrammarStrategy]: ...
    @overload
    def load(self, kind: Literal["device"], address: str) -> type[DeviceBackend]: ...
    @overload
    def load(self, kind: Literal["modifier"], address: str) -> type[LogitModifier[Any]]: ...
    @overload
    def load(self, kind: Literal["worker"], address: str) -> type[WorkerMixin]: ...
    @overload
    def load(self, kind: Literal["model"], address: str) -> type[Model]: ...
    @overload
    def load(self, kind: str, address: str) -> Any: ...
    def load(self, kind: str, address: str) -> Any:
        """The class `address` means, imported and checked. Raises what `resolve` raises, and `PluginLoadError`."""
        return loading.load(self.resolve(kind, address)).component

    def hooks(self) -> Hooks:
        """Validators and observers of the enabled ``hooks`` components. Taken once: the same object each time."""
        return self._hooks

    def record(self, plugin_id: str) -> PluginRecord:
        """The record with that id. Raises KeyError if there is none."""
        return {record.id: record for record in self.index.records}[plugin_id]

    def state(self, record: PluginRecord) -> tuple[State, str]:
        """Where `record` stands in this process, and why where that is not obvious. Imports nothing."""
        error = loading.failure(record)
        if error:
            return "failed", str(error)
        if loading.loaded(record):
            return "loaded", ""
        reason = denial(self.settings, record)
        if reason:
            return "denied", reason
        reason = loading.incompatibility(record)
        if reason:
            return "incompatible", reason
        others = [r.distribution for r in self._rivals.get(record, ()) if r != record]
        if others:
            return "conflict", f"also claimed by {', '.join(others)}; write '{record.distribution}/{record.name}'"
        return "discovered", ""

    def standing(self, record: PluginRecord) -> Standing:
        """What the lock file says of `record` as it is installed now. Without one, nothing is proven."""
        lock, problem = self._lock_if_any
        return Standing("unproven", problem) if problem else lock.standing(record)

    @property
    def lock_problem(self) -> str:
        """Why the lock file cannot be read; empty if it can, or if there is none."""
        return self._lock_if_any[1]

    def plan(self, selection: Iterable[tuple[str, str]], configuration: Mapping[str, Any]) -> PluginPlan:
        """The plan for the selected (kind, address) pairs and the enabled hooks. `configuration` is whatever else
        workers have to agree on, as plain JSON values."""
        from guideway.plugins.plan import PluginPlan

        records = [self.resolve(kind, address) for kind, address in selection]
        return PluginPlan.build([*records, *self._enabled()], self.settings, configuration)

    def _enabled(self) -> list[PluginRecord]:
        return list(dict.fromkeys(self.resolve(HOOKS, address) for address in self.settings.enable))

    @cached_property
    def _rivals(self) -> dict[PluginRecord, tuple[PluginRecord, ...]]:
        return {record: group for group in self.index.conflicts() for record in group}

    @cached_property
    def _hooks(self) -> Hooks:
        from guideway.plugins.hooks import Hooks

        return Hooks.of([loading.load(record) for record in self._enabled()])

    @cached_property
    def _lock(self) -> Lock:
        return Lock.read(self.settings.lock)

    @cached_property
    def _lock_if_any(self) -> tuple[Lock, str]:
        """The lock file, empty if there is none, and what is wrong with it."""
        try:
            return (Lock.read(self.settings.lock) if Path(self.settings.lock).exists() else Lock({})), ""
        except InvalidConfiguration as error:
            return Lock({}), str(error)
