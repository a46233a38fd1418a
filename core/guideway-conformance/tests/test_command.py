"""``guideway conform`` from end to end, on installed plugins."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guideway.command_line.program import main
from guideway.errors import PluginUnavailable
from guideway.plugins import Plugins, PluginSettings
from guideway_conformance import certifying
from guideway_conformance.outcomes import Result
from guideway_conformance.report import Report
from guideway_conformance.runner import run
from guideway_conformance.target import Target, find
from suite_support.packages import BROKEN, GOOD, UNLOADABLE, install

from tests.support.stages import everyday
from tests.support.terminal import shown_at_terminal

CORE = ["conform", "device.mine", "--up-to", "core"]
HANGING = f"""\
{GOOD}

def apply_bitmask(self, logits, bitmask, rows):
    import os, signal
    with open("begun", "w") as pipe:
        pipe.write(str(os.getpid()))
    while True:
        signal.pause()


Device.apply_bitmask = apply_bitmask
"""
KNOWN = """\
[known_failures]
"device.zero_bits_forbid" = {{ reason = "r", issue = "i", until = {until} }}
"""


@pytest.mark.slow
def test_no_file_is_two_things_and_no_link_is_followed(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CORE, "--report", "a.json", "--markdown", "./a.json"]) == 2
    assert "--report and --markdown name the same file" in capsys.readouterr().err
    Path("victim").write_text("precious")
    Path("a.json").symlink_to("victim")
    Path("folder").mkdir()
    assert main(["conform", "device.mine", "--up-to", "smoke", "--report", "a.json"]) == 2
    assert (Path("victim").read_text(), Path("a.json").is_symlink()) == ("precious", False)
    assert main(["conform", "matrix", "a.json", "--markdown", "a.json"]) == 2
    assert "REPORT a.json and --markdown name the same file" in capsys.readouterr().err
    assert main(["conform", "matrix", "a.json", "--markdown", "folder"]) == 2
    assert "cannot write 'folder': it is a folder, not a regular file" in capsys.readouterr().err
    os.mkfifo("pipe")
    assert main(["conform", "matrix", "pipe"]) == 2
    assert "pipe is no conformance report: it is a named pipe, not a regular file" in capsys.readouterr().err


def test_certified_and_every_form_of_the_report(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forms = [f"--{form}={form}.out" for form in ("report", "markdown", "junit", "badge")]
    assert main([*CORE, *forms]) == 0
    out = capsys.readouterr().out
    assert "gwt-mine/device.mine: CERTIFIED" in out and "\nlevels: smoke, core\n" in out
    assert "\033" not in out and "\r" not in out
    report = Report.read("report.out")
    assert (report.verdict, report.plugin, report.up_to) == ("certified", "gwt-mine/device.mine", "core")
    assert Path("markdown.out").read_text().startswith("## gwt-mine/device.mine 1.0: certified")
    assert Path("junit.out").read_text().startswith("<testsuites>")
    assert json.loads(Path("badge.out").read_text())["message"] == "core"
    assert not Path("guideway.lock").exists()
    assert main(["conform", "verify", "report.out"]) == 0
    assert main(["conform", "matrix", "report.out", "--html", "a/site", "--markdown", "m.md"]) == 0
    assert "device.mine" in Path("a/site/index.html").read_text() and "device.mine" in Path("m.md").read_text()
    assert main(["conform", "verify", "a/site/gwt-mine.device.mine.json"]) == 0


def test_failed_names_the_rule_the_check_and_what_the_plugin_did(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, BROKEN)
    assert main([*CORE, "--report", "r.json"]) == 1
    out = capsys.readouterr().out
    assert "FAILED device.zero_bits_forbid" in out
    assert "rule: A token whose bit is 0 gets -inf, and no other changes." in out
    assert "it did: of a mask that allows" in out
    report = Report.read("r.json")
    assert {r.detail for r in report.results if r.outcome == "error"} == {"not performed, because a smoke check failed"}
    assert main(["conform", "verify", "r.json"]) == 1


def test_up_to_smoke_is_no_certification(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "mine", "--up-to", "smoke", "--record"]) == 2
    told = capsys.readouterr()
    assert "INCOMPLETE" in told.out and "no certification" in told.out
    assert "not recorded" in told.err and not Path("guideway.lock").exists()


@pytest.mark.slow
def test_known_failures_have_a_status_of_their_own(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, BROKEN)
    Path("conformance.toml").write_text(KNOWN.format(until="2999-01-01"))
    assert main(["conform", "mine", "--up-to", "smoke"]) == 3
    assert "KNOWN FAILURES" in capsys.readouterr().out
    Path("conformance.toml").write_text(KNOWN.format(until="2020-01-01"))
    assert main(["conform", "mine", "--up-to", "smoke"]) == 1
    install(site, GOOD)
    assert main(["conform", "mine", "--up-to", "smoke"]) == 1, "it passes, so that its entry is wrong"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["no.such"], 4, "no installed plugin is called 'no.such'"),
        (["mime"], 4, "did you mean 'mine'?"),
        (["executor.local"], 4, "not settled"),
        (["workflow.decode"], 4, "generates: its requests are in many steps"),
        (["mine", "--contract", "9.0"], 2, "newer than this guideway's"),
        (["mine", "--contract", "0.1"], 2, "no checks of device plugins for contract 0.1"),
        (["mine", "--contract", "one"], 2, "MAJOR.MINOR"),
        (["mine", "--up-to", "top"], 2, "invalid choice"),
        (["mine", "--jobs", "0"], 2, "at least 1"),
        (["mine", "--timeout-factor", "-1"], 2, "greater than 0"),
        (["mine", "--report", "no/such/r.json"], 2, "there is no folder"),
        (["matrix", "absent.json"], 2, "no conformance report"),
        (["matrix"], 2, "required: REPORT"),
        (["matrix", "r.json", "--html", "m.html"], 2, "names a file"),
        ([], 2, "name a PLUGIN, or give --config FILE"),
        (["mine", "--config", "guideway.toml"], 2, "not both"),
        (["--config", "no.toml"], 2, "'no.toml' cannot be read"),
        (["mine", "executor.local"], 4, "not settled"),
    ],
)
def test_mistakes_have_a_status_and_a_reason(
    site: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert main(["conform", *arguments]) == status
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_class_in_a_file_is_tested_as_it_is(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "helping.py").write_text("NAME = 'elsewhere'\n")
    file = folder / "backend.py"
    file.write_text(f"from helping import NAME\n\n{GOOD}\n\nDevice.name = NAME\n")
    assert main(["conform", str(file), "--up-to", "core", "--report", "r.json"]) == 0
    assert "device.Device: CERTIFIED" in capsys.readouterr().out
    assert main(["conform", f"{file}:Device", "mine", "--up-to", "smoke"]) == 2
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[-2:]]
    assert rows == [["device.Device", "incomplete"], ["gwt-mine/device.mine", "incomplete"]]
    (folder / "twin.py").write_text(file.read_text())
    assert main(["conform", str(file), str(folder / "twin.py")]) == 2
    assert "two of the plugins are called device.Device" in capsys.readouterr().err
    with file.open("a") as end:
        end.write("\n\nclass Other(Device):\n    pass\n")
    for address, said in (
        (f"{file}:Devise", "defines no plugin of the name 'Devise'; write "),
        (str(folder / "helping.py"), "helping.py defines no plugins"),
        (str(folder / "none.py"), "there is no file"),
    ):
        assert main(["conform", address]) == 4
        assert said in capsys.readouterr().err
    assert main(["conform", str(file), "--record"]) == 2
    assert "only what is installed can be recorded" in capsys.readouterr().err
    (folder / "broken.py").write_text("import no_such_library\n")
    assert main(["conform", str(folder / "broken.py")]) == 4
    said = "broken.py cannot be imported: ModuleNotFoundError: No module named 'no_such_library'"
    assert said in capsys.readouterr().err


HOOKS = """from guideway.api import InvalidRequest, Request, hookimpl


