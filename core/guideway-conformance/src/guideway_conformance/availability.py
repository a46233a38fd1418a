"""Check the answer of `available` where a package that it looks for is not installed."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from guideway_conformance.subjects import expect

__all__ = ["expect_reasons"]

LOOKING = ("find_spec", "import_module", "__import__")
"""Functions that take the name of a module."""


def expect_reasons(component: type[Any]) -> None:
    """Expect that ``component.available()`` returns None or a reason, and that it returns a reason instead of raising
    if a package is missing that its code imports anywhere or looks for."""
    with _watch_imports(_top(component.__module__)) as imported:
        _expect_reason(component.available, "available()")
    named = imported | _find_named(_top(component.__module__))
    for package in sorted(named - _find_needed(_top(component.__module__))):
        with _hide(package):
            _expect_reason(component.available, f"where {package} is not installed, available()")


def _expect_reason(available: Callable[[], object], what: str) -> None:
    try:
        reason = available()
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from None
    expect(reason is None or isinstance(reason, str), f"{what} is {reason!r}, neither None nor a reason")
    expect(reason is None or str(reason).strip(), f"{what} gives an empty reason")


def _top(name: str) -> str:
    return name.partition(".")[0]


def _find_needed(package: str) -> set[str]:
    """Return the packages that `package` needs to be imported, and those that are always there."""
    found = {package, "guideway", "numpy", "builtins", *sys.stdlib_module_names}
    for name, module in list(sys.modules.items()):
        if _top(name) == package and module is not None:
            for value in list(vars(module).values()):
                origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                found.add(_top(origin) if isinstance(origin, str) else package)
    return found


def _find_named(package: str) -> set[str]:
    """Collect the packages that the code of `package` imports, also inside functions, or passes to a function in
    `LOOKING`."""
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if _top(name) != package or not isinstance(file, str) or not file.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {_top(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(_top(node.module))
            elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
                if called in LOOKING and isinstance(node.args[0].value, str):
                    found.add(_top(node.args[0].value))
    return found


@contextmanager
def _watch_imports(package: str) -> Iterator[set[str]]:
    """Collect the packages that the code of `package` imports in the meantime."""
    found: set[str] = set()
    ordinary = builtins.__import__

    def watch(name: str, *arguments: Any, **options: Any) -> ModuleType:
        found_in = options.get("globals", arguments[0] if arguments else None) or {}
        level = options.get("level", arguments[3] if len(arguments) > 3 else 0)
        if not level and _top(str(found_in.get("__name__"))) == package:
            found.add(_top(name))
        return ordinary(name, *arguments, **options)

    builtins.__import__ = watch
    try:
        yield found
    finally:
        builtins.__import__ = ordinary


@contextmanager
def _hide(package: str) -> Iterator[None]:
    """Make `package` look as if it were not installed."""
    hidden = {name: module for name, module in sys.modules.items() if _top(name) == package}
    for name in hidden:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _top(name) == package]:
            del sys.modules[name]
        sys.modules.update(hidden)
