"""The commands that installed distributions bring, from metadata; a command is imported when it is chosen.

An entry point of the group ``guideway.commands`` is called like its command and names a function that takes argparse's
subparsers and adds the command's parser to them; the parser sets ``run``, a function that takes the parsed arguments
and returns the exit status. What ``guideway --help`` says of a command is the first sentence of its module's
docstring, read without importing it.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from argparse import _SubParsersAction
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import importlib_metadata

from guideway.errors import PluginConflict, PluginLoadError, contain, text_of

__all__ = ["GROUP", "Command", "installed"]

GROUP = "guideway.commands"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the metadata of distributions describes it."""

    name: str
    value: str
    """``module:function``."""
    distributions: tuple[str, ...]
    """Those that claim the name; it cannot be used if there are two."""

    def add_to(self, subparsers: _SubParsersAction[Any]) -> None:
        """Import it and let it add its parser. Raises `PluginConflict` and `PluginLoadError`."""
        plugin = f"{self.distributions[0]}/{self.name}"
        if len(self.distributions) > 1:
            claims = " and ".join(self.distributions)
            raise PluginConflict(f"the command {self.name!r} is claimed by {claims}: uninstall one", plugin=plugin)
        try:
            importlib_metadata.EntryPoint(self.name, self.value, GROUP).load()(subparsers)
            parser = subparsers.choices.get(self.name)
            if parser is None or not callable(parser.get_default("run")):
                raise LookupError(f"{self.value} must add a parser named {self.name!r} that sets run to a function")
        except BaseException as error:
            contain(error)
            raise PluginLoadError(
                f"the command {self.name!r} of {self.distributions[0]} cannot be used: {text_of(error)}", plugin=plugin
            ) from error

    def summary(self) -> str:
        """What it does, in the words of its module; empty if that cannot be read."""
        try:
            source = _source(self.value.partition(":")[0])
            text = ast.get_docstring(ast.parse(source or "")) or ""
        except Exception:  # a stranger's file may hold anything
            return ""
        return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].removesuffix(".")


def installed() -> dict[str, Command]:
    """Every command of this environment, by name, in alphabetical order. Metadata that cannot be read brings none;
    ``guideway plugins doctor`` tells of it."""
    found: dict[str, dict[str, str]] = {}
    for distribution, name, value in _entries():
        found.setdefault(name, {}).setdefault(distribution, value)
    return {name: Command(name, next(iter(of.values())), tuple(sorted(of))) for name, of in sorted(found.items())}


def _entries() -> Iterator[tuple[str, str, str]]:
    """(distribution, name, value) of each command."""
    for dist in importlib_metadata.distributions():
        try:
            text = dist.read_text("entry_points.txt")
            if text and GROUP in text:  # few distributions have any
                yield from [(dist.name, e.name, e.value) for e in dist.entry_points if e.group == GROUP]
        except Exception:
            continue


def _source(module: str) -> str | None:
    """The source of `module`, found without importing it or the packages it is in."""
    path: Any = sys.path
    parts = module.split(".")
    for i in range(len(parts)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: i + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    get_source: Any = getattr(spec.loader, "get_source", None) if spec else None
    source: str | None = get_source(module) if get_source else None
    return source
