"""The index of installed components, from metadata. Imports no plugin."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import importlib_metadata

from guideway.plugins import operator_files
from guideway.plugins.digest import Digests
from guideway.plugins.kinds import GROUP, GROUP_PREFIX, KINDS, NAME, normalize

__all__ = ["PluginIndex", "PluginRecord", "Problem", "entries", "headers", "project_folder"]

_VALUE = re.compile(r"[\w.]+(\s*:\s*[\w.]+)?")
_KIND_ORDER = {name: i for i, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One component, from its distribution's metadata."""

    kind: str
    name: str
    value: str
    """The object to import: ``module`` or ``module:object``; for an operator's own file ``/path/mine.py:Mine``."""
    distribution: str
    """The distribution's name, normalized."""
    version: str
    location: str
    """The folder (or zip) of the installed distribution."""
    editable: str | None = None
    """The project's folder, for an editable install."""
    requires: tuple[str, ...] = ()
    """The distribution's requirements, as written."""
    group: str = GROUP
    _digests: Digests = field(default_factory=Digests, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The digest of the code, see `guideway.plugins.digest`. Computed on first use, once for equal records of a
        scan."""
        if self.is_file:
            return operator_files.digest_of(self.value)
        return self._digests.of(self.value, None if self.editable else self.location)

    @property
    def is_file(self) -> bool:
        """True if it is in an operator's own file, which `value` names, and not in a package."""
        return operator_files.is_file(self.value)

    @property
    def id(self) -> str:
        """``distribution/kind.name``: unique among the records of an index."""
        return f"{self.distribution}/{self.kind}.{self.name}"

    @property
    def is_for_tests(self) -> bool:
        """True if the distribution requires pytest: a name in a configuration loads such a component, but no list or
        suggestion offers it."""
        return any(re.match(r"pytest\b(?!.*\bextra\b)", requirement) for requirement in self.requires)

    def __str__(self) -> str:
        return f"{self.id} {self.version} at {self.location}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of an installed plugin, for the operator."""

    code: str
    """``stale-metadata``, ``unknown-kind``, ``conflict``, ...; stable, for programs."""
    plugin: str
    """The id of the plugin, or the name of the distribution."""
    message: str
    fix: str
    severity: Literal["error", "warning", "note"] = "error"
    """``note``: not an error, but the plugin cannot be used without a change."""


@dataclass(frozen=True, slots=True)
class PluginIndex:
    """All installed components. Two scans of the same installation are equal."""

    records: tuple[PluginRecord, ...]
    """Components for this contract, ordered by kind, name and distribution."""
    foreign: tuple[PluginRecord, ...] = ()
    """Components for another major version of the contract."""
    shadowed: tuple[PluginRecord, ...] = ()
    """Components whose metadata is hidden by another copy of the same distribution."""
    problems: tuple[Problem, ...] = ()

    @staticmethod
    def scan(path: Sequence[str] | None = None) -> PluginIndex:
        """Scan all distributions on `path` (default: ``sys.path``). Unreadable metadata becomes a problem of the
        index, not an exception."""
        return _Scan({} if path is None else {"path": list(path)}).run()

    def named(self, kind: str, name: str) -> tuple[PluginRecord, ...]:
        """Return the records of that kind and name; two or more are a conflict."""
        return tuple(r for r in self.records if r.kind == kind and r.name == name)

    def conflicts(self) -> Iterator[tuple[PluginRecord, ...]]:
        """Return each group of records that claim the same kind and name."""
        groups = (tuple(group) for _, group in groupby(self.records, key=lambda r: (r.kind, r.name)))
        return (group for group in groups if len(group) > 1)


class _Scan:
    """A scan in progress."""

    def __init__(self, where: dict[str, Any]) -> None:
        self.where = where
        self.digests = Digests()
        self.records: list[PluginRecord] = []
        self.foreign: list[PluginRecord] = []
        self.shadowed: list[PluginRecord] = []
        self.problems: list[Problem] = []

    def run(self) -> PluginIndex:
        found: dict[str, _Copy] = {}
        for dist in importlib_metadata.distributions(**self.where):
            try:
                # skip most distributions, which have no entries for guideway, as early as possible
                text = dist.read_text("entry_points.txt")
                if text and GROUP_PREFIX in text:
                    copy = _Copy(dist, text, self.digests)
                    found.setdefault(copy.name, copy)
            except Exception as error:
                self.unreadable(dist, error)
        for copy in found.values():
            self.distribution(copy)
        return PluginIndex(
            tuple(sorted(self.records, key=_order)),
            tuple(sorted(self.foreign, key=_order)),
            tuple(sorted(self.shadowed, key=_order)),
            tuple(sorted(self.problems, key=lambda p: (p.plugin, p.code, p.message))),
        )

    def distribution(self, found: _Copy) -> None:
        """Add the components and problems of every copy of a distribution. `found` is the first copy with entries for
        guideway; Python imports from the first copy on the path, with or without entries. The metadata folder decides
        the name of a distribution: a copy whose metadata has another name, as `found` may, is a problem."""
        dists = list(importlib_metadata.distributions(name=found.name, **self.where))
        is_one = found.text in map(_entry_points, dists)
        if not is_one:
            why = f"its folder is not called {found.name!r}, as its metadata is"
            self.problems.append(_unreadable(found.location, why))
        copies = (found,) if is_one and len(dists) == 1 else self.copies(found.name, dists)
        if not copies:
            return
        active, *others = copies
        for record in active.records:
            (self.records if record.group == GROUP else self.foreign).append(record)
        self.problems += active.problems
        for other in others:
            self.shadowed += [record for record in other.records if record.group == GROUP]
            self.problems.append(_stale(active, other))

    def copies(self, name: str, dists: Iterable[Any]) -> tuple[_Copy, ...]:
        """Return the distinct copies among `dists`, in the order of the path."""
        copies: dict[tuple[str, str], _Copy] = {}
        for dist in dists:
            try:
                copy = _Copy(dist, dist.read_text("entry_points.txt") or "", self.digests)
                # a folder may be on the path twice, and lib64 is often a link to lib
                copies.setdefault((os.path.realpath(copy.location), copy.version), copy)
            except KeyError:  # pip left a metadata folder without metadata
                self.problems.append(
                    Problem(
                        "stale-metadata",
                        name,
                        f"a metadata folder of {name} in {_location(dist)} is empty",
                        f"remove it, then: pip install --force-reinstall {name}",
                        "warning",
                    )
                )
            except Exception as error:
                self.unreadable(dist, error)
        return tuple(copies.values())

    def unreadable(self, dist: Any, error: Exception) -> None:
        self.problems.append(_unreadable(_location(dist), f"{type(error).__name__}: {error}"))


class _Copy:
    """One installed copy of a distribution, and its components. Raises KeyError if the metadata has no name or
    version."""

    def __init__(self, dist: Any, entry_points: str, digests: Digests) -> None:
        facts = headers(dist)
        self.name, self.version = normalize(facts["name"][0]), facts["version"][0]
        self.location, self.text = _location(dist), entry_points
        self.records: list[PluginRecord] = []
        self.problems: list[Problem] = []
        editable = project_folder(dist)
        requires = tuple(facts.get("requires-dist") or _egg_requires(dist))
        seen = set()
        for group, name, value in entries(entry_points):
            if not group.startswith(GROUP_PREFIX):
                continue
            kind, _, component = name.partition(".")
            complaint = _complaint(group, kind, component, value)
            if complaint is None and (group, name) in seen:
                complaint = ("malformed-entry", "is written twice", "report it to its author, who has to remove one")
            seen.add((group, name))
            if complaint is None:
                of = (self.name, self.version, self.location, editable, requires, group)
                self.records.append(PluginRecord(kind, component, value, *of, digests))
                digests.packages.add(re.split(r"[.\s:]", value)[0])
            else:
                code, what, fix = complaint
                message = f"entry {name!r} of {self.name} {self.version} at {self.location} {what}"
                self.problems.append(Problem(code, f"{self.name}/{name}", message, fix))


def _unreadable(place: str, why: str) -> Problem:
    message = f"the metadata of a distribution in {place} cannot be read: {why}"
    return Problem("unreadable-metadata", place, message, "reinstall the distribution")


def _stale(active: _Copy, hidden: _Copy) -> Problem:
    same = active.version == hidden.version and (
        {(r.id, r.value) for r in active.records} == {(r.id, r.value) for r in hidden.records}
    )
    return Problem(
        "stale-metadata",
        active.name,
        f"{active.name} is installed twice: {active.version} in {active.location} hides {hidden.version} in "
        f"{hidden.location}" + ("" if same else ", and the two differ"),
        f"remove one of them (an .egg-info folder in a source tree is a leftover of setuptools), or: pip install "
        f"--force-reinstall {active.name}",
        "warning" if same else "error",
    )


def _order(record: PluginRecord) -> tuple[Any, ...]:
    # unknown kinds, of another major version, are last
    rank = _KIND_ORDER.get(record.kind, len(_KIND_ORDER))
    return (rank, record.kind, record.name, record.distribution, record.group, record.location)


def headers(dist: Any) -> dict[str, list[str]]:
    """Return the metadata of a distribution: values by lower-case name."""
    # importlib_metadata's e-mail parser would take longer than the rest of the scan
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    found: dict[str, list[str]] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, colon, value = line.partition(": ")
        if colon:
            found.setdefault(key.lower(), []).append(value.strip())
    return found


def entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (group, name, value) of the entry points in an ``entry_points.txt``."""
    group = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            group = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield group, name.strip(), value.strip()


def _complaint(group: str, kind: str, component: str, value: str) -> tuple[str, str, str] | None:
    """Return code, problem and fix of an entry that cannot be a component of any kind, or None."""
    if not NAME.fullmatch(component):
        return (
            "malformed-entry",
            "is not of the form 'kind.name'",
            "report it to its author; a name must match [a-z][a-z0-9_-]*",
        )
    if group == GROUP and kind not in KINDS:
        return (
            "unknown-kind",
            f"has the unknown kind {kind!r}",
            f"report it to its author; kinds are {', '.join(KINDS)}",
        )
    if not _VALUE.fullmatch(value):
        return (
            "malformed-entry",
            f"has the value {value!r}",
            "report it to its author; a value is 'module' or 'module:object'",
        )
    return None


def _egg_requires(dist: Any) -> Iterator[str]:
    """Yield the unconditional requirements of an .egg-info, which are before the first [section]."""
    for line in (dist.read_text("requires.txt") or "").splitlines():
        if line.startswith("["):
            return
        if line.strip():
            yield line.strip()


def _entry_points(dist: Any) -> str | None:
    try:
        text: str | None = dist.read_text("entry_points.txt")
    except Exception:  # reported when the copy is read
        return None
    return text


def _location(dist: Any) -> str:
    return str(dist.locate_file(""))


def project_folder(dist: Any) -> str | None:
    """Return the project folder of an editable install; None for any other install."""
    text = dist.read_text("direct_url.json")
    if not text or '"editable"' not in text:
        return None
    origin = json.loads(text)
    return unquote(urlsplit(origin["url"]).path) if origin["dir_info"].get("editable") else None
