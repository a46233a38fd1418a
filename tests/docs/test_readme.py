"""The README can be followed from top to bottom, and its example keeps its promises."""

from __future__ import annotations

import json

import pytest

from tests.docs.follow import Followed, follow


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    return follow("README.md", tmp_path_factory.mktemp("readme"))


def test_the_first_example_runs_and_every_answer_parses(followed: Followed) -> None:
    example, output = followed.outputs[0]
    assert len([line for line in example.code.splitlines() if line.strip()]) <= 15
    assert len(output.splitlines()) == 2
    for line in output.splitlines():
        answer, rest = line[: line.rindex("}") + 1], line[line.rindex("}") + 2 :]
        assert set(json.loads(answer)) == {"name", "age"}
        assert rest == "stop None llguidance ()"


def test_the_commands_run_from_the_clone(followed: Followed) -> None:
    answers = (followed.folder / "answers.jsonl").read_text("utf-8").splitlines()
    assert answers
    assert all(json.loads(line)["error"] is None for line in answers)
    one, *_ = followed.said("guideway generate").splitlines()
    assert json.loads(json.loads(one)["text"]) in ("yes", "no")
    assert "guideway-llguidance" in followed.said("guideway plugins list")
    assert (followed.folder / "guideway-mine/pyproject.toml").is_file()