@hookimpl
def guideway_validate_request(request: Request) -> None:
    if request.tenant == "nobody":
        raise InvalidRequest("nobody is served", field="tenant")


class Listens:
    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        pass


PLUGIN = Listens()
"""


@pytest.mark.slow
def test_hooks_in_a_file_are_its_functions_or_an_object(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "house_rules.py"
    file.write_text(HOOKS.replace("class Listens:", "class Listens(dict):"))
    for address, name in ((f"{file}:PLUGIN", "hooks.PLUGIN"), (f"{file}:Listens", "hooks.Listens")):
        assert main(["conform", address, "--up-to", "smoke"]) == 2
        assert f"{name}, contract 1.0" in capsys.readouterr().out
    assert main(["conform", f"{file}:Nothing"]) == 4
    assert f"write {file}:Listens or {file}" in capsys.readouterr().err
    file = tmp_path / "door.py"
    file.write_text(HOOKS.partition("class")[0])
    assert main(["conform", str(file), "--up-to", "core"]) == 0
    assert "hooks.door: CERTIFIED" in capsys.readouterr().out


def test_a_plugin_that_cannot_be_loaded(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, UNLOADABLE)
    assert main(["conform", "mine"]) == 4
    assert "cannot be loaded" in (err := capsys.readouterr().err) and "no such library" in err


@pytest.mark.slow
def test_the_report_says_how_the_plugin_was_built(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("conformance.toml").write_text('[subjects."device.mine"]\ndevice = "cpu"\n')
    assert main(["conform", "mine", "--up-to", "smoke", "--report", "r.json", "--markdown", "r.md"]) == 2
    assert Report.read("r.json").settings == {"device": "cpu"}
    assert '{"device": "cpu"}' in capsys.readouterr().out and '{"device": "cpu"}' in Path("r.md").read_text()


def test_an_editable_install_brings_its_file_unless_there_is_one_here(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "conformance.toml").write_text('[subjects."device.mine"]\ndevice = "there"\n')
    (folder,) = site.glob("*.dist-info")
    (folder / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))
    assert certifying._read_preferences(find("mine")).settings("device.mine").device == "there"
    Path("conformance.toml").write_text('[subjects."device.mine"]\ndevice = "here"\n')
    assert certifying._read_preferences(find("mine")).settings("device.mine").device == "here"


@pytest.mark.slow
def test_absent_hardware_grants_no_level_and_blames_nobody(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, f"{GOOD}\nDevice.available = classmethod(lambda cls: 'there is no such chip here')\n")
    assert main([*CORE, "--report", "r.json", "--record"]) == 2
    out = capsys.readouterr().out
    assert "not run device.zero_bits_forbid" in out and "there is no such chip here" in out
    assert "could not be run here." in out and "more were not run, for the same reason." in out
    assert out.count("\nnot run ") == 1 and "FAILED" not in out.replace("  FAILED  ", "")
    assert not {"core", "smoke"} & set(Report.read("r.json").levels)


def test_a_broken_report_is_rejected(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.json").write_text("{}")
    assert main(["conform", "verify", "r.json"]) == 1
    assert "REJECTED" in capsys.readouterr().out


@pytest.mark.slow
def test_a_verdict_is_recorded_and_enforced(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CORE, "--record", "--report", "r.json"]) == 0
    assert "recorded in guideway.lock" in capsys.readouterr().out
    line = json.loads(Path("guideway.lock").read_text())["plugins"]["gwt-mine/device.mine"]["conformance"]
    assert line["report"] == Report.read("r.json").sha256 and line["levels"] == ["smoke", "core"]

    certified = PluginSettings(require="certified")
    assert Plugins(settings=certified).resolve("device", "mine")
    with pytest.raises(PluginUnavailable) as caught:
        Plugins(settings=certified).resolve("device", "numpy")
    assert "guideway conform guideway/device.numpy --record" in str(caught.value)

    main(["plugins", "show", "device.mine"])
    assert "certified: core" in capsys.readouterr().out

    install(site, BROKEN)
    with pytest.raises(PluginUnavailable, match="changed after it was certified"):
        Plugins(settings=certified).resolve("device", "mine")
    main(["plugins", "show", "device.mine"])
    assert "stale: its files changed" in capsys.readouterr().out
    main(["plugins", "doctor"])
    out = capsys.readouterr().out
    assert "[stale-verdict]" in out and "guideway conform gwt-mine/device.mine --record" in out
    assert main([*CORE, "--record"]) == 1
    with pytest.raises(PluginUnavailable):
        Plugins(settings=certified).resolve("device", "mine")


@pytest.mark.slow
def test_the_lock_file_may_lie_elsewhere_and_may_be_broken(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CORE, "--record", "--lock", "my.lock"]) == 0
    capsys.readouterr()
    main(["plugins", "show", "device.mine", "--lock", "my.lock"])
    assert "certified: core" in capsys.readouterr().out
    Path("my.lock").write_text("{")
    assert main(["plugins", "doctor", "--lock", "my.lock"]) == 1
    assert "[unreadable-lock]" in capsys.readouterr().out
    assert main([*CORE, "--record", "--lock", "my.lock"]) == 2
    told = capsys.readouterr()
    assert "my.lock is not a lock file" in told.err and not told.out, "it is known before the run"


@pytest.mark.slow
def test_a_plugin_that_changes_while_it_is_tested_is_not_recorded(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, f"{GOOD}\nclass Changing(Device):\n    pass\n")
    report = run(Target.installed("mine"), up_to="core")
    install(site, GOOD)
    assert not certifying._record(report, Target.installed("mine"), "guideway.lock")
    assert "changed while it was tested" in capsys.readouterr().err and not Path("guideway.lock").exists()


@pytest.mark.slow
def test_recording_keeps_what_else_the_lock_file_has(site: Path) -> None:
    assert main(["plugins", "lock", "--file", "my.lock", "device.numpy"]) == 0
    assert main([*CORE, "--record", "--lock", "my.lock"]) == 0
    assert sorted(json.loads(Path("my.lock").read_text())["plugins"]) == [
        "guideway/device.numpy",
        "gwt-mine/device.mine",
    ]


def test_an_interrupted_run_is_incomplete(site: Path) -> None:
    def interrupt(_: Result) -> None:
        raise KeyboardInterrupt

    report = run(Target.installed("mine"), on_result=interrupt)
    assert report.verdict == "incomplete" and report.performed == 1
    assert "a signal ended the run" in report.results[-1].detail


@pytest.mark.slow
@pytest.mark.parametrize("number", everyday([signal.SIGINT, signal.SIGTERM], signal.SIGTERM), ids=["INT", "TERM"])
def test_a_signal_leaves_a_report_and_no_process(site: Path, number: signal.Signals) -> None:
    install(site, HANGING)
    os.mkfifo("begun")
    command = [sys.executable, "-m", "guideway", "conform", "mine", "hello", "--jobs=1", "--report", "reports"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        pid = int(Path("begun").read_text())  # returns once a check has begun
        # a terminal interrupts all of its processes; `kill` signals only the program
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        out, _ = process.communicate()
    assert process.returncode == 2 and "INCOMPLETE" in out and "a signal ended the run" in " ".join(out.split())
    last = [line.split("  ")[0] + "|" + line.split("  ", 1)[1].strip() for line in out.splitlines()[-2:]]
    assert last[0].startswith("gwt-mine/device.mine|") and "ended by a signal" in last[0]
    assert last[1] == "guideway-hello/modifier.hello|not begun"
    assert Report.read("reports/gwt-mine.device.mine.json").verdict == "incomplete"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


CONFIGURATION = """\
model = "demo"
device_backend = "mine"
[plugins]
require = "certified"
lock = "my.lock"
"""


@pytest.mark.slow
def test_one_command_certifies_what_a_configuration_selects(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GUIDEWAY_PLUGINS_LOCK")
    Path("guideway.toml").write_text(CONFIGURATION)
    lock = str(Path("my.lock").absolute())
    generate = ["generate", "--config", "guideway.toml", "--prompt", "x", "--max-tokens", "1"]
    assert main(generate) == 1
    told = capsys.readouterr().err
    assert f"require = 'certified', and {lock} has no verdict that stands for these 4 plugins:" in told
    every = ["gwt-mine/device.mine", "guideway-engine/executor.local", "guideway-engine/runner.transformers"]
    every.append("guideway-demo-model/model.demo")
    assert f"to certify them: guideway conform {' '.join(every)} --record --lock {lock}\n" in told
    assert "for all that guideway.toml selects: guideway conform --config guideway.toml --record\n" in told

    command = ["conform", "--config", "guideway.toml", "--record", "--up-to", "core", "--report", "reports"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"recorded in {lock}" in out and "executor has no checks; locked in" in out
    assert [path.name for path in Path("reports").iterdir()] == ["gwt-mine.device.mine.json"]
    assert main(generate) == 0
    capsys.readouterr()

    install(site, BROKEN)
    assert main(command) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [row[:2] for row in rows] == [[every[0], "failed"], *([name, "as"] for name in every[1:])]
    main(["plugins", "verify-lock", "--file", "my.lock"])
    told = capsys.readouterr()
    assert told.out.startswith("gwt-mine\n  device.mine\n    digest: locked sha256:")
    assert "    its verdict went stale: its files changed after it was certified\n" in told.out
    assert "certified anew with: guideway conform gwt-mine/device.mine --record --lock my.lock\n" in told.err


@pytest.mark.slow
def test_of_several_plugins_one_that_cannot_be_loaded_stops_no_other(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, UNLOADABLE)
    assert main(["conform", "mine", "hello", "--up-to", "smoke", "--badge", "badges"]) == 4
    told = capsys.readouterr()
    assert "no such library" in told.err
    assert [line.split()[1] for line in told.out.splitlines()[-2:]] == ["cannot", "incomplete"]
    assert [path.name for path in Path("badges").iterdir()] == ["guideway-hello.modifier.hello.badge.json"]


@pytest.mark.slow
def test_a_terminal_sees_progress_and_color(site: Path) -> None:
    command = [sys.executable, "-m", "guideway", "conform", "mine", "--up-to", "smoke"]
    status, seen = shown_at_terminal(command, environment={"PYTHONPATH": str(site)})
    assert status == 2
    assert "\r\x1b[K" in seen and " smoke" in seen and "\x1b[1;33mINCOMPLETE" in seen
    lines = re.sub(r"\x1b\[[0-9;]*[mK]", "", seen).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80
