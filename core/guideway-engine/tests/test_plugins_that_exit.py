"""A plugin that exits or crashes on import is named with its status, for every kind of plugin."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest
from guideway import PluginSettings
from guideway.command_line.program import main
from guideway.errors import PluginExited
from guideway.plugins import Plugins

from tests.support.distributions import install
from tests.support.stages import one_in

QUIET = "import faulthandler, os, signal\nfaulthandler.disable()\n"
WAYS = {
    "sys_exit": ("import sys\nsys.exit(3)", 3, "SystemExit: 3 (exit status 3)"),
    "exit_text": ("raise SystemExit('no licence')", 1, "SystemExit: no licence (exit status 1)"),
    "exit_none": ("raise SystemExit", 0, "SystemExit (exit status 0)"),
    "interrupt": ("raise KeyboardInterrupt", 130, "KeyboardInterrupt (exit status 130)"),
    "os_exit": ("import os\nos._exit(7)", 7, "it ends the process that imports it, with status 7"),
    "os_exit_0": ("import os\nos._exit(0)", 0, "it ends the process that imports it, with status 0"),
    "segfault": (
        f"{QUIET}os.kill(os.getpid(), signal.SIGSEGV)\nsignal.pause()",
        -signal.SIGSEGV,
        "it ends the process that imports it, by SIGSEGV",
    ),
    "abort": (
        f"{QUIET}print('noise', flush=True)\nos.abort()",
        -signal.SIGABRT,
        "by SIGABRT",
    ),
}
FLAGS = {
    "grammar": "--strategy",
    "modifier": "--modifier",
    "device": "--device-backend",
    "worker": "--worker-mixins",
    "executor": "--executor",
    "runner": "--runner",
    "workflow": "--workflow",
    "model": "--model",
    "hooks": "--enable-plugin",
}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"{kind}.{way.replace('_', '-')}": f"ends_by_{way}" for kind in FLAGS for way in WAYS}
    install(tmp_path, "ends", entries)
    for way, (code, _, _) in WAYS.items():
        (tmp_path / f"ends_by_{way}.py").write_text(code + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("guideway.plugins.loading._OUTCOMES", {})


@pytest.mark.parametrize("way", one_in(3, WAYS))
def test_a_command_survives_and_names_it(way: str, capfd: pytest.CaptureFixture[str]) -> None:
    _, status, said = WAYS[way]
    assert main(["inspect", "--model", "demo", "--regex", "a", "--strategy", way.replace("_", "-")]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"guideway: grammar {way.replace('_', '-')!r} (ends 1.0 at ") and said in err
    assert "guideway plugins doctor --import ends/grammar." in err
    error = caught(way, "grammar") if "process" not in said and "by" not in said else None
    assert error is None or error.status == status


def caught(way: str, kind: str) -> PluginExited:
    with pytest.raises(PluginExited) as raised:
        Plugins().load(kind, way.replace("_", "-"))
    return raised.value


@pytest.mark.parametrize("kind", FLAGS)
def test_whatever_its_kind(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = [FLAGS[kind], "os-exit"]
    before, after = (chosen, []) if kind == "hooks" else ([], chosen)  # flags before and after the command's name
    model = [] if kind == "model" else ["--model", "demo"]
    assert main([*before, "generate", *model, *after, "--prompt", "x", "--max-tokens", "1"]) == 2
    err = capfd.readouterr().err
    assert f"{kind} 'os-exit' (ends 1.0 at " in err and "it ends the process that imports it, with status 7" in err


def test_what_raises_is_an_error_of_a_program_too_again_and_in_any_thread() -> None:
    for _ in range(2):
        assert caught("sys_exit", "device").status == 3
    found: list[PluginExited] = []
    thread = threading.Thread(target=lambda: found.append(caught("interrupt", "modifier")))
    thread.start()
    thread.join()
    assert [error.status for error in found] == [130]
    with pytest.raises(PluginExited):
        Plugins(settings=PluginSettings(enable=("interrupt",))).hooks()


def test_a_real_interrupt_stays_one(tmp_path: Path) -> None:
    (tmp_path / "sends_interrupt.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n", "utf-8")
    install(tmp_path / "more", "interrupted", {"grammar.interrupted": "sends_interrupt"})
    sys.path.insert(0, str(tmp_path / "more"))
    try:
        with pytest.raises(KeyboardInterrupt):
            Plugins().load("grammar", "interrupted")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        sys.path.remove(str(tmp_path / "more"))
