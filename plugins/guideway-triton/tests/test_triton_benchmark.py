"""The GPU scripts, as far as they run without a GPU, in Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "tests" / "benchmarks" / "gpu"


@pytest.mark.slow
def test_the_benchmark_checks_what_it_times() -> None:
    command = [sys.executable, str(SCRIPTS / "bench_gpu_masks.py"), "--check-cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "144 comparisons with the NumPy reference, all right\n"


@pytest.mark.slow
def test_all_that_is_measured_on_a_gpu_runs_without_one() -> None:
    command = [sys.executable, str(SCRIPTS / "bench_gpu.py"), "--interpret"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "5 of the 5 that are greedy" in done.stdout
    assert "no operation of which would have waited for a GPU" in done.stdout


@pytest.mark.slow
def test_encoders_are_compared_without_a_gpu() -> None:
    script = str(SCRIPTS / "bench_gpu_models.py")
    command = [sys.executable, script, "--device", "cpu", "--rounds", "1", "--parts", "encoding"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cells = done.stdout.strip().splitlines()[-1].split("|")
    assert cells[1].strip() == "small" and float(cells[-2]) < 1e-5


@pytest.mark.slow
def test_what_would_wait_for_a_gpu_is_seen() -> None:
    broken = (
        "import sys; sys.path.insert(0, sys.argv[1]); import bench_gpu as b; from tests.support import probes;"
        "apply = probes.GreenListTransform.apply;"
        "probes.GreenListTransform.apply = lambda self, logits, payload, step: "
        "apply(self, logits + 0 * logits[0, 0].item(), payload, step);"
        "sys.argv[1:] = ['--interpret', '--parts', 'engine']; b.main()"
    )
    done = subprocess.run([sys.executable, "-c", broken, str(SCRIPTS)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "modifier.green_list failed in apply" in done.stderr and "would wait for a GPU" in done.stderr
