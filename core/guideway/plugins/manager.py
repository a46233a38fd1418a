"""The interface of the plugin system for hosts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from guideway.errors import InvalidConfiguration, NotCertified, PluginError
from guideway.plugins import loading
from guideway.plugins.hooks import Hooks
from guideway.plugins.index import PluginIndex, PluginRecord
from guideway.plugins.kinds import HOOKS
from guideway.plugins.lock import Certification, Lock, certifying_command, default_lock
from guideway.plugins.operator_files import module_name
from guideway.plugins.plan import PlannedPlugin, PluginPlan
from guideway.plugins.selection import PluginSettings, denial, resolve

if TYPE_CHECKING:
    from guideway.api import DeviceBackend, GrammarStrategy, LogitModifier, Model, WorkerMixin

__all__ = ["Plugins", "bootstrap_worker"]

State = Literal["discovered", "denied", "incompatible", "conflict", "failed", "loaded"]


class Plugins:
    """The installed plugins, and the operator's selection of them.

    `index` defaults to a scan of ``sys.path``. Plugins are imported only by `load` and `hooks`.
    """

    def __init__(self, index: PluginIndex | None = None, settings: PluginSettings | None = None) -> None:
        self.index = PluginIndex.scan() if index is None else index
        self.settings = settings or PluginSettings()
        self._resolved: dict[tuple[str, str], PluginRecord] = {}
        self._hooks: Hooks | None = None

    def resolve(self, kind: str, address: str) -> PluginRecord:
        """Return the record for `address` (``name`` or ``distribution/name``). Raises `PluginNotFound`,
        `PluginConflict`, or `PluginUnavailable` if the operator's settings forbid it."""
        return self._resolve_all([(kind, address)])[0]

    def require(self, selection: Iterable[tuple[str, str]]) -> tuple[PluginRecord, ...]:
        """Return the records of the selected (kind, address) pairs and of the enabled hooks. Raises as `resolve` does;
        if certification is required, one `NotCertified` names all components without it."""
        return tuple(self._resolve_all([*selection, *((HOOKS, address) for address in self.settings.enable)]))

    def _resolve_all(self, selection: Sequence[tuple[str, str]]) -> list[PluginRecord]:
        new = {
            pair: resolve(self.index, self.settings, *pair)
            for pair in dict.fromkeys(selection)
            if pair not in self._resolved
        }
        if self.settings.require == "certified":
            found = {record: self._lock.certification(record) for record in new.values()}
            if refused := [record for record in found if not found[record].accepted]:
                packaged = [record for record in refused if not record.is_file]
                how = "\n  to use a file under this rule, make it a package (guideway plugins new) and certify that"
                if packaged:
                    its = "it" if len(packaged) == 1 else "them"
                    how = f"\n  to certify {its}: {certifying_command(packaged, self.lock_file)}"
                rows = "".join(f"\n  {r.id} {r.version}: {found[r].reason}" for r in refused)
                raise NotCertified(
                    f"[plugins] require = 'certified', and {self.lock_file} has no verdict that stands for "
                    f"{'this plugin' if len(refused) == 1 else f'these {len(refused)} plugins'}:{rows}" + how,
                    plugin=refused[0].id,
                )
        self._resolved |= new
        return [self._resolved[pair] for pair in selection]

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
        """Import, check and return the class for `address`. Raises as `resolve` does, and `PluginLoadError`."""
        return loading.load(self.resolve(kind, address)).component

    def hooks(self) -> Hooks:
        """Return the validators and observers of the enabled ``hooks`` components. Always the same object."""
        if self._hooks is None:
            self._hooks = Hooks.of([loading.load(record) for record in dict.fromkeys(self.require([]))])
        return self._hooks

    def state(self, record: PluginRecord) -> tuple[State, str]:
        """Return the state of `record` in this process, and the reason if it needs one. Imports nothing."""
        if outcome := loading.outcome(record):
            return ("loaded", "") if isinstance(outcome, loading.Loaded) else ("failed", str(outcome))
        if reason := denial(self.settings, record):
            return "denied", reason
        if reason := loading.incompatibility(record):
            return "incompatible", reason
        others = [r.distribution for r in self.index.named(record.kind, record.name) if r != record]
        if others:
            return "conflict", f"also claimed by {', '.join(others)}; write '{record.distribution}/{record.name}'"
        return "discovered", ""

    def certification(self, record: PluginRecord) -> Certification:
        """Return the certification of the installed `record` in the lock file; ``unproven`` if there is no lock
        file."""
        lock, problem = self._lock_if_any
        return Certification("unproven", problem) if problem else lock.certification(record)

    @property
    def lock_problem(self) -> str:
        """Why the lock file cannot be read; empty if it can, or if there is none."""
        return self._lock_if_any[1]

    def plan(self, selection: Iterable[tuple[str, str]], configuration: Mapping[str, Any]) -> PluginPlan:
        """Return the plan for the selected (kind, address) pairs and the enabled hooks. `configuration` is everything
        else that workers must agree on, as plain JSON values."""
        plan = PluginPlan.build(self.require(selection), self.settings, configuration)
        # a worker in this process needs no comparison
        _BOOTSTRAPPED[os.getpid(), plan.fingerprint] = self._limited_to(plan)
        return plan

    def _limited_to(self, plan: PluginPlan) -> Plugins:
        """Return the plugins, limited to those in `plan`."""
        wanted = {plugin.id for plugin in plan.plugins}
        # the planner has checked the verdicts, and the digests of the files are equal
        limited = Plugins(self.index, replace(plan.settings, require="installed", allow=tuple(sorted(wanted))))
        limited._resolved = {address: record for address, record in self._resolved.items() if record.id in wanted}
        return limited

    @property
    def lock_file(self) -> str:
        """The path of the lock file, which need not exist."""
        return self.settings.lock or default_lock()

    @cached_property
    def _lock(self) -> Lock:
        """The lock file; empty, so that it accepts nothing, if there is none."""
        return Lock.read(self.lock_file) if Path(self.lock_file).exists() else Lock({})

    @cached_property
    def _lock_if_any(self) -> tuple[Lock, str]:
        """The lock file, empty if there is none or it is unreadable, and the error of reading it."""
        try:
            return self._lock, ""
        except InvalidConfiguration as error:
            return Lock({}), str(error)


