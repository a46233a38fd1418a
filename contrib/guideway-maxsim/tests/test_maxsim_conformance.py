"""The contract of workflows, up to the level for certification."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestMaxSim = conformance("guideway-maxsim/workflow.maxsim", up_to="core")
