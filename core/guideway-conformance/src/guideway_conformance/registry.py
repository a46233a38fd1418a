"""The checks: functions with an id, the rule that they test, and the plugins that they apply to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias, get_args

from guideway.api import CONTRACT

__all__ = ["KIND_MODULES", "TIERS", "Act", "Check", "Mode", "Obligation", "Tier", "check", "checks", "plan"]

Tier: TypeAlias = Literal["smoke", "core", "extended", "stateful", "stress"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""Tiers in the order in which they run; a level is granted only with all tiers before it."""

Mode: TypeAlias = Literal["positive", "refusal"]

Act: TypeAlias = Literal["rows", "drafts", "hears", "feedback", "forks", "fills"]
"""Something that a plugin does. `guideway_conformance.modifier.evidence` defines when a modifier did it. A strategy
``fills`` unless it overrides `fill` and its `fill` never filled a job with a matcher of its own."""

KIND_MODULES = {
    "grammar": (
        *("alive", "accepting", "masks", "stopping", "undoing", "batches", "advancing", "languages", "sets"),
        *("compiling", "supporting", "whitespace", "texts", "embedding", "apart", "options"),
        *("lifetime", "hosting", "extras", "sizes", "collisions", "machines", "load", "growth", "keywords"),
    ),
    "device": (
        *("masks", "mask_shapes", "changes", "maths", "draws", "moves", "fused", "choices"),
        *("every", "extremes", "overlap", "stress"),
    ),
    "modifier": (
        "declarations",
        "compiling",
        "states",
        "forks",
        "forcing",
        "payloads",
        "transforms",
        "company",
        "variety",
        "samplers",
        "needs",
        "editing",
        "devices",
        "hosting",
        "machine",
        "stress",
        "growth",
    ),
    "worker": ("mixins", "company", "settings"),
    "hooks": ("validators", "observers"),
    "attention": ("results", "calls", "grids"),
    "workflow": ("serving", "failing", "parameters", "models", "scheduling"),
}
"""The kinds that have checks, and the modules ``guideway_conformance.KIND.NAME`` that contain them."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule of a contract and the function that tests it."""

    id: str
    """``kind.name``; never reused for another rule."""
    kind: str
    rule: str
    """The rule, in one sentence."""
    tier: Tier
    since: str
    """The contract version that introduced it."""
    capability: str | None
    """The capability that a plugin must declare for `positive` to apply; otherwise `refusal` applies."""
    trait: str | None
    """The trait that a plugin must have for the check to be planned at all, such as ``kind:regex``."""
    acts: tuple[Act, ...]
    """The acts that a plugin must do at least once during the check; otherwise the check shows nothing."""
    seconds: float
    """CPU seconds that it may take on a slow machine; after that the plugin counts as hanging."""
    positive: Callable[[Any], None]
    refusal: Callable[[Any], None] | None


@dataclass(frozen=True, slots=True, order=True)
class Obligation:
    """A check in the mode that applies to a plugin."""

    check: str
    mode: Mode = "positive"


_CHECKS: dict[str, Check] = {}


def check(
    kind: str,
    *,
    tier: Tier = "core",
    since: str = "1.0",
    capability: str | None = None,
    refusal: Callable[[Any], None] | None = None,
    trait: str | None = None,
    acts: tuple[Act, ...] = (),
    seconds: float = 30.0,
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function of a subject (`guideway_conformance.KIND.subject`) as a check; it fails by raising.

    Its name becomes the id, its docstring, one sentence, the rule. A check with a `capability` has a `refusal`, which
    applies to plugins that do not declare the capability. A check with a `trait` applies only to plugins that have it.
    A check with `acts` counts as not performed if the plugin does none of them.
    """

    def register(function: Callable[[Any], None]) -> Callable[[Any], None]:
        rule = " ".join(inspect.cleandoc(function.__doc__ or "").split())
        check_id = f"{kind}.{function.__name__}"
        if not re.fullmatch(r"\S[^\n]*\.", rule):
            raise ValueError(f"the docstring of {check_id} has to be its rule, a sentence")
        if check_id in _CHECKS:
            raise ValueError(f"two checks are called {check_id}")
        if (capability is None) != (refusal is None):
            raise ValueError(f"{check_id} needs a capability and a refusal, or neither")
        _CHECKS[check_id] = Check(
            check_id, kind, rule, tier, since, capability, trait, acts, seconds, function, refusal
        )
        return function

    return register


def checks(kind: str) -> tuple[Check, ...]:
    """Return all checks of `kind`, by tier, then in order of definition."""
    for module in KIND_MODULES[kind]:
        import_module(f"guideway_conformance.{kind}.{module}")
    return tuple(sorted((c for c in _CHECKS.values() if c.kind == kind), key=lambda c: TIERS.index(c.tier)))


def plan(
    kind: str, declared: Iterable[str], traits: Iterable[str], *, contract: str = CONTRACT, up_to: Tier = TIERS[-1]
) -> tuple[Obligation, ...]:
    """Return the obligations of a plugin: each check of its kind that applies to it, once."""
    has, is_ = frozenset(declared), frozenset(traits)
    return tuple(
        Obligation(c.id, "positive" if c.capability is None or c.capability in has else "refusal")
        for c in checks(kind)
        if _version(c.since) <= _version(contract)
        and TIERS.index(c.tier) <= TIERS.index(up_to)
        and (c.trait is None or c.trait in is_)
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
