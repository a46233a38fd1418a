"""Synthetic samples: a text, the JSON that it describes, and the schema of that JSON."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from guideway_demo_model.training.domains import Domains
from guideway_demo_model.training.templates import Split

__all__ = ["Sample", "Source", "dumps", "plain", "render"]

TOOL_AND_COPY = {"tool": 3, "copy": 2}
"""Weights of tool calls and copies, relative to the weights of `Domains.every`."""


@dataclass(frozen=True)
class Sample:
    """One task. `kind` is the domain, ``tool`` or ``copy``; `answer` is valid against `schema`."""

    kind: str
    prompt: str
    answer: dict[str, Any]
    schema: dict[str, Any]


class Source:
    """Endless samples, the same for the same arguments.

    `values` and `templates` say which split each is drawn from; `noise` is the share of odd sentences, see `Domains`.
    `short` is the share of texts with only one or two facts: a model first learns there where to look, and hardly
    anywhere else does it learn yes or no, a single token of a longer answer. `crowded` is the share of texts whose
    values are drawn from few, as held-out ones are, see `Values.crowd`.
    """

    def __init__(
        self,
        seed: str | int,
        *,
        values: Split,
        templates: Split,
        noise: float = 0,
        short: float = 0,
        crowded: float = 0,
    ) -> None:
        self._rng = random.Random(seed)
        self._short = short
        self._crowded = crowded
        self._domains = Domains(self._rng, values=values, templates=templates, noise=noise)

    def sample(self, kind: str | None = None, *, listed: bool | None = None) -> Sample:
        """Draw a sample, by default of any kind. `listed`: whether it names the wanted fields; None: in 70 % of
        draws."""
        if self._crowded:
            self._domains.draw.crowd(self._rng.random() < self._crowded)
        if kind is None:
            weights = {name: weight for name, (weight, _) in self._domains.every.items()} | TOOL_AND_COPY
            (kind,) = self._rng.choices(list(weights), list(weights.values()))
        if kind == "tool":
            return self._tool()
        if kind == "copy":
            return self._copy()
        return self._extraction(kind, self._rng.random() < 0.7 if listed is None else listed)

    def _extraction(self, kind: str, listed: bool) -> Sample:
        r = self._rng
        facts = self._domains.every[kind][1]()
        fields = list(facts.values)
        if self._short and r.random() < self._short:
            weights = [8 if isinstance(value, bool) else 1 for value in facts.values.values()]
            said = wanted = list(dict.fromkeys(r.choices(fields, weights, k=r.randint(1, 2))))
        else:
            wanted = fields
            if r.random() < 0.6:  # not all fields, and perhaps in another order
                wanted = [field for field in fields if r.random() < 0.7] or [r.choice(fields)]
                if r.random() < 0.5:
                    r.shuffle(wanted)
            said = [field for field in fields if field in wanted or r.random() < 0.7]
        if "currency" in said and "amount" not in said:
            said = [*said, "amount"]
        sentences = [facts.sentences[field] for field in said if field in facts.sentences]
        if r.random() < 0.6:
            r.shuffle(sentences)
        while r.random() < 0.15:  # irrelevant sentences
            sentences.insert(r.randint(0, len(sentences)), self._domains.sentence("filler.text"))
        if listed:
            instruction = self._domains.sentence("instruction.listed", x=self._domains.listing(wanted))
        elif r.random() < 0.75:
            instruction = self._domains.sentence("instruction.unlisted", x=facts.domain)
        else:
            instruction = ""
        return Sample(
            kind,
            self._compose(instruction, sentences),
            {field: facts.values[field] for field in wanted},
            _object({field: facts.schemas[field] for field in wanted}),
        )

    def _tool(self) -> Sample:
        name, arguments, schemas, request = self._domains.tool_call()
        schema = _object({"name": {"const": name}, "arguments": _object(schemas)})
        prompt = self._stop(request)
        if self._rng.random() < 0.65:
            prompt = f"{_stop(self._domains.sentence('instruction.tool'))} {prompt}"
        return Sample("tool", prompt, {"name": name, "arguments": arguments}, schema)

    def _copy(self) -> Sample:
        text = self._domains.copy_text()
        schema = _object({"text": {"type": "string", "maxLength": 160}})
        return Sample("copy", self._domains.sentence("copy.text", x=text), {"text": text}, schema)

    def _compose(self, instruction: str, sentences: list[str]) -> str:
        """Return the instruction and the sentences as one text, in one of several layouts."""
        r = self._rng
        layout = r.choice(["line", "line", "lines", "lines", "bare lines", "semicolons", "bullets"])
        if layout == "line":
            text = " ".join(map(self._stop, sentences))
        elif layout == "lines":
            text = "\n".join(map(self._stop, sentences))
        elif layout == "bare lines":
            text = "\n".join(sentences)
        elif layout == "semicolons":
            text = "; ".join(sentences) + "."
        else:
            text = "\n".join(f"- {sentence}" for sentence in sentences)
        if not instruction:
            return text
        if r.random() < 0.2:
            return f"{text}\n{_stop(instruction)}"
        gap = " " if layout in ("line", "semicolons") and r.random() < 0.5 else "\n"
        return f"{_stop(instruction)}{gap}{text}"

    def _stop(self, sentence: str) -> str:
        """Add a final stop, except in half of the draws that end with an address."""
        bare = "@" in sentence.rsplit(" ", 1)[-1] and self._rng.random() < 0.5
        return sentence if bare else _stop(sentence)


def plain(value: Any) -> Any:
    """Convert whole floats in JSON data to ints, so that 5.0 and 5 are one value."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def dumps(answer: dict[str, Any], *, spaced: bool) -> str:
    """Write an answer as the model should: compact, or `spaced` after commas and colons."""
    return json.dumps(plain(answer), ensure_ascii=False, separators=(", ", ": ") if spaced else (",", ":"))


def render(prompt: str) -> str:
    """Apply the chat template to one user message."""
    return f"<|user|>{prompt}<|assistant|>"


def _stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
