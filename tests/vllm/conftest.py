"""vLLM in this process, with the demo model. Tests with the same options share an engine.

`start` returns an `LLM`, and ends the least recently used engine when there are too many. Tests that need more
processes start them.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.triton_interpreter import use

HERE = Path(__file__).parent

USES_V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
"""True if these tests use vLLM's V2 model runner, with its kernels in Triton's interpreter."""

if find_spec("vllm") is None:  # the everyday environment; `make test-vllm` uses one with vLLM, and checks that
    collect_ignore_glob = ["test_*.py"]
elif not USES_V2:
    collect_ignore = ["test_v2_processors.py", "test_v2_runner.py"]

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # numba, which finds n-grams, shares OpenMP with vLLM's kernels: with more threads it changes the outputs of engines
    # that start in this process later, also without guideway
    "NUMBA_NUM_THREADS": "1",
}
os.environ.update(SETTINGS)

if USES_V2:
    FOLDER = tempfile.TemporaryDirectory()
    use(Path(FOLDER.name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as needing vLLM."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vllm)


KEPT = 4
"""Engines that tests may share; one takes about 2 s of CPU to start."""


@pytest.fixture(scope="session")
def demo_model() -> str:
    """The folder of the demo model."""
    from guideway_demo_model import DemoModel

    return str(DemoModel().path())


@pytest.fixture(scope="session")
def running() -> Iterator[list[tuple[dict[str, Any], Any]]]:
    """The engines that run, with their options; the least recently used first."""
    engines: list[tuple[dict[str, Any], Any]] = []
    yield engines
    end_all(engines)


@pytest.fixture(scope="session")
def start(demo_model: str, running: list[tuple[dict[str, Any], Any]]) -> Callable[..., Any]:
    """``start(guideway=..., **options)`` returns an `LLM` in this process, without guideway if `guideway` is None."""
    # not in `started`: what is imported keeps the frames that import it, and with `started` the first engine
    from vllm import LLM
    from vllm.distributed import model_parallel_is_initialized

    def started(guideway: dict[str, Any] | None = None, **options: Any) -> Any:
        if not model_parallel_is_initialized():  # an engine that failed or ended took what all in a process share
            end_all(running)
        wanted = {"guideway": guideway, **options}
        for number, (given, llm) in enumerate(running):
            if given == wanted:
                running.append(running.pop(number))
                return llm
        if len(running) == KEPT:
            _end(running.pop(0)[1])
        _let_vllm_look_around()
        defaults = {
            "model": demo_model,
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 16,
            "disable_log_stats": True,
        }
        additional = {} if guideway is None else {"additional_config": {"guideway": guideway}}
        llm = LLM(**(defaults | additional | options))
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        assert isinstance(runner, _runner_class()) == USES_V2, (
            f"not the model runner that was asked for: {type(runner)}"
        )
        _keep_kernels()
        running.append((wanted, llm))
        return llm

    return started


def end_all(running: list[tuple[dict[str, Any], Any]]) -> None:
    """End all engines and let go of them."""
    while running:
        _end(running.pop()[1])


def _runner_class() -> type[Any]:
    """Return the class of vLLM's V2 model runner."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    return GPUModelRunner


def _let_vllm_look_around() -> None:
    """Let engines start after llvmlite was loaded. Each new engine searches the ``__dict__`` of all module attributes
    for kernels. llvmlite's library, which the first engine loads, returns a function for any name, which the second
    engine would stumble over."""
    if (ffi := sys.modules.get("llvmlite.binding.ffi")) is not None:
        ffi.lib._fntab["__dict__"] = {}


def _end(llm: Any) -> None:
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()


def _keep_kernels() -> None:
    """Keep vLLM 0.32 from replacing its kernels again for each engine of a process. Its search in all modules fails at
    llvmlite's, which n-gram drafting imports, so that no engine could start after one with drafts."""
    from vllm.platforms import current_platform

    type(current_platform).register_triton_kernel_overrides = staticmethod(lambda: None)
