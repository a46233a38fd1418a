"""Parsing of JSON bodies: the same results as `json`, within limits, and without blocking other threads."""

from __future__ import annotations

import json
import time
from threading import Event, Thread
from typing import Any

import pytest
from guideway.errors import InvalidRequest, LimitExceeded
from guideway_engine.server.bodies import EmbeddingsBody, read_body
from guideway_engine.server.json_reading import MAX_CONTAINERS, MAX_DEPTH, MAX_NAMES, MAX_VALUES, read_json
from hypothesis import given
from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def outcome(read: Any, text: str) -> Any:
    try:
        return repr(read(text))
    except ValueError:
        return ValueError


@given(VALUES, st.sampled_from([None, 0, 1, "\t"]), st.booleans())
def test_a_text_has_the_value_that_json_reads(value: Any, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert outcome(read_json, f"\r\n {text}\t") == outcome(json.loads, text)


@given(VALUES, st.integers(0, 200), st.integers(0, 3), st.text('[]{}",:0-.eE \n\\un\x0b', max_size=3))
def test_a_text_that_is_no_json_is_refused_as_json_does(value: Any, at: int, cut: int, more: str) -> None:
    text = json.dumps(value)
    text = text[:at] + more + text[at + cut :]
    found = outcome(read_json, text)
    assert found == outcome(json.loads, text) or "twice" in reason(text)


def reason(text: str) -> str:
    try:
        read_json(text)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[" * (MAX_DEPTH + 1), f"{MAX_DEPTH} lists and objects inside each other"),
        ('{"a":' * 100_000, f"{MAX_DEPTH} lists and objects inside each other"),
        ("[" + "[]," * MAX_CONTAINERS + "[]]", f"{MAX_CONTAINERS} lists and objects"),
        (json.dumps({str(number): 0 for number in range(MAX_NAMES + 1)}), f"{MAX_NAMES} names in one object"),
        ("[" + "0," * MAX_VALUES + "0]", f"{MAX_VALUES} numbers and strings"),
    ],
    ids=["depth", "depth of objects", "containers", "names", "values"],
)
def test_a_text_above_a_limit(text: str, what: str) -> None:
    with pytest.raises(LimitExceeded, match=what) as found:
        read_body(EmbeddingsBody, text.encode())
    assert found.value.field == "body"


def test_a_name_that_is_there_twice() -> None:
    with pytest.raises(InvalidRequest, match="the key 'a' appears twice"):
        read_body(EmbeddingsBody, b'{"b": {"a": 1, "a": 2}}')


@pytest.mark.slow
def test_other_threads_go_on_while_a_large_body_is_read() -> None:
    """With `json.loads` the other thread gets about three turns."""
    raw = json.dumps({"model": "m", "input": [list(range(100_000))] * 5}).encode()
    turns, done = 0, Event()

    def other() -> None:
        nonlocal turns
        while not done.is_set():
            time.sleep(0.001)
            turns += 1

    thread = Thread(target=other)
    thread.start()
    assert len(read_body(EmbeddingsBody, raw).input) == 5
    done.set()
    thread.join()
    assert turns > 10
