"""The reasoning gate in vLLM: the reasoning parser decides whether a prompt has ended the reasoning, and names the
markers; the constraint decides the rest, with and without drafts."""

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
from guideway import ReasoningConfig
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

STOP, THINK, CALL, END = 2, 3, 4, 6
"""Special tokens of the demo model's tokenizer. All but the first are renamed in the tests' tokenizer."""
GUIDEWAY = {
    "grammar": ["llguidance", "xgrammar"],
    "modifiers": ["script"],
    "whitespace": "compact",  # otherwise white space may follow nonsense
}
PARSERS = {False: "qwen3", True: "deepseek_r1"}
"""By whether drafts are verified. The tested behaviour is common to all parsers."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Script:
    """Token ids by their position in the output."""

    start: int
    lines: Mapping[int, int]


class ScriptTransform(LogitTransform):
    """Raises the logit of one token per row above all others."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.add_at(logits, payload.rows, payload.arrays["token_ids"], payload.arrays["raised"])


class Scripted(LogitModifier[Script]):
    """Makes the model generate certain tokens at certain positions, if the constraint allows them."""

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
    """The demo model with a tokenizer that has ``<think>``, ``</think>`` and ``<tool_call>``."""
    folder = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(demo_model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        path = Path(folder, name)
        text = path.read_text(encoding="utf-8")
        text = text.replace("<|system|>", "<think>").replace("<|tool|>", "</think>").replace("<|user|>", "<tool_call>")
        path.write_text(text, encoding="utf-8")
    return str(folder)


@pytest.fixture
def serve(start: Callable[..., Any], thinker: str) -> Callable[..., Any]:
    def serving(*, drafts: bool = False, **parser: Any) -> Any:
        speculative = {"speculative_config": NGRAM} if drafts else {}
        outputs = {"reasoning_parser": PARSERS[drafts], **parser}
        return start(GUIDEWAY, model=thinker, structured_outputs_config=outputs, **speculative)

    return serving


PROMPT = "Anna Berg is 34 years old."
REMEMBERING = 'Anna is 3</think>{"name":"Anna","age":34} and Bert is 4</think>{"name":"Bert","age":4}'
"""Its n-grams are drafts that would end the reasoning and continue the output."""


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


CASES = [
    Case(PROMPT, {0: THINK, 1: END}, {"regex": "[a-f]{9}"}),
    Case(PROMPT, {0: THINK, 7: END}, {"json": SCHEMA}),
    Case(PROMPT + "<think>", {3: THINK, 9: END}, {"regex": "(yes|no), [0-9]{2}"}),
    Case(REMEMBERING + "<think>", {5: END}, {"json": SCHEMA}),
    Case(REMEMBERING + "<think>", {4: END, 6: END}, {"choice": ["alpha", "beta"]}),
    Case(REMEMBERING, {0: THINK, 9: END}, {"json": SCHEMA}, reasons=False),
    Case(PROMPT + "<think></think>", {0: THINK}, {"regex": "[a-z]{12}"}, reasons=False),
    # the prompt opens no reasoning, and neither does the first token
    Case(PROMPT, {}, {"json": SCHEMA}, reasons=False),
    Case(PROMPT, {1: THINK, 3: END, 5: STOP}, {"json": SCHEMA}, reasons=False),
    # stop tokens, and tokens that only the parser takes for the end, are masked
    Case(PROMPT + "<think>", {0: STOP, 2: CALL, 5: END}, {"json": SCHEMA}),
]


def obeys(text: str, constraint: dict[str, Any]) -> bool:
    if "json" in constraint:
        value = json.loads(text)
        return set(value) == {"name", "age"} and len(value["name"]) <= 8 and value["age"] <= 99
    if "choice" in constraint:
        return text in constraint["choice"]
    return re.fullmatch(constraint["regex"], text) is not None


def generate(llm: Any, cases: Sequence[Case]) -> list[tuple[str, list[int], str]]:
    outputs = llm.generate([case.prompt for case in cases], [case.params for case in cases])
    found = [output.outputs[0] for output in outputs]
    return [(out.text.removesuffix("<|end|>"), list(out.token_ids), out.finish_reason) for out in found]


def test_the_schema_holds_from_the_end_of_the_reasoning_and_drafts_change_nothing(serve: Callable[..., Any]) -> None:
    llm = serve()
    plain = generate(llm, CASES)
    for case, (text, token_ids, reason) in zip(CASES, plain, strict=True):
        assert reason == "stop", text
        if case.reasons:
            place = min(place for place, token_id in case.lines.items() if token_id == END)
            assert [i for i, token_id in enumerate(token_ids) if token_id == END] == [place]
            assert {STOP, CALL}.isdisjoint(token_ids[:place])
            reasoning, _, text = text.partition("</think>")
            # the model's own text does not begin like the constraint
            assert not reasoning.startswith(("{", "yes", "no", "alpha", "beta"))
        else:
            assert {THINK, END}.isdisjoint(token_ids)
        assert obeys(text, case.constraint), text
    # alone, each gives the same tokens as in the batch
    assert [generate(llm, [case])[0] for case in CASES[1:4]] == plain[1:4]

    llm = serve(drafts=True)
    assert generate(llm, CASES[:-1]) == plain[:-1], "in the last, a token is the end for the first parser alone"


def test_bans_hold_in_the_reasoning_and_after_it(serve: Callable[..., Any]) -> None:
    cases, found = [CASES[0], CASES[1], CASES[3]], []
    for drafts in (True, False):
        llm = serve(drafts=drafts)
        free = generate(llm, cases)
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


def test_reasoning_that_would_not_end_is_ended_or_named(serve: Callable[..., Any]) -> None:
    """The marker is forced early enough for the answer, unless the request turns closing off."""
    endless = Case(PROMPT, {0: THINK, **dict.fromkeys(range(1, 40), 40)}, {"choice": ["alpha"]})
    closed, cut, stopped = params = [endless.params for _ in range(3)]
    closed.max_tokens = cut.max_tokens = 12
    cut.extra_args["guideway.close"] = False
    stopped.stop = ["</think>"]
    stopped.extra_args["guideway.modifiers"] = CASES[1].params.extra_args["guideway.modifiers"]
    llm = serve()
    found = [(o.outputs[0], o.kv_transfer_params["guideway"]) for o in llm.generate([PROMPT] * 3, params)]
    (output, told), (free, unclosed), (short, unbegun) = found
    assert output.finish_reason == "stop"
    assert output.text.removesuffix("<|end|>").endswith("</think>alpha")
    assert (told["closed_early"], told.get("unenforced")) == (True, None)
    assert list(free.token_ids) == [THINK, *[40] * 11]
    assert (free.finish_reason, unclosed["unenforced"]) == ("length", ["constraint"])
    assert (short.finish_reason, unbegun["unenforced"]) == ("stop", ["constraint"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3", {"start_token_ids": (THINK,), "end_token_ids": (END,), "excluded_token_ids": (CALL,)}),
        ("deepseek_r1", {"start_token_ids": (THINK,), "end_token_ids": (END,)}),
        ("deepseek_v3", {"start_token_ids": (THINK,), "end_token_ids": (END,)}),
        ("kimi_k3", {"start_str": "<|open|>think<|sep|>", "end_str": "<|close|>think<|sep|>"}),
        ("minimax_m3", None),
        ("granite", None),
    ],
)
def test_parsers_are_asked_for_their_markers(thinker: str, name: str, expected: dict[str, Any] | None) -> None:
    """Includes a parser that names them only with thinking on, one that names none, and one that lacks its tokens
    here."""
    from guideway_vllm.parts import markers_for
    from vllm.config import ModelConfig, VllmConfig
    from vllm.reasoning import ReasoningParserManager

    config = VllmConfig(model_config=ModelConfig(model=thinker, dtype="float32"))
    found, why = markers_for(ReasoningParserManager.get_reasoning_parser(name), config)
    assert found == ReasoningConfig(**(expected or {}))
    assert bool(why) is (expected is None)


def test_without_a_marker_a_constraint_is_refused_unless_the_prompt_ends_the_reasoning(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = serve()
    core = llm.llm_engine.engine_core.engine_core.scheduler.guest
    monkeypatch.setattr(core, "_unmarked", "no marker")
    refused, served = llm.generate([PROMPT, PROMPT + "<think></think>"], [CASES[7].params] * 2)
    assert refused.outputs[0].finish_reason == "error"
    assert refused.kv_transfer_params["guideway"]["error"] == "no marker"
    assert obeys(served.outputs[0].text.removesuffix("<|end|>"), CASES[7].constraint)


def test_the_constraint_can_hold_while_it_reasons_too(serve: Callable[..., Any]) -> None:
    llm = serve(drafts=True, enable_in_reasoning=True)
    for case, (text, token_ids, reason) in zip(CASES, generate(llm, CASES), strict=True):
        assert reason == "stop"
        assert END not in token_ids
        assert obeys(text, case.constraint), text
