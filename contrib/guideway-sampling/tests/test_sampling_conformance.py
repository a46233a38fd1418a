"""The contract of logit modifiers."""

from __future__ import annotations

from guideway.conformance import conformance

TestXtc = conformance("modifier.xtc", up_to="smoke")
TestTopNSigma = conformance("modifier.top_n_sigma", up_to="smoke")
TestPLess = conformance("modifier.p_less", up_to="smoke")
TestDynamicTemperature = conformance("modifier.dynamic_temperature", up_to="smoke")
TestMirostat = conformance("modifier.mirostat", up_to="smoke")
