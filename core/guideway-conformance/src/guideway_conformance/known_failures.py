"""Known failures of a plugin: the file ``conformance.toml`` in the folder of the package or of its tests."""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guideway.errors import InvalidConfiguration
from guideway.files import MIB, read_file, reason
from guideway.plugins.index import PluginIndex

from guideway_conformance.outcomes import Result
from guideway_conformance.registry import KIND_MODULES, Obligation, checks
from guideway_conformance.subjects import Settings

__all__ = ["FILE_NAME", "KnownFailure", "Preferences"]

FILE_NAME = "conformance.toml"


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """The reason of a failure, its issue, and the date until which it is accepted."""

    reason: str
    issue: str
    until: datetime.date
    plugins: tuple[str, ...] = ()
    """The plugins that it applies to, as ``kind.name``, if a package has several of a kind; empty: all of that kind."""


@dataclass(frozen=True)
class Preferences:
    """The content of a ``conformance.toml``::

    [known_failures]
    "grammar.rollback_restores_masks" = { reason = "...", issue = "https://...", until = 2027-01-31 }
    # with plugins = ["grammar.mine"] if other plugins of that kind, in the same package, pass the check

    [subjects."grammar.mine"]
    options = { backend = "fast" }
    requests = [{ delta = 2.0 }]      # a modifier's request options, one example each
    device = "cuda"                   # of a device backend
    """

    known_failures: Mapping[str, KnownFailure] = field(default_factory=dict)
    subjects: Mapping[str, Settings] = field(default_factory=dict)
    """Settings by ``kind.name``, or ``kind.Class`` for a bare class."""

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Preferences:
        """Read the file. Raises `InvalidConfiguration` for an unknown key, an unknown check or an incomplete entry."""
        try:
            data = tomllib.loads(read_file(path, MIB).decode())
        except (OSError, ValueError) as error:
            raise _wrong(path, reason(error)) from error
        unknown = data.keys() - {"known_failures", "subjects"}
        if unknown:
            raise _wrong(path, f"unknown table [{min(unknown)}]; there are [known_failures] and [subjects]")
        known = {check.id for kind in KIND_MODULES for check in checks(kind)} if "known_failures" in data else set()
        failures = {}
        for check_id, entry in data.get("known_failures", {}).items():
            if check_id not in known:
                raise _wrong(path, f"there is no check {check_id!r}")
            failures[check_id] = _read_known_failure(path, check_id, entry)
        subjects = {name: _read_settings(path, name, entry) for name, entry in data.get("subjects", {}).items()}
        return Preferences(failures, subjects)

    @staticmethod
    def find(folder: str | os.PathLike[str]) -> Path | None:
        """Return the file in `folder` or the nearest parent folder, up to one with a ``pyproject.toml``."""
        for candidate in (Path(folder).resolve(), *Path(folder).resolve().parents):
            if (candidate / FILE_NAME).is_file():
                return candidate / FILE_NAME
            if (candidate / "pyproject.toml").is_file():
                break
        return None

    @staticmethod
    def near(folder: str | os.PathLike[str]) -> Preferences:
        """Read the file that `find` returns; without one, return empty preferences."""
        file = Preferences.find(folder)
        return Preferences.read(file) if file else Preferences()

    def settings(self, name: str) -> Settings:
        """Return the settings of the plugin ``kind.name``."""
        return self.subjects.get(name, Settings())

    def strangers(self, tested: str = "") -> list[str]:
        """Return the entries of ``[subjects]``, other than `tested`, whose plugins are not installed: nothing reads
        them."""
        installed = (
            {f"{record.kind}.{record.name}" for record in PluginIndex.scan().records} if self.subjects else set()
        )
        return sorted(self.subjects.keys() - installed - {tested})

    def require_class_name(self, cls: type, plugin: str) -> None:
        """Raise `InvalidConfiguration` if a bare class has an entry by its attribute `name`, and none by its class
        name."""
        wrong = f"{plugin.partition('.')[0]}.{getattr(cls, 'name', '')}"
        if wrong != plugin and plugin not in self.subjects and wrong in self.strangers(plugin):
            raise InvalidConfiguration(
                f"{FILE_NAME}: [subjects.{wrong!r}] is about no installed plugin; of a class that a test passes, it is "
                f"[subjects.{plugin!r}]",
                field=FILE_NAME,
            )

    def concerning(self, plugin: str) -> Preferences:
        """Return preferences without the known failures of plugins other than ``kind.name``."""
        kind = plugin.partition(".")[0]
        failures = {
            check_id: known
            for check_id, known in self.known_failures.items()
            if check_id.partition(".")[0] == kind and (not known.plugins or plugin in known.plugins)
        }
        return replace(self, known_failures=failures)

    def require_owed(self, owed: Iterable[Obligation]) -> None:
        """Raise `InvalidConfiguration` if a known failure is for a check that the plugin does not owe."""
        idle = self.known_failures.keys() - {obligation.check for obligation in owed}
        if idle:
            raise InvalidConfiguration(
                f"{FILE_NAME} knows {min(idle)} as a failure, but that check does not concern this plugin: remove the "
                "entry, or name in its 'plugins' those it is about",
                field=FILE_NAME,
            )

    def applied(self, results: Iterable[Result], today: datetime.date) -> tuple[Result, ...]:
        """Return `results` with known failures marked. A known failure becomes a failure if it passes or has
        expired."""
        return tuple(self._apply(result, today) for result in results)

    def _apply(self, result: Result, today: datetime.date) -> Result:
        known = self.known_failures.get(result.obligation.check)
        if known is None:
            return result
        if result.outcome == "pass":
            return replace(
                result, outcome="fail", detail=f"it passes, but {FILE_NAME} knows it as a failure: remove that entry"
            )
        if result.outcome != "fail":
            return result
        if today > known.until:
            return replace(result, detail=f"{result.detail}; known until {known.until} ({known.issue}), which is over")
        return replace(result, outcome="known_failure", detail=f"{known.reason} ({known.issue}, until {known.until})")


