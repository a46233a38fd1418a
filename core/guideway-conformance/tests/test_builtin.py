"""Components that ship with guideway keep the contracts: what certification needs, of each built-in of a kind with
checks."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

TestNumpy = conformance("guideway/device.numpy", up_to="core")
TestReference = conformance("guideway-conformance/grammar.reference", up_to="core")
TestTorch = conformance("guideway/device.torch", up_to="core")
TestEmbed = conformance("guideway-engine/workflow.embed", up_to="core")
TestRerank = pytest.mark.slow(conformance("guideway-engine/workflow.rerank", up_to="core"))
TestClassify = pytest.mark.slow(conformance("guideway-engine/workflow.classify", up_to="core"))
TestPacked = conformance("guideway-engine/attention.packed", up_to="core")
TestSdpa = pytest.mark.slow(conformance("guideway-engine/attention.sdpa", up_to="core"))
TestFlex = pytest.mark.slow(conformance("guideway-engine/attention.flex", up_to="core"))
TestNaive = pytest.mark.slow(conformance("guideway-engine/attention.naive", up_to="core"))
