"""Find problems of the installed plugins from metadata, without importing them."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import importlib_metadata

from guideway.api import CONTRACT
from guideway.files import MIB, read_file
from guideway.plugins.index import PluginIndex, Problem, project_folder
from guideway.plugins.kinds import GROUP_PREFIX, normalize
from guideway.plugins.loading import incompatibility
from guideway.plugins.requirements import missing_distributions

__all__ = ["examine"]


def examine(index: PluginIndex) -> tuple[Problem, ...]:
    """Return all problems of `index` and of the editable installs in this environment."""
    found = [*index.problems, *_conflicts(index), *_other_contracts(index), *_requirements(index), *_editables()]
    return tuple(sorted(found, key=lambda p: (p.severity, p.plugin, p.code)))


def _conflicts(index: PluginIndex) -> Iterator[Problem]:
    for group in index.conflicts():
        first = group[0]
        yield Problem(
            "conflict",
            f"{first.kind}.{first.name}",
            f"{first.kind} {first.name!r} is claimed by {' and by '.join(map(str, group))}",
            f"write {' or '.join(repr(f'{r.distribution}/{r.name}') for r in group)} where it is used, "
            "or uninstall one of them",
        )


def _other_contracts(index: PluginIndex) -> Iterator[Problem]:
    offered = {record.id for record in index.records}
    for record in index.foreign:
        if record.id not in offered:  # a plugin may support several major versions
            yield Problem(
                "other-contract",
                record.id,
                f"{record} is written for contract {record.group.removeprefix('guideway.')}, but this guideway has "
                f"{CONTRACT}",
                "install versions of the two that fit together",
            )


def _requirements(index: PluginIndex) -> Iterator[Problem]:
    for distribution, record in {record.distribution: record for record in index.records}.items():
        if reason := incompatibility(record):
            yield Problem(
                "incompatible",
                distribution,
                f"{distribution} {record.version} is incompatible: {reason}",
                "install versions of the two that fit together",
            )
        if missing := missing_distributions(record.requires):
            yield Problem(
                "missing-dependency",
                distribution,
                f"{distribution} {record.version} requires {', '.join(missing)}, which is not installed",
                f"pip install {' '.join(missing)}",
            )


def _editables() -> Iterator[Problem]:
    """Find editable installs whose entry points were edited since, which has no effect until they are reinstalled."""
    for dist in importlib_metadata.distributions():
        try:
            folder = project_folder(dist)
            if folder is not None:
                yield from _editable(dist, Path(folder))
        except Exception:  # other problems of third-party projects are not reported
            continue


def _editable(dist: Any, folder: Path) -> Iterator[Problem]:
    name = normalize(dist.name)
    installed = {(e.group, e.name): e.value for e in dist.entry_points if e.group.startswith(GROUP_PREFIX)}
    if not folder.is_dir():
        if installed:
            yield Problem(
                "editable-gone",
                name,
                f"{name} is installed from {folder}, which does not exist any more",
                f"pip uninstall {name}, or install it again from its new folder",
            )
        return
    project = tomllib.loads(read_file(folder / "pyproject.toml", MIB).decode()).get("project", {})
    if "entry-points" in project.get("dynamic", ()):
        return
    written = {
        (group, entry): value
        for group, entries in project.get("entry-points", {}).items()
        if group.startswith(GROUP_PREFIX)
        for entry, value in entries.items()
    }
    if written != installed:
        changed = sorted({entry for (_, entry), _ in written.items() ^ installed.items()})
        yield Problem(
            "stale-entry-points",
            name,
            f"{folder / 'pyproject.toml'} and what was installed from it differ in {', '.join(changed)}",
            f"pip install --no-deps -e {shlex.quote(str(folder))}",
        )
