"""A cross-encoder selected by an entry point, from the command line and in the engine: guideway-demo-ranker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guideway import Engine, InvalidConfiguration
from guideway.command_line.program import main
from guideway.errors import UnsupportedCapability

QUERY = "What does the hedgehog eat?"
DOCUMENTS = [
    "The hedgehog hunts for beetles.",
    "The hedgehog is up and about at dusk.",
    "The badger hunts for beetles.",
]


def test_the_command_scores_what_the_engine_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "documents.txt").write_text("\n".join(DOCUMENTS), encoding="utf-8")
    flags = ["--query", QUERY, "--input", str(tmp_path / "documents.txt")]
    assert main(["rerank", "--model", "demo-ranker", *flags]) == 0
    printed = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    with Engine("demo-ranker") as engine:
        assert engine.workflow == "rerank"
        scores = [result.score for result in engine.rerank(QUERY, DOCUMENTS)]
        with pytest.raises(UnsupportedCapability, match=r"call rerank\(\)"):
            engine.generate(QUERY)
    assert printed == pytest.approx(scores, abs=1e-6)
    assert scores[0] is not None and scores[0] > 0.5 > max(score for score in scores[1:] if score is not None)


def test_its_name_is_no_prefix_of_another() -> None:
    with pytest.raises(InvalidConfiguration, match="'demo-ranker'"):
        Engine("demo-rankr")
