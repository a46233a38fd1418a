"""Import xgrammar without torch and transformers, where nothing else needs them.

xgrammar imports both when it is loaded: torch for functions that apply masks to logits, transformers for the types of
tokenizers. The strategy uses neither. They take 1.6 of the 1.9 s of processor time in which xgrammar is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["load_alone"]

REPLACED = ("torch", "transformers")


def load_alone() -> None:
    """Import xgrammar with stand-ins for torch and transformers, unless one of the three is loaded.

    Later imports find the real torch and transformers; what xgrammar would do with them raises `RuntimeError`.
    """
    if any(name in sys.modules for name in ("xgrammar", *REPLACED)):
        return
    with _absent("torch"):
        import_module("tvm_ffi")  # works without torch, but not with a stand-in
    with _stand_ins():
        import_module("xgrammar")
    _StandIn.is_loading = False


@contextmanager
def _absent(name: str) -> Iterator[None]:
    """Let imports of the module raise ImportError."""
    sys.modules[name] = None  # type: ignore[assignment]  # the import system's mark
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _stand_ins() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
            del sys.modules[name]


class _StandIn:
    """A type of torch or transformers: a base class, an annotation, or a function that a module calls once."""

    is_loading = True

    def __init__(self, *_: object, **__: object) -> None:
        if not self.is_loading:
            raise RuntimeError(
                "this process loaded xgrammar without torch and transformers (`guideway_xgrammar.loading`)"
            )


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type[_StandIn]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn


class _Finder(MetaPathFinder, Loader):
    """Finds a stand-in for each module of the packages in `REPLACED`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in REPLACED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
