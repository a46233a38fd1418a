"""The strategies that take a constraint, best first, and a cache of these decisions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

from guideway.api.grammar import GrammarStrategy
from guideway.api.types import Constraint, JsonSchema, StructuralTag
from guideway.errors import InvalidGrammar, LimitExceeded, UnsupportedGrammar, blame
from guideway.json_schema import check_schema, locate, misspelt_keywords, root_keywords, schemas_in
from guideway.plugins.contract import checked_support
from guideway.runtime.digests import constraint_digest
from guideway.runtime.grammar_hosts.strategy import HostedStrategy
from guideway.runtime.guard.guard import Guard, check_bytes, forms

__all__ = ["Candidate", "CandidateCache", "Chosen", "Key", "choose", "enforcing_all"]

Key: TypeAlias = tuple[str, str, bytes]
"""Strategy, kind and digest of a constraint. Vocabulary, options and versions are not part of it, because a compiler
lives as long as its strategies. The digest covers the white space and the source with the key order of a schema, which
decides the order of the output."""

MAX_CONSTRAINTS = 4096
"""Most constraints in the cache."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy that takes a constraint, with the keywords that it would not enforce. Equal constraints have the same
    `key` for one strategy."""

    name: str
    strategy: GrammarStrategy
    unenforced: tuple[str, ...]
    key: Key
    is_pruned: bool = False
    """True if the strategy takes the constraint only without its unsatisfiable parts."""

    def served(self, constraint: Constraint) -> Constraint:
        """Return the constraint to compile in place of the one that this candidate was chosen for."""
        return forms(constraint)[0] if self.is_pruned else constraint


@dataclass(frozen=True, slots=True)
class Chosen:
    """The decisions of all strategies about a constraint."""

    candidates: list[Candidate]
    """Strategies that take it, best first."""
    refusals: Mapping[str, str]
    """Reasons of the other strategies, by name."""


def choose(constraint: Constraint, strategies: Mapping[str, GrammarStrategy]) -> Chosen:
    """Return the strategies to try for `constraint`.

    `strategies` is in the operator's order of preference. Strategies that enforce everything come before those that
    leave a keyword unenforced; a strategy that would enforce no outermost keyword of a schema is refused, and one whose
    limits the constraint exceeds is not asked. Unsatisfiable parts of a schema are pruned if the strategy takes the
    rest. Raises `InvalidGrammar` if nothing satisfies the constraint, `UnsupportedGrammar` with all reasons if no
    strategy takes it, and `LimitExceeded` if it is too large for all strategies of its kind.
    """
    names = list(strategies) if constraint.strategy is None else [constraint.strategy]
    kind, digest = constraint.kind, constraint_digest(constraint)
    misspelt = _misspelt(constraint)
    # keywords in subschemas are enforced through these or not at all
    root = constraint.cached(root_keywords) or misspelt if isinstance(constraint, JsonSchema) else frozenset()
    full: list[Candidate] = []
    partial: list[Candidate] = []
    refusals: dict[str, str] = {}
    missing: list[str] = []
    too_large: dict[str, list[str]] = {}
    offered = forms(constraint)
    guard = Guard(constraint, {name: strategies[name].limits for name in names})
    for name in names:
        strategy = strategies[name]
        if kind not in strategy.kinds:
            refusals[name] = f"{name} compiles {', '.join(sorted(strategy.kinds))}"
            missing.append(kind)
            continue
        if (reason := guard.refusal(name)) is not None:
            refusals[name] = f"{name}: {reason}"
            too_large.setdefault(reason, []).append(name)
            continue
        hosted = isinstance(strategy, HostedStrategy)
        for form in offered:
            with blame(f"grammar.{name}", "supports", passing=(LimitExceeded,), keeps_deadlines=hosted):
                support = checked_support(strategy.supports(form))
            if not support.refused:
                break
        if support.refused:
            refusals[name] = f"{name}: {support.reason}"
            continue
        unenforced = tuple(sorted(support.unenforced | misspelt))
        if root and root.issubset(unenforced):
            refusals[name] = f"{name} would enforce nothing of it: {locate(constraint, sorted(root))} would be ignored"
            continue
        candidate = Candidate(name, strategy, unenforced, (name, kind, digest), form is not constraint)
        (partial if support.unenforced else full).append(candidate)
    if not full and not partial:
        if too_large and sum(map(len, too_large.values())) + len(missing) == len(names):
            told = "; ".join(f"{', '.join(each)}: {reason}" for reason, each in too_large.items())
            raise LimitExceeded(f"this {kind} constraint is too large for {told}", field="constraint")
        said = "; ".join(refusals.values()) or "no grammar strategy is configured"
        raise UnsupportedGrammar(
            f"no configured strategy can serve this {kind} constraint ({said})",
            feature=missing[0] if missing else kind,
        )
    return Chosen(full + partial, refusals)


def enforcing_all(chosen: Chosen, constraint: Constraint) -> list[Candidate]:
    """Return the candidates that enforce all of the constraint. Raises `UnsupportedGrammar`, with all reasons, if there
    is none."""
    found = [candidate for candidate in chosen.candidates if not candidate.unenforced]
    if not found:
        ignored = [f"{each.name} does not enforce {locate(constraint, each.unenforced)}" for each in chosen.candidates]
        said = "; ".join([*ignored, *chosen.refusals.values()])
        raise UnsupportedGrammar(
            f"no configured strategy enforces all of this {constraint.kind} constraint, and on_unenforced is 'refuse' "
            f"({said}); remove these keywords, configure a strategy that enforces them, or set on_unenforced to "
            "'report' or 'check'",
            feature=chosen.candidates[0].unenforced[0],
        )
    return found


class CandidateCache:
    """Cache of `choose` for recent constraints: parsing a schema takes longer than many a step. Thread-safe. With
    `isolates_tenants`, tenants do not share entries."""

    def __init__(self, strategies: Mapping[str, GrammarStrategy], *, isolates_tenants: bool = False) -> None:
        self._strategies = strategies
        self._known: OrderedDict[tuple[str, str | None, str, bytes], Chosen] = OrderedDict()
        self._lock = Lock()
        self._isolates_tenants = isolates_tenants
        self._tenant = ""

    def of(self, tenant: str) -> CandidateCache:
        """Return a view of the cache for one tenant."""
        if not self._isolates_tenants:
            return self
        theirs = copy(self)
        theirs._tenant = tenant
        return theirs

    def check_bytes(self, constraint: Constraint) -> None:
        """Raise `LimitExceeded` for a text that is too long for every strategy, before it is parsed."""
        check_bytes(constraint, (strategy.limits for strategy in self._strategies.values()))

    def __contains__(self, constraint: Constraint) -> bool:
        """Return whether a constraint is cached, and thus well formed. Raises `InvalidGrammar`."""
        return (self._tenant, *_key(constraint)) in self._known

    def chosen(self, constraint: Constraint) -> Chosen:
        """Return the result of `choose`, or raise its error."""
        key = (self._tenant, *_key(constraint))
        found = self._known.get(key)
        if found is None:
            found = choose(constraint, self._strategies)
            _, kind, digest = found.candidates[0].key
            with self._lock:
                self._known[key] = self._known[self._tenant, constraint.strategy, kind, digest] = found
                while len(self._known) > MAX_CONSTRAINTS:
                    self._known.popitem(last=False)
        return found


def _key(constraint: Constraint) -> tuple[str | None, str, bytes]:
    """Return the cache key of a constraint. For JSON text it includes the digest of the text as given, so that a lookup
    need not parse it. Raises `InvalidGrammar`."""
    text: object = None
    if isinstance(constraint, JsonSchema):
        text = constraint.schema
    elif isinstance(constraint, StructuralTag):
        text = constraint.tag
    return constraint.strategy, constraint.kind, constraint_digest(constraint, text if isinstance(text, str) else None)


def _misspelt(constraint: Constraint) -> frozenset[str]:
    """Return keywords of a JSON schema that no strategy enforces, because they are unknown."""
    if isinstance(constraint, JsonSchema):
        return misspelt_keywords(constraint.cached(check_schema))
    unknown: set[str] = set()
    if isinstance(constraint, StructuralTag):
        for _, schema in schemas_in(constraint.parsed):
            with suppress(InvalidGrammar):  # the strategy reports this error with its place in the tag
                unknown |= constraint.cached(check_schema, schema)
    return misspelt_keywords(unknown)
