"""The process that hosts a plugin: the effects of a failing check on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from guideway.devices.numpy.device import NumpyDevice
from guideway_conformance.isolation import CannotLoad, Host
from guideway_conformance.outcomes import Result
from guideway_conformance.registry import Obligation
from guideway_conformance.target import Target
from suite_support.packages import GOOD, UNLOADABLE, install

from tests.support.stages import one_in

CHECK = Obligation("device.zero_bits_forbid")


class Crashes(NumpyDevice):
    """Crashes on one mask."""

    def apply_bitmask(self, logits, bitmask, rows):  # type: ignore[no-untyped-def]
        if bitmask.size and bitmask[0, 0] == 5:
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().apply_bitmask(logits, bitmask, rows)


class Exits(NumpyDevice):
    def apply_bitmask(self, logits, bitmask, rows):  # type: ignore[no-untyped-def]
        os._exit(0)


class RaisesSystemExit(NumpyDevice):
    def apply_bitmask(self, logits, bitmask, rows):  # type: ignore[no-untyped-def]
        raise SystemExit(0)


class Hangs(NumpyDevice):
    """Hangs with SIGTERM ignored, and leaves its process id in a file."""

    def apply_bitmask(self, logits, bitmask, rows):  # type: ignore[no-untyped-def]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path("pid").write_text(str(os.getpid()))
        with Path("begun").open("wb", buffering=0) as pipe:
            pipe.write(b"x")
        while True:
            signal.pause()


class Grows(NumpyDevice):
    def apply_bitmask(self, logits, bitmask, rows):  # type: ignore[no-untyped-def]
        kept = []
        while True:
            kept.append(b"x" * 2**24)


class Chatters(NumpyDevice):
    def apply_bitmask(self, logits, bitmask, rows):  # type: ignore[no-untyped-def]
        os.write(1, b'{"number": 0, "outcome": "fail"}\n' * 10_000)
        return super().apply_bitmask(logits, bitmask, rows)


class Remembers(NumpyDevice):
    """Is broken from its second call in a process."""

    calls = 0

    def apply_bitmask(self, logits, bitmask, rows):  # type: ignore[no-untyped-def]
        type(self).calls += 1
        assert self.calls == 1
        return super().apply_bitmask(logits, bitmask, rows)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def perform(component: type, *obligations: Obligation, seconds: float | None = None) -> list[Result]:
    with Host(Target.of_class(component), memory=2**30) as host:
        return list(host.run(obligations or [CHECK], seconds=seconds))


def test_a_crash_fails_the_check_it_happens_in_only() -> None:
    crashed, fine = perform(Crashes, CHECK, Obligation("device.no_rows_no_change"))
    assert crashed.outcome == "fail" and "SIGSEGV" in crashed.detail and "last words" in crashed.detail
    assert fine.outcome == "pass"


@pytest.mark.parametrize("component", one_in(2, [Exits, RaisesSystemExit]))
def test_to_exit_is_to_fail(component: type) -> None:
    assert [result.outcome for result in perform(component)] == ["fail"]


def test_a_check_that_hangs_fails(folder: Path) -> None:
    (folder / "begun").touch()
    (result,) = perform(Hangs, seconds=0.1)
    assert result.outcome == "fail" and "did not finish within 0.1 s" in result.detail


@pytest.mark.slow
def test_a_check_that_takes_too_much_memory_fails() -> None:
    (result,) = perform(Grows)
    assert result.outcome == "fail" and "1.0 GiB of memory" in result.detail


def test_what_a_plugin_prints_is_not_taken_for_an_answer() -> None:
    assert [result.outcome for result in perform(Chatters)] == ["pass"]


def test_each_check_meets_the_plugin_as_it_was_imported() -> None:
    assert [result.outcome for result in perform(Remembers, CHECK, CHECK, CHECK)] == ["pass"] * 3


def test_nothing_is_known_once_the_host_is_gone() -> None:
    host = Host(Target.of_class(NumpyDevice))
    host._process.kill()
    for _ in range(2):
        (result,) = host.run([CHECK])
        assert result.outcome == "error" and "is gone" in result.detail
    host.close()


def test_a_check_that_is_not_there_is_an_error() -> None:
    assert [result.outcome for result in perform(NumpyDevice, Obligation("device.none"))] == ["error"]


def test_to_close_a_host_ends_the_checks_it_runs(folder: Path) -> None:
    os.mkfifo("begun")
    host = Host(Target.of_class(Hangs))
    reader = os.open("begun", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    host._send({"number": 0, "check": CHECK.check, "mode": CHECK.mode, "seconds": 60})
    while not os.read(reader, 1):  # it is not opened for writing yet
        os.sched_yield()
    host.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
    os.close(reader)


def test_what_cannot_be_loaded_is_told_in_its_own_words(site: Path) -> None:
    install(site, UNLOADABLE)
    with pytest.raises(CannotLoad, match="no such library"):
        Host(Target.installed("mine"))
    install(site, f"{GOOD}\nimport os\nos._exit(7)\n")
    with pytest.raises(CannotLoad, match="status 7"):
        Host(Target.installed("mine"))
