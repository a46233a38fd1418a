"""Texts that the engine checks: among other requests, in streams, and in aborted requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from guideway import AsyncEngine, Engine, EngineConfig, FinishReason, JsonObject, JsonSchema, Regex, SamplingParams
from guideway.api import Constraint, InvalidRequest, UnsupportedCapability

from tests.support.stages import everyday

ONE = {"type": "integer", "minimum": 1, "maximum": 1}
TWICE = {"type": "array", "items": ONE, "minItems": 2, "maxItems": 2, "uniqueItems": True}
"""xgrammar does not enforce ``uniqueItems``, so the only text is [1,1]."""

ONCE = {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 1, "uniqueItems": True}

OPTIONS = {"model": "demo", "grammar": ("xgrammar",), "max_num_seqs": 4, "whitespace": "compact"}


@pytest.fixture(scope="module", params=everyday(["inline", "process"], "inline"))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(EngineConfig(**OPTIONS, grammar_host=request.param, on_unenforced="check")) as engine:
        yield engine


def params(constraint: Constraint | None, **values: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 60, "constraint": constraint, **values})


def test_each_finished_text_is_judged(engine: Engine) -> None:
    wanted = [
        (JsonSchema(TWICE), False),
        (JsonSchema(ONCE), True),
        (JsonObject(), True),
        (Regex("[a-c]{3}"), True),
        (None, None),
    ]
    results = engine.generate(["x"] * len(wanted), [params(constraint) for constraint, _ in wanted])
    assert [result.valid for result in results] == [valid for _, valid in wanted]
    assert [result.error for result in results] == [None] * len(wanted)
    assert (results[0].text, results[0].unenforced) == ("[1,1]", ("uniqueItems",))
    assert not engine.has_work()


def test_a_request_may_do_without(engine: Engine) -> None:
    (result,) = engine.generate(["x"], params(JsonSchema(TWICE), on_unenforced="report"))
    assert (result.text, result.valid) == ("[1,1]", None)


def test_what_was_cut_is_judged_as_it_is(engine: Engine) -> None:
    cut = params(JsonObject(), max_tokens=1, close=False)
    (result,) = engine.generate(["x"], cut)
    assert (result.finish_reason, result.valid) == (FinishReason.LENGTH, False)
    (result,) = engine.generate(["x"], params(Regex("[a-c]{30}"), max_tokens=3, close=False))
    assert (result.finish_reason, result.valid) == (FinishReason.LENGTH, False)


def test_every_output_has_a_verdict_of_its_own(engine: Engine) -> None:
    (result,) = engine.generate(["x"], params(JsonSchema(EITHER), n=16, temperature=2.0, seed=1))
    assert {output.valid for output in result.outputs} == {True, False}
    for output in result.outputs:
        assert output.valid == (output.text in ("[1,2]", "[2,1]"))


def test_an_echoed_prompt_is_not_judged(engine: Engine) -> None:
    (result,) = engine.generate(["x"], params(JsonSchema(ONCE), echo=True))
    assert (result.text, result.valid) == ("x[1]", True)


def test_a_stream_ends_and_the_result_has_the_verdict(engine: Engine) -> None:
    generation = engine.submit("x", params(JsonSchema(TWICE)))
    assert "".join(generation) == "[1,1]"
    assert generation.result is not None and generation.result.valid is False


def test_a_verdict_that_does_not_come_holds_up_nobody_and_may_be_given_up() -> None:
    with Engine(EngineConfig(**OPTIONS, on_unenforced="check")) as engine:
        slow = engine.submit("x", params(JsonSchema(SLOW), on_unenforced="check"))
        while slow._group.sequences[0].completion is None:
            engine.step()
        (result,) = engine.generate(["x"], params(JsonSchema(ONCE)))
        assert (result.valid, slow.result) == (True, None)
        assert engine.has_work()
        slow.abort()
        assert slow.result is not None
        assert (slow.result.finish_reason, slow.result.valid) == (FinishReason.STOP, None)
        assert not engine.has_work()
        unread = engine.submit("x", params(JsonSchema(SLOW)))
        while unread._group.sequences[0].completion is None:
            engine.step()
    assert unread.result is not None
    assert unread.result.valid is None


EITHER = {"type": "array", "prefixItems": [{"enum": [1, 2]}] * 2, "minItems": 2, "maxItems": 2, "uniqueItems": True}


def test_what_is_not_valid_is_drawn_again(engine: Engine) -> None:
    once = params(JsonSchema(EITHER), n=8, temperature=2.0, seed=1)
    again = replace(once, max_retries=20)
    (first,), (second,), (third,) = (engine.generate(["x"], wanted) for wanted in (once, again, again))
    assert {output.valid for output in first.outputs} == {True, False}
    assert [output.valid for output in second.outputs] == [True] * 8
    assert [output.index for output in second.outputs] == list(range(8))
    for before, after in zip(first.outputs, second.outputs, strict=True):
        assert not before.valid or after.token_ids == before.token_ids
    assert [output.token_ids for output in third.outputs] == [output.token_ids for output in second.outputs]
    assert not engine.has_work() and not engine._runtime._open


def test_retries_end(engine: Engine) -> None:
    drawn: list[int] = []
    start = engine._runtime.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._runtime, "start", lambda *a, **k: (drawn.append(k["attempt"]), start(*a, **k)))
        (result,) = engine.generate(["x"], params(JsonSchema(TWICE), temperature=1.0, max_retries=2, echo=True))
    assert (result.text, result.valid, drawn) == ("x[1,1]", False, [0, 1, 2])
    assert not engine._runtime._open


def test_nothing_is_drawn_again_after_an_abort(engine: Engine) -> None:
    wanted = params(JsonSchema(TWICE), temperature=1.0, max_retries=100)
    generation = engine.submit("x", wanted)
    for _ in range(20):
        engine.step()
    generation.abort()
    assert generation.result is not None
    assert not engine.has_work() and not engine._runtime._open


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"temperature": 0.0}, "the same output is drawn again"),
        ({"on_unenforced": "report"}, "outputs are not checked with on_unenforced 'report'"),
    ],
)
def test_retries_that_are_of_no_use_are_refused(engine: Engine, wrong: dict[str, Any], says: str) -> None:
    wanted = params(JsonSchema(TWICE), **{"temperature": 1.0, "max_retries": 1, **wrong})
    (result,) = engine.generate(["x"], wanted)
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == "max_retries"
    assert says in str(result.error)


def test_what_may_be_drawn_again_is_not_streamed(engine: Engine) -> None:
    generation = engine.submit("x", params(JsonSchema(TWICE), temperature=1.0, max_retries=1))
    with pytest.raises(UnsupportedCapability, match="max_retries"):
        next(iter(generation))
    assert generation.wait().valid is False


SLOW = {"enum": ["a" * 40 + "!"], "not": {"pattern": "^(a+)+$"}}
"""A schema with one possible text, whose validation never ends."""


@pytest.mark.slow
def test_a_server_waits_for_verdicts_without_spinning() -> None:
    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS, on_unenforced="check")) as engine:
            first = await engine.generate("x", params(JsonSchema(TWICE)))
            assert first.valid is False
            slow = asyncio.create_task(engine.generate("x", params(JsonSchema(SLOW))))
            await asyncio.sleep(0.5)
            began, taken = time.monotonic(), time.process_time()
            await asyncio.sleep(1.0)
            assert not slow.done()
            assert (time.process_time() - taken) < 0.5 * (time.monotonic() - began)
            assert (await engine.generate("x", params(JsonSchema(ONCE)))).valid is True

    asyncio.run(main())
