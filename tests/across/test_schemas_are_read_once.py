"""Number of times a JSON Schema is parsed, checked and walked between a request and the library that compiles it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest
from guideway.api import Constraint, GrammarStrategy, JsonSchema, Request, SamplingParams, StructuralTag
from guideway.devices.numpy.device import NumpyDevice
from guideway.json_schema.checking import check_schema
from guideway.json_schema.prober import byte_vocabulary
from guideway.json_schema.walking import walk
from guideway_llguidance.strategy import Strategy as Llguidance
from guideway_lmfe.strategy import Strategy as Lmfe
from guideway_outlines.strategy import Strategy as Outlines
from guideway_xgrammar.strategy import Strategy as Xgrammar

from tests.support.fake_host import FakeHost

STRATEGIES: dict[str, type[GrammarStrategy]] = {
    "xgrammar": Xgrammar,
    "llguidance": Llguidance,
    "lmfe": Lmfe,
    "outlines": Outlines,
}
MARK = "a name no library writes"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {MARK: {"type": "string"}, "age": {"type": "integer"}},
    "required": [MARK, "age"],
    "additionalProperties": False,
}
TAG: dict[str, Any] = {
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a>"],
}


class Counts:
    """Counts calls of certain functions, in every thread that starts while this is active. A generator counts once."""

    def __init__(self) -> None:
        self._frames: dict[str, list[FrameType]] = {"parses": [], "checks": [], "walks": []}
        self._codes: dict[CodeType, str] = {
            json.loads.__code__: "parses",
            check_schema.__code__: "checks",
            walk.__code__: "walks",
        }

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        kind = self._codes.get(frame.f_code)
        if event != "call" or kind is None or (kind == "parses" and MARK not in str(frame.f_locals["s"])):
            return
        if not any(seen is frame for seen in self._frames[kind]):
            self._frames[kind].append(frame)

    def take(self) -> tuple[int, ...]:
        """Return parses, checks and walks since the last call."""
        found = tuple(map(len, self._frames.values()))
        for frames in self._frames.values():
            frames.clear()
        return found


@contextmanager
def counting() -> Iterator[Counts]:
    counts = Counts()
    before = sys.getprofile()
    threading.setprofile(counts)
    sys.setprofile(counts)
    try:
        yield counts
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def parsed_by(host: FakeHost, request_id: str, constraint: Constraint) -> Any:
    """Compile a constraint, and return its parsed form after the strategy used it."""
    request = Request(request_id=request_id, prompt_token_ids=(1,), params=SamplingParams(constraint=constraint))
    admission = host.runtime.admit(request)
    assert admission.wait(timeout=60)
    assert admission.compilation is not None
    admission.compilation.result()
    admitted = admission.request.params.constraint
    assert isinstance(admitted, JsonSchema | StructuralTag)
    return admitted.parsed


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[FakeHost]:
    """A host with the one strategy that the test names."""
    vocabulary = byte_vocabulary()
    strategies: dict[str, GrammarStrategy] = {request.param: STRATEGIES[request.param](vocabulary, {})}
    host = FakeHost(vocabulary, NumpyDevice("cpu"), strategies=strategies, compile_threads=1)
    yield host
    host.runtime.close()


def as_dict(value: dict[str, Any]) -> Any:
    return value


def as_text(value: dict[str, Any]) -> Any:
    return json.dumps(value, indent=1)


@pytest.mark.parametrize("given", [as_dict, as_text])
@pytest.mark.parametrize(
    ("host", "walks"),
    # to check it, to find unsatisfiable parts, to list its keywords and to measure its shortest values; outlines' fifth
    # walk measures each subschema
    [("xgrammar", 4), ("llguidance", 4), ("lmfe", 4), ("outlines", 5)],
    indirect=["host"],
)
def test_a_new_schema_is_parsed_and_checked_once_and_walked_once_for_each_question(
    host: FakeHost, walks: int, given: Callable[..., Any]
) -> None:
    with counting() as counts:
        parsed = parsed_by(host, "new", JsonSchema(given(SCHEMA)))
    assert counts.take() == (1, 1, walks)
    assert parsed == SCHEMA


@pytest.mark.parametrize("given", [as_dict, as_text])
@pytest.mark.parametrize("host", ["xgrammar", "llguidance"], indirect=True)
def test_so_are_the_schemas_of_a_structural_tag(host: FakeHost, given: Callable[..., Any]) -> None:
    with counting() as counts:
        parsed = parsed_by(host, "new", StructuralTag(given(TAG)))
    assert counts.take() == (1, 1, 4)
    assert parsed == TAG


@pytest.mark.parametrize("given", [as_dict, as_text])
@pytest.mark.parametrize(("kind", "value"), [(JsonSchema, SCHEMA), (StructuralTag, TAG)])
@pytest.mark.parametrize("host", ["xgrammar"], indirect=True)
def test_what_came_before_is_not_read_again(
    host: FakeHost, kind: Callable[..., Constraint], value: dict[str, Any], given: Callable[..., Any]
) -> None:
    parsed_by(host, "new", kind(as_text(value)))
    with counting() as counts:
        admission = host.runtime.admit(
            Request(request_id="again", prompt_token_ids=(1,), params=SamplingParams(constraint=kind(given(value))))
        )
        assert admission.ready()
    assert counts.take() == (0, 0, 0)
