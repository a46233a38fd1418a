"""The contract of devices; `test_sim_others_conformance` has the other two."""

from __future__ import annotations

from guideway.conformance import conformance

TestPlain = conformance("device.sim")
