"""What the installed lm-format-enforcer enforces: a table per version, by ``python -m guideway_lmfe.probe``."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files

from guideway.api import Constraint, UnsupportedGrammar
from guideway.api.json_schema import keywords
from guideway.api.json_schema_probe import Status, byte_vocabulary, probe

from guideway_lmfe.matcher import LmfeCompiled

HOLDERS = frozenset({"$ref", "allOf", "anyOf", "oneOf:disjoint"})
"""Keywords that only apply other schemas. (``oneOf`` says more: that no two of them hold.)"""

_PROBING = threading.Lock()


def library() -> str:
    """``lm-format-enforcer`` with its version, as messages name it."""
    return f"lm-format-enforcer {version('lm-format-enforcer')}"


def committed() -> dict[str, dict[str, Status]]:
    """The tables that come with the plugin: version of lm-format-enforcer -> name -> status."""
    tables: dict[str, dict[str, Status]] = json.loads(files(__package__).joinpath("support.json").read_text())
    return tables


def table() -> Mapping[str, Status]:
    """The table of the installed version. One that came out after this plugin is probed here, once in the life of a
    process and in a few seconds, rather than taken for another version."""
    with _PROBING:
        return _table()


@cache
def _table() -> Mapping[str, Status]:
    return committed().get(version("lm-format-enforcer")) or measure()


def measure() -> dict[str, Status]:
    """Probe the installed version.

    lm-format-enforcer ignores so much that a second look is needed at what holds other schemas: it is judged by the
    cases in which nothing else is ignored.
    """
    from guideway_lmfe.strategy import Strategy

    class WithoutIgnored(Strategy):
        """Compiles the schemas that hold others, if all the rest of them is enforced."""

        def compile(self, constraint: Constraint) -> LmfeCompiled:
            names = keywords(json.loads(constraint.source()))
            if names.isdisjoint(HOLDERS) or not names.isdisjoint(ignored):
                raise UnsupportedGrammar("not of interest", feature="probe")
            return super().compile(constraint)

    options: dict[str, object] = {}
    table = probe(Strategy(byte_vocabulary(), options))
    ignored = {name for name, status in table.items() if status == "unenforced" and not _holds(name)}
    again = probe(WithoutIgnored(byte_vocabulary(), options))
    judged = {name: status for name, status in again.items() if _holds(name) and status != "refused"}
    return dict(sorted({**table, **judged}.items()))


def _holds(name: str) -> bool:
    return not HOLDERS.isdisjoint(name.split("+"))
