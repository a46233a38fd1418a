"""The suite is tested by plugins that break one rule each."""

from __future__ import annotations

import pytest
from guideway_conformance.isolation import Host
from guideway_conformance.registry import KIND_MODULES, Obligation, checks, plan
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from saboteurs import Saboteur, saboteurs

ALL = [saboteur for kind in KIND_MODULES if KIND_MODULES[kind] for saboteur in saboteurs(kind)]


@pytest.mark.parametrize("kind", [kind for kind, modules in KIND_MODULES.items() if modules])
def test_every_check_has_a_saboteur(kind: str) -> None:
    wanted = {(check.id, "positive") for check in checks(kind)}
    wanted |= {(check.id, "refusal") for check in checks(kind) if check.refusal}
    assert not wanted - {(saboteur.killer, saboteur.mode) for saboteur in saboteurs(kind)}


@pytest.mark.parametrize("saboteur", ALL, ids=lambda saboteur: f"{saboteur.killer}-{saboteur.name}")
def test_a_saboteur_is_caught_by_its_check(saboteur: Saboteur) -> None:
    obligation = Obligation(saboteur.killer, saboteur.mode)
    with Host(Target.of_class(saboteur.component)) as host:
        assert obligation in plan(saboteur.kind, host.declared, host.traits), "the check does not concern it"
        (result,) = host.run([obligation])
    assert result.outcome == "fail"
    assert result.detail


@pytest.mark.parametrize("kind", KIND_MODULES)
def test_a_saboteur_does_not_break_the_suite(kind: str) -> None:
    of_core = {check.id for check in checks(kind) if check.tier == "core"}
    saboteur = next(saboteur for saboteur in saboteurs(kind) if saboteur.killer in of_core)
    report = run(Target.of_class(saboteur.component), up_to="core")
    assert report.verdict == "failed"
    assert {result.outcome for result in report.results} == {"pass", "fail"}
    assert saboteur.killer in {result.obligation.check for result in report.results if result.outcome == "fail"}
