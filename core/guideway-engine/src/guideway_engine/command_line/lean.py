"""Faster loading of language models with ``transformers`` and torch, for short-lived programs that must start
quickly."""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

__all__ = ["lean_imports"]

COMPILER = "torch._dynamo"
MODELS = "transformers.models"

ABSENT = ("is_scipy_available", "is_torch_distributed_available")
"""Functions of ``transformers`` that check for modules which only training and sharding need, and which are slow to
import."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Within the context, let models be imported and loaded without modules that torch and ``transformers`` import but
    do not use: torch's compiler, for which functions are only marked, and SymPy.

    Code that needs more still gets it. torch and ``transformers`` are imported here, with garbage collection turned
    off. From then on ``transformers`` considers `ABSENT` as not installed, and reads its list of all models only on
    access, so use this only in the program's own process.
    """
    if COMPILER in sys.modules or "transformers.modeling_utils" in sys.modules:
        yield
        return
    with _pause_collection(), _modules_by_name():
        import torch
        import transformers.utils.import_utils

    for name in ABSENT:
        for module in (transformers.utils.import_utils, transformers.utils):
            setattr(module, name, _no)
    if MODELS not in sys.modules:
        _StandIn(MODELS, transformers)
    compiler = _Compiler(COMPILER, torch)
    try:
        with _modules_by_name(), _without_values(torch):
            yield
    finally:
        compiler.make_way()


@contextmanager
def _pause_collection() -> Iterator[None]:
    """Turn off garbage collection within the context, and exclude all objects that exist at its end from later
    collections: imported modules stay anyway, and scanning them repeatedly takes longer than importing some. Do not
    create models within: they would never be collected if they are part of a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _modules_by_name() -> Iterator[None]:
    """Within the context, let `inspect` find the module of a frame by its name. It would compare the paths of all
    imported modules, which takes longer than all else that torch does to register an operator."""
    by_file = inspect.getmodule

    def getmodule(thing: Any, filename: str | None = None) -> ModuleType | None:
        if isinstance(thing, FrameType) and (found := sys.modules.get(thing.f_globals.get("__name__", ""))):
            return found
        return by_file(thing, filename)

    inspect.getmodule = getmodule  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getmodule = by_file


@contextmanager
def _without_values(torch: Any) -> Iterator[None]:
    """Within the context, skip computations that most models call during initialization on the device "meta", whose
    tensors have no values."""
    from torch.utils._device import _device_constructors

    _device_constructors()  # it caches torch's original functions
    draw, count = torch.nn.init.normal_, torch.arange

    def normal_(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if tensor.is_meta else draw(tensor, *args, **kwargs)

    def arange(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None and torch.get_default_device().type == "meta":
            kwargs["device"] = "cpu"  # as transformers does for linspace: arithmetic on "meta" would import SymPy
        return count(*args, **kwargs)

    torch.nn.init.normal_, torch.arange = normal_, arange
    try:
        yield
    finally:
        torch.nn.init.normal_, torch.arange = draw, count


class _StandIn(ModuleType):
    """Replaces a package whose submodules are imported, until one of the package's own names is accessed."""

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
    """Stand-in for torch's compiler that accepts its function markers."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else _Compiler.disable

    allow_in_graph = assume_constant_result = disable


def _no() -> bool:
    return False
