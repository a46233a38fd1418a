"""Digests of components, to compare their code between processes and over time.

A digest covers all files of the package that the entry point names; for a module, it covers the module and the modules
it imports from its own package. It also covers the modules of base classes, with their imports from their own package
and their base classes in turn, if these belong to guideway or to a plugin: other libraries are identified by their
versions. So is the contract, ``guideway.api`` and ``guideway.errors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guideway.plugins.sources import find_module, module_files, references

__all__ = ["Digests", "sha256"]

CONTRACT = ("guideway.api.", "guideway.errors.")
"""Prefixes of modules of the contract, which is compared by its version."""


MISSING = "missing"
"""The digest of missing files."""


@dataclass(frozen=True, slots=True)
class _File:
    """The digest of one file and, if it is Python, its base classes and imports."""

    digest: str
    bases: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()


class Digests:
    """Digests of one scan. Each file is read once, on first use."""

    def __init__(self) -> None:
        self.packages = {"guideway"}
        """The top-level packages that contain plugins."""
        self._files: dict[str, _File] = {}
        self._digests: dict[tuple[str, str | None], str] = {}

    def of(self, value: str, location: str | None) -> str:
        """Return ``sha256:<hex>`` over the names and contents of the files covered for the entry point `value`;
        ``missing`` if there are none. The top-level package is searched in the folder or zip `location`, then on
        Python's path."""
        if (value, location) not in self._digests:
            lines = [f"{path}\0{file.digest}\n" for path, file in sorted(self.covered(value, location).items())]
            self._digests[value, location] = f"sha256:{sha256(''.join(lines).encode())}" if lines else MISSING
        return self._digests[value, location]

    def covered(self, value: str, location: str | None) -> dict[str, _File]:
        """Return the covered files, by their path relative to the parent of the top-level package."""
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
                    names.append(name.rpartition(".")[0])  # an object in a module
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
        # `guideway` itself only re-exports names
        return _top(name) in self.packages and name != "guideway" and not name.startswith(CONTRACT)

    def _read(self, path: str, place: Any) -> _File:
        """Read the file at `place`; `path` is relative to the parent of the top-level package."""
        if str(place) not in self._files:
            try:
                if isinstance(place, Path) and not place.is_file():  # reading a pipe may block forever
                    raise FileNotFoundError
                content = place.read_bytes()
            except OSError:
                self._files[str(place)] = _File(MISSING)  # such as a broken link
            else:
                package = path.rpartition("/")[0].replace("/", ".")
                names = references(content, package) if path.endswith(".py") else ()
                self._files[str(place)] = _File(sha256(content), *names)
        return self._files[str(place)]


def sha256(data: bytes) -> str:
    """Return the SHA-256 digest in hexadecimal digits."""
    import hashlib  # loads OpenSSL, which listing plugins does not need

    return hashlib.sha256(data).hexdigest()


def _top(name: str) -> str:
    return name.partition(".")[0]
