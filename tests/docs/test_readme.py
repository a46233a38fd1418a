"""The README's example runs as it stands, and says what it promises."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_first_example_runs_and_every_answer_parses() -> None:
    example = code_blocks("python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    lines = printed.getvalue().splitlines()
    assert len(lines) == 2
    for line in lines:
        answer, rest = line[: line.rindex("}") + 1], line[line.rindex("}") + 2 :]
        assert set(json.loads(answer)) == {"name", "age"}
        assert rest == "stop None llguidance ()"
