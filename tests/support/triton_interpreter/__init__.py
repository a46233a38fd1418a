"""A Triton backend named ``cpu`` that compiles nothing, to run vLLM's V2 model runner without a GPU.

vLLM needs such a backend, and no package index has one. Every kernel runs in Triton's own interpreter, which is slow
but computes the same. `use` prepares this process and its children; call it before anything imports Triton.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from tests.support.distributions import install

ROOT = Path(__file__).parents[3]


def use(folder: Path) -> None:
    """Make vLLM use its V2 model runner: install the backend in `folder`, and put that on the path of this process and
    of its children."""
    before = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ |= installed(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT), *before])
    sys.path.insert(0, str(folder))


def installed(folder: Path) -> dict[str, str]:
    """Install the backend in `folder`. Return environment variables for a process that uses it; such a process needs
    `folder` and `ROOT` on its path."""
    install(folder, "triton-interpreter", {"cpu": __name__}, group="triton.backends")
    install(folder, "triton-repairs", {"triton_interpreter": f"{__name__}:repair"}, group="vllm.general_plugins")
    return {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_BACKEND": "cpu", "VLLM_USE_V2_MODEL_RUNNER": "1"}


def repair() -> None:
    """Patch the parts of Triton 3.9 and vLLM's CPU platform that would fail here. vLLM calls this in each process."""
    import vllm.v1.sample.ops.topk_topp_sampler as sampler
    from triton.runtime.interpreter import InterpreterBuilder
    from vllm.platforms.cpu import CpuPlatform

    sampler.HAS_TRITON = False  # its kernel for top-k and top-p calls `.to` on an int; torch does it instead
    for method, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        _wrap(InterpreterBuilder, method, lambda original, place=place: _with_bool_mask(original, place))
    _wrap(CpuPlatform, "check_and_update_config", _with_asynchronous_scheduling)


def _wrap(holder: Any, name: str, around: Callable[[Callable[..., Any]], Any]) -> None:
    original = getattr(holder, name)
    if not hasattr(original, "__wrapped__"):
        setattr(holder, name, around(original))


def _with_asynchronous_scheduling(check_and_update_config: Callable[..., Any]) -> Any:
    """Keep asynchronous scheduling, which the platform turns off because V1 supports it only on a GPU."""

    @wraps(check_and_update_config)
    def wrapped(vllm_config: Any) -> None:
        scheduler = vllm_config.scheduler_config
        resolved = scheduler.async_scheduling
        check_and_update_config(vllm_config)
        scheduler.async_scheduling = resolved

    return staticmethod(wrapped)


def _with_bool_mask(method: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Convert masks to bool: the kernel for bitmasks has integer masks, as compiled Triton accepts them."""

    @wraps(method)
    def wrapped(self: Any, *args: Any) -> Any:
        mask = copy.copy(args[place])
        mask.data = mask.data.astype(bool)
        return method(self, *args[:place], mask, *args[place + 1 :])

    return wrapped
