"""The output of ``guideway generate``, ``embed``, ``rerank`` and ``classify``: JSON lines on standard output or in a
file, which a later run may go on with."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from guideway.command_line.terminal import as_stdout_can, print_json
from guideway.errors import GuidewayError, InvalidRequest, printable

__all__ = ["Lines", "OutputLost", "check_ids", "resumed"]

DIGEST = "request_digest"
"""The key of a line in a file under which the digest of what was asked stands."""

UNANSWERED = ("refused", "internal_error", "abort")
"""The finish reasons that a run which resumes asks again for."""


class Identified(Protocol):
    """An entry of the input."""

    @property
    def id(self) -> str:
        """The name that finds its answer again."""

    @property
    def line(self) -> int:
        """The number of its line in the input; 0 without one."""


class OutputLost(GuidewayError):
    """The file of answers takes no more. All whole lines are in it; a matrix is whole or not there."""


class Lines:
    """Writes JSON lines, each of them whole: to the file `path`, or to standard output if that is None, where a
    terminal gets them indented. A line in a file has the digest of its id in `digests`. Raises `InvalidRequest` if the
    file cannot be opened or, unless `append`, is there."""

    def __init__(self, path: str | None, *, append: bool, digests: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._digests = digests or {}
        self._last: str | None = None
        """The id of the last whole line."""
        self._number = 0
        """The number of that line."""
        self._file: int | None = None
        if path is None:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            why = getattr(error, "strerror", None) or error
            raise InvalidRequest(f"cannot write the output {path!r}: {why}", field="output") from error
        size = os.fstat(self._file).st_size
        if size and not append:
            self.__exit__()
            raise InvalidRequest(
                f"the output {path!r} already exists; continue it with --resume, or choose a new file", field="output"
            )
        if size:
            self._number = Path(path).read_bytes().count(b"\n")

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def write(self, line: dict[str, Any], its_id: str) -> None:
        """Write one line. Raises `OutputLost`, and OSError for standard output, both with the last whole line."""
        try:
            if self._file is not None:
                if its_id in self._digests:
                    line = line | {DIGEST: self._digests[its_id]}
                self._write(_text(line).encode(errors="backslashreplace"))
            elif sys.stdout.isatty():
                print_json(line)
            else:
                text = _text(line)
                # the line and its end at once: an interrupt comes before or after both
                sys.stdout.write((text if as_stdout_can(text) == text else json.dumps(line)) + "\n")
                sys.stdout.flush()
        except OSError as error:
            last = f"line {self._number}, of prompt {self._last}" if self._last is not None else f"line {self._number}"
            whole = printable(f"its last complete line is {last}") if self._number else "it has no complete line"
            if self._path is None:
                error.add_note(whole)
                raise
            again = "; --resume continues after it" if self._number else ""
            raise OutputLost(
                f"cannot write the output {self._path!r}: {error.strerror or error}; {whole}{again}"
            ) from error
        self._number += 1
        self._last = its_id

    def _write(self, data: bytes) -> None:
        """Append a line to the file; of one that does not fit nothing stays."""
        assert self._file is not None
        before = os.fstat(self._file).st_size
        rest = memoryview(data + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except BaseException:  # interrupted, too
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise


def _text(line: dict[str, Any]) -> str:
    """Return a line as readable as can be, without anything that commands a terminal."""
    text = json.dumps(line, ensure_ascii=False)
    return text if printable(text) == text else json.dumps(line)


def check_ids(entries: Sequence[Identified]) -> None:
    """Raise `InvalidRequest` for entries that have the same id: in a file their answers could not be told apart."""
    lines: dict[str, int] = {}
    for entry in entries:
        if (first := lines.setdefault(entry.id, entry.line)) != entry.line:
            raise InvalidRequest(
                f"lines {first} and {entry.line} of the input have the same id {entry.id!r}, and answers in a file are "
                "found by it; give each its own 'id' (a line without one has its number as id, from 0)",
                field="input",
            )


def resumed(path: str, digests: Mapping[str, str]) -> set[str]:
    """The ids, of those in `digests`, that the file `path` has whole answers for. What else it holds is taken out of
    it: a torn line, and what was refused or failed. Raises `InvalidRequest` for a file that is not one of answers, and
    for an answer to something else than what `digests` are of; the file then stays as it is."""
    file = Path(path)
    try:
        if not file.exists():
            return set()
        if not stat.S_ISREG(file.stat().st_mode):
            raise InvalidRequest(f"--resume needs a regular file, but {path!r} is not one", field="output")
        lines = [line + b"\n" for line in file.read_bytes().split(b"\n")]
        torn = lines.pop() != b"\n"
        found = [_answer_of(path, number, line) for number, line in enumerate(lines, start=1)]
        done = _checked(path, found, digests)
        if torn or None in found:
            kept = [line for line, answer in zip(lines, found, strict=True) if answer is not None]
            beside = file.resolve().with_name(f"{file.resolve().name}.resuming")
            beside.write_bytes(b"".join(kept))
            beside.chmod(stat.S_IMODE(file.stat().st_mode))
            beside.replace(file.resolve())
    except OSError as error:
        why = f"cannot continue the output {path!r}: {error.strerror or error}"
        raise InvalidRequest(why, field="output") from error
    return done


def _answer_of(path: str, number: int, line: bytes) -> tuple[str, object] | None:
    """The id in a line of answers, and the digest of what was asked; None for one that is to be asked again."""
    try:
        entry = json.loads(line)
        its_id, reasons = entry["id"], [each["finish_reason"] for each in (entry, *entry.get("outputs", ()))]
        digest = entry.get(DIGEST)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path}, line {number} is not a line of answers, so --resume does not change the file", field="output"
        ) from error
    again = any(reason in UNANSWERED for reason in reasons) or not isinstance(its_id, str)
    return None if again else (its_id, digest)


def _checked(path: str, found: Sequence[tuple[str, object] | None], digests: Mapping[str, str]) -> set[str]:
    """The ids of the answers that were found to what is asked. Raises `InvalidRequest` for one to something else."""
    done, unknown = set(), 0
    for number, answer in enumerate(found, start=1):
        if answer is None or answer[0] not in digests:
            continue
        its_id, digest = answer
        if digest is not None and digest != digests[its_id]:
            raise InvalidRequest(
                f"{path}, line {number} is no answer to what is asked now under the id {its_id!r}: prompt, model or "
                "settings were others. Give the same input and settings as before, or name another file with --output; "
                "nothing was changed",
                field="output",
            )
        done.add(its_id)
        unknown += digest is None
    if unknown:
        print(
            printable(
                f"guideway: {path}: {unknown} answers do not say what was asked (an older version wrote them, or they "
            )
            + "went through a pipe); they are kept by 'id' alone",
            file=sys.stderr,
        )
    return done
