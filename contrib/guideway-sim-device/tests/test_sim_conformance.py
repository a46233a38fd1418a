"""The contract of devices."""

from __future__ import annotations

from guideway.conformance import conformance

TestPlain = conformance("device.sim")
TestFused = conformance("device.sim_fused")
TestStatic = conformance("device.sim_static")
