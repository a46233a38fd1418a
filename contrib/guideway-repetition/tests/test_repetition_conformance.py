"""The contract of logit modifiers."""

from __future__ import annotations

import pytest
from guideway.conformance import conformance

pytestmark = pytest.mark.slow

TestDry = conformance("modifier.dry", up_to="core")
TestNoRepeatNgram = conformance("modifier.no_repeat_ngram", up_to="core")
