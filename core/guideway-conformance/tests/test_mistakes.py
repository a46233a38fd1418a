"""Correct plugins with one mistake each, which the check named by the mistake must catch.

`mistakes/NAME.py` is a plugin, and each table of `mistakes/NAME.toml` replaces one text in it: its own `find`, or the
file's. Each check in `rule` has to fail. If it is empty, the change breaks no promise, so no check may fail.
`removed_mutants.py` runs the mistakes that were here before.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest
from guideway_conformance.isolation import Host
from guideway_conformance.outcomes import Outcome
from guideway_conformance.registry import KIND_MODULES, TIERS, Mode, Obligation, Tier, checks, plan
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from suite_support.nursery import Nursery

from tests.support.stages import everyday

FOLDER = Path(__file__).parent / "mistakes"
EVERY_DAY = 40
"""One in this many mistakes is tried every day, all of them in the slow stage."""
LONG = {
    *("grammar.released_grammars_are_freed", "grammar.has_something_to_test", "grammar.forks_go_to_other_threads"),
    *("grammar.matchers_are_independent", "grammar.stop_tokens_are_those_of_the_matcher"),
    "grammar.constraints_that_live_together_are_told_apart",
}
"""Checks that take seconds: their mistakes are tried in the slow stage only."""
SLOW_TO_IMPORT = ("torch", "transformers.models.llama.modeling_llama", "guideway.devices.torch.device", "tokenizers")
TESTED_KINDS = [kind for kind, modules in KIND_MODULES.items() if modules]


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
    mode: Mode = "positive"
    outcome: Outcome = "fail"
    """``error`` if it breaks no rule but shows nothing: the check is then not performed."""
    up_to: Tier = TIERS[-1]
    """The last tier that the plugin itself is held to."""

    @property
    def source(self) -> str:
        text = (FOLDER / f"{self.plugin}.py").read_text("utf-8")
        assert not self.find or text.count(self.find) == 1, f"{self.name}: found {text.count(self.find)} times"
        return text.replace(self.find, self.replace) if self.find else text

    def target(self, folder: Path) -> Target:
        """Write the plugin to `folder`, which must be on the path."""
        module = f"mistake_{crc32(f'{self.plugin} {self.name}'.encode()):x}"
        file = folder / f"{module}.py"
        file.write_text(self.source, encoding="utf-8")
        return Target(kind=self.kind, module=module, qualname=self.qualname, file=str(file))


def mistakes() -> Iterator[Mistake]:
    for file in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(file.read_text("utf-8"))
        yield Mistake(file.stem, table["kind"], table["class"], up_to=table.get("up_to", TIERS[-1]))
        for name, change in table["mutants"].items():
            for rule in [change["rule"]] if isinstance(change["rule"], str) else change["rule"]:
                about = {"find": table.get("find", ""), **change, "rule": rule}
                yield Mistake(file.stem, table["kind"], table["class"], name, **about)


ALL = list(mistakes())
WRONG = [mistake for mistake in ALL if mistake.rule]
CORRECT = [mistake for mistake in ALL if not mistake.rule]
OFTEN = [mistake for mistake in WRONG[::EVERY_DAY] if mistake.rule not in LONG]


def name_of(mistake: Mistake) -> str:
    return f"{mistake.plugin}-{mistake.name}-{mistake.rule.partition('.')[2]}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(*SLOW_TO_IMPORT) as found:
        yield found


@pytest.mark.slow
def test_mistakes_are_changes_that_compile() -> None:
    for mistake in ALL:
        compile(mistake.source, mistake.name, "exec")


@pytest.mark.parametrize("kind", TESTED_KINDS)
def test_each_check_has_a_mistake(kind: str) -> None:
    found = {(mistake.rule, mistake.mode) for mistake in WRONG if mistake.kind == kind and mistake.outcome == "fail"}
    wanted = {(check.id, "positive") for check in checks(kind)}
    wanted |= {(check.id, "refusal") for check in checks(kind) if check.refusal}
    assert found == wanted


@pytest.mark.parametrize("mistake", everyday(WRONG, *OFTEN), ids=name_of)
def test_a_mistake_fails_its_rule(nursery: Nursery, mistake: Mistake, folder: Path) -> None:
    result = nursery.perform(mistake.target(folder), Obligation(mistake.rule, mistake.mode))
    assert result.outcome == mistake.outcome
    assert result.detail


@pytest.mark.slow
@pytest.mark.parametrize("mistake", CORRECT, ids=name_of)
def test_what_is_correct_is_certified(mistake: Mistake, folder: Path) -> None:
    with Host(mistake.target(folder)) as host:
        planned = plan(mistake.kind, host.declared, host.traits, up_to=mistake.up_to)
        assert [result for result in host.run(planned, jobs=2) if result.outcome != "pass"] == []


@pytest.mark.parametrize("kind", everyday(TESTED_KINDS))
def test_a_mistake_does_not_break_the_suite(kind: str, folder: Path) -> None:
    of_core = {check.id for check in checks(kind) if check.tier == "core"}
    mistake = next(each for each in WRONG if each.rule in of_core and each.outcome == "fail")
    report = run(mistake.target(folder), up_to="core")
    assert report.verdict == "failed"
    assert {result.outcome for result in report.results} == {"pass", "fail"}
    assert mistake.rule in {result.obligation.check for result in report.results if result.outcome == "fail"}
