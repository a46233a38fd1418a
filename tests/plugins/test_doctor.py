"""The doctor finds problems, and survives broken plugins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from guideway.plugins import PluginIndex
from guideway.plugins.doctor import examine

from tests.plugins.test_index import egg_info
from tests.support.environments import Environment, unpack


def problems(environment: Environment, *arguments: str, **variables: str) -> dict[str, dict[str, Any]]:
    """Return the doctor's problems by plugin, and check that its exit status agrees with them."""
    done = environment.guideway("plugins", "doctor", "--json", *arguments, **variables)
    answer = json.loads(done.stdout)
    errors = [problem for problem in answer["problems"] if problem["severity"] == "error"]
    assert (answer["ok"], done.returncode) == (not errors, int(bool(errors))), done.stderr
    return {problem["plugin"]: problem for problem in answer["problems"]}


def test_a_healthy_environment(bare: Environment) -> None:
    done = bare.guideway("plugins", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no problems found (2 plugins, not imported; --import also imports them)\n"


@pytest.mark.slow
def test_an_extra_that_is_not_installed_is_only_a_note(bare: Environment) -> None:
    note = problems(bare, "--import")["guideway/device.torch"]
    assert (note["severity"], note["code"]) == ("note", "extra-not-installed")
    assert "'torch'" in note["message"] and note["fix"].endswith("pip install 'guideway[torch]'")
    done = bare.guideway("plugins", "doctor", "--import")
    assert done.returncode == 0 and done.stdout.endswith(
        "no problems found (2 plugins, imported in separate processes)\n"
    )


@pytest.mark.slow
def test_the_usual_place_is_named_once(zoo: Environment, tmp_path: Path) -> None:
    (tmp_path / "gwt_far-1.dist-info").mkdir()
    (tmp_path / "gwt_far-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: gwt-far\nVersion: 1\n")
    (tmp_path / "gwt_far-1.dist-info" / "entry_points.txt").write_text("[guideway.v1]\nfar.far = far\n")
    out = zoo.guideway("plugins", "doctor", PYTHONPATH=str(tmp_path)).stdout
    assert out.startswith(f"installed in {zoo.site}, unless a line names another place:\n")
    assert out.count(str(zoo.site)) == 1
    assert f"gwt-far 1 at {tmp_path} has the unknown kind" in out
    assert "8 problems found (" in out.splitlines()[-1]


def test_static_problems_and_not_one_import(zoo: Environment, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    found = problems(zoo, GWT_MARKER=str(marker))
    assert {plugin: problem["code"] for plugin, problem in found.items()} == {
        "gwt-malformed/grammer.typo": "unknown-kind",
        "gwt-malformed/justaname": "malformed-entry",
        "gwt-malformed/worker.Upper": "malformed-entry",
        "gwt-missing-dependency": "missing-dependency",
        "gwt-needs-newer": "incompatible",
        "gwt-other-major/grammar.future": "other-contract",
        "worker.twice": "conflict",
    }
    assert "'gwt-claim-one/twice' or 'gwt-claim-two/twice'" in found["worker.twice"]["fix"]
    assert found["gwt-missing-dependency"]["fix"] == "pip install gwt-nowhere"
    assert not marker.exists()


def test_stale_metadata(zoo: Environment, tmp_path: Path) -> None:
    stale = egg_info(tmp_path / "src", "gwt-good", "0.1")
    found = problems(zoo, PYTHONPATH=str(stale))
    assert found["gwt-good"]["code"] == "stale-metadata"
    done = zoo.guideway("plugins", "doctor", PYTHONPATH=str(stale))
    assert done.returncode == 1 and f"0.1 in {stale} hides 1.0 in {zoo.site}" in done.stdout


def test_imports_happen_where_they_do_no_harm(zoo: Environment) -> None:
    ids = {
        "gwt-segfault/device.segfault": "import-crashed",
        "gwt-system-exit/device.exit": "import-failed",
        "gwt-broken-import/grammar.broken": "import-failed",
        "gwt-newer-contract/grammar.newer": "import-failed",
        "gwt-good/grammar.good": None,
    }
    found = problems(zoo, "--import", *ids)
    assert {plugin: problem["code"] for plugin, problem in found.items()} == {k: v for k, v in ids.items() if v}
    assert "SIGSEGV" in found["gwt-segfault/device.segfault"]["message"]
    assert "SystemExit: no licence found" in found["gwt-system-exit/device.exit"]["message"]
    assert "libfoo.so.3" in found["gwt-broken-import/grammar.broken"]["message"]


@pytest.mark.slow
def test_a_plugin_that_hangs_is_killed_and_what_it_started_too(
    bare: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    unpack(wheels["hang"], tmp_path)
    pid_file = tmp_path / "pid"
    (tmp_path / "gwt_hang.py").write_text(
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    found = problems(bare, "--import", "--timeout", "5", "hang", PYTHONPATH=str(tmp_path))
    assert found["gwt-hang/device.hang"]["code"] == "import-timeout"
    assert "within 5 s" in found["gwt-hang/device.hang"]["message"]
    status = Path("/proc", pid_file.read_text(), "status")
    assert not status.exists() or "zombie" in status.read_text()


def test_a_plugin_that_ends_the_process_outright(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    unpack(wheels["hang"], tmp_path)
    (tmp_path / "gwt_hang.py").write_text("import os\nos.write(2, b'goodbye\\n')\nos._exit(3)\n")
    found = problems(bare, "--import", "device.hang", PYTHONPATH=str(tmp_path))
    assert found["gwt-hang/device.hang"]["code"] == "import-crashed"
    assert "with status 3" in found["gwt-hang/device.hang"]["message"]
    assert "it last said: goodbye" in found["gwt-hang/device.hang"]["fix"]


LEAVES_A_BOMB = """
import os, threading

threading.Timer(0.3, os._exit, [9]).start()
"""
IS_SLOW = "import time\ntime.sleep(0.9)"
MIXIN = """
from guideway.api import WorkerMixin, hookimpl

class Mixin(WorkerMixin):
    contract, name = "1.0", NAME

@hookimpl
def guideway_worker_mixin():
    return Mixin
"""


@pytest.mark.slow
def test_plugins_of_one_distribution_are_judged_as_if_each_were_alone(bare: Environment, tmp_path: Path) -> None:
    before = {
        "a_good": "",
        "b_crashes": "import os\nos.abort()",
        "c_hangs": "import time\ntime.sleep(600)",
        "d_good": "",
        "e_leaves_a_bomb": LEAVES_A_BOMB,
        "f_is_slow": IS_SLOW,
        "g_fails": "import gwt_nowhere",
        "h_good": "",
    }
    egg_info(tmp_path, "gwt-mixed", "1", "[guideway.v1]\n" + "".join(f"worker.{n} = gwt_{n}\n" for n in before))
    for name, text in before.items():
        (tmp_path / f"gwt_{name}.py").write_text(f"{text}\n{MIXIN.replace('NAME', repr(name))}")
    found = problems(bare, "--import", "--timeout", "5", *before, PYTHONPATH=str(tmp_path))
    assert {plugin.partition("/worker.")[2]: problem["code"] for plugin, problem in found.items()} == {
        "b_crashes": "import-crashed",
        "c_hangs": "import-timeout",
        "f_is_slow": "import-slow",
        "g_fails": "import-failed",
    }


@pytest.mark.slow
def test_a_plugin_whose_threads_never_end(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    unpack(wheels["good"], tmp_path)
    module = tmp_path / "gwt_good.py"
    module.write_text(
        f"import threading\nthreading.Thread(target=threading.Event().wait).start()\n{module.read_text()}"
    )
    assert problems(bare, "--import", "--timeout", "30", "grammar.good", PYTHONPATH=str(tmp_path)) == {}


@pytest.mark.slow
def test_imports_use_the_search_path_of_the_program(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    unpack(wheels["good"], tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from guideway.command_line.program import main\n"
        "sys.exit(main(['plugins', 'doctor', '--import', 'gwt-good/grammar.good']))"
    )
    done = bare.run(str(bare.python), "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no problems found (1 plugin, imported in separate processes)\n"


def test_a_plugin_may_serve_two_contracts_side_by_side(tmp_path: Path) -> None:
    both = "[guideway.v1]\ngrammar.both = one\n[guideway.v2]\ngrammar.both = two\ngrammar.later = two\n"
    index = PluginIndex.scan([str(egg_info(tmp_path, "gwt-both", "1", both))])
    assert [p.plugin for p in examine(index) if p.code == "other-contract"] == ["gwt-both/grammar.later"]


def test_a_slow_import_is_a_warning(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    unpack(wheels["good"], tmp_path)
    module = tmp_path / "gwt_good.py"
    module.write_text(f"import time\ntime.sleep(0.6)\n{module.read_text()}")
    found = problems(bare, "--import", "grammar.good", PYTHONPATH=str(tmp_path))
    assert (found["gwt-good/grammar.good"]["code"], found["gwt-good/grammar.good"]["severity"]) == (
        "import-slow",
        "warning",
    )


@pytest.fixture
def project(tmp_path: Path, bare: Environment) -> Path:
    """Create an editable install of the good package in the folder ``site``, and return its project's folder."""
    folder = tmp_path / "project"
    shutil.copytree(Path(__file__).parent / "packages" / "good", folder)
    info = tmp_path / "site" / "gwt_good-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gwt-good\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}, "url": folder.as_uri()}))
    (info / "entry_points.txt").write_text(
        "[guideway.v1]\ngrammar.good = gwt_good\ngrammar.better = gwt_good:plugin\nworker.good = gwt_good_worker\n"
    )
    return folder


@pytest.mark.slow
def test_an_editable_install_whose_entry_points_were_edited(bare: Environment, project: Path) -> None:
    path = {"PYTHONPATH": str(project.parent / "site")}
    assert problems(bare, **path) == {}
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"worker.good"', '"worker.renamed"'))
    found = problems(bare, **path)["gwt-good"]
    assert found["code"] == "stale-entry-points"
    assert "worker.good, worker.renamed" in found["message"]
    assert found["fix"] == f"pip install --no-deps -e {project}"
    shutil.rmtree(project)
    assert problems(bare, **path)["gwt-good"]["code"] == "editable-gone"


def test_entry_points_that_were_never_installed(bare: Environment, project: Path) -> None:
    (project.parent / "site" / "gwt_good-1.0.dist-info" / "entry_points.txt").unlink()
    found = problems(bare, PYTHONPATH=str(project.parent / "site"))
    assert found["gwt-good"]["code"] == "stale-entry-points"
