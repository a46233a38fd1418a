"""The contracts of guideway's own components, in addition to one of each kind in `test_builtin`."""

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
