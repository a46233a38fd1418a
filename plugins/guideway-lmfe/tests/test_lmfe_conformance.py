"""The contract of grammar strategies."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestConformance = conformance("grammar.lmfe")
