"""Components in an operator's own file, without a package: ``./mine.py:Mine`` in place of a name."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from guideway.errors import InvalidConfiguration
from guideway.files import read_file, reason
from guideway.plugins.digest import sha256
from guideway.plugins.kinds import HOOKS, NAME

__all__ = ["FILE_KINDS", "digest_of", "is_file", "located", "module_name", "name_in", "path_of", "version_of"]

FILE_KINDS = ("grammar", "modifier", HOOKS)
"""Kinds of components that may be in a file."""

_ADDRESS = re.compile(r"((?:\.{1,2}|~)?/.*\.py):([A-Za-z_]\w*)")


def is_file(address: object) -> bool:
    """Return whether an address has the form ``./mine.py:Mine``: a path with a slash at its beginning, or after ``.``,
    ``..`` or ``~``, and the name of a class."""
    return isinstance(address, str) and _ADDRESS.fullmatch(address) is not None


def located(address: str, folder: str | os.PathLike[str] = "") -> str:
    """Return the address of a file with its absolute path, relative to `folder` (default: the working directory).
    Other addresses are not changed."""
    if not is_file(address):
        return address
    path = os.path.abspath(Path(folder, path_of(address).expanduser()))  # noqa: PTH100 - keeps links, as names of models
    return f"{path}:{_class_of(address)}"


def path_of(address: str) -> Path:
    """Return the path in the address of a file."""
    return Path(address.rpartition(":")[0])


def _class_of(address: str) -> str:
    return address.rpartition(":")[2]


def digest_of(address: str) -> str:
    """Return ``sha256:<hex>`` of the file; ``missing`` if it cannot be read."""
    try:
        return f"sha256:{sha256(read_file(path_of(address)))}"
    except OSError:
        return "missing"


def name_in(address: str) -> str:
    """Return the name of the component at the address of a file, without running the file: the literal ``name`` in the
    body of the class, or else the name of the class in lower case. Raises `InvalidConfiguration` if the file cannot be
    read or does not define the class."""
    path, wanted = path_of(address), _class_of(address)
    try:
        body = ast.parse(read_file(path), path).body
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        why = reason(error) if isinstance(error, OSError) else f"it is not Python: {error}"
        raise InvalidConfiguration(f"the plugin file {str(path)!r} cannot be read: {why}", field="plugins") from error
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    if wanted not in classes:
        raise InvalidConfiguration(
            f"the plugin file {str(path)!r} defines no class {wanted!r}; it has {', '.join(classes) or 'none'}",
            field="plugins",
        )
    for node in classes[wanted].body:
        match node:
            case ast.Assign(targets=[ast.Tuple(names)], value=ast.Tuple(values)):
                pairs = list(zip(names, values, strict=False))
            case ast.Assign(targets=[name], value=value) | ast.AnnAssign(target=name, value=ast.expr() as value):
                pairs = [(name, value)]
            case _:
                continue
        for pair in pairs:
            match pair:
                case (ast.Name(id="name"), ast.Constant(value=str(said))) if NAME.fullmatch(said):
                    return said
    return wanted.lower()


class _Loader(SourceFileLoader):
    """Loads the source of a module if it has the digest in the module's name. Never reads or writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        if not fullname.endswith(_short(sha256(source))):
            raise ImportError(f"{self.path} was changed after the plugins were planned; start again")
        return self.source_to_code(source, self.path)


class _Finder(MetaPathFinder):
    """Finds the modules of plugin files, so that objects of their classes can be pickled."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        """Paths by the names of modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.paths:
            return None
        place = self.paths[fullname]
        return spec_from_file_location(fullname, place, loader=_Loader(fullname, place))


_FINDER = _Finder()


def version_of(address: str) -> str:
    """Return the version of the file at this address: the beginning of its digest."""
    return _short(digest_of(address).removeprefix("sha256:"))


def _short(digest: str) -> str:
    return digest[:12]


def module_name(address: str, version: str) -> str:
    """Return the name as which this version of a file can be imported in this process from now on. It is the same in
    every process."""
    path = path_of(address)
    name = f"guideway_file_{path.stem}_{_short(sha256(str(path).encode()))}_{version}"
    _FINDER.paths[name] = str(path)
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    return name
