"""Read imports, names and file lists of the repository, for its tests."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "guideway"

GENERATED = {"__pycache__", "build", "dist"}


def source_files() -> list[Path]:
    """Return every file of the repository except generated ones, without git, which a new machine may lack."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name == ".ci" or not (name.startswith(".") or name in GENERATED or name.endswith(".egg-info"))
        ]
        found += [Path(folder) / name for name in files]
    return sorted(found)


def distributions() -> list[Path]:
    """Return the folders of all distributions except the library."""
    places = ("core", "plugins", "contrib")
    return sorted(path.parent for place in places for path in ROOT.glob(f"{place}/*/pyproject.toml"))


def core_modules() -> list[Path]:
    """Return the modules of the library."""
    return sorted(CORE.rglob("*.py"))


def module_name(path: Path) -> str:
    """Return ``guideway.api.types`` for ``core/guideway/api/types.py``."""
    parts = path.relative_to(CORE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(source: str, module: str = "", *, is_package: bool = False) -> Sequence[tuple[int, str]]:
    """Return ``(line, dotted name)`` of every import in `source`, also inside functions and under TYPE_CHECKING.
    ``from a import b`` gives ``a.b``, because b may be a module. Literal arguments of ``import_module("...")`` count
    too."""
    return tuple(_imports(source, module if is_package else module.rpartition(".")[0]))


def _imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            argument = node.args[0]
            if name in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return the imports among the modules of all distributions under `root`, by module. A name of a package that is
    not a module counts as an import of the package."""
    sources = [root / "core", *(path.parent / "src" for path in root.glob("*/*/pyproject.toml"))]
    modules: dict[str, Path] = {}
    for folder in sources:
        for path in (folder / "guideway" if folder == root / "core" else folder).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for _, imported in imports(path.read_text("utf-8"), name, is_package=path.name == "__init__.py"):
            found = imported if imported in modules else imported.rpartition(".")[0]
            if found in modules and found != name:
                graph[name].add(found)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or indirectly (Tarjan's strongly connected
    components of more than one module, and modules that import themselves), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1 or node in graph[node]:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def words_in_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield ``(line, lower-case word)`` of every identifier and string in `source`, except docstrings and comments,
    split at underscores, capitals and characters other than letters and digits."""
    for node in ast.walk(ast.parse(source)):
        texts: list[str | None] = []
        match node:
            case ast.Name():
                texts = [node.id]
            case ast.Attribute():
                texts = [node.attr]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                texts = [node.name]
            case ast.arg() | ast.keyword():
                texts = [node.arg]
            case ast.alias():
                texts = [node.name, node.asname]
            case ast.Constant(value=str() as value):
                texts = [value]
            case ast.Expr(value=ast.Constant(value=str())):
                node.value.value = ""  # a docstring; its constant is visited later
        for text in texts:
            for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", text or ""):
                yield getattr(node, "lineno", 0), word.lower()
