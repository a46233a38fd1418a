"""The files of commands: read whole within a bound, created, replaced at once, and locked while they are in use.

Nothing here follows a symbolic link in order to write. Where nothing else is said, whatever is refused is an OSError
whose `strerror` says why: the caller says what the file was for.
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
"""Bytes that a file which is read whole may have: many times what a schema, a report or a lock file needs."""

DESCRIPTOR = re.compile(r"-|/dev/(stdin|stdout|stderr)|/(?:dev|proc/self)/fd/([0-9]{1,9})")
"""The paths of outputs that name an open descriptor of this process."""
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
"""Attempts of `alone`, and the seconds between two of them: what it waits for takes milliseconds."""

MOST_SHOWN = 200
"""Characters of a command that are shown."""


def read_file(path: AnyPath, most: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Waits for no other process, as opening a named pipe
    would, and reads no device."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)

    with open(path, "rb", opener=opened) as file:  # a Path takes no opener
        _check_regular(file.fileno())
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // MIB} MiB")
    return data


def write_file(path: AnyPath, text: str, *, field: str) -> None:
    """Write `text` in UTF-8 as `replacing` does. Raises `InvalidConfiguration` for the option `field` if that fails."""
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise InvalidConfiguration(f"cannot write {os.fspath(path)!r}: {reason(error)}", field=field) from error


def reason(error: Exception) -> str:
    """Return why a file cannot be used, without its path and an error number."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """Within, write a file that takes the place of the one at `path`, whole and on the disk, when the block ends; if it
    raises, the earlier one stays as it was. The new one has its permissions. What `open_stream` opens is written to."""
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
    """Open the regular file at `path` to read and append to it, created if it is missing, with a lock that the kernel
    keeps for as long as the descriptor is open: a crash leaves none. Raises FileExistsError for a file that should be
    `new` and is not, and BlockingIOError, which names the holder, for one in use."""
    while True:
        try:
            number = _open(path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            try:
                number = _open(path)
            except FileNotFoundError:  # it is gone by now
                continue
            existed = True
        else:
            existed = False
        try:
            _check_regular(number)
            if existed and new:  # without a lock, which might keep the process that has just created it from its own
                if (holder := _holder(number)) is not None:
                    raise BlockingIOError(errno.EWOULDBLOCK, f"{holder} is using it")
                raise FileExistsError(errno.EEXIST, "it already exists")
            lock(number)
            if _is_at(number, path):  # else it was replaced before it was locked
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
    """Close what `claim` opened as a new file at `path`, and remove it if nothing was written to it."""
    try:
        if os.fstat(number).st_size == 0 and _is_at(number, path):
            Path(path).unlink()
    finally:
        os.close(number)


def lock(number: int) -> None:
    """Lock an open file or folder. Raises BlockingIOError, which names the holder where Linux tells it."""
    import fcntl  # not everywhere

    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, f"{_holder(number) or 'another process'} is using it") from None


@contextmanager
def alone(path: AnyPath) -> Iterator[None]:
    """Within, no other process is in such a block for a file of the same folder: for those that read a file and then
    replace it. They wait for each other; raises BlockingIOError, which names the holder, if that takes too long."""
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
    """Open what is written to as it is: the descriptor that ``-``, /dev/stdout, /dev/stderr or /dev/fd/N names, which
    is duplicated; a named pipe, whose reader is waited for; a device such as /dev/null. None for any other path."""
    if (descriptor := _descriptor(path)) is not None:
        # where native code is kept quiet, the real one is elsewhere for the time being
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
    """Say which two of these name one file, if one of the two is `written`. The keys are words for them, such as
    flags."""
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
    except OSError:  # one of them is not there yet
        return os.path.realpath(path) == os.path.realpath(other)
    except ValueError:  # a NUL, as opening it will say
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
    """Return the process that has locked an open file, with its command; None if Linux names none."""
    inode = str(os.fstat(number).st_ino)
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text("utf-8").splitlines():
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and place.rpartition(":")[2] == inode and int(pid) > 0:
                words = Path("/proc", pid, "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                command = printable(b" ".join(words).decode(errors="backslashreplace"))
                return f"process {pid} ({command[:MOST_SHOWN]})"
    return None
