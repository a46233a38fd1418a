"""Concurrent callers of one workflow, and parts that fail: every caller gets an answer, and each fault is reported
once."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_support.encoders import encoder, stored, texts
from engine_support.workflow_parts import BreaksOnce
from guideway import AsyncEngine, Engine, EngineClosed, GuidewayError, InvalidRequest, PluginError
from guideway.errors import Unhealthy

from tests.support.stages import everyday

DRIVERS = ("sync", "async", "double_buffered")
PARTS = "engine_support.workflow_parts"

pytestmark = pytest.mark.parametrize("driver", everyday(DRIVERS, "async"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(encoder("Bert"), tmp_path_factory.mktemp("bert"))


def opened(folder: Path, driver: str, **options: Any) -> Engine:
    return Engine(folder, workflow="embed", options={"workflow.embed": {"driver": driver, **options}})


def failures(results: Sequence[Any]) -> list[GuidewayError | None]:
    return [result.error for result in results]


def test_nobody_waits_for_an_input_that_is_long_in_coming(driver: str, bert: Path) -> None:
    coming: queue.Queue[str | None] = queue.Queue()

    def live() -> Iterator[str]:
        while (text := coming.get()) is not None:
            yield text

    with opened(bert, driver) as engine, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(lambda: list(engine.embed(live())))
        coming.put("w1 w2")
        other = pool.submit(engine.embed, texts(3))
        try:
            assert failures(other.result(60)) == [None] * 3
            assert not slow.done()
        finally:
            coming.put(None)
        assert failures(slow.result(60)) == [None]


def test_inputs_may_be_made_of_what_the_engine_embeds(driver: str, bert: Path) -> None:
    with opened(bert, driver) as engine, ThreadPoolExecutor(1) as pool:

        def inputs() -> Iterator[str]:
            for text in texts(3):
                assert engine.embed([text])[0].error is None
                yield text

        assert failures(pool.submit(lambda: list(engine.embed(inputs()))).result(60)) == [None] * 3


@pytest.mark.parametrize("where", ["next", "finished"])
def test_a_part_that_breaks_once_is_felt_once(driver: str, bert: Path, where: str) -> None:
    with opened(bert, driver, scheduler=f"{PARTS}:BreaksOnce") as engine:
        BreaksOnce.at = where
        found = engine.embed(texts(3))
        with pytest.raises(Unhealthy, match="broken"):
            engine.check_health()
        again = engine.embed(texts(3))
        engine.check_health()
    assert all(isinstance(error, PluginError) and "broken" in str(error) for error in failures(found))
    assert failures(again) == [None] * 3


def test_a_broken_scheduler_leaves_nobody_waiting(driver: str, bert: Path) -> None:
    with opened(bert, driver, scheduler=f"{PARTS}:BrokenScheduler") as engine:
        for _ in range(2):
            assert all("the scheduler is broken" in str(error) for error in failures(engine.embed(texts(3))))


def test_an_engine_with_a_part_that_is_broken_for_good_can_be_closed(driver: str, bert: Path) -> None:
    with opened(bert, driver, scheduler=f"{PARTS}:BrokenForGood") as engine:
        assert all("for good" in str(error) for error in failures(engine.embed(texts(2))))
    assert [thread for thread in threading.enumerate() if thread.name == "guideway-computing"] == []


@pytest.mark.parametrize(
    ("part", "cls", "said"),
    [
        ("input_processor", "Startled", "startled"),
        ("scheduler", "Picky", "picky"),
        ("request_processor", "Nothing", "made None of a task"),
        ("request_processor", "Mistaken", "mistaken"),
        ("request_processor", "Headless", "token_ids of a request must be an int64 array"),
        ("scheduler", "Startling", "startling"),
        ("output_processor", "ReturnsNone", "made None of a request"),
        ("output_processor", "ReturnsErrors", "returned"),
    ],
)
def test_what_one_input_does_to_a_part_ends_that_one(driver: str, bert: Path, part: str, cls: str, said: str) -> None:
    with opened(bert, driver, **{part: f"{PARTS}:{cls}"}) as engine:
        before, poison, after = failures(engine.embed(["w1", "poison", "w2"]))
        assert before is None and after is None
        assert isinstance(poison, PluginError) and said in str(poison)
        assert failures(engine.embed(texts(2))) == [None] * 2


@pytest.mark.parametrize("cls", ["Losing", "Hesitant"])
def test_nobody_waits_for_what_a_scheduler_keeps_back(driver: str, bert: Path, cls: str) -> None:
    with opened(bert, driver, scheduler=f"{PARTS}:{cls}") as engine, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(engine.embed, inputs) for inputs in (["w1", "poison", "w2"], texts(5))]
        before, poison, after = failures(calls[0].result(60))
        assert before is None and after is None
        assert isinstance(poison, PluginError) and "gives none of them" in str(poison)
        assert failures(calls[1].result(60)) == [None] * 5
        assert failures(engine.embed(texts(2))) == [None] * 2


def test_who_comes_after_a_scheduler_is_stuck_goes_on(driver: str, bert: Path) -> None:
    """The second call adds its tasks after the driver has found the scheduler stuck, and before it ends those tasks."""
    calls: list[Future[Any]] = []
    added = threading.Event()

    def inputs() -> Iterator[str]:
        yield from texts(5)
        added.set()

    with opened(bert, driver, scheduler=f"{PARTS}:Losing") as engine, ThreadPoolExecutor(1) as pool:

        def begin(record: logging.LogRecord) -> bool:
            if not calls:
                calls.append(pool.submit(lambda: list(engine.embed(inputs()))))
                assert added.wait(60)
            return True

        logger = logging.getLogger("guideway_engine")
        logger.addFilter(begin)
        try:
            assert failures(engine.embed(["poison"])) != [None]
        finally:
            logger.removeFilter(begin)
        assert all(error is None for error in failures(calls[0].result(60)))


def test_what_is_given_up_is_so_whatever_the_scheduler_says(driver: str, bert: Path) -> None:
    with opened(bert, driver, scheduler=f"{PARTS}:Unforgetting", max_step_requests=1) as engine:
        results = engine.embed(iter(texts(40)))
        next(results)
        results.close()
        assert failures(engine.embed(texts(2))) == [None] * 2


def test_an_error_of_which_nothing_can_be_made_ends_its_caller(driver: str, bert: Path) -> None:
    with opened(bert, driver, output_processor=f"{PARTS}:Unspeaking") as engine, ThreadPoolExecutor(1) as pool:
        with pytest.raises(PluginError, match="of no error"):
            pool.submit(engine.embed, ["w1", [10**9], "w2"]).result(60)
        assert failures(engine.embed(texts(2))) == [None] * 2


def test_what_is_under_way_when_the_engine_is_closed_says_so(driver: str, bert: Path) -> None:
    engine = opened(bert, driver, max_step_requests=2)
    results = engine.embed(iter(texts(40)))
    next(results)
    engine.close()
    with pytest.raises(EngineClosed):
        for result in results:
            if result.error is not None:
                assert isinstance(result.error, EngineClosed)
    with pytest.raises(EngineClosed):
        engine.embed(["w1"])


def test_an_iterator_is_refused_where_it_would_hold_the_event_loop_up(driver: str, bert: Path) -> None:
    async def run() -> None:
        async with AsyncEngine(bert, workflow="embed", options={"workflow.embed": {"driver": driver}}) as engine:
            with pytest.raises(InvalidRequest, match="must be a list"):
                await engine.embed(iter(["w1"]))  # type: ignore[arg-type]
            assert failures(await engine.embed(["w1"])) == [None]

    asyncio.run(run())
