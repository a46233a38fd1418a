"""Correct plugins with one mistake each, which the check named by the mistake must catch.

`mistakes/NAME.py` is a plugin, and each table of `mistakes/NAME.toml` replaces one text in it. If `rule` is empty, the
change breaks no rule, so no check may fail. `removed_mutants.py` runs mistakes that were removed.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest
from guideway_conformance.isolation import CannotLoad, Host
from guideway_conformance.registry import TIERS, checks, plan
from guideway_conformance.target import Target

from tests.support.stages import everyday

FOLDER = Path(__file__).parent / "mistakes"
EVERY_DAY = ("torchlets", "admission")
"""Plugins whose first mistake is tested every day."""


@dataclass(frozen=True)
class Mistake:
    """One change of a plugin in `FOLDER`; without `find` and `replace`, the unchanged plugin."""

    plugin: str
    kind: str
    qualname: str
    name: str = "unchanged"
    find: str = ""
    replace: str = ""
    rule: str = ""

    @property
    def source(self) -> str:
        text = (FOLDER / f"{self.plugin}.py").read_text("utf-8")
        assert not self.find or text.count(self.find) == 1, f"{self.name}: found {text.count(self.find)} times"
        return text.replace(self.find, self.replace) if self.find else text

    def objections(self, folder: Path) -> Iterator[str]:
        """Yield the checks that fail: only `rule` is run if there is one, otherwise all tiers."""
        module = f"mistake_{crc32(f'{self.plugin} {self.name}'.encode()):x}"
        file = folder / f"{module}.py"
        file.write_text(self.source, encoding="utf-8")
        sys.path.insert(0, str(folder))
        try:
            with Host(Target(kind=self.kind, module=module, qualname=self.qualname, file=str(file))) as host:
                planned = plan(self.kind, host.declared, host.traits, up_to=TIERS[-1])
                owed = [obligation for obligation in planned if not self.rule or obligation.check == self.rule]
                for result in host.run(owed, jobs=2):
                    if result.outcome != "pass":
                        yield result.obligation.check
        except CannotLoad:
            yield "loading"
        finally:
            sys.path.remove(str(folder))


def mistakes() -> Iterator[Mistake]:
    for file in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(file.read_text("utf-8"))
        yield Mistake(file.stem, table["kind"], table["class"])
        for name, change in table["mutants"].items():
            yield Mistake(file.stem, table["kind"], table["class"], name, **change)


ALL = list(mistakes())
WRONG = [mistake for mistake in ALL if mistake.rule]
CORRECT = [mistake for mistake in ALL if not mistake.rule]
OFTEN = [next(mistake for mistake in WRONG if mistake.plugin == plugin) for plugin in EVERY_DAY]


def name_of(mistake: Mistake) -> str:
    return f"{mistake.plugin}-{mistake.name}"


def test_mistakes_are_changes_that_compile() -> None:
    for mistake in ALL:
        compile(mistake.source, mistake.name, "exec")
        assert not mistake.rule or mistake.rule in {"loading", *(check.id for check in checks(mistake.kind))}


@pytest.mark.parametrize("mistake", everyday(WRONG, *OFTEN), ids=name_of)
def test_a_mistake_fails_its_rule(mistake: Mistake, tmp_path: Path) -> None:
    assert set(mistake.objections(tmp_path)) == {mistake.rule}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", CORRECT, ids=name_of)
def test_what_is_correct_is_certified(mistake: Mistake, tmp_path: Path) -> None:
    assert list(mistake.objections(tmp_path)) == []
