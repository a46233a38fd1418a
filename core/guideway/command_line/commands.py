"""The commands that installed distributions bring, from metadata; a command is imported when it is chosen.

An entry point of the group ``guideway.commands`` is called like its command and names a function that takes argparse's
subparsers and adds the command's parser to them; the parser sets ``run``, a function that takes the parsed arguments
and returns the exit status. What ``guideway --help`` says of a command is the first sentence of its module's
docstring, read without importing it.
"""

from __future__ import annotations

import ast
from argparse import _SubParsersAction
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import importlib_metadata

from guideway.errors import PluginConflict, PluginLoadError, blame
from guideway.plugins.index import entries, headers
from guideway.plugins.kinds import normalize
from guideway.plugins.sources import find_module

__all__ = ["GROUP", "HELP", "OURS", "Command", "find", "installed"]

GROUP = "guideway.commands"
HELP = "help"
"""The command that the program has by itself."""
OURS = ("guideway", "guideway-engine", "guideway-conformance")
"""The distributions whose commands are theirs, whoever else claims the names."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the metadata of distributions describes it."""

    name: str
    value: str
    """``module:function``."""
    distributions: tuple[str, ...]
    """Those that claim the name, sorted."""

    def add_to(self, subparsers: _SubParsersAction[Any]) -> None:
        """Import it and let it add its parser. Raises `PluginConflict` and `PluginLoadError`."""
        if len(self.distributions) > 1 and self.owner is None:
            claims = " and ".join(self.distributions)
            raise PluginConflict(f"the command {self.name!r} is claimed by {claims}: uninstall one", plugin=self.name)
        with blame(
            self.owner or self.distributions[0], f"while it added the command {self.name!r}", error=PluginLoadError
        ):
            importlib_metadata.EntryPoint(self.name, self.value, GROUP).load()(subparsers)
            parser = subparsers.choices.get(self.name)
            if parser is None or not callable(parser.get_default("run")):
                raise LookupError(f"{self.value} must add a parser named {self.name!r} that sets run to a function")

    @property
    def owner(self) -> str | None:
        """The one of `OURS` that brings it, if one does."""
        return next((name for name in OURS if name in self.distributions), None)

    def summary(self) -> str:
        """Say what it does, in the words of its module; empty if that cannot be read."""
        module = self.value.partition(":")[0].strip()
        try:
            spec: Any = find_module(module)
            text = ast.get_docstring(ast.parse(spec.loader.get_source(spec.loader.name))) or ""
        except Exception:  # it may be nowhere, and a stranger's file may hold anything
            return ""
        return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].removesuffix(".")


def find(name: str) -> Command | None:
    """The command of that name; None if none is installed."""
    # ours are found without a look at all others
    ours = (_found(importlib_metadata.distributions(name=each)).get(name) for each in OURS)
    return next(filter(None, ours), None) or installed().get(name)


def installed() -> dict[str, Command]:
    """Every command of this environment, by name, in alphabetical order. A distribution whose metadata cannot be read
    brings none; ``guideway plugins doctor`` tells of it."""
    return _found(importlib_metadata.distributions())


def _found(distributions: Iterable[Any]) -> dict[str, Command]:
    found: dict[str, dict[str, str]] = {HELP: {OURS[0]: ""}}
    for dist in distributions:
        try:
            text = dist.read_text("entry_points.txt")
            if text and GROUP in text:  # few distributions have any
                for group, name, value in entries(text):
                    if group == GROUP and name and value:
                        found.setdefault(name, {}).setdefault(normalize(headers(dist)["name"][0]), value)
        except Exception:
            continue
    return {
        name: Command(name, next(values[each] for each in (*OURS, *values) if each in values), tuple(sorted(values)))
        for name, values in sorted(found.items())
    }
