"""The verdicts of the suite on correct plugins with one place changed; see `suite_support.mutants`.

``python -m test_mutants [SHARE [NAME...]]`` in this folder tries a share of all mutants, or only of the mutants of the
named originals, and prints the survivors. The repository's root must be on ``PYTHONPATH``.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pytest
from guideway_conformance.isolation import CannotLoad, Host
from guideway_conformance.known_failures import Preferences
from guideway_conformance.registry import plan
from guideway_conformance.subjects import Settings
from guideway_conformance.target import Target
from suite_support.mutants import Mutant, mutants
from suite_support.survivors import DROPPED, SURVIVORS

SECONDS = 10.0
"""CPU seconds for each check, because a mutant may never end."""
AT_LEAST = 0.95
"""Minimum share of the mutants that must be caught."""


@dataclass(frozen=True)
class Original:
    """A correct plugin: the files of one package, some of which are changed, one at a time."""

    kind: str
    package: str
    """The package whose files are copied."""
    module: str
    qualname: str
    changed: tuple[str, ...]
    within: tuple[str, ...] = ()
    """The classes in those files that are changed; empty: all."""
    settings: Settings = field(default_factory=Settings)
    """The settings for its certification."""
    share: float = 0.3
    """The share of its mutants that the test tries."""


LEGACY = Preferences.read(Path(__file__).parents[3] / "contrib/guideway-legacy/conformance.toml")


def probe(name: str) -> Original:
    """Return one of the probes, with its transform."""
    transform = f"{name}Sampler" if name == "Gumbel" else f"{name}Transform"
    return Original("modifier", "tests.support", "probes", name, ("probes.py",), (name, transform))


ORIGINALS = {
    "strategy": Original(
        "grammar", "guideway_conformance.reference", "strategy", "Strategy", ("strategy.py", "expressions.py")
    ),
    "device": Original("device", "guideway.devices", "numpy.device", "NumpyDevice", ("numpy/device.py", "philox.py")),
    "modifier": Original("modifier", "guideway_hello", "__init__", "Hello", ("__init__.py",)),
    **{name: probe(name) for name in ("GreenList", "Gumbel", "Guidance", "Aligned")},
    "legacy": Original(
        "modifier",
        "guideway_legacy",
        "modifier",
        "LegacyModifier",
        ("modifier.py", "transform.py", "calls.py", "processors.py", "params.py", "batches.py", "watch.py"),
        settings=LEGACY.subjects["modifier.legacy"],
        share=0.05,
    ),
}


def sample(original: Original, share: float) -> Iterator[tuple[str, Mutant]]:
    """Yield a share of all mutants of `original`, each with its file. They are chosen by a hash of the changed line and
    of the change, so that moving a line does not change the choice."""
    for file in original.changed:
        source = files(original.package).joinpath(file).read_text("utf-8")
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
        lines = {n for c in classes if c.name in original.within for n in range(c.lineno, (c.end_lineno or 0) + 1)}
        for mutant in mutants(source):
            if original.within and mutant.line not in lines:
                continue
            place = f"{file} {line_of(original, file, mutant)} {mutant.change}"
            if zlib.crc32(place.encode()) % 1000 < 1000 * share:
                yield file, mutant


def line_of(original: Original, file: str, mutant: Mutant) -> str:
    """Return the line of the original that `mutant` changes."""
    return files(original.package).joinpath(file).read_text("utf-8").splitlines()[mutant.line - 1].strip()


def reason(original: Original, file: str, mutant: Mutant) -> str | None:
    """Return why no check can tell `mutant` from its original; None if one should."""
    line = line_of(original, file, mutant)
    known = SURVIVORS.get(original.package, {})
    return known.get((file, line, change_of(mutant)), known.get((file, line)))


def change_of(mutant: Mutant) -> str:
    """Return the change as the table of survivors names it."""
    what, is_dropped, _ = mutant.change.rpartition(" is dropped")
    return DROPPED if is_dropped and what not in ("Not", "USub", "Invert") else mutant.change


def unchanged(original: Original) -> tuple[str, Mutant]:
    """Return a mutant without a change, which no check may catch: otherwise catching others would prove nothing."""
    file = original.changed[0]
    return file, Mutant(0, "nothing", files(original.package).joinpath(file).read_text("utf-8"))


def killer(original: Original, file: str, mutant: Mutant, folder: Path) -> str | None:
    """Return the first check that catches `mutant`, or None."""
    name = f"mutant_{zlib.crc32(f'{file} {mutant.source}'.encode()):x}"
    package = folder / name
    package.mkdir()
    root = Path(str(files(original.package)))
    for source in root.rglob("*.py"):
        relative = source.relative_to(root)
        text = mutant.source if relative.as_posix() == file else source.read_text("utf-8")
        (package / relative).parent.mkdir(exist_ok=True)
        (package / relative).write_text(text.replace(f"{original.package}.", f"{name}."), encoding="utf-8")
    module = name if original.module == "__init__" else f"{name}.{original.module}"
    path = str(folder)
    sys.path.insert(0, path)
    try:
        target = Target(
            kind=original.kind,
            module=module,
            qualname=original.qualname,
            file=str((package / f"{original.module.replace('.', '/')}.py").resolve()),
            settings=original.settings,
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
    chosen = [
        (file, mutant) for file, mutant in sample(original, original.share) if reason(original, file, mutant) is None
    ]
    assert chosen
    survivors = [f"{file}, {mutant.name}" for file, mutant in chosen if not killer(original, file, mutant, tmp_path)]
    assert len(survivors) <= (1 - AT_LEAST) * len(chosen), survivors


@pytest.mark.slow
def test_what_explains_survivors_is_still_there() -> None:
    for package, known in SURVIVORS.items():
        sources = {file: files(package).joinpath(file).read_text("utf-8") for file, *_ in known}
        changes = {
            (file, source.splitlines()[mutant.line - 1].strip(), change_of(mutant))
            for file, source in sources.items()
            for mutant in mutants(source)
        }
        places = {change[:2] for change in changes}
        for survivor in known:
            assert survivor in (changes if len(survivor) == 3 else places), f"{package}: no mutant is at {survivor}"


def main() -> None:
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    for name in sys.argv[2:] or ORIGINALS:
        original = ORIGINALS[name]
        number = survived = 0
        for file, mutant in sample(original, share):
            with tempfile.TemporaryDirectory() as folder:
                number += 1
                if killer(original, file, mutant, Path(folder)) is None:
                    survived += 1
                    why = reason(original, file, mutant) or "unexplained"
                    print(f"survived: {file}, {mutant.name} ({why})", flush=True)
        print(f"{name}: {number - survived} of {number} caught, {1 - survived / number:.1%}", flush=True)


if __name__ == "__main__":
    main()
