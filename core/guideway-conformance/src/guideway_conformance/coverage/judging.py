"""Judge how a chain of strategies serves a schema, as a host does, by its valid and invalid instances."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from guideway.api.grammar import CompiledGrammar, GrammarStrategy, Matcher
from guideway.api.types import JsonSchema, PropertiesOrder
from guideway.errors import InvalidGrammar, LimitExceeded, UnsupportedGrammar
from guideway.runtime.constraints.candidates import Candidate, choose
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.rewriting import IN_HOSTS, ORDER
from guideway.runtime.constraints.tracking import compile_grammar
from guideway.runtime.sequences.replay import new_matcher

from guideway_conformance.coverage.corpora import Case
from guideway_conformance.coverage.ordering import in_declared_order

__all__ = ["KINDS", "Verdict", "judge", "plain"]

KINDS: Final[Mapping[str, str]] = {
    "right": "every valid instance passes as it is given, or with 2 for 2.0 and 0.000001 for 1e-06, and no invalid one",
    "other order": "right, but a valid instance passes only with its properties in another order: the schema's",
    "valid rejected": "a valid instance passes in no order",
    "named": "an invalid instance passes, and `unenforced` has a name",
    "silent": "an invalid instance passes, and `unenforced` is empty",
    "refused": "no strategy serves the schema",
    "time out": "the process was ended for its time",
    "memory out": "the process was ended for its memory",
    "failed": "another exception than the contract allows, or a process that ended",
}
"""The possible verdicts on a schema, with their meaning."""

Write: TypeAlias = "Callable[..., str]"
"""A function like `json.dumps`."""
SEPARATORS = ((",", ":"), (", ", ": "))
MAX_REFUSALS = 2000
"""Refused texts while looking for an order of properties."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a schema."""

    chain: str
    """The names of the strategies, with commas."""
    name: str
    dataset: str
    kind: str
    """One of `KINDS`."""
    why: str = ""
    """The reason of a refusal or a failure."""
    served_by: str = ""
    unenforced: tuple[str, ...] = ()
    seconds: float | None = None
    """CPU seconds for choosing and compiling; None if nothing was compiled."""


def judge(chain: str, case: Case, strategies: Mapping[str, GrammarStrategy], order: PropertiesOrder) -> Verdict:
    """Return the verdict on a schema. `strategies` are built for `byte_vocabulary`."""
    constraint = JsonSchema(case.schema, properties_order=order)
    began = time.process_time()
    try:
        candidate, compiled = _serve(constraint, strategies)
    except (InvalidGrammar, LimitExceeded, UnsupportedGrammar) as error:
        return Verdict(chain, case.name, case.dataset, "refused", str(error))
    seconds = time.process_time() - began
    takes_any = order == "any" and ORDER not in candidate.unenforced
    kind = _kind(case, _Texts(candidate.strategy, compiled), bool(candidate.unenforced), takes_any)
    return Verdict(chain, case.name, case.dataset, kind, "", candidate.title, candidate.unenforced, seconds)


def _serve(constraint: JsonSchema, strategies: Mapping[str, GrammarStrategy]) -> tuple[Candidate, CompiledGrammar]:
    refused: UnsupportedGrammar | None = None
    homes = {name: Home(strategy, bounds=IN_HOSTS) for name, strategy in strategies.items()}
    for candidate in choose(constraint, strategies, homes).candidates:
        try:
            return candidate, compile_grammar(candidate.strategy, candidate.served(constraint))
        except UnsupportedGrammar as error:
            refused = refused or error
    assert refused is not None, "there is at least one candidate"
    raise refused


def _kind(case: Case, texts: _Texts, is_named: bool, takes_any: bool) -> str:
    """Return the kind of a verdict. `takes_any` says that no other order of properties need be looked for."""
    order = in_declared_order(case.schema)
    for instance in case.invalid:
        if texts.take(instance) or texts.take(order(instance)):
            return "named" if is_named else "silent"
    kind = "right"
    for instance in case.valid:
        writers: list[Write] = [json.dumps, plain]
        if plain(instance) == json.dumps(instance):
            del writers[1]
        if not any(texts.take(instance, write) for write in writers):
            kind = "other order"
            if takes_any or not any(texts.take_in_some_order(order(instance), write) for write in writers):
                return "valid rejected"
    return kind


