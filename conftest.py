"""Options and settings for the tests of the whole repository: core, plugins and contrib."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# tests load models from packages and from disk; a look-up on a hub would only make them slow or flaky
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# a shell has its jobs in the background ignore it, and tests interrupt what they start, and themselves
signal.signal(signal.SIGINT, signal.default_int_handler)

# no test may depend on how busy the machine is
settings.register_profile("guideway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("guideway")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--corpora", metavar="FOLDER", help="where the corpora for the tests marked `corpora` lie")
