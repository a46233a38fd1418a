"""The plan of the parent process, and how workers verify that they have the same."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import importlib_metadata
import pytest
from guideway.errors import InvalidConfiguration, PluginConflict, PluginError
from guideway.plugins import PluginIndex, PluginPlan, Plugins, PluginSettings, bootstrap_worker

from tests.support.environments import Environment, unpack
from tests.support.stages import everyday

PROGRAM = str(Path(__file__).parent / "worker_program.py")


@pytest.fixture
def plan(index: PluginIndex) -> PluginPlan:
    settings = PluginSettings(enable=("second",), deny=("*/device.segfault",))
    return Plugins(index, settings).plan([("grammar", "good"), ("worker", "good")], {"model": "demo", "seed": None})


def test_a_plan_names_what_was_selected_and_nothing_was_imported(plan: PluginPlan) -> None:
    assert [p.id for p in plan.plugins] == [
        "gwt-good/grammar.good",
        "gwt-good/worker.good",
        "gwt-hooks/hooks.second",
    ]
    assert {p.version for p in plan.plugins} == {"1.0"}
    assert all(p.digest.startswith("sha256:") for p in plan.plugins)
    assert not [name for name in sys.modules if name.startswith("gwt_")]


def test_the_fingerprint_depends_on_everything_but_order(index: PluginIndex, plan: PluginPlan) -> None:
    def fingerprint(selection: list[tuple[str, str]], configuration: Mapping[str, object], **settings: object) -> str:
        settings = {"enable": ("second",), "deny": ("*/device.segfault",), **settings}
        return Plugins(index, PluginSettings(**settings)).plan(selection, configuration).fingerprint  # type: ignore[arg-type]

    good = [("worker", "gwt-good/good"), ("grammar", "good"), ("grammar", "good")]
    same = {"seed": None, "model": "demo"}
    assert fingerprint(good, same) == plan.fingerprint
    assert fingerprint(good, same, lock="elsewhere.lock") == plan.fingerprint
    different = [
        fingerprint(good[1:], same),
        fingerprint(good, {**same, "seed": 1}),
        fingerprint(good, same, deny=()),
        fingerprint(good, same, enable=("first",)),
        replace(plan, contract="1.1").fingerprint,
        replace(plan, guideway="9").fingerprint,
        replace(plan, plugins=(replace(plan.plugins[0], digest="sha256:0"), *plan.plugins[1:])).fingerprint,
        replace(plan, plugins=(replace(plan.plugins[0], libraries=("torch 1.0",)), *plan.plugins[1:])).fingerprint,
    ]
    assert len({*different, plan.fingerprint}) == len(different) + 1


def test_its_summary_is_one_line_with_all_that_acts_on_requests(index: PluginIndex, plan: PluginPlan) -> None:
    assert plan.summary("its own engine") == (
        f"guideway {plan.guideway} in its own engine: strategies gwt-good/grammar.good 1.0; modifiers none; "
        "worker mixins gwt-good/worker.good 1.0; hooks gwt-hooks/hooks.second 1.0; device none; "
        f"fingerprint {plan.fingerprint}"
    )
    line = Plugins(index).plan([], {}).summary("vLLM 0.32.0", "ledger in a field")
    assert "strategies none; modifiers none; worker mixins none; hooks none; device none; ledger in a field;" in line


def test_a_plan_has_the_versions_of_the_libraries_that_its_plugins_require(index: PluginIndex) -> None:
    requires = ("Importlib_Metadata>=8", "numpy; python_version < '4'", "gwt-not-installed", 'pytest; extra == "test"')
    records = tuple(replace(r, requires=requires) if r.name == "good" else r for r in index.records)
    plan = Plugins(replace(index, records=records)).plan([("grammar", "good")], {})
    versions = [f"{name} {importlib_metadata.version(name)}" for name in ("importlib-metadata", "numpy")]
    assert [plugin.libraries for plugin in plan.plugins] == [tuple(versions)]
    (row,) = plan.differences(Plugins(index).plan([("grammar", "good")], {}))
    assert row.startswith(f"gwt-good/grammar.good libraries: want {tuple(versions)}, have (")


def test_it_pickles(plan: PluginPlan) -> None:
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan and copy.fingerprint == plan.fingerprint


def test_a_configuration_that_cannot_be_compared_is_refused(index: PluginIndex) -> None:
    for value in (object(), float("nan")):
        with pytest.raises(InvalidConfiguration, match="plain JSON values"):
            Plugins(index).plan([], {"model": value})


def test_a_plan_resolves_as_loading_does(index: PluginIndex) -> None:
    with pytest.raises(PluginConflict):
        Plugins(index).plan([("worker", "twice")], {})


def test_differences_are_told_row_by_row(plan: PluginPlan) -> None:
    first, _, third = plan.plugins
    other = replace(
        plan, plugins=(replace(first, version="2.0"), replace(third, id="gwt-x/hooks.second")), contract="1.5"
    )
    rows = plan.differences(other)
    assert rows == (
        "contract: want 1.0, have 1.5",
        "gwt-good/grammar.good version: want 1.0, have 2.0",
        "gwt-good/worker.good: want 1.0, have nothing: it is not installed or not selected",
        "gwt-hooks/hooks.second: want 1.0, have nothing: it is not installed or not selected",
        "gwt-x/hooks.second: want nothing, have 1.0",
    )
    assert plan.differences(plan) == ()


@pytest.fixture
def another_process(plan: PluginPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget that the plan was made in this process, where it needs no comparison."""
    monkeypatch.setattr("guideway.plugins.manager._BOOTSTRAPPED", {})


