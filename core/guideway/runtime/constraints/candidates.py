"""The strategies that take a constraint, best first, and a cache of these decisions."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import astuple, dataclass
from functools import cached_property
from threading import Lock
from typing import TypeAlias

from guideway.api.grammar import GrammarStrategy, Support
from guideway.api.types import Constraint, JsonSchema, Loss, Losses, StructuralTag
from guideway.errors import InvalidGrammar, LimitExceeded, UnsupportedGrammar, blame
from guideway.json_schema import (
    IN_PLACE_APPLICATORS,
    check_schema,
    locate,
    misspelt_keywords,
    root_keywords,
    schemas_in,
)
from guideway.json_schema.tracking import has_order, tracked
from guideway.plugins.contract import checked_names, checked_support
from guideway.runtime.constraints.digests import constraint_digest
from guideway.runtime.constraints.guard.guard import Guard, check_bytes
from guideway.runtime.constraints.guard.satisfiable import check_possible
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.rewriting import ORDER, Rewritten

__all__ = ["Candidate", "CandidateCache", "Chosen", "Key", "choose", "enforcing_all"]

Key: TypeAlias = tuple[str, str, bytes]
"""Strategy, kind and digest of a constraint. Vocabulary, options and versions are not part of it, because a compiler
lives as long as its strategies. The digest covers the white space and the source with the key order of a schema, which
decides the order of the output."""

MAX_CONSTRAINTS = 4096
"""Most constraints in the cache."""
MAX_SIZE = 64 << 20
"""Most characters of rewritten schemas and their losses in the cache."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy that takes a constraint, with the keywords that it would not enforce. Equal constraints have the same
    `key` for one strategy."""

    name: str
    strategy: GrammarStrategy
    home: Home
    unenforced: tuple[str, ...]
    key: Key
    rewritten: Rewritten | None = None
    """The schema that the strategy takes in place of the constraint's."""

    @property
    def losses(self) -> Losses:
        """The keywords of the constraint that its rewriting does not express."""
        return Losses() if self.rewritten is None else self.rewritten.losses

    @property
    def title(self) -> str:
        """The name, for messages that may list several candidates of one strategy."""
        return self.name if self.rewritten is None else f"{self.name} (rewritten)"

    def served(self, constraint: Constraint) -> Constraint:
        """Return the constraint to compile in place of the one that this candidate was chosen for."""
        constraint = _offered(constraint)
        if self.rewritten is not None and isinstance(constraint, JsonSchema):
            return self.rewritten.of(constraint)
        return constraint

    def improves(self, other: Candidate) -> bool:
        """Return whether it enforces something that `other` does not."""
        return not set(other.unenforced).issubset(self.unenforced)

    def leaves_more(self, other: Candidate) -> bool:
        """Return whether it leaves unenforced all that `other` leaves, and more."""
        return set(self.unenforced) > set(other.unenforced)

    def leaves(self, constraint: Constraint) -> str:
        """Return what it does not enforce, with places, for a message."""
        return locate(_offered(constraint), self.unenforced, self.losses)


@dataclass(frozen=True)
class Chosen:
    """The decisions of all strategies about a constraint."""

    candidates: list[Candidate]
    """Strategies that take it, best first."""
    refusals: Mapping[str, str]
    """Reasons of the other strategies, by name."""

    @property
    def size(self) -> int:
        """Characters of the rewritten schemas and their losses, here and in `text`."""
        return 2 * sum(0 if each.rewritten is None else each.rewritten.size for each in self.candidates)

    @cached_property
    def text(self) -> str:
        """The decisions, for `CandidateCache.learn` in another process."""
        rows = [
            (each.name, each.unenforced, each.key[-1].hex(), each.rewritten and astuple(each.rewritten))
            for each in self.candidates
        ]
        return json.dumps([rows, dict(self.refusals)])


