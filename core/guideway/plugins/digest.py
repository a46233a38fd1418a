"""Digests of components, so that two processes, or two days, can tell whether they run the same code.

A digest covers the package that the value of an entry point names, with all that lies in it; or, where that is a
module, the module and what it imports of the package it lies in. To this come the modules that classes there derive
from, each with what it imports of its package and derives from in turn, where they are code of guideway or of a plugin:
other libraries have versions of their own. So has the contract, ``guideway.api`` and ``guideway.errors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guideway.plugins.sources import find_module, module_files, references

__all__ = ["Digests", "sha256"]

CONTRACT = ("guideway.api.", "guideway.errors.")
"""The beginning of module names that are of the contract, which is compared by its version."""


MISSING = "missing"
"""The digest of what is named and not there."""


@dataclass(frozen=True, slots=True)
class _File:
    """The content of one file: a digest, and if it is Python, what its classes derive from and what it imports."""

    digest: str
    bases: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()


class Digests:
    """The digests of what is installed at one time: each file is read once, when it is first asked for."""

    def __init__(self) -> None:
        self.packages = {"guideway"}
        """The top-level packages that hold plugins."""
        self._files: dict[str, _File] = {}
        self._digests: dict[tuple[str, str | None], str] = {}

    def of(self, value: str, location: str | None) -> str:
        """``sha256:<hex>`` over the names and contents of the files behind the entry point `value`, whose top-level
        package is in the folder or zip `location` or else wherever Python finds it; ``missing`` if it is nowhere."""
        if (value, location) not in self._digests:
            lines = [f"{path}\0{file.digest}\n" for path, file in sorted(self.covered(value, location).items())]
            self._digests[value, location] = f"sha256:{sha256(''.join(lines).encode())}" if lines else MISSING
        return self._digests[value, location]

    def covered(self, value: str, location: str | None) -> dict[str, _File]:
        """The files, by their path below the folder that the top-level package is in."""
        module = value.partition(":")[0].strip()
        covered: dict[str, _File] = {}
        seen, names = set(), [module]
        while names:
            name = names.pop()
            if name in seen or not (name == module or self._is_followed(name)):
                continue
            seen.add(name)
            here = location if _top(name) == _top(module) else None
            spec = (find_module(name, [here]) if here else None) or find_module(name)
            if spec is None:
                if name != module:
                    names.append(name.rpartition(".")[0])  # it is something in a module
                continue
            is_package = spec.submodule_search_locations is not None
            own = f"{spec.name if is_package else spec.name.rpartition('.')[0]}."
            for path, place in module_files(spec):
                covered[path] = file = self._read(path, place)
                used = {base for base in file.bases if not (is_package and base.startswith(own))}
                if not is_package:
                    used |= {name for name in file.imports if name.startswith(own)}
                names += used
        return covered

    def _is_followed(self, name: str) -> bool:
        # `guideway` itself only passes on names
        return _top(name) in self.packages and name != "guideway" and not name.startswith(CONTRACT)

    def _read(self, path: str, place: Any) -> _File:
        """The file at `place`, whose path is `path` seen from the folder of the top-level package."""
        if str(place) not in self._files:
            try:
                if isinstance(place, Path) and not place.is_file():  # nobody may ever write to a pipe
                    raise FileNotFoundError
                content = place.read_bytes()
            except OSError:
                self._files[str(place)] = _File(MISSING)  # a link to nothing, say: a digest of its own
            else:
                package = path.rpartition("/")[0].replace("/", ".")
                names = references(content, package) if path.endswith(".py") else ()
                self._files[str(place)] = _File(sha256(content), *names)
        return self._files[str(place)]


def sha256(data: bytes) -> str:
    """In hexadecimal digits."""
    import hashlib  # which loads OpenSSL: a look at what is installed does without

    return hashlib.sha256(data).hexdigest()


def _top(name: str) -> str:
    return name.partition(".")[0]
