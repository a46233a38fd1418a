"""A workflow that breaks no rule is certified."""

from __future__ import annotations

import pytest
from guideway.api import Workflow
from guideway_conformance.registry import TIERS, Tier
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from saboteurs.workflow.base import SumsAnything, SumsWell

from tests.support.stages import everyday


@pytest.mark.parametrize(
    ("workflow", "up_to"),
    everyday([(SumsWell, TIERS[-1]), (SumsAnything, TIERS[-1])]),
)
def test_a_correct_workflow_is_certified(workflow: type[Workflow], up_to: Tier) -> None:
    report = run(Target.of_class(workflow), up_to=up_to)
    assert {result.outcome for result in report.results} == {"pass"}, report.results
    assert report.verdict == "certified"