def _read_known_failure(path: str | os.PathLike[str], check_id: str, entry: Any) -> KnownFailure:
    needed = {"reason", "issue", "until"}
    if not isinstance(entry, dict) or not needed <= entry.keys() <= needed | {"plugins"}:
        raise _wrong(path, f"{check_id!r} needs reason, issue and until, and may have plugins")
    plugins = entry.get("plugins", [])
    if not isinstance(plugins, list) or not all(isinstance(name, str) for name in plugins):
        raise _wrong(path, f"{check_id!r}: plugins must be a list such as ['grammar.mine'], not {plugins!r}")
    until = entry["until"]
    if isinstance(until, str):
        try:
            until = datetime.date.fromisoformat(until)
        except ValueError as error:
            raise _wrong(path, f"{check_id!r}: until must be a date such as 2027-01-31, not {until!r}") from error
    if type(until) is not datetime.date or not all(
        isinstance(entry[key], str) and entry[key] for key in ("reason", "issue")
    ):
        raise _wrong(path, f"{check_id!r}: reason and issue must be texts, until a date such as 2027-01-31")
    return KnownFailure(entry["reason"], entry["issue"], until, tuple(plugins))


def _read_settings(path: str | os.PathLike[str], name: str, entry: Any) -> Settings:
    if name.partition(".")[0] not in KIND_MODULES:
        raise _wrong(path, f"[subjects.{name!r}] is no plugin with checks: write kind.name, as in 'grammar.mine'")
    kinds = {"options": dict, "requests": list, "device": str}
    if not isinstance(entry, dict) or not entry.keys() <= kinds.keys():
        raise _wrong(path, f"[subjects.{name!r}] may have {', '.join(kinds)} and nothing else")
    for key, value in entry.items():
        if not isinstance(value, kinds[key]):
            raise _wrong(path, f"[subjects.{name!r}] {key} must be a {kinds[key].__name__}, not {value!r}")
    return Settings(**{**entry, "requests": tuple(entry.get("requests", ()))})


def _wrong(path: str | os.PathLike[str], problem: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{os.fspath(path)}: {problem}", field=FILE_NAME)
