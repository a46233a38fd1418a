"""The checks of the GPU benchmark, which compare every operation with the NumPy reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tests" / "benchmarks" / "gpu" / "bench_gpu_masks.py"


@pytest.mark.slow
def test_the_benchmark_checks_what_it_times() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check-cpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "144 comparisons with the NumPy reference, all right\n"
