"""Print JSON and tables to standard output."""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence

from guideway.errors import printable

__all__ = ["as_stdout_can", "print_json", "print_table"]

TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(?=(:)?)|\b(?:true|false|null)\b|-?\b\d[\d.eE+-]*')
KEY, STRING, OTHER, PLAIN = "\x1b[34m", "\x1b[32m", "\x1b[36m", "\x1b[0m"


def print_json(value: object) -> None:
    """Print indented JSON, colored at a terminal. Characters are escaped if standard output cannot encode them. Lines
    are not wrapped, so the output can be copied."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if printable(as_stdout_can(text)) != text:
        text = json.dumps(value, indent=2, default=str)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        text = TOKEN.sub(_color, text)
    print(text, flush=True)


def _color(found: re.Match[str]) -> str:
    color = OTHER if found[1] is None else STRING if found[2] is None else KEY
    return f"{color}{found[0]}{PLAIN}"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, longest: int | None = None) -> None:
    """Print columns. At a terminal, cells that do not fit on the line are printed on indented lines below. Cells of
    more than `longest` characters may overflow: they do not widen their column."""
    table = [header, *rows]
    widths = [
        max(len(row[i]) for row in table if longest is None or len(row[i]) <= longest) for i in range(len(header))
    ]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in table:
        line, indent = "", "    "
        for cell, width in zip(row, widths, strict=True):
            if line.strip() and room is not None and len(line) + len(cell) > room:
                print(line.rstrip())
                line = indent
            line += f"{cell:{width}}  "
        print(line.rstrip())


def as_stdout_can(text: str) -> str:
    """Return `text` with characters escaped that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
