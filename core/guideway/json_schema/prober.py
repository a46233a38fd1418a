"""Find out what a grammar strategy does with each JSON Schema keyword, by letting it judge instances byte by byte.

A plugin keeps what `probe` returns in a `SupportTable`, for each version of its library, and answers
`GrammarStrategy.supports` from it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias

from guideway.api.grammar import CompiledGrammar, GrammarStrategy, Support
from guideway.api.types import WHITESPACE, JsonSchema, Regex, StructuralTag, Whitespace
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema import Schema, assertions, check_schema, keywords
from guideway.json_schema.cases import cases
from guideway.json_schema.dialects import regex_cases
from guideway.json_schema.patterns import pattern_details

__all__ = ["Status", "SupportTable", "Table", "byte_vocabulary", "probe", "probe_holders_apart", "spoilt"]

Status: TypeAlias = Literal["enforced", "narrow", "unenforced", "refused"]
"""``enforced``: exactly the right instances pass. ``narrow``: no wrong one passes, but not every right one.
``unenforced``: a wrong one passes. ``refused``: it does not compile, no right instance passes, a text passes that is no
JSON, or it takes more than `MOST_SECONDS` to judge one schema."""

Table: TypeAlias = dict[str, Status]
"""Names as `guideway.json_schema.keywords` gives them. A combination is listed only where it is unenforced and its
parts are not; one that is refused shows when it is compiled, and then another strategy can be tried."""

HOLDERS = frozenset({"$ref", "allOf", "anyOf", "oneOf:disjoint"})
"""Keywords that only apply other schemas. (``oneOf`` says more: that no two of them hold.)"""

_INDIRECT = frozenset({"$ref:nested-id", "$ref:siblings"})
"""Names that show only through other keywords: where one of these is not enforced, that is named."""

_WORSE: tuple[Status, ...] = ("enforced", "narrow", "unenforced", "refused")
_REFUSED: Status = "refused"
STOP = 256
MOST_SECONDS = 10
"""Seconds of a processor for one schema and its texts; the slowest that pass take half of it."""


SMALL, LONG = 1000, 5000
"""The characters of instances that are tried with each kind of white space, and the bytes of a text whose strings are
tried with what may not stand there."""
_BAD = (b'"', b"\\", b"\\x", b"\n", b"\x01", b"\xff", b'"b')
"""Bytes that may not stand in a string of JSON as they are."""


class _Unfit(Exception):
    """A schema under which a strategy is of no use, though it compiles it: it is refused whatever else is found."""


def byte_vocabulary() -> Vocabulary:
    """One token for each byte, and a stop token."""
    return Vocabulary([*(bytes([i]) for i in range(256)), b""], frozenset({STOP}), {STOP: "</s>"})


def probe(strategy: GrammarStrategy) -> Table:
    """Measure what `strategy`, built for `byte_vocabulary`, does with every keyword and every two side by side,
    whatever the white space; and with each construct of a `Regex`."""
    return dict(sorted({**_probe(strategy.compile), **_probe_regexes(strategy)}.items()))


def _probe_regexes(strategy: GrammarStrategy) -> Table:
    found: dict[str, list[Status]] = {}
    for name, expression, right, wrong in regex_cases() if "regex" in strategy.kinds else ():
        texts = ([text.encode() for text in some] for some in (right, wrong))
        found.setdefault(f"regex:{name}", []).append(_judge(strategy.compile, Regex(expression), *texts))
    return {name: _summary(statuses) for name, statuses in found.items()}


def probe_holders_apart(strategy: GrammarStrategy) -> Table:
    """As `probe`, for a library that ignores so much that keywords which hold other schemas would be blamed for what
    is in them: those are judged by the cases in which nothing else is ignored."""
    table = probe(strategy)
    ignored = {name for name in table if table[name] == "unenforced" and "+" not in name and not _holds(name)}

    def compile_holders(constraint: JsonSchema) -> CompiledGrammar:
        names = keywords(constraint.parsed)
        if names.isdisjoint(HOLDERS) or not names.isdisjoint(ignored):
            raise UnsupportedGrammar("not of interest", feature="probe")
        return strategy.compile(constraint)

    again = _probe(compile_holders)
    judged = {name: status for name, status in again.items() if _holds(name) and status != "refused"}
    return dict(sorted({**table, **judged}.items()))


def _holds(name: str) -> bool:
    return not HOLDERS.isdisjoint(name.split("+"))


def _probe(compile_: Callable[[Any], CompiledGrammar]) -> Table:
    found: dict[str, list[Status]] = {}
    indirect: list[tuple[str, frozenset[str], Status]] = []
    unfit: set[str] = set()
    for name, schema, right, wrong in cases():
        statuses: list[Status] = []
        is_pair = "+" in name
        words: Sequence[Whitespace] = ("bounded",) if is_pair or len(str(right)) > SMALL else WHITESPACE
        try:
            if name not in unfit and not (is_pair and "unenforced" in found.get(name, ())):  # more would tell nothing
                statuses += (_judge_schema(compile_, schema, right, wrong, word) for word in words)
        except _Unfit:
            unfit.add(name)
        found.setdefault(name, []).extend(statuses)
        if name in _INDIRECT:
            indirect += ((name, keywords(schema) - {name}, status) for status in statuses)
    table: Table = {name: _summary(statuses) for name, statuses in found.items() if "+" not in name}
    for name in found.keys() - table.keys():
        parts = name.replace("format", "format:email").split("+")
        if _summary(found[name]) == "unenforced" and all(table.get(part) != "unenforced" for part in parts):
            table[name] = "unenforced"
    ignored = {name for name, status in table.items() if status in ("unenforced", "refused")}
    for name in _INDIRECT:
        alone = [status for other, rest, status in indirect if other == name and rest.isdisjoint(ignored)]
        if set(alone) - {"refused"}:
            table[name] = _summary(alone)
    return dict(sorted((table | dict.fromkeys(unfit, _REFUSED)).items()))


def _summary(statuses: list[Status]) -> Status:
    """The worst of several; but a strategy that compiles some of them is asked to compile, and then says no itself."""
    compiled = [status for status in statuses if status != "refused"]
    return max(compiled, key=_WORSE.index) if compiled else "refused"


def _judge_schema(
    compile_: Callable[[Any], CompiledGrammar], schema: Schema, right: list[Any], wrong: list[Any], word: Whitespace
) -> Status:
    return _judge(compile_, JsonSchema(schema, whitespace=word), _texts(right, word), _texts(wrong, word))


def _judge(
    compile_: Callable[[Any], CompiledGrammar], constraint: JsonSchema | Regex, right: list[bytes], wrong: list[bytes]
) -> Status:
    try:
        compiled = compile_(constraint)
    except (InvalidGrammar, UnsupportedGrammar):
        return "refused"
    start = time.thread_time()

    def accepts(text: bytes) -> bool:
        if time.thread_time() - start > MOST_SECONDS:
            raise _Unfit
        return _accepts(compiled, text)

    accepted = [text for text in right if accepts(text)]
    spoilable = (each for each in accepted if len(each) < LONG and isinstance(constraint, JsonSchema))
    if any(accepts(text) for each in spoilable for text in spoilt(each)):
        raise _Unfit
    if any(map(accepts, wrong)):
        return "unenforced"
    if not accepted:
        return "refused"
    return "enforced" if len(accepted) == len(right) else "narrow"


def _texts(instances: list[Any], whitespace: Whitespace) -> list[bytes]:
    """Instances as text, in the way that all strategies allow."""
    separators = (", ", ": ") if whitespace == "spaced" else (",", ":")
    return [json.dumps(instance, ensure_ascii=False, separators=separators).encode() for instance in instances]


def spoilt(text: bytes) -> Iterator[bytes]:
    """Texts that are no JSON, as `text` is but for the last characters of its last string."""
    end = text.rfind(b'"')
    for bad in _BAD:
        other = text[: max(end - len(bad), 0)] + bad + text[end:]
        try:
            json.loads(other)
        except ValueError:
            yield other


def _accepts(compiled: CompiledGrammar, text: bytes) -> bool:
    matcher = compiled.matcher(frozenset({STOP}))
    try:
        return matcher.accept([*text, STOP]) == len(text) + 1
    except Exception:
        return False


class SupportTable:
    """The keywords that the installed version of a library enforces, from the file ``support.json`` of a plugin's
    package: version of the library -> name -> status.

    `distribution` is what pip calls the library, `package` the plugin's, `measure` probes what is installed.
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
        """Tell what the installed version enforces of a schema, or of the `schemas` in a structural tag, parts of
        ``constraint.parsed``; a refusal where one is malformed. In a tag nobody keeps a `WritingRule`: ``names`` stands
        for that names may be there twice, or written with escapes."""
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
                return Support(reason=f"{self.library} does not compile {', '.join(refused)}")
            enforced |= {name for name in status if "+" not in name and status[name] in ("enforced", "narrow")}
            unenforced |= {name for name in status if status[name] == "unenforced"}
            if schemas is not None and found.leaves_names_open:
                unenforced.add("names")
        return Support(enforced=frozenset(enforced - unenforced), unenforced=frozenset(unenforced))

    def support_of_regex(self, constraint: Regex) -> Support:
        """Tell what the installed version reads as Python's `re` does; a refusal where it lacks something."""
        table = self.installed()
        status = {name: _look_up(f"regex:{name}", table) for name in pattern_details(constraint.source())}
        if refused := sorted(name for name in status if status[name] == "refused"):
            return Support(reason=f"{self.library} does not compile {', '.join(refused)} in a regular expression")
        unenforced = frozenset(f"regex:{name}" for name in status if status[name] == "unenforced")
        return Support(enforced=frozenset({constraint.kind}), unenforced=unenforced)

    def committed(self) -> dict[str, Table]:
        """The tables that come with the plugin."""
        tables: dict[str, Table] = json.loads(files(self._package).joinpath("support.json").read_text("utf-8"))
        return tables

    def installed(self) -> Mapping[str, Status]:
        """The table of the installed version. One that came out after the plugin is probed here, once in the life of a
        process, rather than taken for another version."""
        with self._lock:
            if self._installed is None:
                self._installed = self.committed().get(version(self.distribution)) or self.measure()
            return self._installed

    def write(self) -> None:
        """Probe the installed version and rewrite its part of the file; other versions' parts stay."""
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
