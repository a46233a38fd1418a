"""A workflow that breaks no rule is certified."""

from __future__ import annotations

from guideway_conformance.runner import run
from guideway_conformance.target import Target
from saboteurs.workflow import SumsWell


def test_a_correct_workflow_is_certified() -> None:
    report = run(Target.of_class(SumsWell))
    assert {result.outcome for result in report.results} == {"pass"}, report.results
    assert report.verdict == "certified"
