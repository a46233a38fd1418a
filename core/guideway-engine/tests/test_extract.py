"""Extraction of an object from a text in one call."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, assert_type

import guideway
import pytest
from annotated_types import MaxLen, MinLen
from guideway import (
    AsyncEngine,
    Engine,
    EngineClosed,
    EngineConfig,
    FinishReason,
    InvalidAnswer,
    InvalidConfiguration,
    InvalidRequest,
    SamplingParams,
    extract,
)
from guideway.errors import LimitExceeded
from guideway_demo_model import DemoModel
from guideway_engine.extract import _ask
from pydantic import AfterValidator, BaseModel, Field, field_validator

TEXT = "Meet Zoë Garcia. Age: 31."


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int


class Grown(Person):
    @field_validator("age")
    @classmethod
    def enough(cls, age: int) -> int:
        raise ValueError(f"too young: {age}")


class Described(BaseModel):
    name: str = Field(description="as in the passport")
    age: int


class Tree(BaseModel):
    children: list[Tree]


@dataclasses.dataclass
class Record:
    name: Annotated[str, MaxLen(40)]
    age: int


ZOE = Person(name="Zoë Garcia", age=31)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", grammar=("llguidance",)) as built:
        yield built


def test_an_engine_makes_an_instance_and_stays_open(engine: Engine) -> None:
    person = assert_type(extract(Person, TEXT, engine), Person)
    assert person == ZOE
    assert assert_type(extract(Record, TEXT, engine), Record) == Record("Zoë Garcia", 31)
    married: Any = extract(Literal["yes", "no"], "Is Zoë Garcia married? She is married to Liam.", engine)
    assert married in ("yes", "no")


def test_a_model_is_loaded_for_the_call() -> None:
    assert assert_type(guideway.extract(Person, TEXT, "demo", grammar=("llguidance",)), Person) == ZOE
    assert extract(Person, TEXT, EngineConfig(model="demo", grammar=("llguidance",))) == ZOE


@pytest.mark.slow
def test_an_async_engine_is_awaited() -> None:
    async def run() -> None:
        async with AsyncEngine("demo", grammar=("llguidance",)) as engine:
            assert assert_type(await extract(Person, TEXT, engine), Person) == ZOE
            with pytest.raises(LimitExceeded):
                await extract(Person, "x " * 4000, engine)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("target", "instruction", "content"),
    [
        (Person, None, f"Extract name, age. {TEXT}"),
        (Described, None, f"Extract name (as in the passport), age. {TEXT}"),
        (Tree, None, f"Extract children. {TEXT}"),
        (list[int], None, TEXT),
        (Person, "Who is it?", f"Who is it? {TEXT}"),
        (Person, "", TEXT),
    ],
    ids=["names", "descriptions", "recursive", "list", "own", "none"],
)
def test_what_the_model_reads(target: Any, instruction: str | None, content: str) -> None:
    asked, params = _ask(target, TEXT, instruction, SamplingParams(max_tokens=7))
    assert asked == content
    assert params == SamplingParams(max_tokens=7, constraint=target)


@pytest.mark.parametrize(
    ("target", "params", "said"),
    [
        (
            Person,
            SamplingParams(max_tokens=10, close=False),
            "was cut after 10 tokens by its limit; raise max_",
        ),
        (Person, SamplingParams(stop=("age",)), "'age' ended the answer before it was complete: "),
        (
            Grown,
            None,
            "is not Grown: ValidationError: .*\nage\n  Value error, too young: 31[^\n]*$",
        ),
    ],
    ids=["cut", "stop", "validator"],
)
def test_what_is_not_whole_or_not_valid_is_no_object(
    engine: Engine, target: Any, params: SamplingParams | None, said: str
) -> None:
    with pytest.raises(InvalidAnswer, match=said):
        extract(target, TEXT, engine, params=params)


def test_a_whole_answer_that_a_limit_changed_is_returned_with_a_warning(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(extract(Person, TEXT, engine, params=SamplingParams(max_tokens=12)), Person)
    assert "fits its limit" in caplog.text
    caplog.clear()
    assert isinstance(extract(Person, TEXT, engine), Person)
    assert not caplog.text


def test_an_answer_that_its_type_refuses_is_drawn_again(engine: Engine) -> None:
    seen: list[int] = []

    def is_even(value: int) -> int:
        seen.append(value)
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value

    digit = Annotated[Literal[1, 2, 3, 4], AfterValidator(is_even)]
    once = SamplingParams(max_tokens=8, temperature=1000.0, n=8, seed=5, constraint=digit)
    (drawn,) = engine.generate([TEXT], once)
    assert not seen and {output.valid for output in drawn.outputs} == {None}, "nothing is checked without retries"
    assert {int(output.text) % 2 for output in drawn.outputs} == {0, 1}
    (again,) = engine.generate([TEXT], dataclasses.replace(once, max_retries=30))
    assert [(output.parsed % 2, output.valid) for output in again.outputs] == [(0, True)] * 8
    for before, after in zip(drawn.outputs, again.outputs, strict=True):
        assert int(before.text) % 2 or after.text == before.text, "only refused answers are drawn again"
    for seed in range(4):
        tried = SamplingParams(max_tokens=8, temperature=1000.0, seed=seed, max_retries=30)
        assert extract(digit, TEXT, engine, params=tried) % 2 == 0


def test_an_answer_refused_to_the_end_has_the_message_of_the_validator(engine: Engine) -> None:
    ages: list[int] = []

    def refuse(age: int) -> int:
        ages.append(age)
        raise ValueError(f"too young: {age}")

    young = Annotated[Literal[1, 2, 3, 4], AfterValidator(refuse)]
    tried = SamplingParams(max_tokens=8, temperature=1.0, max_retries=3)
    with pytest.raises(InvalidAnswer, match="Value error, too young: "):
        extract(young, TEXT, engine, params=tried)
    assert len(ages) == 1 + 3 + 1, "each attempt is judged, and the last answer is read"
    checked = SamplingParams(max_tokens=8, constraint=young, on_unenforced="check")
    assert engine.generate([TEXT], checked)[0].valid is False


@pytest.mark.parametrize(
    ("arguments", "more", "error", "field"),
    [
        ((Person, "x " * 4000), {}, LimitExceeded, "prompt"),
        ((Person.model_json_schema(), TEXT), {}, InvalidRequest, "target"),
        ((Person, 3), {}, InvalidRequest, "text"),
        ((Person, TEXT), {"instruction": 3}, InvalidRequest, "instruction"),
        ((Person, TEXT), {"params": {"max_tokens": 3}}, InvalidRequest, "params"),
        ((Person, TEXT), {"params": SamplingParams(constraint=Person)}, InvalidRequest, "constraint"),
        ((Engine, TEXT), {}, InvalidRequest, "constraint"),
        ((Person, TEXT), {"grammar": ("xgrammar",)}, InvalidConfiguration, "grammar"),
    ],
    ids=["long", "schema", "text", "instruction", "params", "constraint", "no schema of it", "settings"],
)
def test_what_is_wrong_has_a_name(engine: Engine, arguments: Any, more: Any, error: Any, field: str) -> None:
    with pytest.raises(error) as got:
        extract(*arguments, engine, **more)
    assert got.value.field == field


@pytest.mark.parametrize(
    ("target", "text", "params", "said"),
    [
        (Person, None, None, "text must be a string"),
        (Engine, TEXT, None, "has no JSON Schema"),
        (Person, TEXT, SamplingParams(temperature=-1.0), "temperature must be 0"),
        (Person, TEXT, SamplingParams(max_retries=1), "at temperature 0"),
    ],
    ids=["text", "type", "parameter", "parameters"],
)
def test_a_wrong_request_loads_no_model(target: Any, text: Any, params: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        extract(target, text, "no such model", params=params)


@pytest.mark.slow
def test_a_model_without_a_chat_template_reads_plain_text(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(DemoModel().path(), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")

    async def extracted() -> Any:
        async with AsyncEngine(folder, grammar=("llguidance",)) as engine:
            return await extract(bool, TEXT, engine, instruction="")

    with Engine(folder, grammar=("llguidance",)) as engine:
        assert not engine.has_chat_template
        (wanted,) = engine.generate([TEXT], SamplingParams(constraint=bool))
        assert extract(bool, TEXT, engine, instruction="") is wanted.parsed
        assert engine.chat([{"role": "user", "content": TEXT}])[0].finish_reason is FinishReason.REFUSED
    assert asyncio.run(extracted()) is wanted.parsed


@pytest.mark.slow
def test_a_closed_engine_says_so() -> None:
    engine = Engine("demo", grammar=("llguidance",))
    engine.close()
    with pytest.raises(EngineClosed):
        extract(Person, TEXT, engine)


def test_an_engine_that_ends_meanwhile_says_so() -> None:
    class Names(BaseModel):
        names: Annotated[list[str], MinLen(100)]

    async def run() -> None:
        async with AsyncEngine("demo", grammar=("llguidance",)) as engine:
            asked = asyncio.ensure_future(extract(Names, TEXT, engine))
            later = await engine.submit([5, 6], SamplingParams(max_tokens=500, ignore_eos=True))
            async for _ in later.chunks():
                break
            while not any(group.params.constraint for group in engine._admitted):
                await asyncio.sleep(0.01)
            await engine.close()
            with pytest.raises(InvalidAnswer, match="the request was aborted after"):
                await asked

    asyncio.run(asyncio.wait_for(run(), 60))
