"""A Triton backend named ``cpu`` that compiles nothing, with which vLLM's V2 model runner runs where there is no GPU.

vLLM asks for such a backend, and no index has one. Every kernel then runs in Triton's own interpreter, which is slow and
computes the same. `use` prepares this process and those it starts; it has to come before anything imports Triton.
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
    """Have vLLM take its V2 model runner: the backend as an installed distribution in `folder`, which is on the path of
    this process and of those it starts."""
    install(folder, "triton-interpreter", {"cpu": __name__}, group="triton.backends")
    install(folder, "triton-repairs", {"triton_interpreter": f"{__name__}:repair"}, group="vllm.general_plugins")
    before = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *before]),
        "TRITON_INTERPRET": "1",
        "TRITON_DEFAULT_BACKEND": "cpu",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
    sys.path.insert(0, str(folder))


def repair() -> None:
    """What vLLM's kernels ask of Triton and its interpreter (3.9) cannot do; vLLM calls this in each of its processes."""
    import vllm.v1.sample.ops.topk_topp_sampler as sampler
    from triton.runtime.interpreter import InterpreterBuilder

    sampler.HAS_TRITON = False  # its kernel for top-k and top-p calls `.to` on an int; torch does it instead
    for method, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        original = getattr(InterpreterBuilder, method)
        if not hasattr(original, "__wrapped__"):
            setattr(InterpreterBuilder, method, _with_bool_mask(original, place))


def _with_bool_mask(method: Callable[..., Any], place: int) -> Callable[..., Any]:
    """The kernel for bitmasks has masks of integers, as compiled Triton takes them."""

    @wraps(method)
    def wrapped(self: Any, *args: Any) -> Any:
        mask = copy.copy(args[place])
        mask.data = mask.data.astype(bool)
        return method(self, *args[:place], mask, *args[place + 1 :])

    return wrapped
