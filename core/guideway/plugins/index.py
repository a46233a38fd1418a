"""What is installed, from metadata alone. Nothing of a plugin is imported here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import importlib_metadata

from guideway.plugins.kinds import GROUP, GROUP_PREFIX, KINDS, NAME, normalize

__all__ = ["PluginIndex", "PluginRecord", "Problem"]

_VALUE = re.compile(r"[\w.]+(\s*:\s*[\w.]+)?")
_KIND_ORDER = {name: i for i, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One component, as its distribution's metadata describes it."""

    kind: str
    name: str
    value: str
    """What to import: ``module`` or ``module:object``."""
    distribution: str
    """The distribution's name, normalized."""
    version: str
    location: str
    """The folder (or zip) the distribution is installed in."""
    editable: str | None = None
    """The project's folder, if this is an editable install."""
    requires: tuple[str, ...] = ()
    """The distribution's requirements, as written."""
    group: str = GROUP

    @property
    def id(self) -> str:
        """``distribution/kind.name``: unique among the records of an index."""
        return f"{self.distribution}/{self.kind}.{self.name}"

    def __str__(self) -> str:
        return f"{self.id} {self.version} at {self.location}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something an operator should know about what is installed."""

    code: str
    """``stale-metadata``, ``unknown-kind``, ``conflict``, ...; stable, for programs."""
    plugin: str
    """The id of the plugin, or the name of the distribution."""
    message: str
    fix: str
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True, slots=True)
class PluginIndex:
    """Every component that is installed. Two scans of the same installation are equal."""

    records: tuple[PluginRecord, ...]
    """Usable addresses, ordered by kind, name and distribution."""
    foreign: tuple[PluginRecord, ...] = ()
    """Components written for another contract major."""
    shadowed: tuple[PluginRecord, ...] = ()
    """Components described by metadata that another copy of the same distribution hides."""
    problems: tuple[Problem, ...] = ()

    @staticmethod
    def scan(path: Sequence[str] | None = None) -> PluginIndex:
        """One pass over all distributions on `path`, by default ``sys.path``. Metadata that cannot be read becomes a
        problem of the index, never an exception."""
        return _Scan({} if path is None else {"path": list(path)}).run()

    def named(self, kind: str, name: str) -> tuple[PluginRecord, ...]:
        """The records of that kind and name; two or more: a conflict."""
        return tuple(r for r in self.records if r.kind == kind and r.name == name)

    def conflicts(self) -> Iterator[tuple[PluginRecord, ...]]:
        """Each group of records that claim the same kind and name."""
        claims: dict[tuple[str, str], list[PluginRecord]] = {}
        for record in self.records:
            claims.setdefault((record.kind, record.name), []).append(record)
        return (tuple(group) for group in claims.values() if len(group) > 1)


