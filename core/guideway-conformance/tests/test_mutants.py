"""The verdicts of the suite on plugins that are correct but for one changed place; see `suite_support.mutants`.

Run as a program in this folder, ``python -m test_mutants [SHARE [NAME...]]``, this file tries a share of all of them,
or of those of the originals named, and prints those that survive. The repository's root has to be on ``PYTHONPATH``.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest
from guideway_conformance.isolation import CannotLoad, Host
from guideway_conformance.registry import plan
from guideway_conformance.target import Target
from suite_support.mutants import Mutant, mutants

SECONDS = 10.0
"""The seconds of processor time for each check: a mutant may never end."""
AT_LEAST = 0.95
"""The share of the mutants that have to be caught."""


@dataclass(frozen=True)
class Original:
    """A correct plugin: the files of one package, of which some are changed, one at a time."""

    kind: str
    package: str
    """Whose files are copied."""
    module: str
    qualname: str
    changed: tuple[str, ...]
    within: tuple[str, ...] = ()
    """The classes of those files that are changed; empty: all."""


def probe(name: str) -> Original:
    """One of the probes, with its transform."""
    transform = f"{name}Sampler" if name == "Gumbel" else f"{name}Transform"
    return Original("modifier", "tests.support", "probes", name, ("probes.py",), (name, transform))


ORIGINALS = {
    "strategy": Original(
        "grammar", "guideway_conformance.reference", "strategy", "Strategy", ("strategy.py", "expressions.py")
    ),
    "device": Original("device", "guideway.devices", "numpy.device", "NumpyDevice", ("numpy/device.py", "philox.py")),
    "modifier": Original("modifier", "guideway_hello", "__init__", "Hello", ("__init__.py",)),
    **{name: probe(name) for name in ("GreenList", "Gumbel", "Guidance")},
}
WISHED = 'wished = step.ops.gather(logits, payload.rows) + holds_letter * payload.arrays["strength"][:, None]'
HOLDING = "holding = [i for i, token in enumerate(vocabulary.tokens) if letter.encode() in token.lower()]"
ONLY_MEMORY = "memory held, which can be told only roughly"
OTHER_ARRAYS = "logits of another library, of which the suite has none for a device of NumPy"
OWN_REFUSALS = "which patterns it refuses is a strategy's own affair, and compile refuses them too"
OWN_OPTIONS = "which options it takes is a strategy's own affair"
SHORTER = "the same language, written shorter"
QUALITY = "whether random numbers, and what is made of them, are good ones, no certificate says"
OTHER_WISH = "what a request may wish for, and what comes of it, is the modifier's own affair"
KEYED = 'hashed = step.ops.uniform(payload.arrays["key"], previous, previous, 0, self.context.logits_width)'
RAISED = 'raised = step.ops.gather(logits, payload.rows) + payload.arrays["delta"][:, None]'
GREEN = "return step.ops.where_rows(logits, payload.rows, hashed < 0.5, raised)"
NOISE = 'noise = -ops.log(-ops.log(step.uniform("gumbel", payload.rows, self.context.logits_width)))'
GUIDED = 'guided = unconditional + payload.arrays["scale"][:, None] * (conditional - unconditional)'
EITHER = "either = (conditional > -np.inf) * (unconditional > -np.inf)  # what a model itself forbids stays as it is"
SURVIVORS: dict[tuple[str, ...], str] = {
    ("strategy.py", 'parse_options(Options, options, where="grammar.reference")'): OWN_OPTIONS,
    ("expressions.py", "flat.discard(self.NOTHING)"): SHORTER,
    ("strategy.py", 'reason = _why_not_pattern(subschema["pattern"])'): OWN_REFUSALS,
    ("strategy.py", "if reason is not None:"): OWN_REFUSALS,
    ("strategy.py", "parse_regex(Language(), pattern)"): OWN_REFUSALS,
    ("strategy.py", "return NBYTES_PER_ENTRY * len(self.language)"): ONLY_MEMORY,
    ("expressions.py", "return len(self._known) + len(self._derivatives)"): ONLY_MEMORY,
    ("numpy/device.py", "blocks = np.arange(-(-width // 4), dtype=np.uint64)[None, :]"): "more numbers than are used",
    (
        "numpy/device.py",
        "return np.where(np.isneginf(largest), 0, largest)",
    ): "rows that allow nothing",
    ("numpy/device.py", 'if device != "cpu":'): "which names of devices are refused",
    ("numpy/device.py", "logits = logits.detach().cpu()"): OTHER_ARRAYS,
    ("numpy/device.py", 'if str(logits.dtype) == "torch.bfloat16":'): OTHER_ARRAYS,
    ("numpy/device.py", "logits = logits.float()"): OTHER_ARRAYS,
    ("__init__.py", WISHED): OTHER_WISH,
    ("__init__.py", "return step.ops.where_rows(logits, payload.rows, True, wished)"): OTHER_WISH,
    ("__init__.py", 'if not re.fullmatch("[a-z]", wish.letter) or not -100 <= wish.strength <= 100:'): OTHER_WISH,
    ("__init__.py", "wishes = [wish for i in sequences if (wish := states[i]) is not None]"): "None has no rows here",
    ("__init__.py", "if not wishes:"): "an empty payload does as little as none",
    ("__init__.py", HOLDING): OTHER_WISH,
    ("__init__.py", "self.tables[letter][holding] = 1"): OTHER_WISH,
    # of the probes; GreenList
    ("probes.py", KEYED, "0 becomes 1"): QUALITY,
    ("probes.py", RAISED, "Add becomes Sub"): OTHER_WISH,
    ("probes.py", GREEN, "Lt becomes LtE"): "a uniform number is an odd multiple of 2**-24, so none is 0.5",
    (
        "probes.py",
        "keys = np.array([state[0] if state else 0 for state in states], dtype=np.int64)",
        "0 becomes 1",
    ): "where it is said of None, which has no rows here; elsewhere which option is the key is the modifier's affair",
    (
        "probes.py",
        "deltas = np.array([state[1] if state else 0 for state in states], dtype=np.float32)",
        "0 becomes 1",
    ): "None has no rows here",
    # Gumbel
    ("probes.py", NOISE, "USub is dropped"): QUALITY,
    ("probes.py", "return ops.argmax(ops.gather(logprobs, payload.rows) + noise)", "Add becomes Sub"): QUALITY,
    (
        "probes.py",
        "return True if self.name in request.params.modifiers else None",
        "True becomes False",
    ): "a state is whatever is not None",
    # Guidance
    ("probes.py", GUIDED, "Add becomes Sub"): OTHER_WISH,
    ("probes.py", GUIDED, "Sub becomes Add"): OTHER_WISH,
    ("probes.py", GUIDED, "Mult becomes Add"): OTHER_WISH,
    (
        "probes.py",
        EITHER,
        "Gt becomes GtE",
    ): "of the first of the two: where the request's own row is at -inf, what comes of it is -inf too",
    (
        "probes.py",
        "scales = np.array([state or 0 for state in states], dtype=np.float32)",
        "0 becomes 1",
    ): "None has no rows here",
}
"""By file and line, and by what is changed where that alone is meant, why no check can tell."""


def sample(original: Original, share: float) -> Iterator[tuple[str, Mutant]]:
    """A share of all mutants of `original`, with the file each belongs to: by a hash of the line that is changed and of
    the change, so that a line that moves moves no mutant in or out."""
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
    """The line of the original that `mutant` changes."""
    return files(original.package).joinpath(file).read_text("utf-8").splitlines()[mutant.line - 1].strip()


def reason(original: Original, file: str, mutant: Mutant) -> str | None:
    """Why no check can tell `mutant` from its original; None if one should."""
    line = line_of(original, file, mutant)
    return SURVIVORS.get((file, line, mutant.change), SURVIVORS.get((file, line)))


def unchanged(original: Original) -> tuple[str, Mutant]:
    """One that nothing may catch, else what catches the others says nothing of them."""
    file = original.changed[0]
    return file, Mutant(0, "nothing", files(original.package).joinpath(file).read_text("utf-8"))


def killer(original: Original, file: str, mutant: Mutant, folder: Path) -> str | None:
    """The first check that catches `mutant`, or None."""
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
    chosen = [(file, mutant) for file, mutant in sample(original, 0.3) if reason(original, file, mutant) is None]
    assert chosen
    survivors = [f"{file}, {mutant.name}" for file, mutant in chosen if not killer(original, file, mutant, tmp_path)]
    assert len(survivors) <= (1 - AT_LEAST) * len(chosen), survivors


@pytest.mark.slow
def test_what_explains_survivors_is_still_there() -> None:
    sources = {
        file: files(original.package).joinpath(file).read_text("utf-8")
        for original in ORIGINALS.values()
        for file in original.changed
    }
    named = {survivor[0] for survivor in SURVIVORS if len(survivor) == 3}
    changes = {
        (file, sources[file].splitlines()[mutant.line - 1].strip(), mutant.change)
        for file in named
        for mutant in mutants(sources[file])
    }
    for survivor in SURVIVORS:
        lines = [text.strip() for text in sources[survivor[0]].splitlines()]
        assert survivor[1] in lines, f"{survivor[0]} has no line {survivor[1]!r} any more"
        assert len(survivor) == 2 or survivor in changes, f"no mutant is at {survivor} any more"


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
