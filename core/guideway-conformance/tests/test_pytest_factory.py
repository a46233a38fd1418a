"""Conformance in a plugin's own tests: three lines, an account of the performed checks, and no way around it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from guideway.conformance import conformance as conformance_from_package
from guideway_conformance.registry import checks
from guideway_conformance.report import Report
from suite_support.packages import BROKEN, GOOD, UNLOADABLE, install

from tests.support.stages import everyday

THREE_LINES = """\
from guideway.conformance import conformance

TestConformance = conformance("device.mine", up_to="smoke")
"""
TO_CORE = THREE_LINES.replace("smoke", "core")
BARE = """\
from guideway.devices.numpy.device import NumpyDevice
from guideway.conformance import conformance


class Mine(NumpyDevice):
    name = "mine"


TestMine = conformance(Mine, up_to="core")
"""
KNOWN = """\
[known_failures]
"device.zero_bits_forbid" = { reason = "r", issue = "i", until = 2999-01-01 }
"""


@pytest.fixture
def project(site: Path) -> Path:
    """Make the working directory a project with the package ``gwt-mine`` and a test of three lines."""
    Path("test_mine.py").write_text(THREE_LINES)
    Path("pyproject.toml").write_text('[tool.pytest.ini_options]\nfilterwarnings = ["error"]\n')
    return site


def run_pytest(site: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status and the output of pytest."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        env={**clean, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def summary(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("conformance ")]
    return line


def test_the_package_has_the_name_a_test_file_imports() -> None:
    assert conformance_from_package.__module__ == "guideway_conformance.pytest_factory"


@pytest.mark.slow
def test_each_obligation_is_a_test_and_the_report_is_that_of_the_command(project: Path, core_report: Report) -> None:
    Path("test_mine.py").write_text(TO_CORE)
    status, output = run_pytest(project, "-v", "--conformance-report", "r.json")
    assert status == 0
    assert "test_mine.py::TestConformance::test[zero_bits_forbid-positive] PASSED" in output
    owed = len(core_report.results)
    line = f"conformance gwt-mine/device.mine: {owed} of {owed} obligations performed: CERTIFIED (smoke, core)"
    assert summary(output) == line
    report = Report.read("r.json")
    assert [(r.obligation, r.outcome) for r in report.results] == [
        (r.obligation, r.outcome) for r in core_report.results
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    everyday(
        [
            ["-k", "zero_bits"],
            ["--deselect", "test_mine.py::TestConformance::test[zero_bits_forbid-positive]"],
            ["-k", "nothing_is_called_that"],
            ["-m", "no_such_mark"],
        ],
        ["-k", "zero_bits"],
    ),
)
def test_what_is_deselected_makes_it_incomplete(project: Path, arguments: list[str]) -> None:
    _, output = run_pytest(project, *arguments, "--conformance-report", "r.json")
    assert summary(output).endswith("INCOMPLETE")
    assert Report.read("r.json").verdict == "incomplete"


@pytest.mark.slow
def test_what_is_left_out_when_pytest_stops_early_makes_it_incomplete(project: Path) -> None:
    Path("test_a.py").write_text("def test_it():\n    assert False\n")
    status, output = run_pytest(project, "--maxfail=1")
    assert status == 1 and ": 0 of " in summary(output) and summary(output).endswith("INCOMPLETE")


def test_a_broken_plugin_fails_with_the_rule(project: Path) -> None:
    install(project, BROKEN)
    status, output = run_pytest(project, "-k", "zero_bits")
    assert status == 1
    assert "A token whose bit is 0 gets -inf, and no other changes." in output and "of a mask that allows" in output
    assert summary(output).endswith("FAILED")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mark", everyday(["skip(reason='x')", "skipif(True, reason='x')", "xfail(reason='x')"], "xfail(reason='x')")
)
def test_a_mark_does_not_excuse_a_failure(project: Path, mark: str) -> None:
    install(project, BROKEN)
    Path("test_mine.py").write_text(f"import pytest\n{THREE_LINES}\npytestmark = pytest.mark.{mark}\n")
    status, output = run_pytest(project, "-k", "zero_bits")
    assert status == 1 and "may not be skipped, nor expected to fail" in output
    assert summary(output).endswith("INCOMPLETE" if "skip" in mark else "FAILED")


@pytest.mark.slow
def test_a_skip_by_a_fixture_fails_too(project: Path) -> None:
    Path("conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef no():\n    pytest.skip('today not')\n"
    )
    status, output = run_pytest(project, "-k", "zero_bits")
    assert status == 1 and summary(output).endswith("INCOMPLETE")


@pytest.mark.slow
def test_other_tests_may_skip(project: Path) -> None:
    Path("test_mine.py").write_text("import pytest\n\n\ndef test_it():\n    pytest.skip('x')\n")
    status, output = run_pytest(project)
    assert status == 0 and " conformance =" not in output
    _, output = run_pytest(project, "--conformance-report", "r.json")
    assert "no report r.json: there were no conformance tests" in output and not Path("r.json").exists()


@pytest.mark.slow
def test_a_known_failure_is_expected_and_no_certificate(project: Path) -> None:
    Path("conformance.toml").write_text(KNOWN)
    install(project, BROKEN)
    status, output = run_pytest(project, "-k", "zero_bits")
    assert status == 0 and "1 xfailed" in output
    status, _ = run_pytest(project, "-k", "zero_bits", "--runxfail")
    assert status == 1
    install(project, GOOD)
    status, output = run_pytest(project, "-k", "zero_bits")
    assert status == 1 and "remove that entry" in output and summary(output).endswith("FAILED")


@pytest.mark.slow
def test_absent_hardware_is_expected_and_no_certificate(project: Path) -> None:
    install(project, f"{GOOD}\nDevice.available = classmethod(lambda cls: 'there is no such chip here')\n")
    status, output = run_pytest(project, "-rx")
    assert status == 0 and "there is no such chip here" in output and summary(output).endswith("INCOMPLETE")


@pytest.mark.slow
def test_a_bare_class(project: Path, core_report: Report) -> None:
    Path("test_mine.py").write_text(BARE)
    status, output = run_pytest(project)
    assert status == 0 and summary(output).startswith("conformance device.Mine: ")
    assert summary(output).endswith("CERTIFIED (smoke, core)")


@pytest.mark.slow
def test_reports_of_two_plugins_are_two_files(project: Path) -> None:
    Path("test_mine.py").write_text(
        "from guideway.conformance import conformance\n"
        "TestA = conformance('device.mine', up_to='smoke')\n"
        "TestB = conformance('device.numpy', up_to='smoke')\n"
    )
    status, _ = run_pytest(project, "--conformance-report", "r.json")
    assert status == 0
    assert {path.name for path in Path().glob("r*.json")} == {
        "r.gwt-mine.device.mine.json",
        "r.guideway.device.numpy.json",
    }


@pytest.mark.slow
def test_a_plugin_that_cannot_be_loaded_is_one_failing_test(project: Path) -> None:
    install(project, UNLOADABLE)
    status, output = run_pytest(project)
    assert status == 1 and "no such library" in output and "1 failed" in output


@pytest.mark.slow
def test_a_plugin_that_is_not_installed_is_an_error(project: Path) -> None:
    Path("test_mine.py").write_text(THREE_LINES.replace("mine", "no_such"))
    status, output = run_pytest(project)
    assert status == 2 and "no installed plugin is called" in output


def test_a_session_without_conformance_tests_imports_nothing_of_the_suite(project: Path) -> None:
    Path("test_mine.py").write_text(
        "import sys\n\n\ndef test_it():\n    light = {'guideway_conformance', 'guideway_conformance.pytest_plugin'}\n"
        "    assert {name for name in sys.modules if name.startswith('guideway')} == light\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    status, output = run_pytest(project)
    assert status == 0, output
    assert " conformance =" not in output


@pytest.mark.slow
def test_the_process_that_holds_the_plugin_ends_with_the_session(project: Path) -> None:
    Path("conftest.py").write_text(
        "import gc\nfrom pathlib import Path\nimport pytest\n\n\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_sessionfinish():\n"
        "    from guideway_conformance.isolation import Host\n"
        "    hosts = [found for found in gc.get_objects() if isinstance(found, Host)]\n"
        "    Path('ended').write_text(repr([host._process.poll() is not None for host in hosts]))\n"
    )
    run_pytest(project, "-k", "zero_bits")
    assert Path("ended").read_text() == "[True]"


@pytest.mark.slow
def test_there_is_a_test_for_every_check_of_a_full_run(project: Path) -> None:
    Path("test_mine.py").write_text(THREE_LINES.replace(', up_to="smoke"', ""))
    _, output = run_pytest(project, "--collect-only", "-q")
    concerned = {check.id for check in checks("device") if check.trait is None}
    listed = {f"device.{line.partition('[')[2].rpartition('-')[0]}" for line in output.splitlines() if "::" in line}
    assert concerned <= listed