class _Scan:
    """The pass itself."""

    def __init__(self, where: dict[str, Any]) -> None:
        self.where = where
        self.records: list[PluginRecord] = []
        self.foreign: list[PluginRecord] = []
        self.shadowed: list[PluginRecord] = []
        self.problems: list[Problem] = []
        self.seen: set[str] = set()

    def run(self) -> PluginIndex:
        for dist in importlib_metadata.distributions(**self.where):
            try:
                # most distributions have no entries of ours; parsing theirs would cost more than all the rest
                text = dist.read_text("entry_points.txt")
                if text and GROUP_PREFIX in text:
                    self.distribution(normalize(_headers(dist)["name"][0]))
            except Exception as error:
                self.unreadable(dist, error)
        return PluginIndex(
            tuple(sorted(self.records, key=_order)),
            tuple(sorted(self.foreign, key=_order)),
            tuple(sorted(self.shadowed, key=_order)),
            tuple(sorted(self.problems, key=lambda p: (p.plugin, p.code, p.message))),
        )

    def distribution(self, name: str) -> None:
        """All copies of one distribution: the first on the path is the one Python imports from."""
        if name in self.seen:
            return
        self.seen.add(name)
        copies: dict[tuple[str, str], list[PluginRecord]] = {}
        for dist in importlib_metadata.distributions(name=name, **self.where):
            try:
                self.copy(dist, name, copies)
            except Exception as error:
                self.unreadable(dist, error)
        if not copies:
            raise LookupError(f"the folder of {name}'s metadata is not named after it")
        (active_key, active), *others = copies.items()
        for record in active:
            (self.records if record.group == GROUP else self.foreign).append(record)
        for key, hidden in others:
            self.shadowed.extend(r for r in hidden if r.group == GROUP)
            self.stale(name, (active_key, active), (key, hidden))

    def copy(self, dist: Any, name: str, copies: dict[tuple[str, str], list[PluginRecord]]) -> None:
        """Add the components of one copy of `name` to `copies`, by (folder, version)."""
        headers, location = _headers(dist), _location(dist)
        if "version" not in headers:  # a folder pip left behind: no copy of anything
            self.problem(
                "stale-metadata",
                name,
                f"a metadata folder of {name} in {location} is empty",
                f"remove it, then: pip install --force-reinstall {name}",
                "warning",
            )
            return
        version = headers["version"][0]
        # the same folder may be on the path twice, and lib64 is often a link to lib
        key = (os.path.realpath(location), version)
        if key not in copies:
            copies[key] = list(self.entries(dist, name, version, location, headers, report=not copies))

    def stale(
        self,
        name: str,
        active: tuple[tuple[str, str], list[PluginRecord]],
        hidden: tuple[tuple[str, str], list[PluginRecord]],
    ) -> None:
        ((place, version), records), ((other_place, other_version), other_records) = active, hidden
        same = version == other_version and {(r.id, r.value) for r in records} == {
            (r.id, r.value) for r in other_records
        }
        self.problem(
            "stale-metadata",
            name,
            f"{name} is installed twice: {version} in {place} hides {other_version} in {other_place}"
            + ("" if same else ", and they offer different plugins or versions"),
            f"remove one of them (an .egg-info folder in a source tree is a leftover of setuptools), "
            f"or: pip install --force-reinstall {name}",
            "warning" if same else "error",
        )

    def entries(
        self, dist: Any, name: str, version: str, location: str, headers: dict[str, list[str]], *, report: bool
    ) -> Iterator[PluginRecord]:
        """The components one copy of a distribution offers; `report` its malformed entries."""
        editable, requires = project_folder(dist), _requires(dist, headers)
        seen = set()
        for entry in dist.entry_points:
            if not entry.group.startswith(GROUP_PREFIX):
                continue
            kind, _, component = entry.name.partition(".")
            complaint = _complaint(entry, kind, component)
            if complaint is None and (entry.group, entry.name) in seen:
                complaint = ("malformed-entry", "is written twice", "keep one of the two")
            seen.add((entry.group, entry.name))
            if complaint is None:
                yield PluginRecord(
                    kind, component, entry.value, name, version, location, editable, requires, entry.group
                )
            elif report:
                code, what, fix = complaint
                self.problem(
                    code, f"{name}/{entry.name}", f"entry {entry.name!r} of {name} {version} at {location} {what}", fix
                )

    def unreadable(self, dist: Any, error: Exception) -> None:
        place = _location(dist)
        self.problem(
            "unreadable-metadata",
            str(place),
            f"the metadata of a distribution in {place} cannot be read: {type(error).__name__}: {error}",
            "reinstall the distribution",
        )

    def problem(
        self, code: str, plugin: str, message: str, fix: str, severity: Literal["error", "warning"] = "error"
    ) -> None:
        self.problems.append(Problem(code, plugin, message, fix, severity))


def _order(record: PluginRecord) -> tuple[Any, ...]:
    # entries of another major may have kinds of their own: they come last
    rank = _KIND_ORDER.get(record.kind, len(_KIND_ORDER))
    return (rank, record.kind, record.name, record.distribution, record.group, record.location)


def _complaint(entry: Any, kind: str, component: str) -> tuple[str, str, str] | None:
    """(code, what is wrong, what to do) of an entry that cannot be a component of any kind."""
    if not NAME.fullmatch(component):
        return (
            "malformed-entry",
            "is not of the form 'kind.name'",
            "its author has to rename it; a name matches [a-z][a-z0-9_-]*",
        )
    if entry.group == GROUP and kind not in KINDS:
        return ("unknown-kind", f"has the unknown kind {kind!r}", f"its author has to choose from {', '.join(KINDS)}")
    if not _VALUE.fullmatch(entry.value):
        return (
            "malformed-entry",
            f"has the value {entry.value!r}",
            "its author has to write 'module' or 'module:object'",
        )
    return None


def _headers(dist: Any) -> dict[str, list[str]]:
    """Name, version and requirements from the head of the metadata; an e-mail parser would take longer than the rest
    of the scan."""
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    headers: dict[str, list[str]] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, colon, value = line.partition(":")
        if colon and not key.startswith((" ", "\t")):
            headers.setdefault(key.lower(), []).append(value.strip())
    return headers


def _requires(dist: Any, headers: dict[str, list[str]]) -> tuple[str, ...]:
    if "requires-dist" in headers:
        return tuple(headers["requires-dist"])
    # an .egg-info: requirements up to the first [section] hold unconditionally
    text = dist.read_text("requires.txt") or ""
    return tuple(_until_section(text.splitlines()))


def _until_section(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("["):
            return
        if line.strip():
            yield line.strip()


def _location(dist: Any) -> str:
    return str(dist.locate_file(""))


def project_folder(dist: Any) -> str | None:
    """The folder of the project an editable install refers to; None for any other install."""
    text = dist.read_text("direct_url.json")
    if not text:
        return None
    origin = json.loads(text)
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return unquote(urlsplit(origin["url"]).path)