@pytest.mark.usefixtures("index", "another_process")
def test_a_worker_without_the_plugin_is_told_so(plan: PluginPlan, zoo: Environment) -> None:
    sys.path.remove(str(zoo.site))
    with pytest.raises(PluginError) as caught:
        bootstrap_worker(plan)
    assert caught.value.plugin == "gwt-good/grammar.good"
    assert "gwt-good/grammar.good: want 1.0, have nothing" in str(caught.value)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_worker_may_load_what_is_planned_and_nothing_else(
    plan: PluginPlan, elsewhere: bool, request: pytest.FixtureRequest
) -> None:
    if elsewhere:
        request.getfixturevalue("another_process")
    plugins = bootstrap_worker(plan)
    assert plugins.resolve("grammar", "good")
    with pytest.raises(PluginError, match="allow has no glob"):
        plugins.resolve("grammar", "better")
    assert [hook.plugin for hook in plugins.hooks().validate_request] == ["gwt-hooks/hooks.second"]


@pytest.fixture
def target(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> Path:
    unpack(wheels["good"], tmp_path / "target")
    return tmp_path / "target"


@pytest.mark.parametrize("method", everyday(["fork", "forkserver", "spawn"], "spawn"))
def test_workers_of_every_start_method(bare: Environment, target: Path, method: str) -> None:
    done = bare.run(str(bare.python), PROGRAM, method, PYTHONPATH=str(target))
    assert done.returncode == 0, done.stderr
    fingerprint, answer = [line for line in done.stdout.splitlines() if "being imported" not in line]
    assert answer == f"good {fingerprint} True"


@pytest.mark.parametrize("method", everyday(["fork", "forkserver", "spawn"], "fork"))
def test_a_worker_that_would_run_other_code_refuses(bare: Environment, target: Path, method: str) -> None:
    done = bare.run(str(bare.python), PROGRAM, method, str(target / "gwt_good.py"), PYTHONPATH=str(target))
    assert done.returncode == 0, done.stderr
    assert "PluginError gwt-good/grammar.good" in done.stdout
    assert "gwt-good/grammar.good digest: want sha256:" in done.stdout
