"""Options and settings for the tests of the whole repository: core, plugins and contrib."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from guideway_hosts.joining import VARIABLE
from hypothesis import HealthCheck, settings

# tests load models from packages and from disk; requests to a hub would make them slow and flaky
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# shells make background jobs ignore SIGINT, but tests interrupt themselves and their subprocesses
signal.signal(signal.SIGINT, signal.default_int_handler)

# tests must not depend on the load of the machine
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everyday", settings.get_profile("full"), max_examples=25)
settings.load_profile("everyday")


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[None]:
    """Import grammar strategies for hosts once per session, not for every engine."""
    from guideway.api import ModifierContext
    from guideway.plugins.limits import Limits
    from guideway_hosts.fork_server import ForkServer, module_path
    from guideway_hosts.hosts import SMALL
    from guideway_hosts.plugins import Spec

    context = ModifierContext(vocabulary=SMALL, max_num_sequences=1, max_model_len=1)
    kept = ForkServer(Spec(module_path(), (), (), context, {}), Limits())
    kept.start()
    yield
    kept.close()


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Fail a test that leaves an environment variable behind, which would configure the engines of later tests."""
    before = _variables()
    yield
    assert _variables() == before


def _variables() -> dict[str, str]:
    # an engine in vLLM that several tests share sets the secret of its fork server for its subprocesses
    return {name: value for name, value in os.environ.items() if name.startswith("GUIDEWAY_") and name != VARIABLE}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--corpora", metavar="FOLDER", help="where the corpora for the tests marked `corpora` lie")
    parser.addoption("--sample", metavar="SEED", help="one in 28 of the tests, others for each seed")


ALL_SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow$", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip importing files with only slow tests, unless they are named: collecting conformance tests starts a process
    for each plugin, in each worker."""
    if collection_path.suffix != ".py" or "not slow" not in config.getoption("markexpr"):
        return None
    return ALL_SLOW.search(collection_path.read_text("utf-8")) is not None or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and leave out what exists by then later: torch and its like are
    almost a million objects, so each full collection would take half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free everything at its end; libraries made with nanobind would report leaks."""
    gc.unfreeze()


LARGE = {
    "guideway-conformance/grammar.reference",
    "guideway-engine/attention.packed",
    "guideway-llguidance/grammar.llguidance",
    "guideway/device.torch",
}
"""Plugins whose conformance tests of the tier ``core`` are slow, or repeat another plugin's tests. The slowest plugins
have separate files of slow tests."""


SHARE = 28
"""One in this many tests is in a sample; the slow tests of a sample take about four minutes on two cores."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark a plugin's checks above the tier ``core`` as slow, for plugins in `LARGE` above ``smoke``, and select the
    sample."""
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
