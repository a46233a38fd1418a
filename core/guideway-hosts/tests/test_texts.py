"""Validation of finished texts in hosts: its limits, and verdicts that cannot be reached."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import wait

import pytest
from guideway.api import JsonObject, JsonSchema, ModifierContext
from guideway.plugins.limits import Limits
from guideway.runtime.admission.checking import Checker
from guideway_hosts import Hosts
from guideway_hosts.hosts import Judge

from tests.support.hostility import VOCABULARY

NEVER = JsonSchema({"pattern": "^(a+)+$"})
"""Python's `re` backtracks exponentially on it."""


CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=1, max_model_len=16)


def judging(seconds: float) -> Judge:
    return Hosts(CONTEXT, {}, {}, {}, num_compilers=1, limits=Limits(compile_seconds=seconds)).judge


@pytest.fixture
def judge() -> Judge:
    return judging(1.0)


@pytest.fixture
def checker(judge: Judge) -> Iterator[Checker]:
    checker = Checker(judge)
    yield checker
    checker.close()


def verdict(checker: Checker, constraint: JsonSchema | JsonObject, text: str) -> bool | None:
    return checker.judge(constraint, text, enforces_formats=True).result(60)


def test_verdicts_come_from_another_process(checker: Checker, judge: Judge) -> None:
    assert verdict(checker, JsonSchema({"uniqueItems": True}), "[1,1]") is False
    assert verdict(checker, JsonSchema({"uniqueItems": True}), "[1,2]") is True
    assert verdict(checker, JsonSchema({"type": "integer"}), "9" * 5000) is True
    assert verdict(checker, JsonObject(), '{"a":1}') is True
    assert verdict(checker, JsonObject(), '{"a":1,"a":1}') is False
    assert verdict(checker, JsonObject(), "[]") is False
    (host,) = [started.result() for started in judge.pool._idle]
    assert host is not None and host.pid != os.getpid()


def test_a_judgment_that_never_ends_is_given_up(checker: Checker, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    assert verdict(checker, NEVER, '"' + "a" * 60 + '!"') is None
    assert time.monotonic() - began < 30
    assert "could not be checked" in caplog.text
    assert verdict(checker, NEVER, '"aaa"') is True  # in another host


def test_one_that_never_ends_holds_up_no_other(checker: Checker) -> None:
    slow = checker.judge(NEVER, '"' + "a" * 60 + '!"', enforces_formats=True)
    assert verdict(checker, JsonObject(), "{}") is True
    assert not slow.done()


def test_nesting_without_end_is_not_judged(checker: Checker) -> None:
    assert verdict(checker, JsonSchema({"items": {"$ref": "#"}}), "[" * 100_000 + "]" * 100_000) is None
    assert verdict(checker, JsonObject(), "{}") is True


def test_a_host_that_is_killed_is_replaced(checker: Checker, judge: Judge) -> None:
    assert verdict(checker, JsonObject(), "{}") is True
    (host,) = [started.result() for started in judge.pool._idle]
    assert host is not None
    os.kill(host.pid, signal.SIGKILL)
    assert verdict(checker, JsonObject(), "{}") is True


def test_closing_ends_what_is_under_way() -> None:
    judge = judging(300)
    checker = Checker(judge)
    slow = checker.judge(NEVER, '"' + "a" * 60 + '!"', enforces_formats=True)
    while not judge.pool._busy:
        time.sleep(0.01)
    checker.close()
    assert not wait([slow], 30).not_done
    assert slow.result() is None
    assert verdict(checker, JsonObject(), "{}") is None
