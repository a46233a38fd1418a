"""The suite catches plugins that break one rule each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from guideway_conformance.registry import KIND_MODULES, Obligation, checks
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from saboteurs import Saboteur, saboteurs
from suite_support.nursery import Nursery

from tests.support.stages import everyday

EVERY_DAY = 20
"""One of this many saboteurs is tested every day, and all of them in the slow stage."""

LONG = {
    *("grammar.released_grammars_are_freed", "grammar.has_something_to_test", "grammar.forks_go_to_other_threads"),
    *("grammar.matchers_are_independent", "grammar.stop_tokens_are_those_of_the_matcher"),
    "grammar.constraints_that_live_together_are_told_apart",
}
"""Checks that take seconds; their saboteurs are tested only in the slow stage."""

ALL = [saboteur for kind in KIND_MODULES if KIND_MODULES[kind] for saboteur in saboteurs(kind)]
CHOSEN = [saboteur for saboteur in ALL[::EVERY_DAY] if saboteur.killer not in LONG]


@pytest.mark.parametrize("kind", [kind for kind, modules in KIND_MODULES.items() if modules])
def test_every_check_has_a_saboteur(kind: str) -> None:
    found = {(saboteur.killer, saboteur.mode) for saboteur in saboteurs(kind) if saboteur.outcome == "fail"}
    wanted = {(check.id, "positive") for check in checks(kind)}
    wanted |= {(check.id, "refusal") for check in checks(kind) if check.refusal}
    assert not wanted - found


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    slow_to_import = ("torch", "transformers.models.llama.modeling_llama")
    with Nursery(*{saboteur.component.__module__ for saboteur in ALL}, *slow_to_import) as found:
        yield found


@pytest.mark.parametrize("saboteur", everyday(ALL, *CHOSEN), ids=lambda saboteur: f"{saboteur.killer}-{saboteur.name}")
def test_a_saboteur_is_caught_by_its_check(nursery: Nursery, saboteur: Saboteur) -> None:
    result = nursery.perform(Target.of_class(saboteur.component), Obligation(saboteur.killer, saboteur.mode))
    assert result.outcome == saboteur.outcome
    assert result.detail


@pytest.mark.parametrize("kind", everyday(KIND_MODULES, "hooks"))
def test_a_saboteur_does_not_break_the_suite(kind: str) -> None:
    of_core = {check.id for check in checks(kind) if check.tier == "core"}
    saboteur = next(s for s in saboteurs(kind) if s.killer in of_core and s.outcome == "fail")
    report = run(Target.of_class(saboteur.component), up_to="core")
    assert report.verdict == "failed"
    assert {result.outcome for result in report.results} == {"pass", "fail"}
    assert saboteur.killer in {result.obligation.check for result in report.results if result.outcome == "fail"}
