"""The contract of device backends, up to the level for certification: the rest takes minutes in the interpreter."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestConformance = conformance("device.triton", up_to="core")
