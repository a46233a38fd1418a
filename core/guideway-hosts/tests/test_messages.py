"""Messages to hosts: values arrive as they were sent, or are refused."""

from __future__ import annotations

import json
import socket
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from guideway.api import Choice, JsonSchema, ModifierContext, Need, Regex, Request, SamplingParams, SequenceInfo
from guideway.json_schema.tracking import tracked
from guideway.plugins import Plugins
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing import Budget, Record, Reserve
from guideway_hosts.codec import decode, encode, pack, unpack
from guideway_hosts.line import Line
from guideway_hosts.matcher import Rows
from guideway_hosts.matchers import _read as read_answer
from guideway_hosts.messages import Birth, Job
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostility import VOCABULARY

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters())
KEYS = PLAIN | st.binary(max_size=9)
VALUES = st.recursive(
    KEYS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.frozensets(KEYS)
        | st.dictionaries(KEYS, inner)
        | st.builds(Bans, logit_bias=st.frozensets(st.integers(0, 9)), stop=st.lists(st.binary()).map(tuple))
        | st.builds(Record, texts=st.lists(st.binary()).map(tuple))
    ),
    max_leaves=20,
)
SCHEMA = JsonSchema({"type": "object", "properties": {"b": {"maxLength": 9}, "a": {}}, "required": ["b"]})
IDS = st.lists(st.integers(0, 1 << 20), max_size=5).map(tuple)
JOBS = st.builds(
    Job,
    st.integers(0, 1 << 40),
    st.none() | st.just(Birth(1, None, [2, [3, 4]], 2)),
    IDS,
    IDS,
    num_forced=st.integers(0, 9),
)


def sent(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(VALUES)
def test_values_arrive_as_they_were(value: Any) -> None:
    arrived = decode(sent(encode(value)))
    assert arrived == value and type(arrived) is type(value)


def test_budgets_are_sent_as_they_are() -> None:
    reserve = Reserve.of(SCHEMA, VOCABULARY)
    budgets = [None, *(Budget(n, reserve, Bans(stop=stop)) for n in (1, 2) for stop in ((), (b"a",)))]
    for _ in range(2):  # the second time they are known
        assert [unpack(pack(budget)) for budget in budgets] == budgets


@given(st.lists(VALUES.map(encode), max_size=3))
def test_frames_arrive_as_they_were(values: list[Any]) -> None:
    one, other = socket.socketpair()
    with one, other:
        for value in values:
            Line(one, serves=True).send(value)
        assert [Line(other, serves=True).receive() for _ in values] == sent(values)


@pytest.mark.parametrize(
    "value",
    [
        SCHEMA,
        tracked(JsonSchema({"type": "array", "uniqueItems": True})),
        Regex("a", strategy="x"),
        Choice(("a", "b")),
        Budget(9, Reserve(1, 2, True), Bans(stop=(b"\xff",))),
        Request(request_id="\ud800", prompt_token_ids=(1, 2), params=SamplingParams(constraint=SCHEMA, max_tokens=3)),
        SequenceInfo(index=0, seed=1 << 63, prompt_token_ids=(1,)),
        ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64),
        Plugins().resolve("grammar", "reference"),
        Need.DRAFTS,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_requests_and_plugins_are_made_from_arrives(value: Any) -> None:
    assert decode(sent(encode(value))) == value


def test_arrays_arrive() -> None:
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 2), dtype=np.bool_), np.int32(7)):
        arrived = decode(sent(encode(array)))
        assert arrived.dtype == array.dtype
        np.testing.assert_array_equal(arrived, array)


def test_objects_arrive_that_pickle_in_their_own_way() -> None:
    """As the encoders of vocabularies do."""
    for value in (Fraction(1, 3), UUID(int=7), SimpleNamespace(a=(1, b"b"))):
        assert decode(sent(encode(value))) == value


def test_what_no_other_process_could_make_is_refused() -> None:
    class Local(Regex):
        pass

    for value in (lambda: None, [{"a": print}], Local("a"), Local, iter(())):
        with pytest.raises(TypeError):
            encode(value)


@given(st.lists(JOBS, max_size=8))
def test_jobs_arrive(jobs: list[Job]) -> None:
    assert list(map(Job.read, sent(jobs))) == jobs


@pytest.mark.parametrize("drafts", [[1, 1, 1, 1], [-1], [1 << 40], [4 * 32]])
def test_drafts_that_no_host_was_asked_for_are_refused(drafts: list[int]) -> None:
    rows = Rows(np.zeros((16, 4), dtype=np.int32))
    assert read_answer([0, [7, 8], None, []], (), 3, rows, 0).drafts == (7, 8)
    with pytest.raises(ValueError, match="drafts"):
        read_answer([0, drafts, None, []], (), 3, rows, 0)
