"""``guideway plugins new``: write a new plugin package that passes its conformance checks."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

from guideway import __version__
from guideway.errors import InvalidConfiguration
from guideway.files import reason
from guideway.plugins.kinds import KINDS, NAME, normalize

__all__ = ["KINDS_TO_WRITE", "new_package"]

KINDS_TO_WRITE = {
    "grammar": "grammar strategy",
    "device": "device backend",
    "modifier": "logit modifier",
    "worker": "worker mixin",
    "hooks": "validator and observer",
    "workflow": "workflow",
    "attention": "attention backend",
}
"""Descriptions of the kinds that the suite has checks for."""

EXTRAS = dict.fromkeys(("worker", "workflow", "attention"), "conformance,engine")
"""The extras of guideway that the tests of a kind need, if not only ``conformance``."""


def new_package(kind: str, name: str, folder: Path, distribution: str = "") -> list[Path]:
    """Write a package with the component ``kind.name`` into `folder`, and return its files.

    `distribution` defaults to ``guideway-name``. Raises `InvalidConfiguration` for an unsupported kind, an invalid
    name, a folder that is not empty, and files that cannot be written.
    """
    if kind not in KINDS_TO_WRITE:
        why = "its contract is not settled yet" if kind in KINDS else "there is no such kind"
        kinds = ", ".join(KINDS_TO_WRITE)
        raise InvalidConfiguration(f"cannot create a plugin of kind {kind!r}: {why}; kinds: {kinds}", field="kind")
    if not NAME.fullmatch(name):
        raise InvalidConfiguration(
            f"a component cannot be named {name!r}: use lowercase letters, digits, '-' and '_', starting with a letter",
            field="name",
        )
    distribution = normalize(distribution or f"guideway-{name}")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", distribution):
        raise InvalidConfiguration(
            f"a distribution cannot be named {distribution!r}: use letters, digits and '-'", field="distribution"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidConfiguration(f"{folder} already exists and is not empty; choose another folder", field="folder")
    module = distribution.replace("-", "_")
    if not module.isidentifier():
        raise InvalidConfiguration(
            f"{module!r} is not a valid module name; choose another --distribution", field="name"
        )
    extras = EXTRAS.get(kind, "conformance")
    words = {
        "kind": kind,
        "name": name,
        "name_": name.replace("-", "_"),
        "class": "".join(word.capitalize() for word in re.split("[-_]", name)),
        "distribution": distribution,
        "module": module,
        "what": KINDS_TO_WRITE[kind],
        "extras": extras,
        "needed": " and ".join(f"guideway-{extra}" for extra in extras.split(",")),
        "guideway": __version__,
    }
    source = folder / "src" / module
    contents = {
        folder / "pyproject.toml": _fill("pyproject.toml", words),
        folder / "README.md": _fill("README.md", words),
        folder / ".github" / "workflows" / "conformance.yml": _fill("conformance.yml", words),
        folder / "tests" / "test_conformance.py": _fill("test_conformance.py", words),
        source / "__init__.py": _fill(f"{kind}.py", words),
        source / "py.typed": "",
    }
    for path, text in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise InvalidConfiguration(
                f"cannot write {path}: {reason(error)}; choose another folder", field="folder"
            ) from error
    return list(contents)


def _fill(name: str, words: dict[str, str]) -> str:
    return Template(files(__package__).joinpath("templates", f"{name}.txt").read_text("utf-8")).substitute(words)
