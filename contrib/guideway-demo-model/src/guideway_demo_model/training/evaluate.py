"""``python -m guideway_demo_model.training.evaluate``: measure the demo model, or another, through guideway's engine.

Values are always held out. Templates were seen in training or are held out; prompts list the wanted fields or do not;
answers are constrained by each sample's schema or unconstrained. Decoding is greedy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
from guideway import Engine, EngineConfig, JsonSchema, SamplingParams

from guideway_demo_model import DemoModel
from guideway_demo_model.training.data import Sample, Source
from guideway_demo_model.training.scoring import Answer, Score, interval, score

__all__ = ["SEED", "Setting", "evaluate", "main", "samples", "settings", "table"]

SEED = 2026
MAX_TOKENS = 400
"""Maximum tokens of an answer; a longer one is counted as it is, with the finish reason ``length``."""
PACKAGES = ("torch", "transformers", "llguidance", "jsonschema")


@dataclass(frozen=True)
class Setting:
    """A kind of prompts, and whether the answers are constrained by their schemas."""

    held_out_templates: bool
    listed: bool
    constrained: bool

    def __str__(self) -> str:
        templates = "held-out" if self.held_out_templates else "seen"
        fields = "listed" if self.listed else "not listed"
        return f"{templates} templates, fields {fields}, {'under the schema' if self.constrained else 'unconstrained'}"


def settings() -> list[Setting]:
    """Return all eight settings, constrained ones first."""
    return [
        Setting(held, listed, constrained)
        for constrained, held, listed in product((True, False), (False, True), (True, False))
    ]


def samples(setting: Setting, count: int, seed: int = SEED) -> list[Sample]:
    """Return the samples of a setting; constrained and unconstrained settings have the same."""
    name = f"evaluation-{seed}-{setting.held_out_templates}-{setting.listed}"
    source = Source(name, values="test", templates="test" if setting.held_out_templates else "train")
    return [source.sample(listed=setting.listed) for _ in range(count)]


def evaluate(engine: Engine, setting: Setting, count: int, seed: int = SEED) -> Score:
    """Let `engine` answer the samples of `setting`. Raises the error of a request that fails."""
    asked = samples(setting, count, seed)
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, constraint=JsonSchema(sample.schema) if setting.constrained else None)
        for sample in asked
    ]
    results = engine.generate([[{"role": "user", "content": sample.prompt}] for sample in asked], params)
    for result in results:
        if result.error is not None:
            raise result.error
    return score(asked, [Answer(result.text, str(result.finish_reason)) for result in results])


def table(report: dict[str, Any]) -> str:
    """Return the report of `main` as Markdown."""
    lines = [
        "| templates | fields | decoding | exact match | 95% interval | single fields | valid | cut short |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["settings"]:
        low, high = interval(row["exact"], row["samples"])
        templates = "held out" if row["held_out_templates"] else "seen"
        cells = [
            templates,
            "listed" if row["listed"] else "not listed",
            "under the schema" if row["constrained"] else "unconstrained",
            _share(row["exact"], row["samples"]),
            f"{100 * low:.1f} to {100 * high:.1f}%",
            _share(row["fields_right"], row["fields"]),
            _share(row["valid"], row["samples"]),
            str(row["finish_reasons"].get("length", 0)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    kinds = sorted({kind for row in report["settings"] for kind in row["kinds"]})
    lines += ["", f"| exact match by kind | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for row in report["settings"]:
        shares = [_share(*row["kinds"].get(kind, (0, 0))) for kind in kinds]
        lines.append(f"| {row['name']} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def _share(right: int, total: int) -> str:
    return f"{100 * right / total:.1f}%" if total else "none"


def _row(setting: Setting, result: Score) -> dict[str, Any]:
    return {
        "name": str(setting),
        "held_out_templates": setting.held_out_templates,
        "listed": setting.listed,
        "constrained": setting.constrained,
        "samples": result.samples,
        "exact": result.exact,
        "fields": result.fields,
        "fields_right": result.fields_right,
        "valid": result.valid,
        "finish_reasons": dict(sorted(result.finish_reasons.items())),
        "kinds": {kind: (result.kinds_exact[kind], total) for kind, total in sorted(result.kinds.items())},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m guideway_demo_model.training.evaluate")
    parser.add_argument("--model", type=Path, default=None, help="folder of a model; default: the one in this package")
    parser.add_argument("--samples", type=int, default=300, help="for each setting (default 300)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=None, help="folder for evaluation.json and evaluation.md")
    parser.add_argument("--wrong", type=Path, default=None, help="JSON lines file for the samples that were not exact")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder: Path = options.model or DemoModel().path()
    rows = []
    wrong: list[dict[str, Any]] = []
    with Engine(EngineConfig(model=str(folder), grammar=("llguidance",))) as engine:
        for setting in settings():
            result = evaluate(engine, setting, options.samples, options.seed)
            rows.append(_row(setting, result))
            wrong += [{"setting": str(setting), **case} for case in result.wrong]
    command = f"--samples {options.samples} --seed {options.seed}"
    report = {
        "command": f"python -m guideway_demo_model.training.evaluate {command}",
        "model_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "max_tokens": MAX_TOKENS,
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
    if options.wrong is not None:
        lines = (json.dumps(case, ensure_ascii=False) + "\n" for case in wrong)
        options.wrong.write_text("".join(lines), "utf-8")
    return 0


def _page(report: dict[str, Any], text: str) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in report["packages"].items())
    return (
        "# What the demo model gets right\n\n"
        f"Made by `{report['command']}` with Python {report['python']}, {packages}.\n"
        f"SHA-256 of model.safetensors: `{report['model_sha256']}`.\n\n{text}"
    )


if __name__ == "__main__":
    sys.exit(main())
