"""Files of commands: bounded reads, atomic replacement, and locks.

Writes do not follow symbolic links. Unless stated otherwise, errors are OSError with the reason in `strerror`, to
which the caller adds the purpose of the file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import BinaryIO, TypeAlias

from guideway.errors import InvalidConfiguration, printable

__all__ = [
    "LARGEST",
    "MIB",
    "alone",
    "claim",
    "clash",
    "disclaim",
    "lock",
    "open_stream",
    "read_file",
    "reason",
    "replacing",
    "write_file",
]

AnyPath: TypeAlias = str | os.PathLike[str]

MIB = 1 << 20
LARGEST = 16 * MIB
"""Default maximum size of a file that is read whole, in bytes: far more than a schema, report or lock file needs."""

DESCRIPTOR = re.compile(r"-|/dev/(stdin|stdout|stderr)|/(?:dev|proc/self)/fd/([0-9]{1,9})")
"""Output paths that name an open file descriptor of this process."""
STANDARD = {"stdin": 0, "stdout": 1, "stderr": 2}

KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

PATIENCE, PAUSE = 200, 0.05
"""Maximum attempts of `alone`, and seconds between two; other processes hold the lock for milliseconds."""

MOST_SHOWN = 200
"""Maximum characters of a command to show."""


def read_file(path: AnyPath, most: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises OSError for named pipes, without waiting
    for a writer, and for devices."""

    def open_file(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)

    with open(path, "rb", opener=open_file) as file:  # Path.open has no `opener`
        _check_regular(file.fileno())
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // MIB} MiB")
    return data


def write_file(path: AnyPath, text: str, *, field: str) -> None:
    """Write `text` in UTF-8 as `replacing` does. Raises `InvalidConfiguration` with `field` if that fails."""
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise InvalidConfiguration(f"cannot write {os.fspath(path)!r}: {reason(error)}", field=field) from error


def reason(error: Exception) -> str:
    """Return the reason of a file error, without path and error number."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a file that atomically replaces the one at `path` when the block ends, after a sync to disk; if the block
    raises, the old file is unchanged. The new file gets the permissions of the old one. If `open_stream` opens `path`,
    write to that stream instead."""
    stream = open_stream(path)
    if stream is not None:
        with os.fdopen(stream, "wb") as file:
            yield file
        return
    target = Path(path)
    mode = None
    with suppress(FileNotFoundError):
        found = target.lstat().st_mode
        if not (stat.S_ISREG(found) or stat.S_ISLNK(found)):
            raise OSError(errno.EINVAL, f"it is {_kind(found)}, not a regular file")
        mode = found & 0o777 if stat.S_ISREG(found) else None
    draft = target.with_name(f".{target.name[:100]}.{os.urandom(8).hex()}")
    number = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(number, "wb") as file:
            if mode is not None:
                os.fchmod(number, mode)
            yield file
            file.flush()
            os.fsync(number)
            draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def claim(path: AnyPath, *, new: bool) -> int:
    """Open the regular file at `path` for reading and appending, create it if missing, and lock it until the
    descriptor is closed; a crash releases the lock. Raises FileExistsError if the file should be `new` but exists, and
    BlockingIOError, which names the holder, if it is locked."""
    while True:
        try:
            number = _open(path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            try:
                number = _open(path)
            except FileNotFoundError:  # removed in the meantime
                continue
            existed = True
        else:
            existed = False
        try:
            _check_regular(number)
            if existed and new:  # without locking it, which could block the process that has just created it
                if (holder := _holder(number)) is not None:
                    raise BlockingIOError(errno.EWOULDBLOCK, f"{holder} is using it")
                raise FileExistsError(errno.EEXIST, "it already exists")
            lock(number)
            if _is_at(number, path):  # otherwise it was replaced before the lock
                return number
        except BaseException:
            os.close(number)
            raise
        os.close(number)


def _open(path: AnyPath, more: int = 0) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(path, flags | more, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and Path(path).is_symlink():
            file = printable(os.path.realpath(path))
            raise OSError(errno.ELOOP, f"it is a symbolic link; name the file itself, {file}") from None
        raise


def disclaim(number: int, path: AnyPath) -> None:
    """Close a new file that `claim` opened at `path`, and remove it if it is empty."""
    try:
        if os.fstat(number).st_size == 0 and _is_at(number, path):
            Path(path).unlink()
    finally:
        os.close(number)


def lock(number: int) -> None:
    """Lock an open file or folder. Raises BlockingIOError, which names the holder if Linux reports it."""
    import fcntl  # not on every platform

    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, f"{_holder(number) or 'another process'} is using it") from None


@contextmanager
def alone(path: AnyPath) -> Iterator[None]:
    """Lock the folder of `path` against other processes in this block, for reading a file and then replacing it. Waits
    for other holders; raises BlockingIOError, which names the holder, if that takes too long."""
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for left in reversed(range(PATIENCE)):
            try:
                lock(folder)
                break
            except BlockingIOError:
                if not left:
                    raise
            sleep(PAUSE)
        yield
    finally:
        os.close(folder)


def open_stream(path: AnyPath) -> int | None:
    """Open an output that is not replaced: a duplicate of the descriptor that ``-``, /dev/stdout, /dev/stderr or
    /dev/fd/N names, a named pipe (waits for a reader), or a device such as /dev/null. Return None for any other
    path."""
    if (descriptor := _descriptor(path)) is not None:
        # `quiet_libraries` moves the real standard error to another descriptor
        return os.dup(sys.stderr.fileno() if descriptor == 2 else descriptor)
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return None
    number = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_IFMT(os.fstat(number).st_mode) == stat.S_IFMT(mode):
        return number
    os.close(number)
    raise OSError(errno.EINVAL, "it was replaced while it was opened")


def clash(written: Mapping[str, AnyPath | None], read: Mapping[str, AnyPath | None]) -> str | None:
    """Return an error message if a `written` path names the same file as another one, else None. The keys describe the
    paths, for example as flags."""
    seen = {words: path for words, path in read.items() if path is not None}
    for words, path in written.items():
        if path is None:
            continue
        for other, its in seen.items():
            if _is_same(path, its):
                return f"{other} and {words} name the same file, {os.fspath(path)!r}; name two files"
        seen[words] = path
    return None


def _is_same(path: AnyPath, other: AnyPath) -> bool:
    if _descriptor(path) is not None:
        return False
    try:
        found = Path(path).stat()
        return stat.S_ISREG(found.st_mode) and os.path.samestat(found, Path(other).stat())
    except OSError:  # one of the files does not exist yet
        return os.path.realpath(path) == os.path.realpath(other)
    except ValueError:  # a NUL, which opening it will report
        return False


def _descriptor(path: AnyPath) -> int | None:
    if found := DESCRIPTOR.fullmatch(os.fspath(path)):
        return int(found[2]) if found[2] else STANDARD[found[1] or "stdout"]
    return None


def _check_regular(number: int) -> None:
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a regular file")


def _kind(mode: int) -> str:
    return KINDS.get(stat.S_IFMT(mode), "something else")


def _is_at(number: int, path: AnyPath) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except OSError:
        return False


def _holder(number: int) -> str | None:
    """Describe the process that has locked an open file, with its command; None if Linux reports none."""
    inode = str(os.fstat(number).st_ino)
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text("utf-8").splitlines():
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and place.rpartition(":")[2] == inode and int(pid) > 0:
                words = Path("/proc", pid, "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                command = printable(b" ".join(words).decode(errors="backslashreplace"))
                return f"process {pid} ({command[:MOST_SHOWN]})"
    return None
