"""The messages of ``docs/troubleshooting.md`` that appear only in a process with vLLM."""

from __future__ import annotations

import pytest
from guideway.errors import PluginUnavailable
from guideway_vllm import seams

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.vllm


def test_a_version_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(seams.NEEDED, "vllm.v1.core.sched.scheduler:Scheduler.no_such_method", ())
    with pytest.raises(PluginUnavailable) as raised:
        seams.install()
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    (heading,) = [line[5:-1] for line in page.splitlines() if line.startswith("### `guideway-vllm ")]
    assert heading in str(raised.value)
    assert "no_such_method" in str(raised.value)
