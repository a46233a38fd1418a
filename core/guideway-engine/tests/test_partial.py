"""Partial objects of a request that is running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from guideway import AsyncEngine, Engine, InvalidRequest, ReasoningConfig, Regex, SamplingParams
from guideway.errors import UnsupportedCapability
from pydantic import BaseModel, Field

PROMPT = [{"role": "user", "content": "Extract name, age. Meet Zoë Garcia. Age: 31."}]
ANSWER = {"name": "Zoë Garcia", "age": 31}
SEEN = [None, {}, {"name": "Zoë Garcia"}, ANSWER]
"""The partial objects, in order."""


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", grammar=("llguidance", "xgrammar"), reasoning=ReasoningConfig(end_str="</think>")) as built:
        yield built


def asked(**more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 80, "constraint": Person, "reasoning": False} | more)


def changes(values: list[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]


@pytest.mark.parametrize(
    "more",
    [{}, {"echo": True}, {"reasoning": True, "thinking_token_budget": 5}, {"stop": "never"}, {"logprobs": 0}],
    ids=["plain", "echo", "reasoning", "stop", "logprobs"],
)
def test_it_grows_while_the_text_is_read(engine: Engine, more: Any) -> None:
    generation = engine.submit(PROMPT, asked(**more))
    seen = [generation.partial()]
    seen += [generation.partial() for _ in generation]
    assert changes(seen) == SEEN
    assert generation.partial() == ANSWER, "plain data when all is there, too"


def test_strings_grow_if_asked_for(engine: Engine) -> None:
    generation = engine.submit(PROMPT, asked())
    names = [(generation.partial(growing_strings=True) or {}).get("name", "") for _ in generation]
    assert len(changes(names)) > 3
    assert all("Zoë Garcia".startswith(name) for name in names)


def test_each_output_has_its_own(engine: Engine) -> None:
    generation = engine.submit(PROMPT, asked(n=2, temperature=1.5, seed=2))
    for chunk in generation.chunks():
        assert generation.partial(chunk.index, growing_strings=True) is not None
    result = generation.wait()
    assert [generation.partial(i) for i in (0, 1)] == [output.parsed.model_dump() for output in result.outputs]
    with pytest.raises(InvalidRequest, match="there is no output 2") as refused:
        generation.partial(2)
    assert refused.value.field == "index"


def test_a_number_is_finished_when_the_answer_is(engine: Engine) -> None:
    generation = engine.submit(PROMPT, asked(constraint={"type": "integer", "minimum": 1000, "maximum": 2000}))
    seen = [generation.partial() for _ in generation]
    assert set(seen[:-1]) == {None}
    assert generation.partial() == generation.wait().parsed


def test_a_cut_answer_keeps_what_was_finished(engine: Engine) -> None:
    generation = engine.submit(PROMPT, asked(stop="1"))
    assert generation.wait().text == '{"name":"Zoë Garcia","age":3'
    assert generation.partial() == {"name": "Zoë Garcia"}


def test_without_a_constraint_there_is_no_object(engine: Engine) -> None:
    generation = engine.submit(PROMPT, asked(constraint=None, max_tokens=4))
    generation.wait()
    assert generation.partial(growing_strings=True) is None


@pytest.mark.parametrize("more", [{"best_of": 2}, {"max_retries": 1, "on_unenforced": "check"}], ids=str)
def test_what_cannot_be_streamed_has_none(engine: Engine, more: Any) -> None:
    generation = engine.submit(PROMPT, asked(temperature=1.0, **more))
    with pytest.raises(UnsupportedCapability):
        generation.partial()
    generation.wait()


def test_chunks_say_where_the_answer_begins(engine: Engine) -> None:
    params = asked(reasoning=True, thinking_token_budget=5, echo=True)
    text, starts = "", []
    generation = engine.submit(PROMPT, params)
    for chunk in generation.chunks():
        text += chunk.text
        starts.append(chunk.answer_start)
    assert starts[0] is None
    assert {*starts} == {None, generation.wait().outputs[0].answer_start}
    assert text[starts[-1] :] == generation.wait().answer


@pytest.mark.slow
@pytest.mark.parametrize("reasons", [True, False])
def test_chunks_say_where_the_answer_begins_once_it_is_decided(reasons: bool) -> None:
    """The constraint allows all of the opening marker except its last part."""
    markers = ReasoningConfig(start_str="<reason>", end_str="</reason>")
    with Engine("demo", grammar=("llguidance",), reasoning=markers) as engine:
        spelled = engine.vocabulary.encode(b"<reason>")
        assert spelled is not None
        bias = dict.fromkeys(spelled if reasons else spelled[:-1], 50.0)
        params = asked(max_tokens=60, constraint=Regex("<reasons{9}"), reasoning=None, logit_bias=bias)
        generation = engine.submit(PROMPT, params)
        starts = [chunk.answer_start for chunk in generation.chunks()]
        output = generation.wait().outputs[0]
    assert output.num_reasoning_tokens > len(spelled) if reasons else output.num_reasoning_tokens == 0
    assert starts[: len(spelled) - 1] == [None] * (len(spelled) - 1)
    assert {*starts} == {None, output.answer_start}


def test_it_is_the_same_in_an_async_engine() -> None:
    async def run() -> None:
        async with AsyncEngine("demo", grammar=("llguidance",)) as engine:
            generation = await engine.submit(PROMPT, SamplingParams(max_tokens=80, constraint=Person))
            seen = [generation.partial()]
            async for _ in generation:
                seen.append(generation.partial())
            # the answer may be ahead of the text that was read
            assert [value for value in SEEN if value in seen] == changes(seen)
            assert generation.partial() == ANSWER
            best = await engine.submit(PROMPT, SamplingParams(max_tokens=5, temperature=1.0, best_of=2))
            with pytest.raises(UnsupportedCapability):
                best.partial()
            await best.wait()

    asyncio.run(run())


@pytest.mark.slow
def test_a_request_that_may_be_drawn_again_ends_alone() -> None:
    """None of its chunks are read, and the engine continues."""
    letter = {"enum": ["a", "b"]}
    pair = {"type": "array", "prefixItems": [letter] * 2, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    params = SamplingParams(
        max_tokens=40, temperature=1.0, seed=1, constraint=pair, on_unenforced="check", max_retries=3
    )

    async def run() -> None:
        async with AsyncEngine("demo", grammar=("xgrammar",)) as engine:
            first = await engine.generate(PROMPT, params)
            second = await engine.generate(PROMPT, params)
            assert first.error is None and first.valid is not None
            assert first.text == second.text

    asyncio.run(run())
