"""A constraint's measures, compared with the limits of strategies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from guideway.api.limits import RULES
from guideway.api.types import Constraint
from guideway.errors import MAX_TEXT, LimitExceeded
from guideway.runtime.constraints.guard.kinds import kind_of
from guideway.runtime.constraints.guard.measures import CAP, Measures, TooLarge
from guideway.runtime.work.metrics import LEFT_OUT

__all__ = ["Guard", "check_bytes", "measured"]

DEFAULTS = {name: rule.limit for name, rule in RULES.items()}

REWRITABLE = {"repetition": CAP, "repetitions": CAP, "multiple_of": CAP}
"""Limits that a rewriting may keep where the constraint does not: it leaves out bounds that engines do not count to,
and multiples."""

MAX_PLACE = 120
"""Most characters of a place in a message."""


class Guard:
    """A constraint, measured once for all strategies."""

    def __init__(self, constraint: Constraint, limits: Mapping[str, Mapping[str, int]]) -> None:
        self._constraint = constraint
        self._bytes = len(constraint.source())
        self._limits = {name: {**DEFAULTS, **own} for name, own in limits.items()}
        self._measures: Measures | None = None

    def refusal(self, strategy: str) -> str | None:
        """Return why the constraint exceeds a strategy's limits (rule, place, value and limit), or None. Raises
        `InvalidGrammar` for a Lark grammar with an embedded schema that nothing satisfies."""
        limits = self._limits[strategy]
        exceeded = ("bytes", self._bytes, "its text", limits["bytes"]) if self._bytes > limits["bytes"] else None
        if exceeded is None:
            exceeded = self._measured().exceeded(limits)
        if exceeded is None:
            return None
        LEFT_OUT.labels(strategy, exceeded[0]).inc()
        return _told(*exceeded)

    def is_rewritable(self, strategy: str) -> bool:
        """Return whether the constraint exceeds at most limits that a rewriting may keep."""
        limits = {**self._limits[strategy], **REWRITABLE}
        return self._bytes <= limits["bytes"] and self._measured().exceeded(limits) is None

    def _measured(self) -> Measures:
        if self._measures is None:
            self._measures = measured(self._constraint, max(each["nodes"] for each in self._limits.values()))
        return self._measures


def check_bytes(constraint: Constraint, limits: Iterable[Mapping[str, int]]) -> None:
    """Raise `LimitExceeded` if the text of `constraint` is longer than all these `limits` allow, before it is
    parsed."""
    text = getattr(constraint, kind_of(constraint).text or "", None)
    if not isinstance(text, str):
        return
    size = len(text)
    most = max((each.get("bytes", DEFAULTS["bytes"]) for each in limits), default=DEFAULTS["bytes"])
    if size > most:
        LEFT_OUT.labels("*", "bytes").inc()
        raise LimitExceeded(
            f"this constraint is too large: {_told('bytes', size, 'its text', most)}", field="constraint"
        )


def measured(constraint: Constraint, most_nodes: int) -> Measures:
    """Return the measures of `constraint`, whose `Constraint.source` must not raise."""
    measures = Measures(most_nodes)
    try:
        kind_of(constraint).measure(constraint, measures)
        measures.at("nodes", measures.nodes, "the whole")
    except TooLarge:
        pass
    return measures


def _told(rule: str, value: int, place: str, limit: int) -> str:
    what = place[:MAX_TEXT].encode("unicode_escape").decode()
    what = what if len(what) <= MAX_PLACE else f"{what[: MAX_PLACE - 3]}..."
    number = value if value < CAP else "far too large"
    return f"{rule} at {what} is {number}, the limit {limit}"
