"""The installed program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import guideway
import pytest
from guideway.command_line import commands
from guideway.command_line.program import BROUGHT_BY, main

from tests.support.environments import ROOT, Environment, unpack
from tests.support.stages import one_in


def answer(environment: Environment, *arguments: str, **variables: str) -> Any:
    done = environment.guideway("plugins", *arguments, "--json", **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_list(zoo: Environment, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    listed = answer(zoo, "list", GWT_MARKER=str(marker))
    states = {plugin["id"]: plugin["state"] for plugin in listed["plugins"]}
    assert states["gwt-good/grammar.good"] == states["gwt-broken-import/grammar.broken"] == "discovered"
    assert states["gwt-claim-one/worker.twice"] == states["gwt-claim-two/worker.twice"] == "conflict"
    assert states["gwt-needs-newer/worker.early"] == "incompatible"
    assert states["gwt-other-major/grammar.future"] == "incompatible"
    assert {problem["code"] for problem in listed["problems"]} == {"unknown-kind", "malformed-entry"}
    assert not marker.exists()


@pytest.mark.slow
def test_list_for_people(zoo: Environment, bare: Environment) -> None:
    done = zoo.guideway("plugins", "list")
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["PLUGIN", "DISTRIBUTION", "VERSION", "STATE"]
    assert ["grammar.good", "gwt-good", "1.0"] in [row.split() for row in rows]
    assert ["worker.twice", "gwt-claim-one", "1.0", "conflict"] in [row.split() for row in rows]
    assert "guideway plugins doctor" in done.stderr and done.returncode == 0
    assert bare.guideway("plugins", "list").stderr == ""


def test_list_and_doctor_import_no_plugin_and_no_numpy(zoo: Environment) -> None:
    program = (
        "import sys; from guideway.command_line.program import main\n"
        "assert main(['plugins', 'list']) == 0 and main(['plugins', 'doctor']) == 1 and main(['--help']) == 0\n"
        "unwanted = ('gwt_', 'numpy', 'pluggy', 'guideway_engine')\n"
        "print([name for name in sys.modules if name.startswith(unwanted)], file=sys.stderr)"
    )
    done = zoo.run(str(zoo.python), "-c", program)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("address", "ids"),
    one_in(
        3,
        [
            ("better", ["gwt-good/grammar.better"]),
            ("good", ["gwt-good/grammar.good", "gwt-good/worker.good"]),
            ("worker.good", ["gwt-good/worker.good"]),
            ("GWT_good/good", ["gwt-good/grammar.good", "gwt-good/worker.good"]),
            ("gwt-good/worker.good", ["gwt-good/worker.good"]),
            ("twice", ["gwt-claim-one/worker.twice", "gwt-claim-two/worker.twice"]),
        ],
    ),
)
def test_show(zoo: Environment, address: str, ids: list[str]) -> None:
    assert [plugin["id"] for plugin in answer(zoo, "show", address)["plugins"]] == ids


@pytest.mark.slow
def test_show_says_what_list_says_and_what_the_metadata_says(zoo: Environment) -> None:
    listed, shown = answer(zoo, "list"), answer(zoo, "show", "worker.fine")
    assert shown.keys() == listed.keys()
    (early,) = shown["plugins"]
    about = {"summary": "Entries nothing can be made of, beside a good one", "author": None, "license": None}
    assert [{**plugin, **about} for plugin in listed["plugins"] if plugin["id"] == early["id"]] == [early]
    assert (early["contract"], early["requires"]) == ("v1", ["guideway"])
    assert {problem["plugin"] for problem in shown["problems"]} == set()
    (ours,) = answer(zoo, "show", "device.numpy")["plugins"]
    assert ours["license"] == "Apache-2.0"


def test_show_for_people(zoo: Environment) -> None:
    done = zoo.guideway("plugins", "show", "worker.early")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.stdout.splitlines()}
    assert lines["id"] == "gwt-needs-newer/worker.early"
    assert lines["state"] == "incompatible" and "guideway>=99" in lines["reason"]
    assert lines["contract"] == "v1" and lines["requires"] == "guideway>=99" and lines["summary"]
    other = zoo.guideway("plugins", "show", "grammar.future").stdout
    assert "it is written for contract v2, and this guideway has 1.0" in other
    assert not lines.keys() & {"editable", "provisional", "author", "license"}, "there is nothing to say of these"


def test_show_what_is_not_there(zoo: Environment) -> None:
    done = zoo.guideway("plugins", "show", "grammar.god")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("guideway: no installed plugin is called 'grammar.god'; did you mean 'grammar.good'?")
    assert "Traceback" not in done.stderr


def test_lock_and_verify(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    site, lock = tmp_path / "site", str(tmp_path / "guideway.lock")
    path = {"PYTHONPATH": str(site)}
    missing = bare.guideway("plugins", "verify-lock", "--file", lock)
    assert missing.returncode == 1 and "write it with: guideway plugins lock" in missing.stderr

    unpack(wheels["good"], site)
    assert "gwt-good/worker.good" in answer(bare, "lock", "--file", lock, **path)["plugins"]
    assert answer(bare, "verify-lock", "--file", lock, **path) == {
        "ok": True,
        "differences": {},
        "stale_verdicts": {},
        "unlocked": [],
    }

    (site / "gwt_good.py").write_text("changed = True\n")
    changed = bare.guideway("plugins", "verify-lock", "--file", lock, **path)
    assert changed.returncode == 1
    assert changed.stdout.startswith("gwt-good\n  grammar.better\n    digest: locked sha256:")
    assert "went stale" not in changed.stdout, "nothing had been certified"
    assert "to accept them: guideway plugins lock" in changed.stderr
    gone = bare.guideway("plugins", "verify-lock", "--json", "--file", lock)
    assert gone.returncode == 1
    assert json.loads(gone.stdout)["differences"]["gwt-good/worker.good"] == ["locked 1.0, not installed now"]


def test_locking_some_leaves_the_others_unlocked(zoo: Environment, tmp_path: Path) -> None:
    lock = str(tmp_path / "guideway.lock")
    assert answer(zoo, "lock", "worker.good", "--file", lock)["plugins"] == ["gwt-good/worker.good"]
    verified = answer(zoo, "verify-lock", "--file", lock)
    assert verified["ok"] and "gwt-good/grammar.good" in verified["unlocked"]


@pytest.mark.slow
def test_locking_some_keeps_the_others(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    site, lock = tmp_path / "site", str(tmp_path / "guideway.lock")
    path = {"PYTHONPATH": str(site)}
    unpack(wheels["good"], site)
    every = answer(bare, "lock", "--file", lock, **path)["plugins"]
    before = json.loads(Path(lock).read_text())["plugins"]
    (site / "gwt_good_worker.py").write_text("changed = True\n")
    locked = answer(bare, "lock", "worker.good", "--file", lock, **path)
    assert (locked["plugins"], sorted(locked["plugins"] + locked["kept"])) == (["gwt-good/worker.good"], every)
    after = json.loads(Path(lock).read_text())["plugins"]
    assert {plugin for plugin in after if after[plugin] != before[plugin]} == {"gwt-good/worker.good"}
    told = bare.guideway("plugins", "lock", "worker.good", "--file", lock, **path).stdout
    assert told == f"locked 1 plugin in {lock}, kept {len(every) - 1} others\n"
    # without names, the lock contains exactly the installed plugins
    assert "gwt-good/worker.good" not in answer(bare, "lock", "--file", lock)["plugins"]
    assert "gwt-good/worker.good" not in Path(lock).read_text()


def test_strict_refuses_what_is_not_locked(bare: Environment, tmp_path: Path) -> None:
    lock = str(tmp_path / "guideway.lock")
    answer(bare, "lock", "device.numpy", "--file", lock)
    lenient = bare.guideway("plugins", "verify-lock", "--file", lock)
    assert (lenient.returncode, lenient.stdout) == (0, f"1 plugin is as {lock} says\n")
    strict = bare.guideway("plugins", "verify-lock", "--strict", "--file", lock)
    assert strict.returncode == 1
    assert "  device.torch\n    installed, not in the lock file\n" in strict.stdout
    assert "to accept them: guideway plugins lock" in strict.stderr
    as_json = bare.guideway("plugins", "verify-lock", "--strict", "--json", "--file", lock)
    assert as_json.returncode == 1 and json.loads(as_json.stdout)["ok"] is False
    answer(bare, "lock", "--file", lock)
    assert answer(bare, "verify-lock", "--strict", "--file", lock)["ok"] is True


def test_a_distribution_brings_a_command(zoo: Environment) -> None:
    done = zoo.guideway("hello", "--name", "you")
    assert (done.returncode, done.stdout) == (7, "hello you\n")
    listed = zoo.guideway("--help").stdout
    assert "    hello               say hello\n" in listed
    assert "    broken              say hello\n" in listed, "it is not imported to be listed"


def test_a_command_that_is_broken_fails_loudly(zoo: Environment) -> None:
    done = zoo.guideway("broken")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("guideway: gwt-hooks failed while it added the command 'broken': AttributeError: ")
    assert "Traceback" not in done.stderr
    assert zoo.guideway("plugins", "list").returncode == 0, "it has no part in this"


@pytest.fixture
def rival(tmp_path: Path) -> Mapping[str, str]:
    """Create a distribution that claims the names of other commands, and return the environment variables to find
    it."""
    info = tmp_path / "rival-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n", encoding="utf-8")
    names = "".join(f"{name} = rival:add\n" for name in ("hello", "help", "plugins"))
    (info / "entry_points.txt").write_text(f"[guideway.commands]\n{names}", encoding="utf-8")
    return {"PYTHONPATH": str(tmp_path)}


def test_a_command_that_two_distributions_claim_names_both(zoo: Environment, rival: Mapping[str, str]) -> None:
    done = zoo.guideway("hello", **rival)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "guideway: the command 'hello' is claimed by gwt-hooks and rival: uninstall one\n"


@pytest.mark.slow
def test_nobody_takes_what_tells_of_it(bare: Environment, rival: Mapping[str, str]) -> None:
    assert "this text" in bare.guideway("--help", **rival).stdout
    assert "--import" in bare.guideway("help", "plugins", "doctor", **rival).stdout
    done = bare.guideway("plugins", "doctor", **rival)
    claims = [line for line in done.stdout.splitlines() if "claimed" in line]
    assert (done.returncode, claims) == (
        1,
        [
            "error: the command 'help' is claimed by guideway and by rival [conflict]",
            "error: the command 'plugins' is claimed by guideway and by rival [conflict]",
        ],
    )


@pytest.mark.parametrize("command", one_in(4, [["plugins", "list"], ["generate", "--help"], ["--help"], ["hello"]]))
def test_a_misspelt_plugin_is_an_error_whatever_the_command(zoo: Environment, command: list[str]) -> None:
    done = zoo.guideway("--enable-plugin", "frist", *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("guideway: no hooks plugin named 'frist' is installed\n  did you mean 'first'?")
    done = zoo.guideway(*command, GUIDEWAY_PLUGINS_ENABLE="first,secnd")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("it comes from the environment variable GUIDEWAY_PLUGINS_ENABLE\n")


@pytest.mark.parametrize(
    ("flags", "variable", "ids"),
    one_in(
        3,
        [
            ([], "", ()),
            (["first"], "", ("gwt-hooks/hooks.first",)),
            (
                ["first", "second"],
                "second, eager",
                ("gwt-hooks/hooks.second", "gwt-hooks/hooks.eager", "gwt-hooks/hooks.first"),
            ),
        ],
    ),
)
def test_every_command_is_told_what_is_enabled(
    zoo: Environment, flags: list[str], variable: str, ids: tuple[str, ...]
) -> None:
    program = (
        "import sys\nfrom guideway.command_line.program import main\nimport guideway.command_line.plugins as commands\n"
        "commands._list = lambda args: print(args.enable_plugin) or 0\n"
        "sys.exit(main([*sys.argv[1:], 'plugins', 'list']))"
    )
    options = [word for flag in flags for word in ("--enable-plugin", flag)]
    done = zoo.run(str(zoo.python), "-c", program, *options, GUIDEWAY_PLUGINS_ENABLE=variable)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ids}\n", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "usage: guideway"),
        (["hello"], "no command 'hello'"),
        (["plugin"], "did you mean 'plugins'?"),
        (["plugins"], "compare the installed plugins with the lock file"),
        (["plugins", "lst"], "; did you mean 'list'?"),
        (["plugins", "lst"], "usage: guideway plugins [-h]"),
        (["plugins", "list", "--jsn"], "unrecognized arguments: --jsn; did you mean '--json'?"),
        (["plugins", "list", "--jsn"], "usage: guideway plugins list [-h] [--json]"),
        (["generate", "--model", "m", "--prompt", "p", "--shcema=x"], "did you mean '--schema'?"),
        (["generate", "--mdoel", "m", "--prompt", "p"], "unrecognized arguments: --mdoel m; did you mean '--model'?"),
        (["help", "plugin"], "did you mean 'plugins'?"),
        (["plugins", "doctor", "--timeout", "-1"], "invalid"),
        (["plugins", "doctor", "good"], "plugin names need --import"),
        (["--no-such-option"], "unrecognized arguments"),
        (["--enable-plugins=x"], "did you mean '--enable-plugin'?"),
        (["--enable-plugins=x"], "usage: guideway [-h] [--version] [--enable-plugin NAME] COMMAND ..."),
    ],
)
def test_wrong_usage(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert told in err and out == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--version"], guideway.__version__),
        (["--help"], "130  interrupted"),
        (["help"], "130  interrupted"),
        (["help", "--help"], "130  interrupted"),
        (["help", "plugins", "doctor"], "--import"),
        (["plugins", "doctor", "--help"], "--import"),
        (["plugins", "verify-lock", "--help"], "--strict"),
    ],
)
def test_help_and_version(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert told in capsys.readouterr().out


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(subparsers: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("guideway.command_line.plugins.add_plugins", interrupt)
    assert main(["plugins", "list"]) == 130
    assert capsys.readouterr().err == "guideway: interrupted\n"


@pytest.mark.parametrize(("handler", "status"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_an_interrupt_while_the_program_is_imported_has_no_traceback(handler: str, status: int) -> None:
    program = f"""
import runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "guideway.plugins":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.{handler})
sys.argv = ["guideway", "--version"]
runpy.run_module("guideway", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")


def test_a_reader_that_has_seen_enough() -> None:
    program = (
        "import sys\nfrom guideway.command_line.program import main\nimport guideway.command_line.plugins as commands\n"
        "commands._list = lambda args: [print('x' * 80) for _ in range(100_000)] and 0\n"
        "sys.exit(main(['plugins', 'list']))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_the_package_is_the_program(bare: Environment) -> None:
    done = bare.run(str(bare.python), "-m", "guideway", "plugins", "list", "--jsn")
    assert done.returncode == 2 and done.stderr.startswith("usage: guideway plugins list ")


def test_a_full_disk_is_one_line(bare: Environment) -> None:
    done = bare.run("sh", "-c", "bin/guideway plugins list > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "guideway: cannot write to standard output: No space left on device\n"


def test_a_closed_output_is_one_line(bare: Environment) -> None:
    done = bare.run("sh", "-c", "bin/guideway plugins list >&-")
    assert done.returncode == 1
    assert done.stderr == "guideway: cannot write to standard output: Bad file descriptor\n"


def test_a_file_that_cannot_be_written_is_one_line(bare: Environment, tmp_path: Path) -> None:
    done = bare.guideway("plugins", "lock", "--file", str(tmp_path / "nowhere" / "guideway.lock"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("guideway: cannot change '") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("encoding", one_in(4, ["ascii", "latin-1", "utf-8", "ascii:surrogateescape"]))
def test_what_an_output_cannot_encode_is_escaped(encoding: str) -> None:
    program = (
        "import sys\nfrom guideway.command_line.program import main\nimport guideway.command_line.plugins as commands\n"
        "commands._list = lambda args: print('Zo\\xeb \\u4f60 \\udcff') or 0\n"
        "sys.exit(main(['plugins', 'list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    charset = encoding.partition(":")[0]
    assert done.stdout == "Zo\xeb \u4f60 \udcff\n".encode(charset, "backslashreplace")


def test_a_command_that_is_not_installed_says_what_brings_it(bare: Environment) -> None:
    done = bare.guideway("conform", "device.numpy")
    assert done.returncode == 2
    assert done.stderr == "guideway: the command 'conform' is not installed: pip install 'guideway[conformance]'\n"
    assert "did you mean 'generate'?" in bare.guideway("genrate").stderr


def _entry_points(project: Path) -> dict[str, dict[str, str]]:
    return tomllib.loads(project.read_text("utf-8"))["project"].get("entry-points", {})  # type: ignore[no-any-return]


def test_the_commands_of_our_other_distributions_are_known() -> None:
    projects = (ROOT / "core").glob("guideway-*/pyproject.toml")
    brought = {
        command: path.parent.name.removeprefix("guideway-")
        for path in projects
        for command in tomllib.loads(path.read_text("utf-8"))["project"]
        .get("entry-points", {})
        .get("guideway.commands", ())
    }
    assert brought == BROUGHT_BY


def test_each_command_says_what_it_does_itself() -> None:
    said = [command.summary() for command in commands.installed().values() if command.value]  # help has no module
    assert all(said) and len(set(said)) == len(said)
