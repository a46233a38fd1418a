"""The contract of device backends."""

from __future__ import annotations

from guideway.conformance import conformance

TestConformance = conformance("device.cpu")
