"""Test if the demo model answers schemas that it was not trained on, completely and validly, within 96 and 160 tokens:
default settings, twenty schemas of a corpus and the schemas below.

An answer that is cut counts as a failure unless no output that fits was found. So does a refused schema, unless the
refusal is proved right, or the strategy does not serve it.

``python -m tests.benchmarks.unseen_schemas CORPUS [--strategy NAME ...] [--seed 7] [--write]``

Without ``--strategy`` this tests the strategies of `guideway generate`: ours, in its order.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
from guideway import Engine, InvalidRequest, JsonSchema, SamplingParams
from guideway.api import GenerationResult, UnsupportedGrammar
from guideway.plugins import Plugins
from guideway.runtime.constraints.closing import Budget, Closer, Lexicon, Reserve
from guideway.runtime.sequences.replay import new_matcher

RESULTS = Path(__file__).parent / "results" / "unseen_schemas.md"
STRATEGIES = ("llguidance", "lmfe", "outlines", "xgrammar")
PROMPT = [{"role": "user", "content": "Fill in the form about Peter Young, 49, from Berlin."}]
BUDGETS = (96, 160)
NUM_REAL = 20
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def item(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


OWN: list[Any] = [
    item(title=STRING, year=INTEGER, rating=NUMBER),
    item(tags={"type": "array", "items": STRING}),
    item(a=item(b=item(c=STRING))),
    {"type": "array", "items": item(x=NUMBER, y=NUMBER)},
    item(email={"type": "string", "format": "email"}, when={"type": "string", "format": "date-time"}),
    item(id={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    {"anyOf": [item(kind={"const": "cat"}, lives=INTEGER), item(kind={"const": "dog"}, breed=STRING)]},
    item(matrix={"type": "array", "items": {"type": "array", "items": INTEGER, "minItems": 2}, "minItems": 2}),
    {"type": "object", "additionalProperties": STRING},
    {"type": "object"},
    {},
    {"type": "array"},
    item(level={"enum": ["low", "mid", "high"]}, ok={"type": "boolean"}, note={"type": ["string", "null"]}),
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"value": INTEGER, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    item(items={"type": "array", "items": item(sku=STRING, qty={"type": "integer", "minimum": 1}), "minItems": 1}),
    item(
        address=item(street=STRING, city=STRING, zip={"type": "string", "pattern": "[0-9]{5}"}),
        phones={"type": "array"},
    ),
    item(s={"type": "string", "minLength": 20, "maxLength": 40}),
    item(u={"type": "string", "format": "uuid"}),
    item(ip={"type": "string", "format": "ipv4"}, port=INTEGER),
    item(price={"type": "number", "minimum": 0, "maximum": 1000}, currency={"enum": ["EUR", "USD"]}),
    STRING,
]


def shortest(engine: Engine, strategy: str, schema: Any) -> int | None:
    """Return the number of tokens of the shortest output that is found."""
    vocabulary = engine._runtime.context.vocabulary
    made = Plugins().load("grammar", strategy)(vocabulary, {})
    constraint, stops = JsonSchema(schema), vocabulary.stop_token_ids
    matcher, budget = new_matcher(made, made.compile(constraint), stops), Budget(1, Reserve.of(constraint, vocabulary))
    return Closer(Lexicon(vocabulary), stops, budget).shortest(matcher)


def outcome(engine: Engine, schema: Any, budget: int, result: GenerationResult) -> str:
    if isinstance(result.error, UnsupportedGrammar):
        return "not served by any strategy"
    if isinstance(result.error, InvalidRequest) and re.search("fits into", str(result.error)):
        return "refused: no output fits, proved"
    if result.error is not None:
        return f"failed: {type(result.error).__name__}"
    output = result.outputs[0]
    if output.finish_reason.value != "stop":
        assert result.strategy is not None
        least = shortest(engine, result.strategy, schema)
        return (
            "cut, and an output was found that fits"
            if least and least <= budget
            else "cut: no output was found that fits"
        )
    try:
        jsonschema.validators.validator_for(schema)(schema).validate(json.loads(output.text))
    except jsonschema.ValidationError:
        return "complete, invalid as was named" if output.unenforced else "complete, invalid"
    except ValueError:
        return "no JSON"
    return "complete and valid"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the folder with jsonschemabench_sample.jsonl")
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = (arguments.corpus / "jsonschemabench_sample.jsonl").read_text("utf-8").splitlines()
    real = random.Random(arguments.seed).sample([json.loads(line)["schema"] for line in lines], NUM_REAL)
    found: Counter[str] = Counter()
    strategies = tuple(arguments.strategy or STRATEGIES)
    with Engine("demo", grammar=strategies) as engine:
        for budget in BUDGETS:
            schemas = [*real, *OWN]
            params = [SamplingParams(max_tokens=budget, constraint=JsonSchema(schema)) for schema in schemas]
            for schema, result in zip(schemas, engine.generate([PROMPT] * len(schemas), params), strict=True):
                what = outcome(engine, schema, budget, result)
                found[what] += 1
                if not what.startswith(("complete and", "not served", "refused:")):
                    print(budget, what, str(result.error or result.outputs[0].text)[-160:])
    libraries = ("guideway", "llguidance", "xgrammar", "outlines-core", "lm-format-enforcer", "jsonschema")
    packages = ", ".join(f"{name} {version(name)}" for name in libraries)
    command = " ".join(
        [
            f"python -m tests.benchmarks.unseen_schemas CORPUS --seed {arguments.seed}",
            *(f"--strategy {name}" for name in arguments.strategy or ()),
        ]
    )
    table = "\n".join(f"| {what} | {count} |" for what, count in found.most_common())
    text = f"# Schemas the demo model has not seen\n\n{packages}; `{command}`\n\n"
    text += f"| of {found.total()} | |\n|---|---|\n{table}\n"
    print(text)
    if arguments.write:
        RESULTS.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
