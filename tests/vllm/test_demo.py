"""``make demo-vllm``: vLLM alone loses ``maxLength`` with ``pattern``, guideway keeps it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "plugins" / "guideway-vllm" / "examples" / "max_length.py"


@pytest.mark.slow  # in `test_stock_backends`, guideway does the same in one engine
def test_guideway_keeps_what_vllm_loses() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    alone, with_guideway = (line for line in done.stdout.splitlines() if "maxLength 5:" in line)
    assert "lost" in alone
    assert with_guideway.endswith("characters: kept, served by vllm_guidance")
