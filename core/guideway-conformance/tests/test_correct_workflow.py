"""A workflow that breaks no rule is certified."""

from __future__ import annotations

import pytest
from guideway.api import Workflow
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from saboteurs.workflow.base import SumsAnything, SumsWell


@pytest.mark.slow
@pytest.mark.parametrize("workflow", [SumsWell, SumsAnything])
def test_a_correct_workflow_is_certified(workflow: type[Workflow]) -> None:
    report = run(Target.of_class(workflow))
    assert {result.outcome for result in report.results} == {"pass"}, report.results
    assert report.verdict == "certified"
