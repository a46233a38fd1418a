"""Options and settings for the tests of the whole repository: core, plugins and contrib."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from guideway.runtime.grammar_hosts.joining import VARIABLE as NURSERY
from hypothesis import HealthCheck, settings

# tests load models from packages and from disk; a look-up on a hub would only make them slow or flaky
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# a shell has its jobs in the background ignore it, and tests interrupt what they start, and themselves
signal.signal(signal.SIGINT, signal.default_int_handler)

# no test may depend on how busy the machine is
settings.register_profile("guideway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("guideway")


@pytest.fixture(scope="session", autouse=True)
def nursery() -> Iterator[None]:
    """Grammar strategies are imported for hosts once a session, and not for every engine anew."""
    from guideway.runtime.grammar_hosts.nursery import Nursery

    kept = Nursery.of(tuple(entry for entry in sys.path if isinstance(entry, str)))
    yield
    kept.release()


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """A variable that a test leaves behind configures the engines of later tests in the same process."""
    before = _variables()
    yield
    assert _variables() == before


def _variables() -> dict[str, str]:
    # an engine in vLLM that several tests share sets the address of its nursery for the processes that it starts
    return {name: value for name, value in os.environ.items() if name.startswith("GUIDEWAY_") and name != NURSERY}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--corpora", metavar="FOLDER", help="where the corpora for the tests marked `corpora` lie")
    parser.addoption("--sample", metavar="SEED", help="one in sixteen of the tests, others for each seed")


ALL_SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow$", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file all of whose tests are slow is not even imported every day, unless it is asked for by name: conformance
    tests start a process for each plugin when they are collected, in each worker."""
    if collection_path.suffix != ".py" or "not slow" not in config.getoption("markexpr"):
        return None
    return ALL_SLOW.search(collection_path.read_text("utf-8")) is not None or None


LARGE = {
    "guideway-conformance/grammar.reference",
    "guideway-engine/attention.packed",
    "guideway-llguidance/grammar.llguidance",
    "guideway-sim-device/device.sim",
}
"""Plugins of which even the conformance tests of the tier ``core`` take long, or whose checks others have every day
too. Those that take longest are in files of slow tests."""


SHARE = 16
"""Of so many tests one is in a sample: the slow tests drawn by a commit take about four minutes on two cores."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark a plugin's checks above the tier ``core`` slow, for `LARGE` ones above ``smoke``, and draw the sample."""
    seed = config.getoption("sample")
    if seed is not None:
        left_out = {item for item in items if crc32(f"{seed}{item.nodeid}".encode()) % SHARE}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        properties: dict[str, Any] = dict(item.user_properties)
        if "guideway_conformance" in properties:
            from guideway_conformance.registry import TIERS, checks

            plugin, _, check, _ = properties["guideway_conformance"]
            (tier,) = [known.tier for known in checks(check.partition(".")[0]) if known.id == check]
            if TIERS.index(tier) > TIERS.index("smoke" if plugin in LARGE else "core"):
                item.add_marker(pytest.mark.slow)
