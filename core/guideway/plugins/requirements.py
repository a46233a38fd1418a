"""What a plugin's metadata says it needs, checked before any of its code runs.

Nothing here raises: metadata comes from strangers, and a checker that crashes on it hides the plugin's own fault.

Two simple rules, both on the lenient side of pip's:

- Only release numbers count: ``0.2.0.dev3`` and ``0.2.0rc1`` are taken for 0.2.0, so that a development version
  satisfies the bounds of the release it leads to. A clause that cannot be read is taken to be satisfied.
- A requirement with an environment marker (``; python_version < "3.12"``, ``; extra == "cuda"``) is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import importlib_metadata

from guideway.plugins.kinds import normalize

__all__ = ["extra_with", "missing_distributions", "version_conflict"]

_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?(?P<clauses>[^);]*)")
_CLAUSE = re.compile(r"\s*(?P<operator>===|==|!=|<=|>=|~=|<|>)\s*v?(?:\d+!)?(?P<release>\d+(?:\.\d+)*)(?P<any>\.\*)?")
_EXTRA = re.compile(r"""\bextra\s*==\s*['"](?P<extra>[^'"]+)['"]""")
_RELEASE = re.compile(r"\s*v?(?:\d+!)?(\d+(?:\.\d+)*)")


def version_conflict(requires: Iterable[str], distribution: str, version: str) -> str | None:
    """The first requirement on `distribution` that `version` does not satisfy, or None."""
    found = _RELEASE.match(version)
    if found is None:
        return None
    release = _parts(found[1])
    for text, name, clauses in _unconditional(requires):
        if name == normalize(distribution) and not all(_satisfies(release, c) for c in clauses.split(",")):
            return text
    return None


def missing_distributions(requires: Iterable[str]) -> tuple[str, ...]:
    """The required distributions that are not installed at all, in the order they are required."""
    return tuple(name for _, name, _ in _unconditional(requires) if not _installed(name))


def extra_with(requires: Iterable[str], module: str) -> str | None:
    """The extra that requires the distribution called like `module`, or None."""
    for text in requires:
        requirement, marker = _REQUIREMENT.match(text), _EXTRA.search(text)
        if requirement and marker and normalize(requirement["name"]) == normalize(module):
            return marker["extra"]
    return None


def _unconditional(requires: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(requirement, normalized name, version clauses) of every requirement without a marker."""
    for text in requires:
        found = _REQUIREMENT.match(text)
        if found and ";" not in text:
            yield text, normalize(found["name"]), found["clauses"]


def _installed(name: str) -> bool:
    try:
        return any(True for _ in importlib_metadata.distributions(name=name))
    except Exception:
        return True  # a finder on sys.meta_path is broken: not this plugin's fault


def _satisfies(version: tuple[int, ...], clause: str) -> bool:
    found = _CLAUSE.match(clause)
    if found is None:
        return True
    bound = _parts(found["release"])
    prefix = version + (0,) * (len(bound) - len(version))
    match found["operator"]:
        case "==" | "===":
            return prefix[: len(bound)] == bound if found["any"] else _strip(version) == _strip(bound)
        case "!=":
            return prefix[: len(bound)] != bound if found["any"] else _strip(version) != _strip(bound)
        case "~=":
            return _strip(version) >= _strip(bound) and prefix[: len(bound) - 1] == bound[:-1]
        case "<":
            return _strip(version) < _strip(bound)
        case "<=":
            return _strip(version) <= _strip(bound)
        case ">":
            return _strip(version) > _strip(bound)
        case _:
            return _strip(version) >= _strip(bound)


def _parts(release: str) -> tuple[int, ...]:
    return tuple(int(part[:18]) for part in release.split("."))


def _strip(release: tuple[int, ...]) -> tuple[int, ...]:
    """Without trailing zeros, so that 1.0 equals 1."""
    end = len(release)
    while end and release[end - 1] == 0:
        end -= 1
    return release[:end]
