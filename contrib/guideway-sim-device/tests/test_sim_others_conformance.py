"""The contract of devices, for the one with fused operations and the one with static shapes."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestFused = conformance("device.sim_fused")
TestStatic = conformance("device.sim_static", up_to="core")
