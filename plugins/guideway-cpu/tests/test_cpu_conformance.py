"""The contract of device backends."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

TestConformance = conformance("device.cpu", up_to="core")
TestEveryTier = pytest.mark.slow(conformance("device.cpu"))
