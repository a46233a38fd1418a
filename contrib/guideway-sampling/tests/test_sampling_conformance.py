"""The contract of logit modifiers."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestXtc = conformance("modifier.xtc", up_to="core")
TestTopNSigma = conformance("modifier.top_n_sigma", up_to="core")
TestPLess = conformance("modifier.p_less", up_to="core")
TestDynamicTemperature = conformance("modifier.dynamic_temperature", up_to="core")
TestMirostat = conformance("modifier.mirostat", up_to="core")
