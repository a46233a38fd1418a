"""Reading of input files and standard input."""

from __future__ import annotations

import errno
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

from guideway.command_line.usage import WrongValue
from guideway.errors import InvalidRequest
from guideway.files import LARGEST, MIB, clash, read_file, reason

__all__ = ["BOM", "check_input", "check_output", "is_id", "read_lines", "read_text"]

BOM = b"\xef\xbb\xbf"

LONGEST = 64 * MIB
"""Maximum number of bytes of a line; an answer with the log-probabilities of a long prompt needs some."""

INPUTS = ("input", "text_file", "record", "schema", "config")
"""Arguments that may name a file to read, in addition to that for a grammar."""


def check_input(args: Namespace) -> None:
    """Raise `WrongValue` if several arguments read standard input."""
    given = {"prompt": args.prompt, "input": args.input, "schema": args.schema}
    if args.grammar_file is not None:
        given["grammar-file"] = args.grammar_file[1]
    if len(names := [f"--{name}" for name, value in given.items() if value == "-"]) > 1:
        raise WrongValue(f"{' and '.join(names)} both read standard input; name a file for one", field="input")


def is_id(value: object) -> bool:
    """Return whether a value in JSON can identify a line of input."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def check_output(args: Namespace, name: str) -> None:
    """Raise `WrongValue` if the argument `name` names a file that another argument reads."""
    given = {f"--{each.replace('_', '-')}": getattr(args, each, None) for each in INPUTS}
    read = {flag: path for flag, path in given.items() if isinstance(path, str)}  # generate's --record names no file
    if grammar := getattr(args, "grammar_file", None):
        read["--grammar-file"] = grammar[1]
    if said := clash({f"--{name}": getattr(args, name)}, read):
        raise WrongValue(said, field=name)


def read_text(path: str, what: str) -> str:
    """Return the text of a UTF-8 file, or of standard input for ``-``. Raises `InvalidRequest` with the field
    `what`."""
    data = _content(path, what).removeprefix(BOM)
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = data[: error.start].split(b"\n")
        place = f"the byte 0x{data[error.start]:02x} in line {len(before)}, column {len(before[-1].decode()) + 1}"
        raise InvalidRequest(f"cannot read the {what} {path!r}: it is not UTF-8: {place}", field=what) from error


def _content(path: str, what: str) -> bytes:
    """Return the content of a regular file of at most `LARGEST` bytes, or of standard input for ``-``. Raises
    `InvalidRequest` with the field `what`."""
    with _name_errors(path, what):
        if path != "-":
            return read_file(path)
        data = _standard_input(what).read(LARGEST + 1)
        if len(data) > LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {LARGEST // MIB} MiB")
        return data


def read_lines(path: str, what: str) -> Iterator[bytes]:
    """Yield the lines of a file, pipe or device, or of standard input for ``-``, without their line breaks and a byte
    order mark. Raises `InvalidRequest` with the field `what`, also for a line with more than `LONGEST` bytes."""
    with _name_errors(path, what), ExitStack() as stack:
        file = _standard_input(what) if path == "-" else stack.enter_context(Path(path).open("rb"))
        for number in count(1):
            line = file.readline(LONGEST + 1)
            if not line:
                return
            if number == 1:
                line = line.removeprefix(BOM)
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise InvalidRequest(f"{path} is UTF-16; convert it to UTF-8", field=what)
            if len(line) > LONGEST:
                raise InvalidRequest(f"{path}, line {number} is longer than {LONGEST // MIB} MiB", field=what)
            yield line.removesuffix(b"\n")


def _standard_input(what: str) -> BinaryIO:
    if sys.stdin is None:
        raise InvalidRequest(f"cannot read the {what}: standard input is closed", field=what)
    return sys.stdin.buffer


@contextmanager
def _name_errors(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequest:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise InvalidRequest(f"cannot read the {what} {path!r}: {reason(error)}", field=what) from error
