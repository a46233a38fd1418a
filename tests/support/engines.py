"""A fixture for the conftest of folders whose tests start many engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

__all__ = ["small_caches"]


@pytest.fixture(scope="module", autouse=True)
def small_caches() -> Iterator[None]:
    """Create smaller KV caches where a test does not set their size: the default is 150 MB of zeros for the demo model,
    a third of the processor time that an engine needs to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("guideway_engine.assembly.MAX_DEFAULT_CELLS", 1 << 13)
        yield
