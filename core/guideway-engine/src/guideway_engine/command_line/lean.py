"""Loads of ``transformers`` and torch what runs a language model, for a program that has just begun and is to answer
soon."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["lean_imports"]

COMPILER = "torch._dynamo"
MODELS = "transformers.models"

ABSENT = ("is_scipy_available", "is_torch_distributed_available")
"""The questions of ``transformers`` for modules that only training and sharding a model need, and that take long to
import."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Within, import models and load them without what torch and ``transformers`` import for it and do not use: torch's
    compiler, for which functions are only marked, and SymPy. Who needs more gets it. torch and ``transformers`` are
    imported here, and no garbage is looked for in what they are made of. From then on `ABSENT` are not installed for
    ``transformers``, and its list of all models is read when somebody asks for it: only for a process that is the
    program's own."""
    if COMPILER in sys.modules or "transformers.modeling_utils" in sys.modules:
        yield
        return
    with _uncollected():
        import torch
        import transformers.utils.import_utils

    for name in ABSENT:
        for module in (transformers.utils.import_utils, transformers.utils):
            setattr(module, name, _no)
    if MODELS not in sys.modules:
        _StandIn(MODELS, transformers)
    compiler = _Compiler(COMPILER, torch)
    try:
        with _without_values(torch):
            yield
    finally:
        compiler.make_way()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within, Python looks for no garbage, and what there is at the end it never looks through: it is modules, which
    stay, and looking through them again and again takes longer than importing some. A model is not to be made within:
    in a cycle it would stay too."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _without_values(torch: Any) -> Iterator[None]:
    """Within, what most models call while they are first made, on the device "meta" whose tensors have no values, is
    not computed there."""
    from torch.utils._device import _device_constructors

    _device_constructors()  # it remembers torch's own functions
    draw, count = torch.nn.init.normal_, torch.arange

    def normal_(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if tensor.is_meta else draw(tensor, *args, **kwargs)

    def arange(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None and torch.get_default_device().type == "meta":
            kwargs["device"] = "cpu"  # as transformers does with linspace: arithmetic on "meta" would import SymPy
        return count(*args, **kwargs)

    torch.nn.init.normal_, torch.arange = normal_, arange
    try:
        yield
    finally:
        torch.nn.init.normal_, torch.arange = draw, count


class _StandIn(ModuleType):
    """Takes the place of a package, of which others import modules, until somebody asks for the package's own
    names."""

    def __init__(self, name: str, parent: ModuleType) -> None:
        super().__init__(name)
        self._parent = parent
        self._child = name.rpartition(".")[2]
        folder = Path(str(parent.__file__)).parent / self._child
        self.__path__ = [str(folder)]
        self.__file__ = str(folder / "__init__.py")
        vars(parent)[self._child] = sys.modules[name] = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.make_way()
        return getattr(importlib.import_module(self.__name__), name)

    def make_way(self) -> None:
        """Let the package itself be imported from now on."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__], vars(self._parent)[self._child]


class _Compiler(_StandIn):
    """Lets functions be marked for torch's compiler."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else _Compiler.disable

    allow_in_graph = assume_constant_result = disable


def _no() -> bool:
    return False
