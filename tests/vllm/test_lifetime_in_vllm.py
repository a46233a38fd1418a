"""Lifetimes in vLLM: front end, engine core and worker close each part once, after its last use."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.support.distributions import install

ENTRIES = ("grammar.lived", "device.lived", "modifier.lived", "modifier.second", "worker.lived", "worker.second")
GUIDEWAY = {
    "grammar_host": "inline",
    "grammar": ["lived"],
    "modifiers": ["lived", "second"],
    "worker_mixins": ["lived", "second"],
    "device_backend": "lived",
}
EXTENSION = "guideway_vllm.worker.WorkerExtension"
OF_TWO = ("strategy", "modifier", "second-modifier")
"""Front end and engine core have one each."""
OF_ONE = ("device", "transform", "second-transform", "mixin", "second-mixin")


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    install(tmp_path, "lifetimes", dict.fromkeys(ENTRIES, "tests.support.lifetimes"))
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "events"
    monkeypatch.setenv("GWT_LIFETIME", str(path))
    yield lambda: path.read_text("utf-8").splitlines() if path.exists() else []


def test_what_a_server_built_is_closed_at_its_end(
    start: Callable[..., Any], events: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = start(GUIDEWAY, worker_extension_cls=EXTENSION)
    (output,) = llm.generate(
        ["Hello"], SamplingParams(max_tokens=3, structured_outputs=StructuredOutputsParams(regex="[a-c]{6}"))
    )
    assert len(output.outputs[0].token_ids) == 3
    assert not [event for event in events() if event.endswith("closed")]
    llm.llm_engine.engine_core.shutdown()
    llm.llm_engine.engine_core.shutdown()
    counts = Counter(events())
    assert {part: counts[f"{part} closed"] for part in (*OF_TWO, *OF_ONE)} == dict.fromkeys((*OF_TWO, *OF_ONE), 1)
    for part in OF_ONE:
        assert [event for event in events() if event.startswith(f"{part} ")][-1] == f"{part} closed"
    closed = [event.removesuffix(" closed") for event in events() if event.endswith(" closed")]
    assert closed[-5:] == ["second-mixin", "mixin", "second-transform", "transform", "device"]

    front_end = llm.llm_engine.input_processor.guideway
    front_end.close()  # the finalizer of its InputProcessor calls this
    front_end.close()
    counts = Counter(events())
    assert {part: counts[f"{part} closed"] for part in OF_TWO} == dict.fromkeys(OF_TWO, 2)
    assert [counts[f"{part} built"] for part in (*OF_TWO, *OF_ONE)] == [2, 2, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "where", ["second-mixin built", "second-transform built", "second-modifier built", "no scheduler"]
)
def test_what_was_built_is_closed_where_a_later_part_fails(
    where: str, demo_model: str, events: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    def refuses(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no scheduler")

    monkeypatch.setenv("GWT_FAILS", where)
    if where == "no scheduler":
        monkeypatch.setattr("vllm.v1.core.sched.scheduler.Scheduler.__init__", refuses)
    with pytest.raises(Exception, match=where):
        LLM(
            demo_model,
            dtype="float32",
            enforce_eager=True,
            worker_extension_cls=EXTENSION,
            additional_config={"guideway": GUIDEWAY},
        )
    gc.collect()
    cleanup_dist_env_and_memory()
    counts = Counter(events())
    failed = where.removesuffix(" built")
    # if its scheduler fails, vLLM does not shut workers down
    parts = OF_TWO if where == "no scheduler" else (*OF_TWO, *OF_ONE)
    for part in parts:
        if part != failed:
            assert counts[f"{part} closed"] == counts[f"{part} built"], part


def test_a_text_that_is_not_tokenized_when_the_server_is_told_to_stop_is_told_so(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from guideway_vllm import over_http
    from vllm.exceptions import GracefulHTTPError
    from vllm.renderers.base import _SwappableExecutor

    front_end = start({"grammar": ["llguidance"], "grammar_host": "inline"}).llm_engine.input_processor.guideway
    over_http.change_server(False)  # as for an engine that has a server
    monkeypatch.setattr(over_http, "SERVING", {front_end})
    pool = _SwappableExecutor(1)
    assert pool.submit(len, "text").result() == 4
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(len, "text")
    monkeypatch.setattr(front_end, "ending", True)
    with pytest.raises(GracefulHTTPError, match="the server is shutting down") as told:
        pool.submit(len, "text")
    assert told.value.http_status == HTTPStatus.SERVICE_UNAVAILABLE
