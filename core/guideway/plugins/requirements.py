"""Check the requirements in a plugin's metadata, before any of its code runs.

Reads requirements as pip does, with two exceptions. A development version or release candidate satisfies the bounds of
its release: ``0.2.0.dev3`` satisfies ``>=0.2``. And unreadable requirements and versions of third parties count as
satisfied instead of raising, since that would hide the plugin's actual error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import importlib_metadata

from guideway.plugins.index import headers
from guideway.plugins.kinds import normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = ["extra_with", "missing_distributions", "required_versions", "version_conflict"]

_NAME = re.compile(r"\s*([\w.-]+)\s*")
_EXTRA = re.compile(r"\bextra == ['\"]([^'\"]+)['\"]")


@cache
def version_conflict(requires: tuple[str, ...], distribution: str, version: str) -> str | None:
    """Return the first requirement on `distribution` that `version` does not satisfy, or None."""
    name = normalize(distribution)
    # import packaging only if a requirement on this name has more than the name
    written = [(text, match) for text in requires if (match := _NAME.match(text)) and normalize(match[1]) == name]
    concerning = [text for text, match in written if text[match.end() :]]
    if not concerning:
        return None
    from packaging.version import InvalidVersion, Version

    try:
        here = Version(version)
    except InvalidVersion:
        return None
    versions = (here, Version(here.base_version))
    for text, requirement in _parse(concerning):
        if normalize(requirement.name) == name and _applies(requirement):
            clauses = requirement.specifier
            if not all(any(clause.contains(v, prereleases=True) for v in versions) for clause in clauses):
                return text
    return None


def missing_distributions(requires: Iterable[str]) -> tuple[str, ...]:
    """Return the required distributions that are not installed at all, in the order of the requirements."""
    names = [normalize(requirement.name) for _, requirement in _parse(requires) if _applies(requirement)]
    return tuple(name for name in names if not _is_installed(name))


def required_versions(requires: Iterable[str]) -> tuple[str, ...]:
    """Return name and version of each required distribution that is installed, sorted. Requirements of extras are
    ignored."""
    names = {normalize(match[1]) for text in requires if (match := _NAME.match(text)) and not _EXTRA.search(text)}
    return tuple(f"{name} {version}" for name in sorted(names) if (version := _version(name)))


def _version(name: str) -> str | None:
    try:  # the first on the path, as Python imports; `importlib_metadata.version` would parse all of the metadata
        return next((headers(dist)["version"][0] for dist in importlib_metadata.distributions(name=name)), None)
    except Exception:  # broken metadata or a broken finder on sys.meta_path is not this plugin's fault
        return None


def extra_with(requires: Iterable[str], module: str) -> str | None:
    """Return the extra that requires the distribution with the name `module`, or None."""
    for _, requirement in _parse(requires):
        if normalize(requirement.name) == normalize(module):
            for extra in _EXTRA.findall(str(requirement.marker)):
                if _applies(requirement, extra):
                    return str(extra)
    return None


def _parse(requires: Iterable[str]) -> Iterator[tuple[str, Requirement]]:
    """Yield each readable requirement, as written and parsed."""
    # not at the top: this import is slower than everything else that listing plugins imports
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requires:
        try:
            yield text, Requirement(text)
        except InvalidRequirement:
            continue


def _applies(requirement: Requirement, extra: str = "") -> bool:
    """Return whether the requirement's environment marker holds here."""
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName

    try:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False


def _is_installed(name: str) -> bool:
    try:
        return any(True for _ in importlib_metadata.distributions(name=name))
    except Exception:
        return True  # a broken finder on sys.meta_path is not this plugin's fault
