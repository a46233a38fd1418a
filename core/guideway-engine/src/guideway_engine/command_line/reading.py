"""Files of input, and standard input."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from guideway.command_line.usage import WrongValue
from guideway.errors import InvalidRequest
from guideway.files import clash

__all__ = ["BOM", "check_output", "read_bytes", "read_text"]

BOM = b"\xef\xbb\xbf"

INPUTS = ("input", "text_file", "record", "schema", "config")
"""The arguments that may name a file to read, besides a grammar's."""


def check_output(args: Namespace, name: str) -> None:
    """Raise `WrongValue` if the argument `name` names a file that another argument has read."""
    given = {f"--{each.replace('_', '-')}": getattr(args, each, None) for each in INPUTS}
    read = {flag: path for flag, path in given.items() if isinstance(path, str)}  # generate's --record is none
    if grammar := getattr(args, "grammar_file", None):
        read["--grammar-file"] = grammar[1]
    if said := clash({f"--{name}": getattr(args, name)}, read):
        raise WrongValue(said, field=name)


def read_text(path: str, what: str) -> str:
    """The text of a file in UTF-8, of standard input for ``-``. Raises `InvalidRequest` with the field `what`."""
    data = read_bytes(path, what).removeprefix(BOM)
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = data[: error.start].split(b"\n")
        place = f"the byte 0x{data[error.start]:02x} in line {len(before)}, column {len(before[-1].decode()) + 1}"
        raise InvalidRequest(f"cannot read the {what} {path!r}: it is not UTF-8: {place}", field=what) from error


def read_bytes(path: str, what: str) -> bytes:
    """The content of a file, of standard input for ``-``. Raises `InvalidRequest` with the field `what`."""
    try:
        if path != "-":
            return Path(path).read_bytes()
        if sys.stdin is None:
            raise InvalidRequest(f"cannot read the {what}: standard input is closed", field=what)
        return sys.stdin.buffer.read()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        if isinstance(error, InvalidRequest):
            raise
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"cannot read the {what} {path!r}: {why}", field=what) from error
