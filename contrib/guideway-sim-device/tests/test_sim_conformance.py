"""The contract of devices; `test_sim_others_conformance` has the other two."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestPlain = conformance("device.sim")
