"""Tables of the keywords that a library enforces, which a plugin ships for each version of the library.

`guideway.json_schema.prober` measures them, and is imported only then.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

from guideway.api.grammar import Support
from guideway.api.types import JsonSchema, Regex, StructuralTag
from guideway.errors import InvalidGrammar
from guideway.json_schema import Schema, assertions, check_schema, locate
from guideway.json_schema.patterns import pattern_details, place_of_detail

__all__ = ["Status", "SupportTable", "Table"]

Status: TypeAlias = Literal["enforced", "narrow", "unenforced", "refused"]
"""``enforced``: exactly the valid instances pass. ``narrow``: no invalid instance passes, but not every valid one.
``unenforced``: an invalid one passes. ``refused``: the schema does not compile, no valid instance passes, malformed
JSON passes, or the schema takes more CPU time than the prober allows."""

Table: TypeAlias = dict[str, Status]
"""Statuses by the names that `guideway.json_schema.keywords` returns. A combination is listed only if it is unenforced
and its parts are not; a refused one fails to compile, and another strategy is tried."""


class SupportTable:
    """The keywords that the installed version of a library enforces, from ``support.json`` in a plugin's package:
    version of the library -> name -> status.

    `distribution` is the library's name for pip, `package` the plugin's, and `measure` probes the installed version.
    """

    def __init__(self, distribution: str, package: str, measure: Callable[[], Table]) -> None:
        self.distribution = distribution
        self.measure = measure
        self._package = package
        self._lock = threading.Lock()
        self._installed: Table | None = None

    @property
    def library(self) -> str:
        """The library with its version, as messages name it."""
        return f"{self.distribution} {version(self.distribution)}"

    def support(self, constraint: JsonSchema | StructuralTag, schemas: Iterable[Schema] | None = None) -> Support:
        """Return the keywords of a schema that the installed version enforces; for a structural tag, those of its
        `schemas`, which are parts of ``constraint.parsed``. A malformed schema is refused. `WritingRule` does not apply
        in tags, so ``names`` is unenforced: a name may be repeated or written with escapes."""
        table = self.installed()
        enforced: set[str] = set() if schemas is None else {constraint.kind}
        unenforced: set[str] = set()
        for schema in [constraint.parsed] if schemas is None else schemas:
            try:
                constraint.cached(check_schema, schema)
            except InvalidGrammar as error:
                return Support(reason=str(error))
            found = constraint.cached(assertions, schema)
            status = {name: _look_up(name, table) for name in found.keywords}
            refused = sorted(name for name in status if status[name] == "refused")
            if refused:
                return Support(reason=f"{self.library} does not compile {locate(constraint, refused)}")
            enforced |= {name for name in status if "+" not in name and status[name] in ("enforced", "narrow")}
            unenforced |= {name for name in status if status[name] == "unenforced"}
            if schemas is not None and found.leaves_names_open:
                unenforced.add("names")
        return Support(enforced=frozenset(enforced - unenforced), unenforced=frozenset(unenforced))

    def takes(self) -> frozenset[str]:
        """Return the names for `GrammarStrategy.takes`: those that the installed version enforces, and all formats if
        it compiles unknown ones, since `support` names the formats that it does not enforce."""
        table = self.installed()
        found = {name for name, status in table.items() if status in ("enforced", "narrow")}
        found = {name for name in found if "+" not in name and not name.startswith("regex:")}
        return frozenset(found | {"format:*"} if table["format:*"] != "refused" else found)

    def support_of_regex(self, constraint: Regex) -> Support:
        """Return the constructs that the installed version reads as Python's `re` does; refuse those that it lacks."""
        table = self.installed()
        status = {name: _look_up(f"regex:{name}", table) for name in pattern_details(constraint.source())}
        if refused := sorted(name for name in status if status[name] == "refused"):
            text = constraint.source()
            places = ((name, place_of_detail(text, name)) for name in refused)
            named = ", ".join(f"`{name}` (character {at + 1}, {text[at : at + 20]!r})" for name, at in places)
            return Support(reason=f"{self.library} does not compile {named} in a regular expression")
        unenforced = frozenset(f"regex:{name}" for name in status if status[name] == "unenforced")
        return Support(enforced=frozenset({constraint.kind}), unenforced=unenforced)

    def committed(self) -> dict[str, Table]:
        """Return the tables that the plugin ships."""
        tables: dict[str, Table] = json.loads(files(self._package).joinpath("support.json").read_text("utf-8"))
        return tables

    def installed(self) -> Mapping[str, Status]:
        """Return the table of the installed version; a version without one is probed, once per process."""
        with self._lock:
            if self._installed is None:
                self._installed = self.committed().get(version(self.distribution)) or self.measure()
            return self._installed

    def write(self) -> None:
        """Probe the installed version and write its table to the file; tables of other versions stay."""
        path = Path(str(files(self._package).joinpath("support.json")))
        tables = self.committed() if path.exists() else {}
        tables[version(self.distribution)] = self.measure()
        path.write_text(json.dumps(dict(sorted(tables.items())), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _look_up(name: str, table: Mapping[str, Status]) -> Status:
    if name in table:
        return table[name]
    if "+" in name:
        return "enforced"
    return table["format:*"] if name.startswith("format:") else "unenforced"
