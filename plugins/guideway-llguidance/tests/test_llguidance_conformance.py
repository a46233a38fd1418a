"""The contract of grammar strategies."""

from __future__ import annotations

from guideway.conformance import conformance

TestConformance = conformance("grammar.llguidance")
