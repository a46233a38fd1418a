"""The data: repeatable, valid by its own schemas, and without held-out values and templates in training."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from guideway_demo_model.training.batches import texts
from guideway_demo_model.training.data import Sample, Source, dumps, plain
from guideway_demo_model.training.domains import ROOMS, UNITS
from guideway_demo_model.training.templates import expand, expansions, groups, pool
from guideway_demo_model.training.values import COLORS, CURRENCIES, JOBS, is_held_out

CLOSED = {*ROOMS, *UNITS, *COLORS, *CURRENCIES, *JOBS, "add", "subtract", "multiply", "divide"}
TOOL_NAMES = {"get_weather", "send_message", "set_timer", "search", "book_flight", "calculate"}


def draw(count: int = 400, **splits: Any) -> list[Sample]:
    source = Source(5, **splits)
    return [source.sample() for _ in range(count)]


def leaves(value: Any) -> Iterator[Any]:
    """Yield the strings and numbers of JSON data; true and false cannot be held out."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif not isinstance(value, bool):
        yield value


def test_the_same_seed_gives_the_same_samples() -> None:
    assert draw(50, values="train", templates="train", noise=0.1) == draw(
        50, values="train", templates="train", noise=0.1
    )
    assert texts(3, 1, 50) == texts(3, 1, 50) != texts(3, 2, 50)


@pytest.mark.parametrize(
    ("values", "templates"),
    [
        pytest.param("train", "train", marks=pytest.mark.slow),
        pytest.param("test", "train", marks=pytest.mark.slow),
        ("test", "test"),
    ],
)
def test_every_answer_is_valid_and_said_in_its_prompt(values: Any, templates: Any) -> None:
    kinds = set()
    for sample in draw(values=values, templates=templates, noise=0.1):
        kinds.add(sample.kind)
        jsonschema.Draft202012Validator.check_schema(sample.schema)
        jsonschema.validate(sample.answer, sample.schema)
        for text in leaves(sample.answer):
            said = isinstance(text, str) and text not in CLOSED | TOOL_NAMES and not re.match(r"\d{4}-\d\d-\d\d$", text)
            assert not said or text in sample.prompt, (text, sample.prompt)
    assert kinds == {"person", "invoice", "order", "booking", "product", "record", "tool", "copy"}


def test_each_string_of_a_schema_is_bounded() -> None:
    def check(schema: dict[str, Any]) -> None:
        if schema.get("type") == "string":
            assert "maxLength" in schema or "pattern" in schema
        for inner in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
            check(inner)

    for sample in draw(values="test", templates="test"):
        check(sample.schema)


@pytest.mark.parametrize("split", ["train", "test"])
def test_open_values_belong_to_one_split(split: Any) -> None:
    for sample in draw(values=split, templates="train"):
        if sample.kind == "copy":  # several values in one text
            continue
        answer = sample.answer["arguments"] if sample.kind == "tool" else sample.answer
        for value in leaves(answer):
            if value not in CLOSED:
                assert is_held_out(value) == (split == "test"), (value, sample)
        if sample.kind == "record":
            assert all(is_held_out(key) == (split == "test") for key in answer)


def test_templates_are_split_whole() -> None:
    def said(group: str, split: Any) -> set[str]:
        every = {text for template in pool(group, split) for text in expansions(template)}
        return {re.sub(r"\{\w+\}", "{}", text).rstrip("?").lower() for text in every}

    trained = {text for group in groups() for text in said(group, "train")}
    for group, every in groups().items():
        assert len(pool(group, "test")) >= 2
        assert {*pool(group, "test")} | {*pool(group, "train")} == {*every}
        assert len(every) == len({*every})
        assert not said(group, "test") & trained, group


def test_prompts_use_the_templates_of_their_split() -> None:
    held_out = [expansions(template) for template in pool("copy.text", "test")]
    starts = tuple(text.removesuffix("{x}") for texts in held_out for text in texts)
    for templates in ("train", "test"):
        copies = [s for s in draw(values="test", templates=templates) if s.kind == "copy"]
        assert copies
        assert all(sample.prompt.startswith(starts) == (templates == "test") for sample in copies)


