"""The contract of devices. XLA compiles each operation for each shape, which takes a minute."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestConformance = conformance("device.xla")