def choose(
    constraint: Constraint, strategies: Mapping[str, GrammarStrategy], homes: Mapping[str, Home] | None = None
) -> Chosen:
    """Return the strategies to try for `constraint`. `homes` says where they work; this process if it does not.

    `strategies` is in the operator's order of preference. Strategies that enforce everything come before those that
    leave a keyword unenforced; a strategy that would enforce no outermost keyword of a schema is refused, and one whose
    limits the constraint exceeds is not asked. A schema is also rewritten in the keywords that a strategy takes: an
    equivalent schema comes after the schema itself and before other strategies, a weaker one before strategies that
    would not enforce all, unless one of these leaves only a part of what it leaves. An equivalent schema without parts
    that nothing satisfies comes before the schema itself. Raises `InvalidGrammar` if nothing
    satisfies the constraint, `UnsupportedGrammar` with all reasons if no strategy takes it,
    and `LimitExceeded` if it is too large for all strategies of its kind.
    """
    names = list(strategies) if constraint.strategy is None else [constraint.strategy]
    kind = constraint.kind
    full: list[Candidate] = []
    weaker: list[Candidate] = []
    partial: list[Candidate] = []
    refusals: dict[str, str] = {}
    missing: list[str] = []
    too_large: dict[str, list[str]] = {}
    offered = _offered(constraint)
    if offered is not constraint:
        check_possible(constraint)  # it may allow nothing where the part to offer does
    offer = _Offer(offered, {name: strategies[name].limits for name in names})
    homes = homes or {}
    for name in names:
        strategy = strategies[name]
        if kind not in strategy.kinds:
            refusals[name] = f"{name} compiles {', '.join(sorted(strategy.kinds))}"
            missing.append(kind)
            continue
        excess = offer.guard.refusal(name)
        found, reason = offer.candidates(name, strategy, homes.get(name) or Home(strategy), excess)
        if not found:
            refusals[name] = reason
            if excess is not None:
                too_large.setdefault(excess, []).append(name)
        for each in found:
            if offer.enforces_all(each):
                full.append(each)
            elif found[0].rewritten is None and found[0].unenforced and not each.improves(found[0]):
                partial.append(each)
            else:
                weaker.append(each)
    if not full and not weaker and not partial:
        if too_large and sum(map(len, too_large.values())) + len(missing) == len(names):
            told = "; ".join(f"{', '.join(each)}: {reason}" for reason, each in too_large.items())
            raise LimitExceeded(f"this {kind} constraint is too large for {told}", field="constraint")
        said = "; ".join(refusals.values()) or "no grammar strategy is configured"
        raise UnsupportedGrammar(
            f"no configured strategy can serve this {kind} constraint ({said})",
            feature=missing[0] if missing else kind,
        )
    rest = weaker + partial
    while rest:  # what leaves all that another one leaves, and more, comes after it
        full.append(rest.pop(next(i for i, each in enumerate(rest) if not any(map(each.leaves_more, rest)))))
    return Chosen(full, refusals)


def _offered(constraint: Constraint) -> Constraint:
    """Return the constraint to offer to strategies: without the part of a schema that is tracked over their masks."""
    return tracked(constraint) if isinstance(constraint, JsonSchema) else constraint


class _Offer:
    """A constraint, to ask strategies about."""

    def __init__(self, constraint: Constraint, limits: Mapping[str, Mapping[str, int]]) -> None:
        self.constraint = constraint
        self._digest = constraint_digest(constraint)
        self._misspelt = _misspelt(constraint)
        # keywords in subschemas are enforced through these or not at all
        self._root: frozenset[str] = frozenset()
        self._order: frozenset[str] = frozenset()
        """The name of the order of properties, if strategies do not keep it by themselves."""
        if isinstance(constraint, JsonSchema):
            self._root = constraint.cached(root_keywords) or self._misspelt
        self._is_full = check_possible(constraint)
        """False if nothing satisfies a part of a schema, which engines may refuse to compile."""
        if isinstance(constraint, JsonSchema) and constraint.takes_any_order and constraint.cached(has_order):
            self._order = frozenset({ORDER})
        self.guard = Guard(constraint, limits)

    def enforces_all(self, candidate: Candidate) -> bool:
        """Return whether a candidate enforces all that any strategy could."""
        return self._misspelt.issuperset(candidate.unenforced)

    def candidates(
        self, name: str, strategy: GrammarStrategy, home: Home, excess: str | None
    ) -> tuple[list[Candidate], str]:
        """Return the candidates of a strategy, best first, and the reason why the constraint as it is, is none.
        `excess` is how it exceeds the strategy's limits, or None."""
        if excess is not None:
            found = self._rewritten(name, strategy, home, repeats=True) if self.guard.is_rewritable(name) else []
            return found, f"{name}: {excess}"
        support = _ask(name, strategy, home, self.constraint)
        if support.refused:
            return self._rewritten(name, strategy, home), f"{name}: {support.reason}"
        unenforced = support.unenforced | self._misspelt | self._order
        if self._root and self._root.issubset(unenforced):
            ignored = locate(self.constraint, sorted(self._root))
            reason = f"{name} would enforce nothing of it: {ignored} would be ignored"
            return self._rewritten(name, strategy, home), reason
        key = name, self.constraint.kind, self._digest
        given = Candidate(name, strategy, home, tuple(sorted(unenforced)), key)
        # no table tells which schemas that apply to the same value an engine combines
        is_sure = support.enforced <= _takes(name, strategy, home) - IN_PLACE_APPLICATORS
        if self._is_full and not unenforced and is_sure:
            return [given], ""
        rewritten = self._rewritten(name, strategy, home)
        return [given, *rewritten] if self._is_full else [*rewritten, given], ""

    def _rewritten(self, name: str, strategy: GrammarStrategy, home: Home, *, repeats: bool = False) -> list[Candidate]:
        """Return the candidates of a strategy for rewritings of the constraint, best first. `repeats` as for
        `rewritings`."""
        if not _takes(name, strategy, home) or not isinstance(self.constraint, JsonSchema):
            return []
        candidates = []
        for each in home.rewritings(self.constraint, repeats=repeats):
            form = each.of(self.constraint)
            if Guard(form, {name: strategy.limits}).refusal(name) is not None:
                continue
            support = _ask(name, strategy, home, form)
            if support.refused or (each.ordered and any(map(_decides, support.unenforced - self._misspelt))):
                continue
            unenforced = support.unenforced | self._misspelt | {loss.keyword for loss in each.losses}
            root = form.cached(root_keywords)
            enforces = any(support.unenforced.isdisjoint({each, f"{each}+untyped"}) for each in root)
            if enforces or not self._root or not unenforced:
                key = name, form.kind, constraint_digest(form)
                candidates.append(Candidate(name, strategy, home, tuple(sorted(unenforced)), key, rewritten=each))
        return candidates


