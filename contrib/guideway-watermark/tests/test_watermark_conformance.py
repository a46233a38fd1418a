"""The contract of logit modifiers."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestKgw = conformance("modifier.kgw", up_to="core")
TestGumbelMax = conformance("modifier.gumbel_max", up_to="core")
