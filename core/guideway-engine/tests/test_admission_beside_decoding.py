"""Admission runs outside the decoding thread: running streams continue however slow a request's admission is."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from guideway import (
    AsyncEngine,
    Engine,
    EngineConfig,
    FinishReason,
    InvalidRequest,
    Limits,
    PluginSettings,
    SamplingParams,
)
from guideway.api import Constraint, Regex, Request, Submission, Support, hookimpl
from guideway.errors import LimitExceeded
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_engine.prompts import most_bytes
from tokenizers import AddedToken, normalizers

from tests.support.distributions import install
from tests.support.stages import one_in

T = TypeVar("T")


class Gate:
    """Blocks threads that pass through it, and records their `names`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.open = threading.Event()
        self.reached = threading.Event()

    def pass_through(self) -> None:
        self.names.append(threading.current_thread().name)
        self.reached.set()
        assert self.open.wait(timeout=60)


gates: dict[str, Gate] = {}


def at(where: str) -> None:
    if where in gates:
        gates[where].pass_through()


class Slow(ReferenceStrategy):
    name = "slow"

    def supports(self, constraint: Constraint) -> Support:
        at("supports")
        return super().supports(constraint)


class Hooked:
    seen: list[Submission]

    def __init__(self) -> None:
        self.seen = []

    @hookimpl
    def guideway_grammar_strategy(self) -> type:
        return Slow

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        self.seen.append(submission)
        if submission.prompt == "slow":
            at("submission")
        if submission.tenant == "refused":
            raise InvalidRequest("not today", field="tenant")

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        if request.prompt == "slow":
            at("request")