def _decides(name: str) -> bool:
    """Return whether a keyword that is not enforced could decide which properties an object requires."""
    return name.partition(":")[0] not in ("format", "number", "pattern")


def _takes(name: str, strategy: GrammarStrategy, home: Home) -> frozenset[str]:
    with blame(f"grammar.{name}", "takes", keeps_deadlines=home.waits):
        return checked_names(strategy.takes)


def _ask(name: str, strategy: GrammarStrategy, home: Home, form: Constraint) -> Support:
    with blame(f"grammar.{name}", "supports", passing=(LimitExceeded,), keeps_deadlines=home.waits):
        return checked_support(strategy.supports(form))


def enforcing_all(chosen: Chosen, constraint: Constraint) -> list[Candidate]:
    """Return the candidates that enforce all of the constraint. Raises `UnsupportedGrammar`, with all reasons, if there
    is none."""
    found = [candidate for candidate in chosen.candidates if not candidate.unenforced]
    if not found:
        ignored = [f"{each.title} does not enforce {each.leaves(constraint)}" for each in chosen.candidates]
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

    def __init__(
        self,
        strategies: Mapping[str, GrammarStrategy],
        homes: Mapping[str, Home] | None = None,
        *,
        isolates_tenants: bool = False,
    ) -> None:
        self._strategies = strategies
        self._homes = homes
        self._known: OrderedDict[tuple[str, str | None, str, bytes], Chosen] = OrderedDict()
        self._size = 0
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
            found = choose(constraint, self._strategies, self._homes)
            canonical = self._tenant, constraint.strategy, constraint.kind, constraint_digest(constraint)
            self._keep(found, key, canonical)
        return found

    def learn(self, constraint: Constraint, decisions: str) -> None:
        """Take over `Chosen.text` of a constraint from another process, with the same strategies and limits."""
        key = (self._tenant, *_key(constraint))
        if key in self._known:
            return
        rows, refusals = json.loads(decisions)
        candidates = []
        for name, unenforced, digest, rewritten in rows:
            strategy = self._strategies[name]
            home = (self._homes or {}).get(name) or Home(strategy)
            form = None
            if rewritten is not None:
                text, losses, ordered = rewritten
                form = Rewritten(text, Losses(Loss(*loss) for loss in losses), ordered)
            its_key = name, constraint.kind, bytes.fromhex(digest)
            candidates.append(Candidate(name, strategy, home, tuple(unenforced), its_key, form))
        self._keep(Chosen(candidates, refusals), key)

    def _keep(self, found: Chosen, *keys: tuple[str, str | None, str, bytes]) -> None:
        with self._lock:
            for each in dict.fromkeys(keys):
                self._size += found.size if each not in self._known else 0
                self._known[each] = found
            while len(self._known) > MAX_CONSTRAINTS or self._size > MAX_SIZE:
                self._size -= self._known.popitem(last=False)[1].size


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
