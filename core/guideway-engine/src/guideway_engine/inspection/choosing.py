"""Choosing the strategy that compiles a constraint, with the reasons against the others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from guideway.api.grammar import CompiledGrammar, GrammarStrategy
from guideway.api.types import Constraint, Losses
from guideway.errors import InvalidGrammar, InvalidRequest, LimitExceeded, UnsupportedGrammar, blame, quoted
from guideway.json_schema import places
from guideway.runtime.constraints.candidates import Candidate, CandidateCache
from guideway.runtime.constraints.tracking import compile_grammar

__all__ = ["Choice", "StrategyReport", "Unenforced", "choose_and_compile"]

MOST_PLACES = 20
"""Maximum number of subschemas listed for one unenforced keyword."""


@dataclass(frozen=True, slots=True)
class StrategyReport:
    """Outcome of one strategy."""

    name: str
    outcome: Literal["chosen", "possible", "failed", "refused"]
    """``possible``: it accepts the constraint, but another one was chosen. ``failed``: it was tried and could not
    compile the constraint. ``refused``: it does not accept the constraint."""
    reason: str
    unenforced: tuple[str, ...] = ()
    """Names of the keywords that it does not enforce."""
    is_rewritten: bool = False
    """True if the outcome is that of a schema in other keywords, which has a report of its own."""
    losses: Losses = field(default_factory=Losses)
    """Keywords that this schema does not express."""


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A keyword that the chosen strategy does not enforce."""

    name: str
    """Name as in `Completion.unenforced`."""
    places: tuple[str, ...]
    """JSON pointers to its places in the schema; empty if the constraint is not a schema."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A compiled constraint and the strategies considered for it."""

    strategies: tuple[StrategyReport, ...]
    """Reports in the order in which strategies were considered."""
    candidate: Candidate
    grammar: CompiledGrammar
    unenforced: tuple[Unenforced, ...]
    compile_seconds: float


def choose_and_compile(
    constraint: Constraint, strategies: Mapping[str, GrammarStrategy], served_by: str | None = None
) -> Choice:
    """Choose a strategy as an engine does, and compile. `strategies` are in order of preference; `served_by` overrides
    the choice.

    Raises `InvalidGrammar`, `LimitExceeded`, and `UnsupportedGrammar` with every strategy's reason; `InvalidRequest` if
    `served_by` is not in `strategies`; `PluginError` if a strategy fails.
    """
    if served_by is not None and served_by not in strategies:
        raise InvalidRequest(
            f"{served_by} served the record, but is not among the strategies here ({', '.join(strategies) or 'none'}); "
            f"install it, or select it with --strategy {served_by}",
            field="grammar",
        )
    cache = CandidateCache(strategies)
    cache.check_bytes(constraint)
    chosen = cache.chosen(constraint)
    if served_by is not None and served_by in chosen.refusals:
        raise UnsupportedGrammar(
            f"{served_by} served the record, but refuses this constraint ({chosen.refusals[served_by]}); give the "
            "constraint of the record",
            feature=constraint.kind,
        )
    failed: dict[Candidate, str] = {}
    for candidate in chosen.candidates:
        if served_by not in (None, candidate.name):
            continue
        begin = time.perf_counter()
        try:
            grammar = _compile(candidate, constraint)
        except UnsupportedGrammar as error:
            failed[candidate] = str(error)
            continue
        seconds = time.perf_counter() - begin
        reports = _reports(chosen.candidates, candidate, failed, asked=served_by is not None)
        reports += [
            StrategyReport(name, "refused", said.removeprefix(name).removeprefix(":").strip())
            for name, said in chosen.refusals.items()
        ]
        return Choice(tuple(reports), candidate, grammar, _unenforced(constraint, candidate), seconds)
    said = "; ".join([*(f"{each.title}: {why}" for each, why in failed.items()), *chosen.refusals.values()])
    raise UnsupportedGrammar(f"no strategy could compile it ({said})", feature=constraint.kind)


def _compile(candidate: Candidate, constraint: Constraint) -> CompiledGrammar:
    passing = (InvalidGrammar, LimitExceeded, UnsupportedGrammar)
    with blame(f"grammar.{candidate.name}", "compile", passing=passing):
        return compile_grammar(candidate.strategy, candidate.served(constraint))


def _unenforced(constraint: Constraint, candidate: Candidate) -> tuple[Unenforced, ...]:
    found = places(constraint, candidate.unenforced, MOST_PLACES)
    for name in found:
        if lost := tuple(loss.pointer for loss in candidate.losses if loss.keyword == name):
            found[name] = lost[:MOST_PLACES]
    return tuple(Unenforced(name, where) for name, where in found.items())


def _reports(
    candidates: list[Candidate], chosen: Candidate, failed: Mapping[Candidate, str], *, asked: bool
) -> list[StrategyReport]:
    """Return reports on the strategies that accept the constraint, best first."""
    reports = []
    for position, each in enumerate(candidates):
        leaves = quoted(each.unenforced)
        if each is chosen:
            outcome: Literal["chosen", "possible", "failed"] = "chosen"
            if asked:
                reason = "it served the record"
            elif each.unenforced:
                reason = f"no strategy enforces everything; the first in the order of preference (leaves {leaves})"
            else:
                reason = "enforces everything; the first in the order of preference that does"
        elif each in failed:
            outcome, reason = "failed", f"could not compile it: {failed[each]}"
        else:
            outcome = "possible"
            reason = f"would leave {leaves} unenforced" if leaves else "would enforce everything"
            if asked and position == 0:
                reason += "; it would be chosen here"
            elif bool(each.unenforced) == bool(chosen.unenforced):
                reason += f"; comes after {chosen.title} in the order of preference"
        if each.rewritten is not None:
            reason = f"rewritten in keywords that it takes: {reason}"
        reports.append(
            StrategyReport(each.name, outcome, reason, each.unenforced, each.rewritten is not None, each.losses)
        )
    return reports
