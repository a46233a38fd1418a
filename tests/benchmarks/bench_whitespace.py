"""White space that ``bounded`` answers contain: tokens per answer, in two commits.

Answers of the demo model to its own example prompts, greedy and at temperature 1, and random answers: each token is
drawn uniformly from the mask, with the demo model's vocabulary and with one of 131,072 tokens (tekken). An answer that
does not end is cut after 400 tokens. Run it in the old commit with ``--rows FILE``, then in the new one:

    python tests/benchmarks/bench_whitespace.py --before FILE [--write]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import sys
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import guideway_demo_model
import mistral_common
import numpy as np
from guideway import Engine, JsonSchema, SamplingParams
from guideway.api import GrammarStrategy, Vocabulary
from guideway.api.bitmask import allocate, unpack
from guideway.plugins import Plugins
from guideway.vocabulary import build_vocabulary
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "whitespace.md"
EXAMPLES = HERE.parents[1] / "contrib" / "guideway-demo-model" / "examples"
STRATEGIES = ("llguidance", "xgrammar")
WORDS = ("bounded", "compact")
MOST, DRAWS, SAMPLES = 400, 50, 4

Row = tuple[float, float, float]
"""Tokens per answer, bytes of white space per answer, and the share of answers that were cut."""


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_WORD = {"enum": ["red", "green", "blue"]}
SCHEMAS: dict[str, Any] = {
    "README": _object(name={"type": "string", "maxLength": 40}, age={"type": "integer"}),
    "example": json.loads((EXAMPLES / "person.schema.json").read_text("utf-8")),
    "nested": _object(
        person=_object(name={"type": "string", "maxLength": 20}, married={"type": "boolean"}),
        words={"type": "array", "items": _WORD, "minItems": 2, "maxItems": 3},
    ),
    "closed": _object(color=_WORD, open={"type": "boolean"}, pair={"type": "array", "items": _WORD, "maxItems": 2}),
}


def blanks(text: str) -> int:
    """Return the number of white space characters outside the strings of a JSON text."""
    return sum(map(str.isspace, re.sub(r'"(?:[^"\\]|\\.)*"?', "", text)))


def by_demo(engine: Engine, schema: Any, temperature: float, whitespace: Any) -> Row:
    prompts = [json.loads(line)["prompt"] for line in (EXAMPLES / "prompts.jsonl").read_text("utf-8").splitlines()]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    params = SamplingParams(
        max_tokens=MOST,
        temperature=temperature,
        n=SAMPLES if temperature else 1,
        seed=1,
        close=False,
        constraint=JsonSchema(schema, whitespace=whitespace),
    )
    outputs = [output for result in engine.chat(chats, params) for output in result.outputs]
    return _mean([(len(o.token_ids), o.text, o.finish_reason == "length") for o in outputs])


def by_draws(strategy: GrammarStrategy, schema: Any, whitespace: Any) -> Row:
    compiled, vocabulary = strategy.compile(JsonSchema(schema, whitespace=whitespace)), strategy.vocabulary
    bitmask, found = allocate(1, vocabulary.logits_width), []
    for seed in range(DRAWS):
        draw, matcher, token_ids = random.Random(seed), compiled.matcher(vocabulary.stop_token_ids), []
        while not matcher.is_terminated() and len(token_ids) < MOST:
            matcher.fill_bitmask(bitmask, 0)
            token_id = int(draw.choice(np.flatnonzero(unpack(bitmask, len(vocabulary))[0])))
            if matcher.accept([token_id]) != 1:
                raise RuntimeError("a token of the mask was refused")
            token_ids.append(token_id)
        text = vocabulary.decode([i for i in token_ids if i not in vocabulary.stop_token_ids]).decode()
        found.append((len(token_ids), text, not matcher.is_terminated()))
    return _mean(found)


def _mean(found: list[tuple[int, str, bool]]) -> Row:
    rows = [(count, blanks(text), cut) for count, text, cut in found]
    tokens, white, cut = (sum(row[i] for row in rows) / len(rows) for i in range(3))
    return tokens, white, cut


def vocabularies() -> list[Vocabulary]:
    folder = guideway_demo_model.DemoModel().path()
    tekken = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    return [build_vocabulary(AutoTokenizer.from_pretrained(folder)), build_vocabulary(Tekkenizer.from_file(tekken))]


def measure() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for name in STRATEGIES:
        with Engine("demo", grammar=(name,), grammar_host="inline", max_num_seqs=32) as engine:
            for word, temperature, (title, schema) in product(WORDS, (0.0, 1.0), SCHEMAS.items()):
                where = f"| the demo model, temperature {temperature:.0f} | {name} | {title} |"
                rows[f"{where} {word}"] = by_demo(engine, schema, temperature, word)
                sys.stderr.write(f"{where} {word}: {rows[f'{where} {word}']}\n")
    for vocabulary in vocabularies():
        for name in STRATEGIES:
            strategy: Any = Plugins().load("grammar", name)(vocabulary, {})
            for word, (title, schema) in product(WORDS, SCHEMAS.items()):
                where = f"| random draws, {len(vocabulary)} tokens | {name} | {title} |"
                rows[f"{where} {word}"] = by_draws(strategy, schema, word)
                sys.stderr.write(f"{where} {word}: {rows[f'{where} {word}']}\n")
    return rows


def cell(row: Row) -> str:
    tokens, white, cut = row
    return f"{tokens:.1f} ({white:.1f})" + (f", {cut:.0%} cut" if cut else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="write this commit's figures to a file, for --before")
    parser.add_argument("--before", type=Path, help="figures of another commit, to print beside this one's")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    rows = measure()
    if options.rows:
        options.rows.write_text(json.dumps(rows), encoding="utf-8")
    before = json.loads(options.before.read_text("utf-8")) if options.before else rows
    lines = [
        "# White space in bounded answers",
        "",
        "`python tests/benchmarks/bench_whitespace.py --before FILE --write`",
        "",
        f"Tokens per answer, in parentheses bytes of white space; answers that did not end in {MOST} tokens are cut. "
        "Before: at most 64 blanks in a row.",
        "After: one space, or one line feed and at most 40 blanks.",
        "",
        "| answers | strategy | schema | before | after | `compact` |",
        "|---|---|---|---|---|---|",
    ]
    for key, row in rows.items():
        where, _, word = key.rpartition(" ")
        if word == "bounded":
            lines.append(f"{where} {cell(before[key])} | {cell(row)} | {cell(rows[f'{where} compact'])} |")
    packages = ("llguidance", "xgrammar", "numpy", "torch", "transformers")
    made = ", ".join(f"{package} {version(package)}" for package in packages)
    lines += [
        "",
        f"{DRAWS} random answers and {SAMPLES} samples per prompt; {made}, Python {platform.python_version()}.",
    ]
    text = "\n".join(lines) + "\n"
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
