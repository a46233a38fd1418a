"""The README's example runs as it stands, and says what it promises."""

from __future__ import annotations

import json

from tests.docs.blocks import code_blocks, run_block


def test_the_first_example_runs_and_every_answer_parses() -> None:
    example = code_blocks("README.md", "python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    lines = run_block(example, "README.md", {"__name__": "readme"}).splitlines()
    assert len(lines) == 2
    for line in lines:
        answer, rest = line[: line.rindex("}") + 1], line[line.rindex("}") + 2 :]
        assert set(json.loads(answer)) == {"name", "age"}
        assert rest == "stop None llguidance ()"