def plain(value: Any, **options: Any) -> str:
    """Return a value as `json.dumps` does, but 2 for 2.0 and 0.000001 for 1e-06, which engines write."""
    return _STRING_OR_FLOAT.sub(
        lambda found: found[0] if found[1] is None else _plain(found[1]), json.dumps(value, **options)
    )


_STRING_OR_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|(-?\d+(?:\.\d+(?:e[+-]\d+)?|e[+-]\d+))')


def _plain(number: str) -> str:
    written = f"{Decimal(number):f}"
    return written.rstrip("0").rstrip(".") if "." in written else written


class _Texts:
    """The texts that a grammar takes, byte by byte."""

    def __init__(self, strategy: GrammarStrategy, compiled: CompiledGrammar) -> None:
        self._strategy, self._compiled = strategy, compiled

    def take(self, value: Any, write: Write = json.dumps) -> bool:
        """Return whether the grammar takes a value, without white space or with a space after each comma and colon."""
        return any(self._takes(_bytes(write(value, ensure_ascii=False, separators=each))) for each in SEPARATORS)

    def _takes(self, text: tuple[int, ...]) -> bool:
        matcher = self._new()
        return matcher.accept(text) == len(text) and matcher.is_accepting()

    def take_in_some_order(self, value: Any, write: Write) -> bool:
        """Return whether the grammar takes a value in some order of the properties of its objects. The order of `value`
        is tried first, and at most `MAX_REFUSALS` others."""
        return any(self._finds_order(value, write, *separators) for separators in SEPARATORS)

    def _finds_order(self, value: Any, write: Write, comma: str, colon: str) -> bool:
        def following(parts: _Parts) -> Iterator[tuple[str, _Parts]]:
            return _next_texts(parts, write, comma, colon)

        matcher = self._new()
        choices, accepted = [following(("value", value, None))], [0]
        refusals = 0
        while choices and refusals < MAX_REFUSALS:
            text, rest = next(choices[-1], ("", None))
            if not text:
                choices.pop()
                matcher.rollback(accepted.pop())
                continue
            token_ids = _bytes(text)
            count = matcher.accept(token_ids)
            if count == len(token_ids) and rest is not None:
                choices.append(following(rest))
                accepted.append(count)
            elif count == len(token_ids) and matcher.is_accepting():
                return True
            else:
                refusals += 1
                matcher.rollback(count)
        return False

    def _new(self) -> Matcher:
        return new_matcher(self._strategy, self._compiled, self._strategy.vocabulary.stop_token_ids)


_Parts: TypeAlias = "tuple[str, Any, _Parts] | None"
"""Parts that are not written yet, as nested pairs: the first part, and the rest."""


def _next_texts(parts: _Parts, write: Write, comma: str, colon: str) -> Iterator[tuple[str, _Parts]]:
    """Yield each text that may come next, with the parts that are then left."""
    assert parts is not None
    what, part, rest = parts
    if what == "text":
        yield part, rest
    elif what == "members":
        value, names, before = part
        if not names:
            yield "}", rest
        for name in names:
            others = tuple(other for other in names if other != name)
            members = ("members", (value, others, comma), rest)
            yield f"{before}{json.dumps(name, ensure_ascii=False)}{colon}", ("value", value[name], members)
    elif isinstance(part, dict):
        yield "{", ("members", (part, tuple(part), ""), rest)
    elif isinstance(part, list):
        items: _Parts = ("text", "]", rest)
        for i, item in reversed(list(enumerate(part))):
            items = ("value", item, items)
            items = ("text", comma, items) if i else items
        yield "[", items
    else:
        yield write(part, ensure_ascii=False), rest


def _bytes(text: str) -> tuple[int, ...]:
    return tuple(text.encode("utf-8", "surrogatepass"))  # a lone surrogate, which no grammar takes
