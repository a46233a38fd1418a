"""Find out what a grammar strategy does with each JSON Schema keyword, by letting it judge instances byte by byte.

A plugin writes what `probe` returns into a table per version of its library and answers `GrammarStrategy.supports`
from it with `support`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from guideway.api.errors import InvalidGrammar, UnsupportedGrammar
from guideway.api.grammar import CompiledGrammar, GrammarStrategy, Support
from guideway.api.json_schema import Schema, keywords
from guideway.api.json_schema_cases import cases
from guideway.api.types import JsonSchema
from guideway.api.vocabulary import Vocabulary

__all__ = ["Status", "Table", "byte_vocabulary", "probe", "support"]

Status: TypeAlias = Literal["enforced", "narrow", "unenforced", "refused"]
"""``enforced``: exactly the right instances pass. ``narrow``: no wrong one passes, but not every right one.
``unenforced``: a wrong one passes. ``refused``: it does not compile, or no right instance passes."""

Table: TypeAlias = dict[str, Status]
"""Names as `guideway.api.json_schema.keywords` gives them. A combination is listed only where it is unenforced and its
parts are not; one that is refused shows when it is compiled, and then another strategy can be tried."""

_WORSE: tuple[Status, ...] = ("enforced", "narrow", "unenforced", "refused")
STOP = 256


def byte_vocabulary() -> Vocabulary:
    """One token for each byte, and a stop token."""
    return Vocabulary([*(bytes([i]) for i in range(256)), b""], frozenset({STOP}), {STOP: "</s>"})


def support(schema: Schema, table: Mapping[str, Status], library: str) -> Support:
    """What `table` says of a checked schema."""
    names = keywords(schema)
    status = {name: _look_up(name, table) for name in names}
    refused = sorted(name for name in names if status[name] == "refused")
    if refused:
        return Support(reason=f"{library} does not compile {', '.join(refused)}")
    return Support(
        enforced=frozenset(n for n in names if "+" not in n and status[n] in ("enforced", "narrow")),
        unenforced=frozenset(n for n in names if status[n] == "unenforced"),
    )


def _look_up(name: str, table: Mapping[str, Status]) -> Status:
    if name in table:
        return table[name]
    if "+" in name:
        return "enforced"
    return table["format:*"] if name.startswith("format:") else "unenforced"


def probe(strategy: GrammarStrategy) -> Table:
    """What `strategy`, built for `byte_vocabulary`, does with every keyword and every two side by side."""
    found: dict[str, list[Status]] = {}
    for name, schema, right, wrong in cases():
        found.setdefault(name, []).append(_judge(strategy, schema, right, wrong))
    table: Table = {name: _summary(statuses) for name, statuses in found.items() if "+" not in name}
    for name in found.keys() - table.keys():
        parts = name.replace("format", "format:email").split("+")
        if _summary(found[name]) == "unenforced" and all(table.get(part) != "unenforced" for part in parts):
            table[name] = "unenforced"
    return dict(sorted(table.items()))


def _summary(statuses: list[Status]) -> Status:
    """The worst of several; but a strategy that compiles some of them is asked to compile, and then says no itself."""
    compiled = [status for status in statuses if status != "refused"]
    return max(compiled, key=_WORSE.index) if compiled else "refused"


def _judge(strategy: GrammarStrategy, schema: Schema, right: list[Any], wrong: list[Any]) -> Status:
    try:
        compiled = strategy.compile(JsonSchema(schema))
    except (InvalidGrammar, UnsupportedGrammar):
        return "refused"
    if any(_accepts(compiled, instance) for instance in wrong):
        return "unenforced"
    num_accepted = sum(_accepts(compiled, instance) for instance in right)
    if not num_accepted:
        return "refused"
    return "enforced" if num_accepted == len(right) else "narrow"


def _accepts(compiled: CompiledGrammar, instance: Any) -> bool:
    text = json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode()
    matcher = compiled.matcher(frozenset({STOP}))
    try:
        return matcher.accept([*text, STOP]) == len(text) + 1
    except Exception:
        return False
