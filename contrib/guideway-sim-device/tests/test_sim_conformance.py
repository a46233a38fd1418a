"""The contract of devices."""

from __future__ import annotations

from guideway.conformance import conformance

TestDynamic = conformance("device.sim")
TestStatic = conformance("device.sim_static")
