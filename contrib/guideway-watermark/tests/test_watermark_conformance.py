"""The contract of logit modifiers."""

from __future__ import annotations

from guideway.conformance import conformance

TestKgw = conformance("modifier.kgw", up_to="smoke")
TestGumbelMax = conformance("modifier.gumbel_max", up_to="smoke")
