"""Operators' options are parsed into a plugin's dataclass, or refused with an error that names the option."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from guideway import EngineConfig, PluginSettings, SamplingParams
from guideway.api.options import Range, check_fields, fits, parse_options
from guideway.errors import InvalidConfiguration


@dataclass(frozen=True)
class Options:
    size: int
    ratio: float = 0.5
    name: str = "x"
    strict: bool = True
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None
    tags: tuple[str, ...] = ()
    levels: tuple[Literal[1, 2], ...] | None = None
    derived: int = field(default=0, init=False)


def parse(**options: Any) -> Options:
    return parse_options(Options, options, where="grammar.toy")


def test_values_of_every_kind() -> None:
    parsed = parse(size=3, ratio=0.25, name="n", strict=False, mode="slow", limit=7, tags=["a", "b"], levels=(1, 2))
    assert parsed == Options(3, 0.25, "n", False, "slow", 7, ("a", "b"), (1, 2))
    assert isinstance(parsed.tags, tuple)  # a list from TOML or JSON becomes a tuple


def test_what_is_not_given_has_its_default() -> None:
    assert parse(size=3) == Options(3)


def test_a_whole_number_is_a_float_too() -> None:
    assert parse(size=3, ratio=1).ratio == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", "3"),
        ("size", 3.0),
        ("size", True),
        ("size", None),
        ("ratio", "0.5"),
        ("ratio", False),
        ("name", b"n"),
        ("strict", 1),
        ("mode", "medium"),
        ("mode", ["fast"]),
        ("limit", 1.5),
        ("tags", "ab"),
        ("tags", ["a", 1]),
        ("tags", None),
        ("levels", [3]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(key: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(**{"size": 1, key: value})
    assert caught.value.field == f"grammar.toy.{key}"
    assert f"option {key!r} of grammar.toy must be " in str(caught.value)
    assert repr(value) in str(caught.value)


def test_the_error_says_what_would_be_accepted() -> None:
    with pytest.raises(InvalidConfiguration, match="must be a whole number, not 'x'"):
        parse(size="x")
    with pytest.raises(InvalidConfiguration, match="must be 'fast' or 'slow', not 'medium'"):
        parse(size=1, mode="medium")
    with pytest.raises(InvalidConfiguration, match="must be a whole number, or None, not 'x'"):
        parse(size=1, limit="x")


@dataclass(frozen=True)
class Bounded:
    count: Annotated[int, Range(1)] = 1
    share: Annotated[float, Range(above=0, most=1)] = 1.0
    seed: Annotated[int, Range(0, 2**63 - 1)] | None = None
    name: Annotated[str, Range(1)] = "x"
    even: Annotated[int, lambda number: number % 2 == 0, "an even number"] = 0
    anything: Any = None


@pytest.mark.parametrize(
    ("key", "right", "wrong", "expected"),
    [
        ("count", [1, 10**30], [0, True, 1.5, None], "a whole number of at least 1"),
        ("share", [1, 0.5, 1e-9], [0, -1.0, 1.1, float("nan"), "1"], "a number above 0 and at most 1"),
        ("seed", [None, 0], [-1, 2**63], "a whole number from 0 to 9223372036854775807, or None"),
        ("name", ["y"], ["", None, ("y",)], "a string that is not empty"),
        ("even", [2, -4], [1, 2.0, "2"], "an even number"),
    ],
)
def test_bounds_stand_in_the_hint(key: str, right: list[Any], wrong: list[Any], expected: str) -> None:
    for value in right:
        assert getattr(parse_options(Bounded, {key: value}, where="toy"), key) == value
        check_fields(Bounded(**{key: value}))
    for value in wrong:
        for parse_or_check in (
            lambda given: parse_options(Bounded, given, where="toy"),
            lambda given: check_fields(Bounded(**given)),
        ):
            with pytest.raises(InvalidConfiguration, match=re.escape(f"must be {expected}, not {value!r}")):
                parse_or_check({key: value})


def test_anything_fits_any_and_a_value_that_cannot_be_shown_is_not() -> None:
    assert parse_options(Bounded, {"anything": 1j}, where="toy").anything == 1j
    with pytest.raises(InvalidConfiguration, match=r"not \(int, too large to show\)"):
        parse_options(Bounded, {"count": -(10**5000)}, where="toy")


def test_what_cannot_be_compared_is_none_of_a_few() -> None:
    assert fits("slow", Literal["fast", "slow"])
    for value in (np.array(["fast", "slow"]), np.array(1), ["fast"], 1.5):
        assert not fits(value, Literal["fast", "slow"] | None)


def test_an_unknown_key_names_the_closest_one_and_all_others() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(size=1, rato=0.5)
    assert caught.value.field == "grammar.toy.rato"
    assert str(caught.value) == (
        "unknown option 'rato' of grammar.toy; did you mean 'ratio'? "
        "accepted: levels, limit, mode, name, ratio, size, strict, tags"
    )


def test_an_unknown_key_like_no_other_gets_no_guess() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(size=1, zzz=0)
    assert "did you mean" not in str(caught.value)


def test_a_field_that_is_not_initialized_is_no_option() -> None:
    with pytest.raises(InvalidConfiguration, match="unknown option 'derived'"):
        parse(size=1, derived=1)


def test_options_of_a_class_without_any() -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    assert parse_options(Nothing, {}, where="device.toy") == Nothing()
    with pytest.raises(InvalidConfiguration, match="accepted: none"):
        parse_options(Nothing, {"size": 1}, where="device.toy")


def test_a_missing_option_is_named() -> None:
    with pytest.raises(InvalidConfiguration, match=r"grammar\.toy needs the option 'size'") as caught:
        parse()
    assert caught.value.field == "grammar.toy.size"


@dataclass(frozen=True)
class WithMapping:
    weights: Mapping[str, Any] = field(default_factory=dict)


def test_a_mapping_is_taken_as_it_is_and_nothing_else_for_one() -> None:
    assert parse_options(WithMapping, {"weights": {"a": 1}}, where="grammar.toy").weights == {"a": 1}
    with pytest.raises(InvalidConfiguration, match=r"must be a mapping, not \[\]"):
        parse_options(WithMapping, {"weights": []}, where="grammar.toy")


@pytest.mark.parametrize(
    ("cls", "given", "said"),
    [
        (
            SamplingParams,
            {"max_token": 5},
            "'max_token'; did you mean 'max_tokens'? accepted: max_tokens, min_tokens, ",
        ),
        (SamplingParams, {"max_tokens": 5, "beam": 2}, "'beam'; accepted: max_tokens, min_tokens, "),
        (EngineConfig, {"model": "demo", "max_num_seq": 3}, "'max_num_seq'; did you mean 'max_num_seqs'? accepted: "),
        (PluginSettings, {"alow": ()}, "'alow'; did you mean 'allow'? accepted: enable, allow, deny, require, lock"),
    ],
)
def test_an_unknown_keyword_names_the_closest_field(cls: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        cls(**given)
    assert f"{cls.__name__}() got an unexpected keyword argument {said}" in str(caught.value)
    *_, last = given
    right = cls(**{name: value for name, value in given.items() if name != last})
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{last}'; "):
        replace(right, **{last: given[last]})
    assert pickle.loads(pickle.dumps(right)) == replace(right) == right
    assert list(inspect.signature(cls).parameters) == [f.name for f in fields(cls)]
