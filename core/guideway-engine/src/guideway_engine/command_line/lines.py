"""Output of ``guideway generate``, ``embed``, ``rerank`` and ``classify``: JSON lines on standard output or in a file,
which a later run may continue."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from guideway.command_line.terminal import as_stdout_can, print_json
from guideway.errors import GuidewayError, InvalidRequest, printable
from guideway.files import claim, disclaim, open_stream, reason

from guideway_engine.command_line.resuming import DIGEST, keep_answers, rewrite

__all__ = ["Lines", "OutputLost", "check_ids"]


class Identified(Protocol):
    """An entry of the input."""

    @property
    def id(self) -> str:
        """Identifier of the entry and its answer."""

    @property
    def line(self) -> int:
        """Number of its line in the input; 0 without one."""


class OutputLost(GuidewayError):
    """Raised if the output file cannot be written any more. It contains all complete lines; a matrix is complete or
    missing."""


class Lines:
    """Writes complete JSON lines to the file `path`, or to standard output if that is None; a terminal gets them
    indented.

    The file must be new, a pipe or a device, or with `resume` a file of answers. It is locked while it is written. In a
    file, each line has the digest of its id in `digests`, and a regular file is put into the order of `digests` at the
    end; lines of other ids come first. Raises `InvalidRequest` if the file cannot be opened or continued.
    """

    def __init__(self, path: str | None, *, resume: bool = False, digests: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._digests = digests or {}
        self._last: str | None = None
        """Id of the last complete line."""
        self._number = 0
        """Number of that line."""
        self._file: int | None = None
        self._is_new = not resume
        self._begins: dict[int, str] = {}
        """Id of each line of a regular file, by the offset at which the line begins."""
        self.is_stream = True
        """True if lines stay in the order in which they are written."""
        self.done: set[str] = set()
        """Ids in `digests` that the file already has answers for."""
        if path is None:
            return
        try:
            if not resume:
                self._file = open_stream(path)
            if self._file is None:
                self.is_stream = False
                self._file = claim(path, new=not resume)
            if resume:
                self._file, self._begins = keep_answers(self._file, path, self._digests)
                self.done, self._number = self._digests.keys() & self._begins.values(), len(self._begins)
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            self._close()
            if isinstance(error, InvalidRequest):
                raise
            why = reason(error)
            if isinstance(error, FileExistsError):
                why = f"{why}; continue it with --resume, or choose a new file"
            raise InvalidRequest(f"cannot write the output {path!r}: {why}", field="output") from error

    @property
    def may_be_seen(self) -> bool:
        """True if lines may appear on the terminal that the user sees: the output is a terminal, or a pipe, which may
        lead there. A progress bar would be drawn between them."""
        try:
            number = sys.stdout.fileno() if self._file is None else self._file
            return os.isatty(number) or stat.S_ISFIFO(os.fstat(number).st_mode)
        except (OSError, ValueError):  # standard output is closed, or not a file
            return False

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Close the file, in order unless an error ended the run. Raises `OutputLost` if that fails."""
        try:
            if kind is None:
                self._sort()
        except OSError as error:
            raise OutputLost(
                f"cannot put the output {self._path!r} into the order of the input: {reason(error)}; its lines are "
                "complete, in the order in which the answers were ready, and --resume tries again"
            ) from error
        finally:
            self._close()

    def _sort(self) -> None:
        """Put the lines of a regular file into the order of `digests`."""
        if self._file is None or self._path is None or self.is_stream:
            return
        places = {its_id: place for place, its_id in enumerate(self._digests)}
        ordered = sorted(self._begins, key=lambda begin: places.get(self._begins[begin], -1))
        if ordered != sorted(ordered):
            self._file = rewrite(self._file, self._path, ordered)

    def _close(self) -> None:
        number, self._file = self._file, None
        if number is None:
            return
        if self._path is not None and self._is_new and not self.is_stream:
            disclaim(number, self._path)
        else:
            os.close(number)

    def write(self, line: dict[str, Any], its_id: str) -> None:
        """Write one line. Raises `OutputLost`, or OSError for standard output; both errors name the last complete
        line."""
        try:
            if self._file is not None:
                if its_id in self._digests:
                    line = line | {DIGEST: self._digests[its_id]}
                self._write(_text(line).encode(errors="backslashreplace"), its_id)
            elif sys.stdout.isatty():
                print_json(line)
            else:
                text = _text(line)
                # line and line break in one call, so that an interrupt cannot separate them
                sys.stdout.write((text if as_stdout_can(text) == text else json.dumps(line)) + "\n")
                sys.stdout.flush()
        except OSError as error:
            last = f"line {self._number}, of prompt {self._last}" if self._last is not None else f"line {self._number}"
            whole = printable(f"its last complete line is {last}") if self._number else "it has no complete line"
            if self._path is None:
                error.add_note(whole)
                raise
            again = "; --resume answers the rest" if self._number and not self.is_stream else ""
            raise OutputLost(f"cannot write the output {self._path!r}: {reason(error)}; {whole}{again}") from error
        self._number += 1
        self._last = its_id

    def _write(self, data: bytes, its_id: str) -> None:
        """Append a line to the file; if it does not fit, remove the written part."""
        assert self._file is not None
        before = os.fstat(self._file).st_size
        self._begins[before] = its_id  # first, so that an interrupt leaves no line without its id
        rest = memoryview(data + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except BaseException:  # interrupts included
            if not self.is_stream:
                with suppress(OSError):
                    os.ftruncate(self._file, before)
                    os.lseek(self._file, before, os.SEEK_SET)
            raise


def _text(line: dict[str, Any]) -> str:
    """Return a line as readable JSON, escaped if it contains characters that control a terminal."""
    text = json.dumps(line, ensure_ascii=False)
    return text if printable(text) == text else json.dumps(line)


def check_ids(entries: Sequence[Identified]) -> None:
    """Raise `InvalidRequest` for entries with the same id, whose answers could not be distinguished in a file."""
    lines: dict[str, int] = {}
    for entry in entries:
        if (first := lines.setdefault(entry.id, entry.line)) != entry.line:
            raise InvalidRequest(
                f"lines {first} and {entry.line} of the input have the same id {entry.id!r}, and answers in a file are "
                "found by it; give each its own 'id' (a line without one has its number as id, from 0)",
                field="input",
            )
