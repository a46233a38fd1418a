"""Log-probabilities of labels after a prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guideway.api.options import short_repr
from guideway.api.types import GenerationResult, SamplingParams
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidRequest

from guideway_engine.prompts import BYTES

__all__ = ["SCORING", "LabelScores", "label_tokens", "scores_of"]

SCORING = SamplingParams(max_tokens=1, prompt_logprobs=0)
"""Parameters of the request for one label, whose tokens are the end of the prompt."""


@dataclass(frozen=True, slots=True)
class LabelScores:
    """The log-probabilities of labels after one prompt, in the order of the labels."""

    labels: tuple[str, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each label: the sum over its tokens, of the model's unmodified logits."""
    num_tokens: tuple[int, ...]
    """Number of tokens of each label."""

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Softmax of `logprobs`: the probability of each label if the answer is one of them."""
        largest = max(self.logprobs)
        weights = [math.exp(value - largest) for value in self.logprobs]
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def best(self) -> str:
        """The most likely label."""
        return self.labels[self.logprobs.index(max(self.logprobs))]

    @property
    def lengths_differ(self) -> bool:
        """True if the labels have different numbers of tokens, so that `probabilities` favor short labels."""
        return len(set(self.num_tokens)) > 1

    def __str__(self) -> str:
        rows = zip(self.labels, self.probabilities, self.logprobs, self.num_tokens, strict=True)
        told = ", ".join(
            f"{label!r} {probability:.3f} (logprob {logprob:.3f}, {count} token{'s' * (count > 1)})"
            for label, probability, logprob, count in rows
        )
        return told + "; the labels differ in their number of tokens, which favors short ones" * self.lengths_differ


def label_tokens(labels: Any, vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    """Return the token ids of each label, encoded alone, as a continuation. Raises `InvalidRequest`."""
    if isinstance(labels, str | BYTES) or not isinstance(labels, Sequence) or not labels:
        raise InvalidRequest(f"labels must be a list of texts, not {short_repr(labels)}", field="labels")
    found = []
    for label in labels:
        ids = vocabulary.encode(label.encode(errors="replace")) if isinstance(label, str) else None
        if not ids:
            raise InvalidRequest(
                f"a label must be text of at least one token of the model, not {short_repr(label)}", field="labels"
            )
        found.append(tuple(ids))
    if len(set(labels)) < len(labels):
        raise InvalidRequest(f"labels must differ, and {short_repr(labels)} has one twice", field="labels")
    return found


def scores_of(
    labels: Sequence[str], tokens: Sequence[Sequence[int]], results: Sequence[GenerationResult]
) -> LabelScores:
    """Return the scores from the results of `SCORING`, one for each label. Raises the error of a result."""
    logprobs = []
    for ids, result in zip(tokens, results, strict=True):
        if result.error is not None:
            raise result.error
        ends = (result.prompt_logprobs or ())[-len(ids) :]
        logprobs.append(sum(entry.logprob for entry in ends if entry is not None))
    return LabelScores(tuple(labels), tuple(logprobs), tuple(map(len, tokens)))
