"""What the installed llguidance enforces: a table per version, which ``python -m guideway_llguidance.probe`` writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files

from guideway.api.json_schema_probe import Status, byte_vocabulary, probe

_PROBING = threading.Lock()


def library() -> str:
    """``llguidance`` with its version, as messages name it."""
    return f"llguidance {version('llguidance')}"


def committed() -> dict[str, dict[str, Status]]:
    """The tables that come with the plugin: version of llguidance -> name -> status."""
    tables: dict[str, dict[str, Status]] = json.loads(files(__package__).joinpath("support.json").read_text())
    return tables


def table() -> Mapping[str, Status]:
    """The table of the installed version. One that came out after this plugin is probed here, once in the life of a
    process and in about a second, rather than taken for another version."""
    with _PROBING:
        return _table()


@cache
def _table() -> Mapping[str, Status]:
    return committed().get(version("llguidance")) or measure()


def measure() -> dict[str, Status]:
    """Probe the installed version."""
    from guideway_llguidance.strategy import Strategy

    return probe(Strategy(byte_vocabulary(), {}))
