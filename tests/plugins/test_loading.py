"""Loading real packages, good and bad, in this process."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from guideway.api import GrammarStrategy, WorkerMixin
from guideway.errors import PluginLoadError
from guideway.plugins import PluginIndex, PluginRecord, Plugins
from guideway.plugins.loading import load

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def plugins(index: PluginIndex) -> Plugins:
    return Plugins(index)


def test_a_class_is_returned(plugins: Plugins) -> None:
    good, better = plugins.load("grammar", "good"), plugins.load("grammar", "better")
    assert issubclass(good, GrammarStrategy) and issubclass(better, good)
    assert (good.name, better.name) == ("good", "better")
    assert plugins.load("grammar", "gwt-good/good") is good


def test_selecting_one_component_activates_no_other(plugins: Plugins, zoo: object) -> None:
    assert issubclass(plugins.load("worker", "good"), WorkerMixin)
    assert [name for name in sys.modules if name.startswith("gwt_")] == ["gwt_good_worker"]
    assert {r.id for r in plugins.index.records if plugins.state(r)[0] == "loaded"} == {"gwt-good/worker.good"}


@pytest.mark.parametrize("distribution", ["gwt-claim-one", "gwt-claim-two"])
def test_a_claimant_named_in_full_is_loaded(plugins: Plugins, distribution: str) -> None:
    assert plugins.load("worker", f"{distribution}/twice").__module__ == distribution.replace("-", "_")


FAILURES = {
    # address: (phase, original cause, other text of the message)
    "grammar.broken": ("importing", "ImportError: libfoo.so.3: cannot open shared object file", "second line"),
    "device.exit": ("importing", "SystemExit: no licence found (exit status 1)", ""),
    "grammar.signature": ("registering its hooks", "PluginValidationError: ", "nmae"),
    "grammar.misspelt": (
        "registering its hooks",
        "PluginValidationError: ",
        "did you mean 'guideway_grammar_strategy'?",
    ),
    "grammar.nohook": ("calling its guideway_grammar_strategy", "LookupError: ", "no @hookimpl function"),
    "grammar.none": ("calling its guideway_grammar_strategy", "LookupError: ", "returned None"),
    "worker.lonely": ("checking its requirements", "MissingDistribution: ", "pip install gwt-nowhere"),
    "worker.early": ("checking its requirements", "IncompatibleVersion: ", "'guideway>=99'"),
    "grammar.newer": ("checking its class", "ContractViolation: ", "contract 1.99"),
    "grammar.old-major": ("checking its class", "ContractViolation: ", "upgrade the plugin"),
    "grammar.untyped": ("checking its class", "ContractViolation: ", "must be a string such as '1.0', not 1.0"),
    "grammar.wrongclass": ("checking its class", "ContractViolation: ", "subclass of guideway.api.GrammarStrategy"),
    "grammar.instance": ("checking its class", "ContractViolation: ", "'not a class', which is no class"),
    "grammar.abstract": ("checking its class", "ContractViolation: ", "does not implement compile"),
    "grammar.misnamed": ("checking its class", "ContractViolation: ", "name is 'something-else'"),
    "grammar.unkind": ("checking its class", "ContractViolation: ", "does not set the class variable kinds"),
    "hooks.wrapper": ("checking its hooks", "ContractViolation: ", "is a hook wrapper"),
    "hooks.empty": ("checking its hooks", "ContractViolation: ", "implements no hook"),
}


@pytest.mark.parametrize("address", FAILURES)
def test_a_failure_names_plugin_place_phase_and_cause(plugins: Plugins, zoo: object, address: str) -> None:
    kind, name = address.split(".", 1)
    phase, cause, detail = FAILURES[address]
    record = plugins.resolve(kind, name)
    with pytest.raises(PluginLoadError) as caught:
        plugins.load(kind, name)
    first, *_ = str(caught.value).splitlines()
    where = f"{kind} '{name}' ({record.distribution} {record.version} at {record.location})"
    assert first.startswith(f"{where} failed while {phase}: {cause}")
    assert detail in str(caught.value)
    assert caught.value.plugin == record.id
    assert type(caught.value.__cause__).__name__ == cause.partition(":")[0]


def test_a_failed_plugin_stays_failed_and_is_not_imported_again(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GWT_MARKER", str(tmp_path / "marker"))
    errors = []
    for asked in (plugins, plugins, Plugins(plugins.index)):
        with pytest.raises(PluginLoadError) as caught:
            asked.load("grammar", "broken")
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    assert len({id(error.__cause__) for error in errors}) == 1
    assert (tmp_path / "marker").read_text() == "gwt_broken_import\n"
    state, reason = plugins.state(plugins.resolve("grammar", "broken"))
    assert state == "failed" and "libfoo.so.3" in reason


def test_threads_that_ask_at_once_import_once(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GWT_MARKER", str(tmp_path / "marker"))
    barrier = threading.Barrier(8)

    def ask(_: int) -> str:
        barrier.wait()
        with pytest.raises(PluginLoadError) as caught:
            plugins.load("grammar", "broken")
        return str(caught.value)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert (tmp_path / "marker").read_text() == "gwt_broken_import\n"


def test_what_is_missing_is_not_imported(plugins: Plugins) -> None:
    for name in ("lonely", "early"):
        with pytest.raises(PluginLoadError):
            plugins.load("worker", name)
    assert not [name for name in sys.modules if name.startswith("gwt_")]
    assert plugins.state(plugins.resolve("worker", "early"))[0] == "failed"


def test_incompatible_is_known_before_anything_is_tried(plugins: Plugins) -> None:
    state, reason = plugins.state(plugins.resolve("worker", "early"))
    assert state == "incompatible" and "'guideway>=99'" in reason


def test_an_interrupt_passes_and_leaves_no_verdict(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("guideway.plugins.loading.import_module", interrupt)
        with pytest.raises(KeyboardInterrupt):
            plugins.load("grammar", "good")
    assert plugins.load("grammar", "good")


@pytest.mark.parametrize("becomes", [None, ImportError("you should not try to import numpy from here")])
def test_an_interrupt_that_a_module_catches_is_none_the_less_one(
    becomes: Exception | None, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    def catch(name: str) -> Any:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if becomes is not None:
                raise becomes from None
        return importlib.import_module(name)

    with monkeypatch.context() as patch:
        patch.setattr("guideway.plugins.loading.import_module", catch)
        with pytest.raises(KeyboardInterrupt):
            plugins.load("grammar", "good")
    assert plugins.load("grammar", "good")


def test_an_interrupt_that_no_signal_can_have_sent_is_the_plugins(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("guideway.plugins.loading.import_module", interrupt)
    with ThreadPoolExecutor(1) as pool, pytest.raises(PluginLoadError, match="importing: KeyboardInterrupt"):
        pool.submit(plugins.load, "grammar", "good").result()


def test_an_error_that_cannot_be_printed(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise ValueError

    def rude(name: str) -> None:
        raise Rude

    monkeypatch.setattr("guideway.plugins.loading.import_module", rude)
    with pytest.raises(PluginLoadError, match="failed while importing: Rude"):
        plugins.load("grammar", "good")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("gwt_odd", "pip install 'gwt-odd[fast]'"),
        ("gwt_odd:plugin", "pip install 'gwt-odd[fast]'"),
        ("gwt_od", "its entry point device.odd = 'gwt_od' names a module that does not exist"),
        ("gwt_od.part:plugin", "its entry point device.odd = 'gwt_od.part:plugin' names"),
        ("gwt_even", "pip check"),
    ],
)
def test_a_missing_module_has_a_hint_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, hint: str
) -> None:
    (tmp_path / "gwt_odd.py").write_text("import gwt_nowhere\n")
    (tmp_path / "gwt_even.py").write_text("import gwt_elsewhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    requires = ("guideway", 'Gwt.Nowhere>=2; python_version > "3" and extra == "fast"')
    record = PluginRecord("device", "odd", value, "gwt-odd", "1", str(tmp_path), requires=requires)
    with pytest.raises(PluginLoadError) as caught:
        load(record)
    hints = [line.strip() for line in str(caught.value).splitlines()[1:-1]]
    assert len(hints) == 1 and hints[0].startswith(f"hint: {hint}")


def test_import_time_is_known(plugins: Plugins) -> None:
    assert load(plugins.resolve("grammar", "good")).import_seconds > 0


def test_looking_needs_neither_numpy_nor_pluggy() -> None:
    program = (
        "import sys, guideway.plugins as p, guideway.command_line.plugins\n"
        "import guideway.plugins.doctor, guideway.plugins.lock\n"
        "plugins = p.Plugins(); [plugins.state(r) for r in plugins.index.records]; p.PluginPlan, p.Hooks\n"
        "sys.exit(', '.join({'numpy', 'pluggy', 'torch', 'rich'} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
