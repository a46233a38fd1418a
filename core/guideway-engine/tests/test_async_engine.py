"""The engine under asyncio: many coroutines use one engine."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import pytest
from guideway import (
    AsyncEngine,
    Engine,
    EngineClosed,
    EngineConfig,
    FinishReason,
    InvalidRequest,
    Regex,
    SamplingParams,
)
from guideway.api import UnsupportedCapability
from guideway_engine.scheduling.waiting import WaitingQueue

T = TypeVar("T")
OPTIONS: dict[str, Any] = {"model": "demo", "grammar": ("llguidance",), "max_num_seqs": 4, "dtype": "float64"}


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


def prompt(i: int) -> list[int]:
    return [5 + (i * 37 + j * j) % 1500 for j in range(10 + i)]


def params(i: int, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 5 + i, "temperature": 0.9, "seed": i} | others)


def test_results_and_streams_are_those_of_the_engine() -> None:
    with Engine(EngineConfig(**OPTIONS)) as plain:
        expected = plain.generate([prompt(i) for i in range(12)], [params(i) for i in range(12)])

    async def stream(engine: AsyncEngine, i: int) -> str:
        generation = await engine.submit(prompt(i), params(i))
        pieces = [piece async for piece in generation]
        assert generation.result is not None
        assert generation.result.token_ids == expected[i].token_ids
        return "".join(pieces)

    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS)) as engine:
            texts = asyncio.gather(*(stream(engine, i) for i in range(0, 12, 2)))
            results = await asyncio.gather(*(engine.generate(prompt(i), params(i)) for i in range(1, 12, 2)))
            assert await texts == [result.text for result in expected[::2]]
            assert [r.token_ids for r in results] == [r.token_ids for r in expected[1::2]]

    run(main())


@pytest.mark.slow
def test_several_outputs_come_in_chunks() -> None:
    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS)) as engine:
            generation = await engine.submit(prompt(1), params(9, n=3))
            texts = ["", "", ""]
            async for chunk in generation.chunks():
                texts[chunk.index] += chunk.text
            result = await generation.wait()
            assert texts == [output.text for output in result.outputs]
            several = await engine.submit(prompt(1), params(9, n=3))
            with pytest.raises(UnsupportedCapability, match="chunks"):
                async for _ in several:
                    pass
            best = await engine.submit(prompt(1), params(9, n=1, best_of=3))
            with pytest.raises(UnsupportedCapability, match="best_of"):
                async for _ in best.chunks():
                    pass
            assert (await best.wait()).error is None
            await several.wait()

    run(main())


@pytest.mark.slow
def test_submitting_waits_while_the_queue_is_full() -> None:
    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS | {"max_waiting": 2})) as engine:
            most = 0
            results = []

            async def one(i: int) -> None:
                nonlocal most
                generation = await engine.submit(prompt(i), params(i))
                most = max(most, engine._engine._scheduler.num_waiting)
                results.append(await generation.wait())

            await asyncio.gather(*(one(i) for i in range(20)))
            assert len(results) == 20
            assert 1 <= most <= 2

    run(main())


def test_who_is_urgent_waits_for_no_room_among_the_others() -> None:
    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS | {"max_waiting": 4})) as engine:
            long = params(1, max_tokens=300, ignore_eos=True)
            others = [asyncio.create_task(engine.submit(prompt(i), long)) for i in range(12)]
            await asyncio.gather(*others[:8])
            urgent = await engine.generate(prompt(2), params(0, priority=-5))
            assert urgent.error is None
            assert not any(other.done() for other in others[8:]), "somebody else has ended"

    run(main())


@pytest.mark.slow
def test_steps_that_let_nobody_in_do_not_look_for_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS | {"max_waiting": 2})) as engine:
            looked: list[int] = []
            in_turn = engine._backlog.in_turn
            monkeypatch.setattr(engine._backlog, "in_turn", lambda load: looked.append(1) or in_turn(load))
            await asyncio.gather(*(engine.generate(prompt(i), params(i, max_tokens=10)) for i in range(12)))
            assert len(looked) == 12

    run(main())


def test_a_refusal_is_raised_by_submit_and_told_by_generate() -> None:
    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS)) as engine:
            with pytest.raises(InvalidRequest, match="max_tokens"):
                await engine.submit("x", SamplingParams(max_tokens=0))
            refused = await engine.generate("x", SamplingParams(max_tokens=0))
            assert refused.finish_reason is FinishReason.REFUSED
            served, again = await engine.generate("x", params(1)), await engine.generate("x", SamplingParams(n=0))
            assert again.finish_reason is FinishReason.REFUSED
            ids = [refused.request_id, served.request_id, again.request_id]
            assert all(ids) and len(set(ids)) == 3, ids
            late = await engine.submit("x", SamplingParams(constraint=Regex(r"\q")))
            with pytest.raises(InvalidRequest):
                async for _ in late:
                    pass
            assert (await engine.generate("x", params(1))).error is None

    run(main())


def test_who_stops_reading_or_is_cancelled_aborts() -> None:
    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS)) as engine:
            left = await engine.submit(prompt(1), params(1, max_tokens=500, ignore_eos=True))
            stream = left.chunks()
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert (await left.wait()).finish_reason is FinishReason.ABORT
            task = asyncio.create_task(engine.generate(prompt(2), params(2, max_tokens=900, ignore_eos=True)))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            aborted = await engine.submit(prompt(3), params(3, max_tokens=900, ignore_eos=True))
            aborted.abort()
            assert (await aborted.wait()).finish_reason is FinishReason.ABORT
            assert (await engine.generate(prompt(1), params(1))).error is None
            while engine._engine.has_work():
                await asyncio.sleep(0.01)

    run(main())


def test_closing_ends_everything() -> None:
    async def main() -> None:
        engine = AsyncEngine(EngineConfig(**OPTIONS | {"max_waiting": 1}))
        running = await engine.submit(prompt(1), params(1, max_tokens=900, ignore_eos=True))
        waiting = [asyncio.create_task(engine.submit(prompt(i), params(i, max_tokens=900))) for i in range(8)]
        stream = running.chunks()
        await anext(stream)
        await engine.close()
        await engine.close()
        assert (await running.wait()).finish_reason is FinishReason.ABORT
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(isinstance(end, EngineClosed) for end in ends)
        for end in ends:
            if not isinstance(end, BaseException):
                assert (await end.wait()).finish_reason is FinishReason.ABORT
            else:
                assert isinstance(end, EngineClosed)
        with pytest.raises(EngineClosed):
            await engine.submit("x")

    run(main())


@pytest.mark.parametrize("broken", ["step", "end_group"])
def test_an_engine_that_breaks_closes_and_says_so(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        engine = AsyncEngine(EngineConfig(**OPTIONS))

        def fail(*_: Any) -> None:
            raise RuntimeError("not a request's doing")

        generation = await engine.submit(prompt(1), params(1, max_tokens=900, ignore_eos=True))
        other = await engine.submit(prompt(2), params(1, max_tokens=900, ignore_eos=True))
        monkeypatch.setattr(engine._engine._scheduler, broken, fail)
        generation.abort()
        result = await other.wait()
        assert result.finish_reason is FinishReason.INTERNAL_ERROR
        assert "not a request's doing" in str(result.error)
        with pytest.raises(EngineClosed):
            await engine.submit("x")
        await engine.close()

    run(main())
    assert "the engine failed; it is closed" in caplog.text


@pytest.mark.slow
def test_a_compilation_that_takes_long_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    async def main() -> None:
        engine = AsyncEngine(EngineConfig(**OPTIONS))
        strategy = engine._engine._runtime._mask.candidates._strategies["llguidance"]
        compile_ = strategy.compile

        def slow(constraint: Any) -> Any:
            go_on.wait(60)
            return compile_(constraint)

        monkeypatch.setattr(strategy, "compile", slow)
        stuck = [await engine.submit("x", SamplingParams(max_tokens=9, constraint=Regex(f"{i}"))) for i in range(2)]
        await asyncio.sleep(0.1)  # the engine has nothing else to do any more
        assert (await engine.generate(prompt(1), params(1))).error is None
        stuck[0].abort()
        assert (await stuck[0].wait()).finish_reason is FinishReason.ABORT
        go_on.set()
        assert (await stuck[1].wait()).text == "1"
        await engine.close()

    run(main())


def test_parameters_that_cannot_even_be_compared_cost_nobody_else_anything() -> None:
    hostile: Any = Fraction(10**400)

    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS)) as engine:
            for wrong in (SamplingParams(priority=hostile), SamplingParams(n=hostile)):
                result, other = await asyncio.gather(engine.generate("x", wrong), engine.generate(prompt(1), params(1)))
                assert result.finish_reason is FinishReason.REFUSED
                assert other.error is None

    run(main())


@pytest.mark.slow
def test_the_backlog_is_no_queue_for_one_tenant() -> None:
    ended: list[str] = []

    async def main() -> None:
        async with AsyncEngine(EngineConfig(**OPTIONS | {"max_waiting": 2, "max_num_seqs": 1})) as engine:

            async def one(i: int, tenant: str, priority: int = 0) -> None:
                await engine.generate(prompt(i), params(1, priority=priority), tenant=tenant)
                ended.append(tenant)

            many = [asyncio.create_task(one(i, "many")) for i in range(20)]
            await asyncio.sleep(0.05)
            await asyncio.gather(*many, one(1, "few"), one(2, "urgent", -5))

    run(main())
    assert ended.index("few") < 12
    assert ended.index("urgent") < 12


def test_requests_may_come_from_several_event_loops_in_turn() -> None:
    engine = AsyncEngine(EngineConfig(**OPTIONS))

    async def ask(i: int) -> Any:
        return (await engine.generate(prompt(i), params(i))).token_ids

    async def leave() -> None:
        await engine.submit(prompt(1), params(1, max_tokens=900, ignore_eos=True))

    first = run(ask(1))
    run(leave())  # the request has no reader, because its loop is closed
    assert run(ask(1)) == first
    run(engine.close())


@dataclass(eq=False)
class Waiting:
    """The properties of a request that a `WaitingQueue` uses."""

    priority: int
    tenant: str
    arrival: int


def test_the_backlog_says_whose_turn_it_is_as_if_it_looked_at_every_request() -> None:
    """Compared with a literal implementation of the order described in `WaitingQueue.in_turn`."""
    rng = random.Random(3)
    backlog: WaitingQueue[Waiting] = WaitingQueue()
    arrived: list[Waiting] = []
    under_way, arrivals = Counter[str](), itertools.count()
    for _ in range(3000):
        if not arrived or rng.random() < 0.5:
            request = Waiting(rng.choice((-1, 0, 0, 4)), rng.choice("abcde"), next(arrivals))
            backlog.add(request)
            arrived.append(request)
        elif rng.random() < 0.3:
            request = arrived.pop(rng.randrange(len(arrived)))
            backlog.discard(request)
            backlog.discard(request)
        else:
            expected = min(arrived, key=lambda r: (r.priority, under_way[r.tenant]))
            assert backlog.best_priority() == expected.priority
            assert next(backlog.in_turn(under_way.__getitem__)) is expected
            if rng.random() < 0.5:
                backlog.discard(expected)
                arrived.remove(expected)
            under_way[expected.tenant] += rng.choice((-1, 1, 1))
        assert set(backlog) == set(arrived)
        assert (len(backlog), bool(backlog)) == (len(arrived), bool(arrived))
