"""Find where the code of a module is and what it refers to, without running any of it."""

from __future__ import annotations

import ast
import importlib.util
import zipfile
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

__all__ = ["find_module", "module_files", "references"]


def find_module(name: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Find what Python would import as `name`, its top-level package on `path` or by default wherever it is; None if
    there is no such module. Unlike `importlib.util.find_spec` it does not import the packages `name` is in."""
    top, *parts = name.split(".")
    try:
        spec = importlib.util.find_spec(top) if path is None else PathFinder.find_spec(top, path)
    except (ImportError, ValueError):  # ValueError: of a module that was put together by hand
        return None
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # by its last name: with all of it Python looks for the path of a namespace package among what is imported
        found = PathFinder.find_spec(part, list(spec.submodule_search_locations))
        if found is not None:
            found.name = f"{spec.name}.{part}"
        spec = found
    return spec


def module_files(spec: ModuleSpec) -> Iterator[tuple[str, Any]]:
    """The file of a module, or every file in a package but what Python compiled and hidden ones: the path below the
    folder its top-level package is in, and a `pathlib.Path`, or a `zipfile.Path` that has the same methods."""
    above = spec.name.replace(".", "/")
    if spec.submodule_search_locations is None:
        if spec.origin is not None and spec.has_location:
            file = _path(spec.origin)
            yield f"{above.rpartition('/')[0]}/{file.name}".lstrip("/"), file
    else:
        for folder in spec.submodule_search_locations:
            yield from _walk(above, _path(folder))


def _walk(above: str, folder: Any) -> Iterator[tuple[str, Any]]:
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if not entry.is_dir():
            if not entry.name.endswith(".pyc"):
                yield f"{above}/{entry.name}", entry
        elif not isinstance(entry, Path) or not entry.is_symlink():  # a link may lead in a circle
            yield from _walk(f"{above}/{entry.name}", entry)


def _path(place: str) -> Any:
    path = Path(place)
    for parent in path.parents:
        if parent.is_file():
            return zipfile.Path(parent).joinpath(path.relative_to(parent).as_posix())
    return path


def references(source: bytes, package: str) -> tuple[frozenset[str], frozenset[str]]:
    """The dotted names that the classes of a module derive from, and those that it imports, wherever that stands.
    `package` is the one that the module lies in, or is. Empty if the source is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset(), frozenset()
    imported: set[str] = set()
    meant: dict[str, str] = {}
    """The object that each name in the module stands for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.add(alias.name)
                top = alias.name.partition(".")[0]
                meant[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            for alias in node.names:
                name = ".".join([*above, *filter(None, [node.module]), alias.name])
                imported.add(name)
                meant[alias.asname or alias.name] = name
    bases = [ast.unparse(base).partition("[")[0] for n in nodes if isinstance(n, ast.ClassDef) for base in n.bases]
    heads = [(head, dot + rest) for head, dot, rest in (base.partition(".") for base in bases)]
    return frozenset(meant[head] + rest for head, rest in heads if head in meant), frozenset(imported)
