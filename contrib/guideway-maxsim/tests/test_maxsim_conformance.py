"""The workflow keeps its contract: what certification needs."""

from __future__ import annotations

from guideway.conformance import conformance

TestMaxSim = conformance("guideway-maxsim/workflow.maxsim", up_to="core")
