"""The reasoning gate in vLLM: free until the reasoning parser says so, then the constraint, with and without drafts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    Array,
    LogitModifier,
    LogitTransform,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
)

from tests.support.distributions import install

THINK, END = 3, 6
"""Special tokens of the demo model's tokenizer that the one of these tests has other names for."""
GUIDEWAY = {
    "grammar": ["llguidance", "xgrammar"],
    "modifiers": ["script"],
    "whitespace": "compact",  # what follows nonsense may be white space
}
PARSER = {"reasoning_parser": "deepseek_r1"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Script:
    """Token ids by the place in the output where they are to come."""

    start: int
    lines: Mapping[int, int]


class ScriptTransform(LogitTransform):
    """Raises one token per row above all others."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.add_at(logits, payload.rows, payload.arrays["token_ids"], payload.arrays["raised"])


class Scripted(LogitModifier[Script]):
    """Has the model say certain tokens at certain places, where the constraint lets it."""

    contract = "1.0"
    name, stage, transform, derived = "script", Stage.PRE_WARP, ScriptTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Script | None:
        lines = request.params.modifiers.get(self.name)
        return lines and Script(len(sequence.prompt_token_ids), {int(place): t for place, t in lines.items()})

    def prepare(self, batch: StepBatch, states: Sequence[Script | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        said = [
            (row, token_id)
            for row, i in zip(rows.tolist(), sequences.tolist(), strict=True)
            if (state := states[i]) and (token_id := state.lines.get(int(batch.positions[row]) - state.start))
        ]
        if not said:
            return None
        found, token_ids = np.array(said, dtype=np.int32).T
        return Payload(found, {"token_ids": token_ids, "raised": np.full(len(said), 1000, dtype=np.float32)})


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    return Scripted


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "scripted", {"modifier.script": __name__})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def thinker(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo model with a tokenizer that knows ``<think>`` and ``</think>``."""
    folder = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(demo_model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        path = Path(folder, name)
        text = path.read_text(encoding="utf-8")
        text = text.replace("<|system|>", "<think>").replace("<|tool|>", "</think>")
        path.write_text(text, encoding="utf-8")
    return str(folder)


@pytest.fixture
def serve(start: Callable[..., Any], thinker: str) -> Callable[..., Any]:
    def serving(*, drafts: bool = False, **parser: Any) -> Any:
        speculative = {"speculative_config": NGRAM} if drafts else {}
        return start(GUIDEWAY, model=thinker, structured_outputs_config=PARSER | parser, **speculative)

    return serving


PROMPT = "Anna Berg is 34 years old."
REMEMBERING = 'Anna is 3</think>{"name":"Anna","age":34} and Bert is 4</think>{"name":"Bert","age":4}'
"""N-grams of it are drafts that would end the reasoning, and go on with the output."""


@dataclass
class Case:
    prompt: str
    lines: dict[int, int]
    constraint: dict[str, Any]
    reasons: bool = True

    @property
    def params(self) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        modifiers = {"script": {str(place): token_id for place, token_id in self.lines.items()}}
        return SamplingParams(
            temperature=0,
            max_tokens=100,
            structured_outputs=StructuredOutputsParams(**self.constraint),
            extra_args={"guideway.modifiers": modifiers if self.lines else {}},
            skip_special_tokens=False,
        )


XGRAMMAR = {"guideway.strategy": "xgrammar"}
CASES = [
    Case(PROMPT, {0: END}, {"regex": "[a-f]{9}"}),
    Case(PROMPT, {7: END}, {"json": SCHEMA}),
    Case(PROMPT, {3: THINK, 9: END}, {"regex": "(yes|no), [0-9]{2}"}),
    Case(REMEMBERING + "<think>", {5: END}, {"json": SCHEMA}),
    Case(REMEMBERING + "<think>", {4: END, 6: END}, {"choice": ["alpha", "beta"]}),
    Case(REMEMBERING, {9: END}, {"json": SCHEMA}, reasons=False),
    Case(PROMPT + "</think>", {}, {"regex": "[a-z]{12}"}, reasons=False),
]


def obeys(text: str, constraint: dict[str, Any]) -> bool:
    if "json" in constraint:
        value = json.loads(text)
        return set(value) == {"name", "age"} and len(value["name"]) <= 8 and value["age"] <= 99
    if "choice" in constraint:
        return text in constraint["choice"]
    return re.fullmatch(constraint["regex"], text) is not None


def generated(llm: Any, cases: Sequence[Case]) -> list[tuple[str, list[int], str]]:
    outputs = llm.generate([case.prompt for case in cases], [case.params for case in cases])
    found = [output.outputs[0] for output in outputs]
    return [(out.text.removesuffix("<|end|>"), list(out.token_ids), out.finish_reason) for out in found]


def test_the_schema_holds_from_the_end_of_the_reasoning_and_drafts_change_nothing(serve: Callable[..., Any]) -> None:
    llm = serve()
    plain = generated(llm, CASES)
    for case, (text, token_ids, reason) in zip(CASES, plain, strict=True):
        assert reason == "stop", text
        if case.reasons:
            place = min(place for place, token_id in case.lines.items() if token_id == END)
            assert [i for i, token_id in enumerate(token_ids) if token_id == END] == [place]
            reasoning, _, text = text.partition("</think>")
            # what the model says by itself is no beginning of what the constraint allows
            assert not place or not reasoning.startswith(("{", "yes", "no", "alpha", "beta"))
        else:
            assert END not in token_ids
        assert obeys(text, case.constraint), text
    # alone, each says the same as in the batch
    assert [generated(llm, [case])[0] for case in CASES[1:4]] == plain[1:4]

    llm = serve(drafts=True)
    assert generated(llm, CASES) == plain


def test_bans_hold_in_the_reasoning_and_after_it(serve: Callable[..., Any]) -> None:
    cases, found = CASES[1:4], []
    for drafts in (False, True):
        llm = serve(drafts=drafts)
        free = generated(llm, cases)
        wanted, banned = [case.params for case in cases], []
        for params, case, (_, token_ids, _) in zip(wanted, cases, free, strict=True):
            end = token_ids.index(END)
            common = {token_ids[1], token_ids[end + 1 + len(token_ids[end + 1 :]) // 2]} - {END, *case.lines.values()}
            banned.append(common)
            params.allowed_token_ids = [i for i in range(len(llm.get_tokenizer())) if i not in common]
        outputs = [output.outputs[0] for output in llm.generate([case.prompt for case in cases], wanted)]
        found.append([list(output.token_ids) for output in outputs])
        for output, case, common in zip(outputs, cases, banned, strict=True):
            assert common
            assert common.isdisjoint(output.token_ids)
            assert output.token_ids.index(END) == min(
                place for place, token_id in case.lines.items() if token_id == END
            )
            assert obeys(output.text.partition("</think>")[2].removesuffix("<|end|>"), case.constraint)
    assert found[0] == found[1]


def test_a_request_that_never_ends_its_reasoning_stays_free(serve: Callable[..., Any]) -> None:
    case = Case(PROMPT, dict.fromkeys(range(8), 40), {"choice": ["alpha"]})
    llm = serve(drafts=True)
    params = case.params
    params.max_tokens = 8
    (output,) = llm.generate([case.prompt], [params])
    assert list(output.outputs[0].token_ids) == [40] * 8
    assert output.outputs[0].finish_reason == "length"


def test_the_constraint_can_hold_while_it_reasons_too(serve: Callable[..., Any]) -> None:
    llm = serve(drafts=True, enable_in_reasoning=True)
    for case, (text, token_ids, reason) in zip(CASES, generated(llm, CASES), strict=True):
        assert reason == "stop"
        assert END not in token_ids
        assert obeys(text, case.constraint), text
