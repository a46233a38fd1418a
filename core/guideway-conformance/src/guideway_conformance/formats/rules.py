"""The words that every format has for an obligation."""

from __future__ import annotations

from functools import cache

from guideway_conformance.registry import Check, Obligation, checks

__all__ = ["WORDS", "check_of", "rule_of"]

WORDS = {
    "pass": "met",
    "fail": "FAILED",
    "known_failure": "known failure",
    "not_run": "not run",
    "error": "not performed",
}
"""The word for each outcome."""

REFUSED = "What is not declared is refused with UnsupportedCapability when it is used"
UNDECLARED = {"device": "What is not in `fused` is the default operation"}
"""By kind, where nobody can use what is not declared: what there has to be instead."""


def check_of(check_id: str) -> Check | None:
    """The check with that id; None if there is none: a report may be older or newer than this suite."""
    return _by_id(check_id.partition(".")[0]).get(check_id)


def rule_of(obligation: Obligation) -> str:
    """Say in a sentence what the plugin had to do."""
    known = check_of(obligation.check)
    if known is None:
        return "This suite has no such check."
    if obligation.mode == "refusal":
        return f"{UNDECLARED.get(known.kind, REFUSED)}: {known.capability}."
    return known.rule


@cache
def _by_id(kind: str) -> dict[str, Check]:
    try:
        return {check.id: check for check in checks(kind)}
    except KeyError:
        return {}
