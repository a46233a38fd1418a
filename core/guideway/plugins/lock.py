"""The lock file: the plugins that an operator accepted, by digest, and their certifications."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from guideway.api import CONTRACT
from guideway.errors import InvalidConfiguration, PluginUnavailable
from guideway.files import alone, read_file, reason, write_file
from guideway.plugins.index import PluginIndex, PluginRecord
from guideway.plugins.kinds import GROUP, KINDS
from guideway.plugins.plan import PlannedPlugin, differing

__all__ = [
    "DEFAULT_LOCK",
    "LOCK_VARIABLE",
    "Certification",
    "Lock",
    "Locked",
    "Verdict",
    "certifying_command",
    "default_lock",
]

_FORMAT = 1
LOCK_VARIABLE = "GUIDEWAY_PLUGINS_LOCK"
DEFAULT_LOCK = f"what {LOCK_VARIABLE} names, or guideway.lock in sys.prefix"
"""Description of the default lock file, for the help of commands."""


def default_lock() -> str:
    """Return the path of the default lock file: the environment variable GUIDEWAY_PLUGINS_LOCK, or else
    ``guideway.lock`` in the folder of the Python environment."""
    return os.environ.get(LOCK_VARIABLE) or str(Path(sys.prefix, "guideway.lock"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A passed conformance report, and the tested files and contract."""

    report: str
    """Digest of the report."""
    digest: str
    """Digest of the plugin's files at the time of the test."""
    contract: str
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Certification:
    """The certification of an installed plugin, from the lock file."""

    state: Literal["certified", "locked", "stale", "unproven"]
    """``locked``: the kind has no checks, and the plugin has not changed since it was locked."""
    reason: str
    """The reason, or the certified levels."""

    @property
    def accepted(self) -> bool:
        """True if the plugin may run if ``[plugins] require`` is ``certified``."""
        return self.state in ("certified", "locked")


def certifying_command(records: Sequence[PluginRecord], path: str) -> str:
    """Return the command that certifies all `records` in the lock file at `path`."""
    where = "" if path == default_lock() else f" --lock {shlex.quote(path)}"
    return f"guideway conform {' '.join(record.id for record in records)} --record{where}"


