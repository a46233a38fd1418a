"""The contract of logit modifiers."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestConformance = conformance("modifier.healing", up_to="core")
