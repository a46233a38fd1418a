"""The contract of worker mixins."""

from __future__ import annotations

from guideway.conformance import conformance

TestConformance = conformance("worker.layer_timing", up_to="core")
