"""What commands print on standard output, as a person at a terminal wants it."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import os
import re
import sys

from guideway.errors import printable

__all__ = ["as_stdout_can", "print_json"]

TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(?=(:)?)|\b(?:true|false|null)\b|-?\b\d[\d.eE+-]*')
KEY, STRING, OTHER, PLAIN = "\x1b[34m", "\x1b[32m", "\x1b[36m", "\x1b[0m"


def print_json(value: object) -> None:
    """Print JSON, indented, as readable as standard output allows; colored at a terminal. No line is broken but where
    JSON allows it, so that it can be copied."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if printable(as_stdout_can(text)) != text:
        text = json.dumps(value, indent=2)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        text = TOKEN.sub(_colored, text)
    print(text, flush=True)


def _colored(found: re.Match[str]) -> str:
    color = OTHER if found[1] is None else STRING if found[2] is None else KEY
    return f"{color}{found[0]}{PLAIN}"


def as_stdout_can(text: str) -> str:
    """`text`, with what standard output cannot encode escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