hooked = Hooked()


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = "test_admission_beside_decoding"
    entries = {"hooks.hooked": f"{here}:hooked", "grammar.slow": f"{here}:hooked"}
    install(tmp_path, "gated", entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    gates.clear()


CONFIG = EngineConfig(
    model="demo",
    grammar=("slow",),
    grammar_host="inline",  # the gates must be in the engine's process
    max_num_seqs=4,
    plugins=PluginSettings(enable=("hooked",)),
)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


@pytest.mark.parametrize("where", one_in(3, ["submission", "request", "supports"]))
def test_a_stream_goes_on_while_a_request_is_looked_at(where: str) -> None:
    from test_admission_beside_decoding import gates  # the module that the entry point names

    gate = gates[where] = Gate()

    async def main() -> None:
        async with AsyncEngine(CONFIG) as engine:
            running = await engine.submit("hello", SamplingParams(max_tokens=900, ignore_eos=True))
            chunks = running.chunks()
            params = SamplingParams(max_tokens=3, constraint=Regex("[a-c]{1,9}") if where == "supports" else None)
            late = asyncio.ensure_future(engine.generate("slow", params))
            await asyncio.to_thread(gate.reached.wait, 60)
            tokens = 0
            while tokens < 20:
                tokens += len((await anext(chunks)).token_ids)
            # another request is admitted and answered meanwhile
            assert (await engine.generate("y", SamplingParams(max_tokens=2))).error is None
            assert not late.done()
            gate.open.set()
            assert (await late).error is None
            running.abort()

    run(main())
    assert gate.names == ["guideway-admission"]


@pytest.mark.parametrize("where", one_in(3, ["submission", "request", "supports"]))
def test_who_is_looked_at_for_too_long_is_refused_alone(where: str) -> None:
    from test_admission_beside_decoding import gates

    config = replace(CONFIG, limits=Limits(admission_seconds=0.3))
    gate = gates[where] = Gate()

    async def main() -> None:
        async with AsyncEngine(config) as engine:
            running = await engine.submit("hello", SamplingParams(max_tokens=900, ignore_eos=True))
            params = SamplingParams(max_tokens=3, constraint=Regex("[a-c]{1,9}") if where == "supports" else None)
            late = await engine.generate("slow", params)
            assert late.finish_reason is FinishReason.REFUSED
            assert isinstance(late.error, LimitExceeded)
            called = "grammar.slow (in supports)" if where == "supports" else f"hooked (in validate_{where})"
            assert called in str(late.error)
            assert (await engine.generate("y", SamplingParams(max_tokens=2))).error is None
            assert running.result is None
            gate.open.set()
            running.abort()
            while engine._engine._runtime._open:  # it was admitted too late and is dropped
                await asyncio.sleep(0.01)

    run(main())


def test_what_is_refused_or_given_up_on_the_way_leaves_nothing() -> None:
    from test_admission_beside_decoding import gates

    gate = gates["request"] = Gate()

    async def main() -> None:
        async with AsyncEngine(CONFIG) as engine:
            refused = await engine.generate("x", tenant="refused")
            assert (refused.finish_reason, str(refused.error)) == (FinishReason.REFUSED, "not today")
            given_up = asyncio.ensure_future(engine.submit("slow"))
            await asyncio.to_thread(gate.reached.wait, 60)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            gate.open.set()
            assert (await engine.generate("y", SamplingParams(max_tokens=2))).error is None
            while engine._engine._runtime._open:
                await asyncio.sleep(0.01)

    run(main())


def test_closing_ends_what_is_still_looked_at() -> None:
    from guideway import EngineClosed
    from test_admission_beside_decoding import gates

    gate = gates["submission"] = Gate()

    async def main() -> None:
        engine = AsyncEngine(CONFIG)
        late = asyncio.ensure_future(engine.submit("slow"))
        await asyncio.to_thread(gate.reached.wait, 60)
        await engine.close()
        with pytest.raises(EngineClosed):
            await late
        gate.open.set()

    run(main())


def test_those_that_wait_start_in_the_order_they_came_whatever_was_ready_first() -> None:
    from test_admission_beside_decoding import gates

    gate = gates["request"] = Gate()
    started: list[str] = []

    async def main() -> None:
        async with AsyncEngine(EngineConfig(**(vars(CONFIG) | {"max_num_seqs": 1}))) as engine:
            first = await engine.submit("a", SamplingParams(max_tokens=900, ignore_eos=True))

            async def ask(name: str) -> None:
                await (await engine.submit(name, SamplingParams(max_tokens=2))).wait()
                started.append(name)

            slow = asyncio.ensure_future(ask("slow"))
            await asyncio.to_thread(gate.reached.wait, 60)
            quick = asyncio.ensure_future(ask("quick"))
            while engine._engine._scheduler.num_waiting < 1:
                await asyncio.sleep(0.01)
            gate.open.set()
            while engine._engine._scheduler.num_waiting < 2:
                await asyncio.sleep(0.01)
            first.abort()
            await asyncio.gather(slow, quick)

    run(main())
    assert started == ["slow", "quick"]


def test_a_submission_has_what_came() -> None:
    from test_admission_beside_decoding import hooked

    hooked.seen.clear()
    messages = [{"role": "user", "content": "hi"}]
    prompts: list[Any] = ["text", [5, 6, 7], messages]
    with Engine(CONFIG) as engine:
        engine.generate(prompts, SamplingParams(max_tokens=1), tenants="someone")
    assert [submission.prompt for submission in hooked.seen] == ["text", (5, 6, 7), tuple(messages)]
    assert {(s.tenant, s.params.max_tokens, s.prompt_token_ids) for s in hooked.seen} == {("someone", 1, None)}


def test_text_that_can_never_fit_is_not_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(CONFIG) as engine:
        length = engine._runtime.context.max_model_len

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("it was tokenized")

        longest = max(engine.vocabulary.tokens, key=len)
        fits = longest.decode() * (length - 2)
        assert engine.generate([fits], SamplingParams(max_tokens=1))[0].error is None
        with monkeypatch.context() as patched:
            patched.setattr(type(engine._requests._prompts._tokenizer), "__call__", refuse)
            for prompt in ("word " * 100_000, [{"role": "user", "content": "é" * 60_000}]):
                (result,) = engine.generate([prompt])  # type: ignore[list-item]
                assert result.finish_reason is FinishReason.REFUSED
                assert "bytes of text" in str(result.error)
                assert isinstance(result.error, InvalidRequest)
                assert result.error.field == "prompt"


def test_where_bytes_do_not_tell_a_long_text_is_tokenised_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(CONFIG) as engine:
        tokenizer: Any = copy.deepcopy(engine._requests._prompts._tokenizer)
        length = engine._runtime.context.max_model_len
        assert most_bytes(tokenizer, engine.vocabulary, length) is not None
        tokenizer.add_tokens(AddedToken("<greedy>", lstrip=True))
        assert most_bytes(tokenizer, engine.vocabulary, length) is None
        tokenizer = copy.deepcopy(engine._requests._prompts._tokenizer)
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
        assert most_bytes(tokenizer, engine.vocabulary, length) is None
        monkeypatch.setattr(engine._requests._prompts, "_max_bytes", None)
        (result,) = engine.generate(["word " * 20_000])
        assert result.finish_reason is FinishReason.REFUSED
        assert "tokens" in str(result.error) and "bytes of text" not in str(result.error)
