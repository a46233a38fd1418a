"""Components that ship with guideway keep the contracts: those of a kind of which another is tested every day."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestEmbed = conformance("guideway-engine/workflow.embed", up_to="core")
TestRerank = conformance("guideway-engine/workflow.rerank", up_to="core")
TestClassify = conformance("guideway-engine/workflow.classify", up_to="core")
TestSdpa = conformance("guideway-engine/attention.sdpa", up_to="core")
TestFlex = conformance("guideway-engine/attention.flex", up_to="core")
TestNaive = conformance("guideway-engine/attention.naive", up_to="core")