def test_expanding_takes_one_of_each_choice() -> None:
    assert expansions("[a|b] {x} [c|d]") == {"a {x} c", "a {x} d", "b {x} c", "b {x} d"}
    rng = random.Random(0)
    assert {expand("[a|b] {x} [c|d]", rng) for _ in range(100)} == expansions("[a|b] {x} [c|d]")


def test_noise_spares_the_words_that_show_where_a_value_ends() -> None:
    quiet, noisy = (Source(8, values="train", templates="train", noise=noise) for noise in (0.0, 0.5))
    assert [quiet.sample() for _ in range(20)] != [noisy.sample() for _ in range(20)]

    def words_before(group: str) -> set[str]:
        every = {text.lower() for template in pool(group, "train") for text in expansions(template)}
        return {text[: text.index("{x}")].split()[-1] for text in every if not text.startswith("{x}")}

    before_copies, before_guests = set(), set()
    for sample in (noisy.sample() for _ in range(4000)):
        if sample.kind == "copy":  # such as "Give this back: {x}"
            before_copies.add(sample.prompt.removesuffix(sample.answer["text"]).split()[-1].lower())
        elif sample.kind == "booking" and "guest" in sample.answer:
            before_guests |= {*re.findall(rf"([a-z]+) {sample.answer['guest'].lower()}", sample.prompt.lower())}
    assert before_copies == words_before("copy.text")
    assert before_guests - words_before("booking.guest")  # a name is recognizable without them


def test_odd_lists_of_items_are_none_that_is_held_out() -> None:
    held_out = {text for template in pool("order.item", "test") for text in expansions(template)}
    source = Source(4, values="train", templates="train", noise=0.5)
    forms = set()
    for sample in (source.sample() for _ in range(2000)):
        for item in sample.answer.get("items", []) if sample.kind == "order" else []:
            name, quantity, price = re.escape(item["name"]), item["quantity"], re.escape(str(plain(item["price"])))
            for order in (
                f"{quantity}(.{{0,9}}?){name}(.{{0,9}}?){price}",
                f"{name}(.{{0,9}}?){quantity}(.{{0,9}}?){price}",
            ):
                forms |= {(order[0] == str(quantity)[0], *found) for found in re.findall(order, sample.prompt)}
    assert len(forms) > 60  # many more than there are templates
    for template in held_out:
        order = re.fullmatch(r"\{(quantity|name)\}(.*)\{(?:name|quantity)\}(.*)\{price\}.*", template)
        assert order is None or (order[1] == "quantity", order[2], order[3]) not in forms, template
    assert "{quantity} {name} at only {price}" in held_out


def test_in_crowded_texts_numbers_recur_as_often_as_in_held_out_ones() -> None:
    def recurring(**options: Any) -> float:
        source = Source(6, templates="train", **options)
        answers = [source.sample("order", listed=False).answer for _ in range(400)]
        numbers = [[leaf for leaf in leaves(answer) if not isinstance(leaf, str)] for answer in answers]
        return sum(len({*some}) < len(some) for some in numbers) / len(numbers)

    usual, crowded, held_out = recurring(values="train"), recurring(values="train", crowded=1), recurring(values="test")
    assert usual < 0.07
    assert min(crowded, held_out) > 0.12


def test_short_texts_ask_for_all_they_tell() -> None:
    for sample in draw(100, values="train", templates="train", short=1.0):
        if sample.kind not in ("tool", "copy"):
            assert len(sample.answer) <= 2
            assert len(sample.prompt) < 250
    kinds = {sample.kind for sample in draw(100, values="train", templates="train", short=1.0)}
    assert {"person", "record", "tool", "copy"} <= kinds


def test_answers_are_written_compact_or_spaced() -> None:
    answer = {"a": [1, 2.0], "b": "ö"}
    assert dumps(answer, spaced=False) == '{"a":[1,2],"b":"ö"}'
    assert dumps(answer, spaced=True) == '{"a": [1, 2], "b": "ö"}'
    assert json.loads(dumps(answer, spaced=True)) == plain(answer)
