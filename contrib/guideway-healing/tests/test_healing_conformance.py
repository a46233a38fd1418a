"""The contract of logit modifiers."""

from __future__ import annotations

from guideway.conformance import conformance

TestConformance = conformance("modifier.healing", up_to="smoke")
