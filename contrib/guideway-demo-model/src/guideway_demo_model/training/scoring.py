"""Scores of answers: counted per sample, per field and per kind."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from guideway_demo_model.training.data import Sample, plain

__all__ = ["Answer", "Score", "interval", "score"]


@dataclass(frozen=True)
class Answer:
    """The text that the model wrote for a sample, and why it ended, such as ``stop`` or ``length``."""

    text: str
    finish_reason: str


@dataclass
class Score:
    """Counts over samples. Right means equal as JSON data; 5 and 5.0 are equal, the order of keys does not matter."""

    samples: int = 0
    exact: int = 0
    fields: int = 0
    fields_right: int = 0
    """Fields of the expected answers with the right value in the answer."""
    valid: int = 0
    """Answers that parse and are valid against their schema by ``jsonschema``."""
    finish_reasons: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    kinds_exact: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    """The samples that are not exact, each with its prompt, the expected and the actual answer."""

    def add(self, sample: Sample, answer: Answer) -> None:
        """Count one more sample."""
        expected, got = plain(sample.answer), _parse(answer.text)
        exact = got == expected
        self.samples += 1
        self.exact += exact
        self.fields += len(expected)
        if isinstance(got, dict):
            self.fields_right += sum(key in got and got[key] == value for key, value in expected.items())
        self.valid += jsonschema.Draft202012Validator(sample.schema).is_valid(got)
        self.finish_reasons[answer.finish_reason] += 1
        self.kinds[sample.kind] += 1
        self.kinds_exact[sample.kind] += exact
        if not exact:
            self.wrong.append(
                {
                    "kind": sample.kind,
                    "prompt": sample.prompt,
                    "expected": expected,
                    "got": answer.text,
                    "finish_reason": answer.finish_reason,
                }
            )


def score(samples: Iterable[Sample], answers: Iterable[Answer]) -> Score:
    """Return the score of `answers`, one for each of `samples`."""
    total = Score()
    for sample, answer in zip(samples, answers, strict=True):
        total.add(sample, answer)
    return total


def interval(right: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z = 1.96
    share = right / total
    middle = share + z * z / (2 * total)
    reach = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return (middle - reach) / scale, (middle + reach) / scale


def _parse(text: str) -> Any:
    """Parse JSON data; return an object that equals nothing else if it is not JSON."""
    try:
        return plain(json.loads(text))
    except (ValueError, RecursionError):
        return _NOT_JSON


_NOT_JSON = object()
