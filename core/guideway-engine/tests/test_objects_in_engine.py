"""A type, a schema, a pattern or a list as constraint, and the parsed object of the answer."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import pickle
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le
from guideway import (
    AsyncEngine,
    Choice,
    Completion,
    Engine,
    FinishReason,
    InvalidAnswer,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    Regex,
    SamplingParams,
)
from guideway.objects import constraint_of
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from tests.support.stages import one_in

PROMPT = [{"role": "user", "content": "Extract name, age. Meet Zoë Garcia. Age: 31."}]


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int


@dataclasses.dataclass
class Record:
    name: str
    age: int


class Row(TypedDict):
    name: str
    age: int


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Tree(BaseModel):
    children: list[Tree]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", grammar=("llguidance", "xgrammar")) as built:
        yield built


def answer(engine: Engine, constraint: Any, **params: Any) -> Completion:
    params = {"max_tokens": 80, "constraint": constraint} | params
    return engine.chat(PROMPT, SamplingParams(**params))[0].outputs[0]


@pytest.mark.parametrize(
    ("constraint", "wanted"),
    [
        (Person, Person(name="Zoë Garcia", age=31)),
        (Record, Record("Zoë Garcia", 31)),
        (Row, {"name": "Zoë Garcia", "age": 31}),
        (JsonSchema(Person.model_json_schema()), {"name": "Zoë Garcia", "age": 31}),
        (Person.model_json_schema() | {"additionalProperties": False}, {"name": "Zoë Garcia", "age": 31}),
    ],
    ids=["model", "dataclass", "TypedDict", "JsonSchema", "dict"],
)
def test_an_answer_is_the_object_that_was_asked_for(engine: Engine, constraint: Any, wanted: Any) -> None:
    output = answer(engine, constraint)
    assert output.unenforced == ()
    assert output.parsed == wanted
    assert type(output.parsed) is type(wanted)


@pytest.mark.parametrize(
    ("constraint", "is_one"),
    one_in(
        2,
        [
            (Color, lambda value: isinstance(value, Color)),
            (Literal["a", "b"], lambda value: value in ("a", "b")),
            (Annotated[int, Ge(3), Le(12)], lambda value: isinstance(value, int) and 3 <= value <= 12),
            (Annotated[list[bool], Field(max_length=3)], lambda value: all(isinstance(item, bool) for item in value)),
            (bool | None, lambda value: value in (True, False, None)),
            (Tree, lambda value: isinstance(value, Tree)),
            (re.compile("[a-c]{3}"), lambda value: re.fullmatch("[a-c]{3}", value)),
            (["yes", "no"], lambda value: value in ("yes", "no")),
            (("yes",), lambda value: value == "yes"),
            (Choice(["x"]), lambda value: value == "x"),
            (JsonObject(), lambda value: isinstance(value, dict)),
        ],
    ),
    ids=["Enum", "Literal", "int", "list", "union", "tree", "pattern", "strings", "tuple", "Choice", "JsonObject"],
)
def test_whatever_stands_for_a_constraint(engine: Engine, constraint: Any, is_one: Any) -> None:
    output = answer(engine, constraint, temperature=1.0, seed=3)
    assert output.finish_reason is FinishReason.STOP
    assert is_one(output.parsed)


def test_objects_are_closed_unless_their_type_is_open() -> None:
    assert constraint_of(Person).parsed["additionalProperties"] is False
    assert constraint_of(Record).parsed["additionalProperties"] is False
    assert constraint_of(Open).parsed["additionalProperties"] is True
    assert constraint_of(Tree).parsed["$defs"]["Tree"]["additionalProperties"] is False
    assert "additionalProperties" not in constraint_of({"type": "object", "properties": {}}).parsed, "as it was written"


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (re.compile("a", re.IGNORECASE), "must have no flags"),
        (re.compile(b"a"), "must match str"),
        (5, "not 5"),
        ("a|b", "a type, a schema as a dict, a compiled pattern or a list of strings, not 'a|b'"),
        ([1, "a"], "not [1, 'a']"),
        (Engine, "has no JSON Schema"),
        (list["Nobody"], "has no JSON Schema"),  # type: ignore[name-defined] # noqa: F821
    ],
    ids=["flags", "bytes", "number", "text", "mixed", "class", "unknown"],
)
def test_what_stands_for_none_is_refused(engine: Engine, constraint: Any, said: str) -> None:
    output = answer(engine, constraint)
    assert output.finish_reason is FinishReason.REFUSED
    assert isinstance(output.error, InvalidRequest)
    assert output.error.field == "constraint"
    assert said in str(output.error)
    assert output.parsed is None


def test_an_output_that_is_not_complete_is_no_object(engine: Engine) -> None:
    cut = answer(engine, Person, max_tokens=4, close=False)
    assert (cut.finish_reason, cut.parsed) == (FinishReason.LENGTH, None)
    stopped = answer(engine, Person, stop=":")
    assert (stopped.finish_reason, stopped.parsed) == (FinishReason.STOP, None)
    assert "constraint" in stopped.unenforced
    assert answer(engine, None, max_tokens=4).parsed is None


def never(value: int) -> int:
    raise ValueError("never")


def test_a_type_that_judges_more_says_so(engine: Engine) -> None:
    output = answer(engine, Annotated[Literal[1], AfterValidator(never)])
    assert output.text == "1"
    with pytest.raises(InvalidAnswer, match="never"):
        _ = output.parsed


def test_a_result_pickles_and_brings_its_object_along(engine: Engine) -> None:
    result = engine.chat(PROMPT, SamplingParams(max_tokens=80, constraint=Person))[0]
    assert pickle.loads(pickle.dumps(result)).parsed == result.parsed == Person(name="Zoë Garcia", age=31)


def test_it_is_the_same_in_an_async_engine() -> None:
    async def run() -> Any:
        async with AsyncEngine("demo", grammar=("llguidance",)) as engine:
            return await engine.generate(PROMPT, SamplingParams(max_tokens=80, constraint=Person))

    assert asyncio.run(run()).parsed == Person(name="Zoë Garcia", age=31)


def test_a_pattern_is_a_regex_and_a_constraint_is_itself() -> None:
    assert constraint_of(re.compile("a+")) == Regex("a+")
    assert constraint_of(Regex("a")) == Regex("a")
