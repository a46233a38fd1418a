"""The contract of devices."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

TestPlain = conformance("device.sim")
TestFused = pytest.mark.slow(conformance("device.sim_fused"))
TestStatic = pytest.mark.slow(conformance("device.sim_static", up_to="core"))
