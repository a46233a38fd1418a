"""Loads of ``transformers`` and torch what runs a language model, for a program that has just begun and is to answer
soon."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["lean_imports"]

COMPILER = "torch._dynamo"

ABSENT = ("is_scipy_available", "is_torch_distributed_available")
"""The questions of ``transformers`` for modules that only training and sharding a model need, and that take long to
import."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Within, import models and load them without torch's compiler, which is imported for nothing but to mark functions
    for it; who needs more of it gets it. And let ``transformers`` be as where `ABSENT` are not installed, from then on:
    only for a process that is the program's own."""
    if COMPILER in sys.modules or "transformers.modeling_utils" in sys.modules:
        yield
        return
    import torch
    import transformers.utils.import_utils

    for name in ABSENT:
        for module in (transformers.utils.import_utils, transformers.utils):
            setattr(module, name, _no)
    stand_in = _Compiler(COMPILER)
    folder = Path(torch.__file__).parent / "_dynamo"
    stand_in.__path__ = [str(folder)]  # its own parts can be imported
    stand_in.__file__ = str(folder / "__init__.py")
    vars(torch)["_dynamo"] = sys.modules[COMPILER] = stand_in
    try:
        yield
    finally:
        stand_in.make_way()


class _Compiler(ModuleType):
    """Takes the compiler's place until somebody asks for more than a mark."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else _Compiler.disable

    allow_in_graph = assume_constant_result = disable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.make_way()
        return getattr(importlib.import_module(COMPILER), name)

    def make_way(self) -> None:
        """Let the compiler be imported from now on."""
        import torch

        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER], vars(torch)["_dynamo"]


def _no() -> bool:
    return False
