"""The contract of device backends, up to what certification needs: the rest takes the interpreter minutes."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestConformance = conformance("device.triton", up_to="core")
