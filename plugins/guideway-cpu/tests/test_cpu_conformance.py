"""The contract of device backends."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestConformance = conformance("device.cpu")
