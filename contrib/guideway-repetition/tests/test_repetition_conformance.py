"""The contract of logit modifiers."""

from __future__ import annotations

from guideway.conformance import conformance

TestDry = conformance("modifier.dry", up_to="smoke")
TestNoRepeatNgram = conformance("modifier.no_repeat_ngram", up_to="smoke")
