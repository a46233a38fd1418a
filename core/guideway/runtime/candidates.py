"""The strategies that take a constraint, best first; remembered of constraints that come again."""

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
from guideway.errors import InvalidGrammar, LimitExceeded, UnsupportedGrammar, blame, quoted
from guideway.json_schema import check_schema, misspelt_keywords, root_keywords
from guideway.plugins.contract import checked_support
from guideway.runtime.digests import constraint_digest
from guideway.runtime.grammar_hosts.strategy import HostedStrategy
from guideway.runtime.guard import Guard, check_bytes, forms
from guideway.runtime.guard.satisfiable import schemas_in

__all__ = ["Candidate", "CandidateCache", "Chosen", "Key", "choose", "enforcing_all"]

Key: TypeAlias = tuple[str, str, bytes]
"""Strategy, kind and digest of a constraint. A compiler lives as long as its strategies, so vocabulary,
options and versions need no place in it; the digest is of the source, which keeps the key order of a schema (it decides
the order of the output), and of the white space."""

MAX_CONSTRAINTS = 4096
"""The number of constraints of which it is remembered which strategies take them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy that will take a constraint, and what it would leave unenforced. Equal constraints compiled by one
    strategy have one `key`."""

    name: str
    strategy: GrammarStrategy
    unenforced: tuple[str, ...]
    key: Key
    is_pruned: bool = False
    """True if it takes the constraint without the parts that have no values."""

    def served(self, constraint: Constraint) -> Constraint:
        """Return what the strategy is given to compile in place of the constraint it was chosen for."""
        return forms(constraint)[0] if self.is_pruned else constraint


@dataclass(frozen=True, slots=True)
class Chosen:
    """The answers of the strategies to a constraint."""

    candidates: list[Candidate]
    """Those that take it, best first."""
    refusals: Mapping[str, str]
    """Why each of the others does not, by name."""


def choose(constraint: Constraint, strategies: Mapping[str, GrammarStrategy]) -> Chosen:
    """The strategies to try for `constraint`.

    `strategies` is in the operator's order of preference. One that would leave a keyword unenforced comes after all
    that enforce everything; one that would enforce no outermost keyword of a schema is none, and one that cannot bear
    the constraint is not asked. Parts of a schema that have no values are left out where the strategy takes what is
    left. Raises `InvalidGrammar` if nothing satisfies the constraint, `UnsupportedGrammar` if no strategy will take it,
    with each one's reason, and `LimitExceeded` if that is its size for all of its kind.
    """
    names = list(strategies) if constraint.strategy is None else [constraint.strategy]
    kind, digest = constraint.kind, constraint_digest(constraint)
    misspelt = _misspelt(constraint)
    # what stands in subschemas is enforced through these or not at all
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
            refusals[name] = f"{name} would enforce nothing of it: {quoted(sorted(root))} would be ignored"
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
    """Those that leave nothing of the constraint unenforced. Raises `UnsupportedGrammar` if there is none, with what
    each would and why the others do not take it."""
    found = [candidate for candidate in chosen.candidates if not candidate.unenforced]
    if not found:
        ignored = [f"{each.name} does not enforce {quoted(each.unenforced)}" for each in chosen.candidates]
        said = "; ".join([*ignored, *chosen.refusals.values()])
        raise UnsupportedGrammar(
            f"no configured strategy enforces all of this {constraint.kind} constraint, and on_unenforced is 'refuse' "
            f"({said}); remove these keywords, configure a strategy that enforces them, or set on_unenforced to "
            "'report' or 'check'",
            feature=chosen.candidates[0].unenforced[0],
        )
    return found


class CandidateCache:
    """The answers of `choose` for the last constraints, which come again and again: reading a schema takes longer than
    many a step. May be asked from several threads at once. Those of other tenants count as not known where that
    `isolates_tenants`."""

    def __init__(self, strategies: Mapping[str, GrammarStrategy], *, isolates_tenants: bool = False) -> None:
        self._strategies = strategies
        self._known: OrderedDict[tuple[str, str | None, str, bytes], Chosen] = OrderedDict()
        self._lock = Lock()
        self._isolates_tenants = isolates_tenants
        self._tenant = ""

    def of(self, tenant: str) -> CandidateCache:
        """Return the cache as a tenant sees it."""
        if not self._isolates_tenants:
            return self
        theirs = copy(self)
        theirs._tenant = tenant
        return theirs

    def check_bytes(self, constraint: Constraint) -> None:
        """Raise `LimitExceeded` for a text that no strategy takes, before it is read."""
        check_bytes(constraint, (strategy.limits for strategy in self._strategies.values()))

    def __contains__(self, constraint: Constraint) -> bool:
        """Return whether it came before, and was well formed. Raises `InvalidGrammar`."""
        return (self._tenant, *_key(constraint)) in self._known

    def chosen(self, constraint: Constraint) -> Chosen:
        """Return what `choose` says. Raises what it raises."""
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
    """Return what a constraint is known by: its digest, and of JSON text also that of the text as it was given, for
    whose source it would have to be read. Raises `InvalidGrammar`."""
    text: object = None
    if isinstance(constraint, JsonSchema):
        text = constraint.schema
    elif isinstance(constraint, StructuralTag):
        text = constraint.tag
    return constraint.strategy, constraint.kind, constraint_digest(constraint, text if isinstance(text, str) else None)


def _misspelt(constraint: Constraint) -> frozenset[str]:
    """Keywords of a JSON schema that no strategy will enforce, because nobody knows them."""
    if isinstance(constraint, JsonSchema):
        return misspelt_keywords(constraint.cached(check_schema))
    unknown: set[str] = set()
    if isinstance(constraint, StructuralTag):
        for _, schema in schemas_in(constraint.parsed):
            with suppress(InvalidGrammar):  # a strategy says so, and where in the tag it is
                unknown |= constraint.cached(check_schema, schema)
    return misspelt_keywords(unknown)