_BOOTSTRAPPED: dict[tuple[int, str], Plugins] = {}
"""Verified plugins by process and fingerprint. A forked child inherits the table, but has another process id and
checks again."""


def bootstrap_worker(plan: PluginPlan) -> Plugins:
    """Verify that the installed plugins match `plan`, and return them, limited to the plan. Every worker calls this
    first. Imports no plugin.

    Raises `PluginError` with a row for each difference. Cheap for later calls in the same process, and in the process
    that made the plan.
    """
    key = (os.getpid(), plan.fingerprint)
    if key not in _BOOTSTRAPPED:
        here = Plugins(settings=plan.settings)
        wanted = {plugin.id for plugin in plan.plugins}
        records = [record for record in here.index.records if record.id in wanted]
        records += [here.resolve(kind, address) for kind, address in plan.files]
        for record in records:
            if record.is_file:  # so that its classes can be unpickled
                module_name(record.value, record.version)
        found = sorted(map(PlannedPlugin.of, records))
        differences = plan.differences(PluginPlan(tuple(found), plan.settings, plan.configuration, plan.files))
        if differences:
            rows = "\n  ".join(differences)
            raise PluginError(
                f"process {os.getpid()} does not have the plugins its parent planned:\n  {rows}\n"
                "install the same versions in every environment that runs workers",
                plugin=next(
                    (p.id for p in plan.plugins if any(row.startswith(p.id) for row in differences)), "guideway"
                ),
            )
        _BOOTSTRAPPED[key] = here._limited_to(plan)
    return _BOOTSTRAPPED[key]
