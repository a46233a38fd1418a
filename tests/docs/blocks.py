"""The code blocks of a page, and a way to run them as a reader would."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def code_blocks(page: str, language: str) -> list[str]:
    """The blocks of `language` in the page at `page`, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_block(source: str, page: str, namespace: dict[str, Any]) -> str:
    """Run Python code in `namespace`; what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, page, "exec"), namespace)
    return printed.getvalue()
