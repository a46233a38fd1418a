"""What the suite makes of plugins that are correct but for one changed place; see `tests.conformance.mutants`.

Run as a program, ``python -m tests.conformance.test_mutants [SHARE]``, this file tries a share of all of them and
prints those that survive.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest
from guideway.conformance.isolation import CannotLoad, Host
from guideway.conformance.registry import plan
from guideway.conformance.target import Target

from tests.conformance.mutants import Mutant, mutants

SECONDS = 10.0
"""Of processor time for each check: a mutant may never end."""
AT_LEAST = 0.95
"""Of the mutants have to be caught."""


@dataclass(frozen=True)
class Original:
    """A correct plugin: the files of one package, of which some are changed, one at a time."""

    kind: str
    package: str
    """Whose files are copied."""
    module: str
    qualname: str
    changed: tuple[str, ...]


ORIGINALS = {
    "strategy": Original(
        "grammar", "guideway.builtin.reference", "strategy", "Strategy", ("strategy.py", "expressions.py")
    ),
    "device": Original("device", "guideway.builtin", "numpy_device", "NumpyDevice", ("numpy_device.py", "philox.py")),
    "modifier": Original("modifier", "guideway_hello", "__init__", "Hello", ("__init__.py",)),
}
SURVIVORS = {
    # file, line of the change and why nobody could tell
}


def sample(original: Original, share: float) -> Iterator[tuple[str, Mutant]]:
    """A share of all mutants of `original`, by a hash of what is changed, with the file each belongs to."""
    for file in original.changed:
        for mutant in mutants(files(original.package).joinpath(file).read_text("utf-8")):
            if zlib.crc32(f"{file} {mutant.name}".encode()) % 1000 < 1000 * share:
                yield file, mutant


def unchanged(original: Original) -> tuple[str, Mutant]:
    """One that nothing may catch, else what catches the others says nothing of them."""
    file = original.changed[0]
    return file, Mutant(0, "nothing", files(original.package).joinpath(file).read_text("utf-8"))


def killer(original: Original, file: str, mutant: Mutant, folder: Path) -> str | None:
    """The first check that catches `mutant`, or None."""
    name = f"mutant_{zlib.crc32(f'{file} {mutant.name} {mutant.line}'.encode()):x}"
    package = folder / name
    package.mkdir()
    for source in files(original.package).iterdir():
        if source.name.endswith(".py"):
            text = mutant.source if source.name == file else source.read_text("utf-8")
            (package / source.name).write_text(text.replace(f"{original.package}.", f"{name}."), encoding="utf-8")
    (package / "__init__.py").touch()
    module = name if original.module == "__init__" else f"{name}.{original.module}"
    path = str(folder)
    sys.path.insert(0, path)
    try:
        target = Target(
            kind=original.kind,
            module=module,
            qualname=original.qualname,
            file=str((package / f"{original.module}.py").resolve()),
        )
        with Host(target) as host:
            planned = plan(target.kind, host.declared, host.traits, up_to="stateful")
            for result in host.run(planned, jobs=2, seconds=SECONDS):
                if result.outcome != "pass":
                    return result.obligation.check
    except CannotLoad:
        return "loading"
    finally:
        sys.path.remove(path)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINALS)
def test_mutants_are_caught(name: str, tmp_path: Path) -> None:
    original = ORIGINALS[name]
    assert killer(original, *unchanged(original), tmp_path) is None
    chosen = list(sample(original, 0.2))
    assert chosen
    survivors = [f"{file}, {mutant.name}" for file, mutant in chosen if not killer(original, file, mutant, tmp_path)]
    unexplained = [survivor for survivor in survivors if survivor not in SURVIVORS]
    assert len(unexplained) <= (1 - AT_LEAST) * len(chosen), unexplained


def main() -> None:
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    for name, original in ORIGINALS.items():
        number = survived = 0
        for file, mutant in sample(original, share):
            with tempfile.TemporaryDirectory() as folder:
                number += 1
                if killer(original, file, mutant, Path(folder)) is None:
                    survived += 1
                    print(f"survived: {file}, {mutant.name}", flush=True)
        print(f"{name}: {number - survived} of {number} caught, {1 - survived / number:.1%}", flush=True)


if __name__ == "__main__":
    main()