@dataclass(frozen=True, slots=True)
class Locked:
    """One line of the lock file."""

    plugin: PlannedPlugin
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Lock:
    """The content of the lock file: the accepted plugins, by id."""

    plugins: Mapping[str, Locked]

    @staticmethod
    def of(records: Iterable[PluginRecord], earlier: Lock | None = None) -> Lock:
        """Create a lock of the installed `records`. Verdicts of `earlier` are kept for unchanged plugins."""
        plugins = {}
        for record in records:
            plugin = PlannedPlugin.of(record)
            verdict = earlier.plugins[plugin.id].verdict if earlier and plugin.id in earlier.plugins else None
            plugins[plugin.id] = Locked(plugin, verdict if verdict and verdict.digest == plugin.digest else None)
        return Lock(plugins)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Lock:
        """Read a lock file. Raises `InvalidConfiguration` if it does not exist or has another format."""
        try:
            content = json.loads(read_file(path))
            if content["format"] != _FORMAT:
                raise ValueError(f"its format is {content['format']!r}, but this guideway reads {_FORMAT}")
            return Lock({plugin_id: _parse_line(plugin_id, line) for plugin_id, line in content["plugins"].items()})
        except FileNotFoundError as error:
            raise InvalidConfiguration(
                f"there is no lock file {os.fspath(path)}; write it with: guideway plugins lock", field="plugins.lock"
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfiguration(
                f"{os.fspath(path)} is not a lock file ({type(error).__name__}: {reason(error)}); remove it and write "
                "a new one with: guideway plugins lock",
                field="plugins.lock",
            ) from error

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace the file atomically. Raises `InvalidConfiguration` if it cannot be written."""
        content = {"format": _FORMAT, "plugins": {key: _line(self.plugins[key]) for key in sorted(self.plugins)}}
        write_file(path, json.dumps(content, indent=2) + "\n", field="plugins.lock")

    @staticmethod
    def update(path: str | os.PathLike[str], change: Callable[[Lock], Lock]) -> tuple[Lock, Lock]:
        """Replace the lock file (empty if missing) by the result of `change`, while no other process changes it.
        Return the old and the new lock. Raises as `read` and `change` do, and `InvalidConfiguration` if the file cannot
        be written."""
        try:
            with alone(path):
                earlier = Lock.read(path) if Path(path).exists() else Lock({})
                lock = change(earlier)
                lock.write(path)
        except OSError as error:
            why = f"cannot change {os.fspath(path)!r}: {reason(error)}"
            raise InvalidConfiguration(why, field="plugins.lock") from error
        return earlier, lock

    def differences(self, index: PluginIndex) -> dict[str, tuple[str, ...]]:
        """Return the differences between locked and installed plugins by id: a row for each fact, or one for a missing
        plugin."""
        installed = {record.id: record for record in index.records}
        found: dict[str, tuple[str, ...]] = {}
        for plugin_id, locked in sorted(self.plugins.items()):
            if plugin_id not in installed:
                found[plugin_id] = (f"locked {locked.plugin.version}, not installed now",)
                continue
            now = PlannedPlugin.of(installed[plugin_id])
            rows = differing(locked.plugin, now, "version", "value", "digest")
            if told := tuple(f"{name}: locked {was}, now {is_}" for name, was, is_ in rows):
                found[plugin_id] = told
        return found

    def certified(self, record: PluginRecord, verdict: Verdict) -> Lock:
        """Return this lock with the installed `record` accepted and `verdict` recorded. Raises `PluginUnavailable` if
        the verdict is about other files."""
        plugin = PlannedPlugin.of(record)
        if verdict.digest != plugin.digest:
            raise PluginUnavailable(
                f"{record} is not certified: its files changed while it was tested; test it again", plugin=record.id
            )
        return Lock({**self.plugins, plugin.id: Locked(plugin, verdict)})

    def certification(self, record: PluginRecord) -> Certification:
        """Return whether the installed `record` is certified. For a kind without checks, it suffices that the files
        have not changed since they were locked."""
        if record.is_file:
            return Certification("unproven", "it is a file, and only the components of packages can be certified")
        if record.group != GROUP:
            return Certification("unproven", "it is written for another contract")
        locked = self.plugins.get(record.id)
        if KINDS[record.kind].unchecked:
            if locked is None:
                return Certification(
                    "unproven", f"kind {record.kind} has no checks yet, and the lock file does not name it"
                )
            if locked.plugin != PlannedPlugin.of(record):
                return Certification("stale", "it changed after it was locked")
            return Certification("locked", f"kind {record.kind} has no checks yet")
        if locked is None or locked.verdict is None:
            return Certification("unproven", "the lock file records no passed conformance report for it")
        verdict = locked.verdict
        if verdict.contract != CONTRACT:
            return Certification(
                "stale", f"it was certified for contract {verdict.contract}, but this guideway has {CONTRACT}"
            )
        if verdict.digest != record.digest:
            return Certification("stale", "its files changed after it was certified")
        if "core" not in verdict.levels:
            return Certification(
                "unproven", f"it was certified at {', '.join(verdict.levels) or 'no level'}, not at core"
            )
        return Certification("certified", ", ".join(level for level in verdict.levels if level != "smoke"))


def _parse_line(plugin_id: str, line: dict[str, Any]) -> Locked:
    plugin = PlannedPlugin(plugin_id, str(line["version"]), str(line["value"]), str(line["digest"]))
    verdict = line.get("conformance")
    return Locked(plugin, verdict and Verdict(**{**verdict, "levels": tuple(verdict["levels"])}))


def _line(locked: Locked) -> dict[str, Any]:
    line = asdict(locked.plugin)
    del line["id"], line["libraries"]
    if locked.verdict is not None:
        line["conformance"] = asdict(locked.verdict)
    return line
