"""Find the commands of installed distributions by metadata. A command is imported when it is called.

An entry point of the group ``guideway.commands`` has the name of its command and points to a function that takes
argparse's subparsers and adds the command's parser to them; the parser sets ``run``, a function that takes the parsed
arguments and returns the exit status. ``guideway --help`` shows the first sentence of the module's docstring, read
without importing it.
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
"""The built-in command."""
OURS = ("guideway", "guideway-engine", "guideway-conformance")
"""The distributions whose commands take precedence if others claim the same names."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, from the metadata of distributions."""

    name: str
    value: str
    """``module:function``."""
    distributions: tuple[str, ...]
    """The distributions that claim the name, sorted."""

    def add_to(self, subparsers: _SubParsersAction[Any]) -> None:
        """Import the command and let it add its parser. Raises `PluginConflict` and `PluginLoadError`."""
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
        """The distribution of `OURS` that provides the command, or None."""
        return next((name for name in OURS if name in self.distributions), None)

    def summary(self) -> str:
        """Return the first sentence of the module's docstring, without the period; empty if it cannot be read."""
        module = self.value.partition(":")[0].strip()
        try:
            spec: Any = find_module(module)
            text = ast.get_docstring(ast.parse(spec.loader.get_source(spec.loader.name))) or ""
        except Exception:  # the module may be missing, and a foreign file may hold anything
            return ""
        return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].removesuffix(".")


def find(name: str) -> Command | None:
    """Return the command of that name; None if none is installed."""
    # searching only these three distributions is faster
    ours = (_read_commands(importlib_metadata.distributions(name=each)).get(name) for each in OURS)
    return next(filter(None, ours), None) or installed().get(name)


def installed() -> dict[str, Command]:
    """Return every command of this environment by name, in alphabetical order. Distributions with unreadable metadata
    are skipped; ``guideway plugins doctor`` reports them."""
    return _read_commands(importlib_metadata.distributions())


def _read_commands(distributions: Iterable[Any]) -> dict[str, Command]:
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
