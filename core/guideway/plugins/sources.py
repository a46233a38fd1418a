"""Find the source files of a module and its references to other modules, without running it."""

from __future__ import annotations

import ast
import importlib.util
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

__all__ = ["find_module", "module_files", "references"]


def find_module(name: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Find the module that Python would import as `name`, with its top-level package on `path` (default: anywhere);
    None if there is none. Unlike `importlib.util.find_spec`, this does not import the parent packages."""
    top, *parts = name.split(".")
    try:
        spec = importlib.util.find_spec(top) if path is None else PathFinder.find_spec(top, path)
    except (ImportError, ValueError):  # ValueError: a module object without a spec
        return None
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # with the full name Python would look for a namespace package's path among the imported modules
        found = PathFinder.find_spec(part, list(spec.submodule_search_locations))
        if found is not None:
            found.name = f"{spec.name}.{part}"
        spec = found
    return spec


def module_files(spec: ModuleSpec) -> Iterator[tuple[str, Any]]:
    """Yield the file of a module, or every file of a package except compiled and hidden ones, as its path relative to
    the parent of the top-level package, and a `pathlib.Path`, or a `zipfile.Path` with the same methods."""
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
        elif not isinstance(entry, Path) or not entry.is_symlink():  # links may form a cycle
            yield from _walk(f"{above}/{entry.name}", entry)


def _path(place: str) -> Any:
    path = Path(place)
    for parent in path.parents:
        if parent.is_file():
            return zipfile.Path(parent).joinpath(path.relative_to(parent).as_posix())
    return path


def references(source: bytes, package: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the dotted names of the base classes in a module, and of all its imports. `package` is the package that
    contains the module, or the module itself if it is a package. Empty if the source is not Python."""
    try:
        return _references(source, package)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset(), frozenset()


@lru_cache(maxsize=1024)  # each engine scans anew, mostly the same files, and parsing takes most of a scan
def _references(source: bytes, package: str) -> tuple[frozenset[str], frozenset[str]]:
    nodes = list(ast.walk(ast.parse(source)))
    imported: set[str] = set()
    meant: dict[str, str] = {}
    """The dotted name of each imported name."""
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
