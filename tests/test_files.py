"""Files are read up to a bound, replaced atomically, and locked while they are written."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from guideway.errors import InvalidConfiguration
from guideway.files import alone, claim, clash, disclaim, open_stream, read_file, replacing, write_file

HOLD = """
import sys
from guideway.files import alone, claim
path = sys.argv[2]
block = alone(path)
held = claim(path, new=True) if sys.argv[1] == "claim" else block.__enter__()
print("held", flush=True)
sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@contextmanager
def held_by_another(how: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, how, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


NOT_FILES = [a_pipe, a_folder, a_socket, a_link_to_a_device, a_link_to_a_pipe]


@pytest.mark.parametrize("make", NOT_FILES)
def test_only_regular_files_are_read_and_nobody_is_waited_for(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError) as refused:
        read_file(tmp_path / "x")
    assert refused.value.errno in (errno.EINVAL, errno.EISDIR, errno.ENXIO)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab" * (1 << 19))
    assert len(read_file(tmp_path / "x", 1 << 20)) == 1 << 20
    with (tmp_path / "x").open("ab") as file:
        file.truncate(1 << 40)  # the file's size does not allocate memory
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_file(tmp_path / "x", 1 << 20)


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_file(path, "first", field="x")
    path.chmod(0o640)
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"second")
        file.flush()
        assert path.read_text() == "first"
        raise RuntimeError
    assert (path.read_text(), names(tmp_path)) == ("first", ["x"])
    write_file(path, "third", field="x")
    assert (path.read_text(), path.stat().st_mode & 0o777, names(tmp_path)) == ("third", 0o640, ["x"])


def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("first")
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InvalidConfiguration, match=r"cannot write '.*x': File too large") as refused:
            write_file(path, "x" * 10_000, field="report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert refused.value.field == "report"
    assert (path.read_text(), names(tmp_path)) == ("first", ["x"])


@pytest.mark.parametrize(
    "written", [lambda path: write_file(path, "mine", field="x"), lambda path: claim(path, new=True)]
)
@pytest.mark.parametrize("there", [True, False], ids=["to-a-file", "to-nothing"])
def test_no_link_is_followed_to_write(written: Callable[[Path], object], there: bool, tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    if there:
        victim.write_text("precious")
    link.symlink_to("victim")
    try:
        written(link)
        assert not link.is_symlink()  # replaced
    except OSError as error:
        assert "symbolic link" in str(error.strerror) and str(victim) in str(error.strerror)
    assert victim.read_text() == "precious" if there else not victim.exists()


def test_a_claimed_file_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with held_by_another("claim", path) as other:
        for new in (True, False):
            with pytest.raises(BlockingIOError) as refused:
                claim(path, new=new)
            assert f"process {other.pid} ({sys.executable}" in str(refused.value.strerror)
    number = claim(path, new=False)  # the other process has crashed
    os.write(number, b"line")
    disclaim(number, path)
    with pytest.raises(FileExistsError):
        claim(path, new=True)
    assert path.read_bytes() == b"line"


def test_a_new_file_to_which_nothing_was_written_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    disclaim(claim(path, new=True), path)
    assert not path.exists()
    number = claim(path, new=True)
    path.unlink()
    path.touch()  # created by another process
    disclaim(number, path)
    assert path.exists()


def test_of_many_that_claim_a_new_file_one_gets_it(tmp_path: Path) -> None:
    for round_number in range(50):
        path = tmp_path / f"{round_number}"
        got: list[int] = []
        start = threading.Barrier(8)

        def run(path: Path = path, got: list[int] = got, start: threading.Barrier = start) -> None:
            start.wait()
            with suppress(OSError):
                got.append(claim(path, new=True))

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1
        os.close(got[0])


def test_changes_of_a_file_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_file(path, "0", field="x")

    def run() -> None:
        for _ in range(20):
            with alone(path):
                write_file(path, str(int(path.read_text()) + 1), field="x")

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "80"


def test_who_waits_too_long_is_told_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guideway.files.PATIENCE", 2)
    with held_by_another("alone", tmp_path / "x") as other:
        with pytest.raises(BlockingIOError) as refused, alone(tmp_path / "y"):
            pass
        assert f"process {other.pid} (" in str(refused.value.strerror)


def test_streams_are_written_to_as_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "through", field="x")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    write_file(os.devnull, "nowhere", field="x")
    inner, outer = os.pipe()
    write_file(f"/dev/fd/{outer}", "a descriptor", field="x")
    assert os.read(inner, 100) == b"a descriptor"
    os.close(inner)
    os.close(outer)
    assert open_stream(tmp_path / "none") is None


def test_a_file_is_not_both_input_and_output(tmp_path: Path) -> None:
    here, other = tmp_path / "x", tmp_path / "link"
    assert clash({"--a": here, "--b": tmp_path / "sub" / ".." / "x"}, {}) is not None  # neither exists
    here.touch()
    other.hardlink_to(here)
    assert clash({"--output": here}, {"--input": other}) == (
        f"--input and --output name the same file, {str(here)!r}; name two files"
    )
    assert clash({"--output": here}, {"--input": tmp_path / "y", "--config": None}) is None
    assert clash({}, {"--input": here, "--schema": here}) is None
    for stream in ("-", "/dev/stdout", os.devnull):
        assert clash({"--output": stream}, {"--input": stream}) is None
