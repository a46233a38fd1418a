"""The contracts of guideway's own components, up to the level for certification: one of each kind, every day;
`test_builtin_others` has others of the same kinds."""

from __future__ import annotations

from guideway.conformance import conformance

TestNumpy = conformance("guideway/device.numpy", up_to="core")
TestReference = conformance("guideway-conformance/grammar.reference", up_to="core")
TestTorch = conformance("guideway/device.torch", up_to="core")
TestPacked = conformance("guideway-engine/attention.packed", up_to="core")
