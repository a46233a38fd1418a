"""All objects of a request are freed when it ends, without garbage collection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from guideway import AsyncEngine, Engine, JsonSchema, Regex, SamplingParams
from guideway.pipeline.staged import StagedStep
from guideway.pipeline.view import StepData
from guideway.runtime.admission.admission import Admission
from guideway.runtime.constraints.compiler import Compilation
from guideway_engine.scheduling.sequence import SequenceGroup, SequenceState

from tests.support.stages import everyday

OPTIONS: dict[str, Any] = {"grammar": ("llguidance",), "grammar_cache_bytes": 0, "max_num_seqs": 4}
OF_A_REQUEST = (Admission, Compilation, SequenceGroup, SequenceState, StagedStep, StepData)
REQUESTS = {
    "good": {"constraint": Regex("[a-z]{3,9}x")},
    "several": {"constraint": Regex("[a-z]{3,9}y"), "n": 2, "temperature": 1.0},
    "not admitted": {"constraint": JsonSchema('{"type": 7}')},
    "no parameters": {"max_tokens": 0},
    "not compiled": {"constraint": Regex(r"\q")},
}


@pytest.fixture(autouse=True)
def before() -> Iterator[list[Any]]:
    """Yield the objects that other tests keep alive, with garbage collection turned off."""
    gc.collect()
    gc.disable()
    yield [each for each in gc.get_objects() if type(each) in OF_A_REQUEST]
    gc.enable()


def left(before: list[Any]) -> list[str]:
    known = set(map(id, before))
    found = (each for each in gc.get_objects() if type(each) in OF_A_REQUEST)
    return [type(each).__name__ for each in found if id(each) not in known]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", **OPTIONS) as built:
        yield built


@pytest.mark.parametrize("sort", everyday(REQUESTS, "good"))
def test_a_request_that_ended_is_free(engine: Engine, sort: str, before: list[Any]) -> None:
    (result,) = engine.generate(["a"], SamplingParams(**{"max_tokens": 16, **REQUESTS[sort]}))
    assert (result.error is None) is (sort in ("good", "several"))
    assert left(before) == []


@pytest.mark.slow
def test_so_it_is_where_the_engine_has_a_thread_of_its_own(before: list[Any]) -> None:
    async def main() -> None:
        async with AsyncEngine("demo", **OPTIONS) as engine:
            for params in REQUESTS.values():
                await engine.generate("a", SamplingParams(**{"max_tokens": 16, **params}))
            aborted = await engine.submit("a", SamplingParams(max_tokens=100, constraint=Regex("[a-z]{90,99}z")))
            aborted.abort()
            await aborted.wait()
            del aborted
            await engine.generate("a", SamplingParams(max_tokens=1))  # now the thread has dropped the others
            assert set(left(before)) <= {"SequenceGroup", "SequenceState", "Admission"}, "of the last one, perhaps"
            assert len(left(before)) <= 3

    asyncio.run(main())
