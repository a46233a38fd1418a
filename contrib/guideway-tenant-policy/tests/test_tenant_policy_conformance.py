"""The contract of hooks."""

from __future__ import annotations

from guideway.conformance import conformance

TestConformance = conformance("hooks.tenant_policy", up_to="core")
