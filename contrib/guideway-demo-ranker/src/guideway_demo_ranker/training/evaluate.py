"""``python -m guideway_demo_ranker.training.evaluate``: measure the demo ranker, or another, through guideway's engine,
and BM25 on the same questions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from guideway import Engine

from guideway_demo_ranker import DemoRanker
from guideway_demo_ranker.training.bm25 import BM25
from guideway_demo_ranker.training.data import Ranking, Source
from guideway_demo_ranker.training.entities import Split

__all__ = ["DOCUMENTS", "SEED", "SETTINGS", "Figures", "Setting", "evaluate", "main", "rankings", "scorer", "table"]

SEED = 2026
DOCUMENTS = 20
"""Documents of each question, one of which answers it."""
PACKAGES = ("torch", "transformers", "tokenizers")

Scorer = Callable[[str, Sequence[str]], list[float]]


@dataclass(frozen=True)
class Setting:
    """A kind of questions: whether their entities and wordings were seen in training or are held out."""

    entities: Split
    wordings: Split


SETTINGS = (Setting("train", "train"), Setting("test", "train"), Setting("test", "test"))


@dataclass
class Figures:
    """Counts over rankings."""

    queries: int = 0
    first: int = 0
    """Rankings with the answer first."""
    reciprocal_ranks: float = 0.0
    """The sum of 1 / rank of the answer."""
    documents: int = 0
    """Number of documents that do not answer."""
    answers_above: int = 0
    """Answers with a score above 0.5."""
    others_below: int = 0
    """Other documents with a score below 0.5."""

    def add(self, ranking: Ranking, scores: Sequence[float]) -> None:
        """Count one more ranking. Of equal scores the first counts as higher, because the order is random."""
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        rank = order.index(ranking.answer) + 1
        self.queries += 1
        self.first += rank == 1
        self.reciprocal_ranks += 1 / rank
        self.documents += len(scores) - 1
        self.answers_above += scores[ranking.answer] > 0.5
        self.others_below += sum(score < 0.5 for index, score in enumerate(scores) if index != ranking.answer)

    def ranks(self) -> dict[str, float]:
        """Return the figures that do not need probabilities as scores."""
        return {"queries": self.queries, "first": self.first, "reciprocal_ranks": self.reciprocal_ranks}


def rankings(setting: Setting, count: int, seed: int = SEED) -> list[Ranking]:
    """Return the questions of a setting, with their documents."""
    name = f"evaluation-{seed}-{setting.entities}-{setting.wordings}"
    source = Source(name, entities=setting.entities, wordings=setting.wordings)
    return [source.ranking(DOCUMENTS) for _ in range(count)]


def scorer(engine: Engine) -> Scorer:
    """Return a function that scores documents with `engine`. It raises the error of a document that fails."""

    def scores(query: str, documents: Sequence[str]) -> list[float]:
        found = []
        for result in engine.rerank(query, documents):
            if result.error is not None:
                raise result.error
            assert result.score is not None  # always, if there is no error
            found.append(result.score)
        return found

    return scores


def evaluate(scores: Scorer, asked: Sequence[Ranking]) -> Figures:
    """Return the figures of a scorer."""
    figures = Figures()
    for ranking in asked:
        figures.add(ranking, scores(ranking.query, ranking.documents))
    return figures


def table(report: dict[str, Any]) -> str:
    """Return the report of `main` as Markdown."""
    lines = [
        "| entities | wordings | ranked by | answer first | MRR | answers above 0.5 | others below 0.5 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["settings"]:
        said = ["seen" if row[split] == "train" else "held out" for split in ("entities", "wordings")]
        for name in ("BM25", "demo-ranker"):
            found = row[name]
            cells = [*said, name, _share(found["first"], found["queries"])]
            cells.append(f"{found['reciprocal_ranks'] / found['queries']:.3f}")
            if "documents" in found:
                cells.append(_share(found["answers_above"], found["queries"]))
                cells.append(_share(found["others_below"], found["documents"]))
            else:
                cells += ["", ""]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _share(right: int, total: int) -> str:
    return f"{100 * right / total:.1f}%"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m guideway_demo_ranker.training.evaluate")
    parser.add_argument("--model", type=Path, default=None, help="folder of a model; default: the one in this package")
    parser.add_argument("--queries", type=int, default=500, help="for each setting (default 500)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=None, help="folder for evaluation.json and evaluation.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder: Path = options.model or DemoRanker().path()
    rows = []
    with Engine(folder) as engine:
        for setting in SETTINGS:
            asked = rankings(setting, options.queries, options.seed)
            words = BM25(document for ranking in asked for document in ranking.documents)
            by_words, by_model = evaluate(words.scores, asked), evaluate(scorer(engine), asked)
            rows.append({**asdict(setting), "BM25": by_words.ranks(), "demo-ranker": asdict(by_model)})
    command = f"--queries {options.queries} --seed {options.seed}"
    report = {
        "command": f"python -m guideway_demo_ranker.training.evaluate {command}",
        "model_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "documents": DOCUMENTS,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "settings": rows,
    }
    text = table(report)
    sys.stdout.write(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
        (options.out / "evaluation.md").write_text(_page(report, text), "utf-8")
    return 0


def _page(report: dict[str, Any], text: str) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in report["packages"].items())
    return (
        "# What the demo ranker gets right\n\n"
        f"Made by `{report['command']}` with Python {report['python']}, {packages}.\n"
        f"SHA-256 of model.safetensors: `{report['model_sha256']}`.\n"
        f"{report['settings'][0]['BM25']['queries']} questions in each setting, each with {report['documents']} "
        f"documents, of which one answers.\n\n{text}"
    )


if __name__ == "__main__":
    sys.exit(main())
