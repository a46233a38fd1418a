"""Failures during a step, from outside and inside: interrupts, errors, aborts, closing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from guideway import Engine, EngineConfig, FinishReason, GenerationResult, JsonSchema, Regex, SamplingParams
from guideway.api import (
    CONTINUE,
    FINISH,
    Feedback,
    GuidewayError,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Need,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    StepBatch,
    fail,
    hookimpl,
)
from guideway.plugins.selection import PluginSettings
from guideway_engine.engine import EngineBusy, EngineClosed

from tests.support.distributions import install
from tests.support.stages import everyday, one_in

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
REPETITIVE = "Extract name, age. Meet Peter Young. Age: 49. Peter Young. Age: 49. Peter Young. Age: 49."
NUM_RUNNING = 8


class Positions(LogitTransform):
    """Reports the positions at which it was applied."""

    emits: ClassVar = {"position": ((), "int32")}

    def apply(self, logits: Any, payload: Payload, step: Any) -> Any:
        step.emit("position", step.positions[payload.rows])
        return logits


@dataclass
class Count:
    position: int
    left: int


class Countdown(LogitModifier[Count]):
    """Ends a sequence after the number of tokens in its option. Its state is changed in place, so that it notices
    missing and duplicate calls."""

    contract = "1.0"
    name, stage, transform = "countdown", Stage.POST_WARP, Positions
    needs = frozenset({Need.FEEDBACK})
    interrupt: ClassVar[str | None] = None
    """Method to interrupt once, after its work."""
    released: ClassVar[int] = 0

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Count | None:
        wanted = request.params.modifiers.get(self.name)
        self._interrupted("start")
        return None if wanted is None else Count(len(request.prompt_token_ids), wanted["tokens"])

    def prepare(self, batch: StepBatch, states: Sequence[Count | None]) -> Payload | None:
        return Payload(batch.select(states)[0])

    def accept(self, state: Count, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        assert feedback is not None
        if feedback["position"].tolist() != [state.position + i for i in range(len(token_ids))]:
            return fail(f"heard of {feedback['position']} at {state.position}")
        state.position += len(token_ids)
        state.left -= len(token_ids)
        self._interrupted("accept")
        return CONTINUE if state.left > 0 else FINISH

    def release(self, state: Count | None) -> None:
        Countdown.released += state is not None
        self._interrupted("release")

    def _interrupted(self, method: str) -> None:
        if Countdown.interrupt == method:
            Countdown.interrupt = None
            raise KeyboardInterrupt


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return Countdown


class Watcher:
    """An observer that calls `act` when a request ends."""

    def __init__(self) -> None:
        self.act: Callable[[GenerationResult], None] = lambda _: None

    @hookimpl
    def guideway_request_finished(self, result: GenerationResult) -> None:
        self.act(result)


watcher = Watcher()


@pytest.fixture(scope="module", params=everyday([0, 4], 4), ids=["no-drafts", "drafts"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("plugins")
    here = "test_scheduler"
    probes = {"modifier.guidance": "tests.support.probes"}
    install(folder, "troubles", {"modifier.countdown": here, "hooks.watcher": f"{here}:watcher"} | probes)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        config = EngineConfig(
            model="demo",
            grammar=("llguidance", "reference"),
            modifiers=("countdown", "guidance"),
            max_num_seqs=NUM_RUNNING,
            num_speculative_tokens=request.param,
            plugins=PluginSettings(enable=("watcher",)),
        )
        with Engine(config) as engine:
            yield engine


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """Yield an idle engine; afterwards check that the test has left nothing behind."""
    import test_scheduler  # the module that the entry point names

    yield shared
    test_scheduler.watcher.act = lambda _: None
    assert test_scheduler.Countdown.interrupt is None
    assert not shared.has_work()
    assert shared._scheduler._cache.capacity() == 2 * NUM_RUNNING
    assert not shared._runtime._slots.taken()


@pytest.fixture(scope="module")
def alone(shared: Engine) -> dict[str, GenerationResult]:
    """Return the result of a request of each kind that runs alone."""
    return {kind: shared.generate([prompt()], params)[0] for kind, params in KINDS.items()}


GUIDED = {"guidance": {"scale": 2.0, "negative_prompt": [4, 100, 200]}}
KINDS = {
    "greedy-schema": SamplingParams(max_tokens=40, constraint=JsonSchema(PERSON, strategy="llguidance")),
    "drawn-schema": SamplingParams(
        max_tokens=40, constraint=JsonSchema(PERSON, strategy="reference"), temperature=0.9, seed=4
    ),
    "drawn-guided": SamplingParams(max_tokens=20, temperature=0.9, seed=5, modifiers=GUIDED),
    "countdown": SamplingParams(max_tokens=40, modifiers={"countdown": {"tokens": 17}}),
}


def prompt(text: str = REPETITIVE) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(("num_tokens", "unenforced"), one_in(2, [(2, ("constraint",)), (3, ())]))
def test_what_a_modifier_leaves_of_a_constrained_text_is_judged(
    num_tokens: int, unenforced: tuple[str, ...], engine: Engine
) -> None:
    digits = Regex("[0-9]{3}|[0-9]{9}", strategy="llguidance")  # each is one token
    modifiers = {"countdown": {"tokens": num_tokens}}
    (result,) = engine.generate([prompt()], SamplingParams(constraint=digits, modifiers=modifiers))
    assert (result.finish_reason, result.error, len(result.text)) == (FinishReason.STOP, None, num_tokens)
    assert result.unenforced == unenforced


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, *, after: bool) -> None:
    """Let the next call of ``owner.name`` raise, before or after its work."""
    work = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, work)
        if after:
            work(*args, **kwargs)
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)  # like Ctrl-C: not from a `raise` statement
        raise error

    monkeypatch.setattr(owner, name, call)


def owner_of(engine: Engine, phase: str) -> Any:
    return engine._executor._worker if phase in ("forward", "sample") else engine._runtime


@pytest.mark.parametrize(
    ("phase", "after"),
    everyday(
        [(phase, after) for phase in ("forward", "prepare", "sample", "accept") for after in (False, True)],
        *[("forward", False), ("accept", True)],
    ),
)
@pytest.mark.parametrize("num_steps", everyday([0, 2], 2))
def test_an_interrupted_step_is_done_again(
    num_steps: int,
    phase: str,
    after: bool,
    engine: Engine,
    alone: dict[str, GenerationResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generations = [engine.submit(prompt(), params) for params in KINDS.values()]
    for _ in range(3):
        for _ in range(num_steps):
            engine.step()
        once(monkeypatch, owner_of(engine, phase), phase, KeyboardInterrupt(), after=after)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    for kind, generation in zip(KINDS, generations, strict=True):
        result, expected = generation.wait(), alone[kind]
        assert (kind, result.token_ids, result.text) == (kind, expected.token_ids, expected.text)
        assert (result.finish_reason, result.error) == (expected.finish_reason, None)


@pytest.mark.parametrize("after", everyday([False, True], True), ids=["before", "after"])
@pytest.mark.parametrize("phase", one_in(2, ["forward", "prepare", "sample", "accept"]))
def test_an_interrupted_generate_disturbs_no_stream(
    phase: str, after: bool, engine: Engine, alone: dict[str, GenerationResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = KINDS["drawn-schema"]
    expected = alone["drawn-schema"]
    generation = engine.submit(prompt(), params)
    stream = iter(generation)
    pieces = [next(stream), next(stream)]
    once(monkeypatch, owner_of(engine, phase), phase, KeyboardInterrupt(), after=after)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([prompt(f"{i}") for i in range(2 * NUM_RUNNING)], SamplingParams(max_tokens=2))
    pieces += stream
    assert generation.result is not None
    assert (generation.result.token_ids, "".join(pieces)) == (expected.token_ids, expected.text)


@pytest.mark.parametrize("method", ["start", "accept", "release"])
def test_an_interrupt_inside_a_modifier_disturbs_no_stream(
    method: str, engine: Engine, alone: dict[str, GenerationResult]
) -> None:
    from test_scheduler import Countdown

    params = KINDS["countdown"]
    expected = alone["countdown"]
    generation = engine.submit(prompt(), params)
    stream = iter(generation)
    pieces = [next(stream)]
    Countdown.interrupt = method
    with pytest.raises(KeyboardInterrupt):
        engine.generate([prompt(f"{i}") for i in range(3)], KINDS["countdown"])
    pieces += stream
    assert generation.result is not None
    assert (generation.result.token_ids, "".join(pieces)) == (expected.token_ids, expected.text)


def test_a_start_that_was_interrupted_is_made_again(engine: Engine, alone: dict[str, GenerationResult]) -> None:
    from test_scheduler import Countdown

    expected = alone["countdown"]
    generation = engine.submit(prompt(), KINDS["countdown"])
    Countdown.interrupt = "start"
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert generation.wait().token_ids == expected.token_ids


def test_a_step_interrupted_between_its_sequences_goes_on(engine: Engine) -> None:
    """An observer interrupts when the first sequence ends; the others have drawn tokens but not received them."""
    from test_scheduler import watcher

    lengths = [9, 3, 12]
    params = [SamplingParams(max_tokens=n, temperature=0.9, seed=n) for n in lengths]
    expected = engine.generate([prompt()] * 3, params)
    generations = [engine.submit(prompt(), each) for each in params]

    def interrupt(result: GenerationResult) -> None:
        watcher.act = lambda _: None
        raise KeyboardInterrupt

    watcher.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        generations[0].wait()
    assert [generation.result is None for generation in generations] == [True, False, True]
    for generation, alone in zip(generations, expected, strict=True):
        assert generation.wait().token_ids == alone.token_ids


def test_a_sequence_interrupted_while_it_ends_has_ended(
    engine: Engine, alone: dict[str, GenerationResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = KINDS["countdown"]
    expected = alone["countdown"]
    generation = engine.submit(prompt(), params)
    once(monkeypatch, engine._scheduler._table, "end", KeyboardInterrupt(), after=False)
    with pytest.raises(KeyboardInterrupt):
        generation.wait()
    assert generation.result is None
    result = generation.wait()
    assert (result.token_ids, result.finish_reason) == (expected.token_ids, expected.finish_reason)


def test_a_submit_interrupted_while_it_compiles_leaves_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = engine._runtime._mask.candidates._strategies["reference"]
    compile_, go_on = strategy.compile, threading.Event()

    def wait_and_compile(constraint: Any) -> Any:
        go_on.wait(60)
        return compile_(constraint)

    monkeypatch.setattr(strategy, "compile", wait_and_compile)
    other = engine.submit(prompt(), SamplingParams(max_tokens=5))
    admitted = set(engine._runtime._open)
    once(monkeypatch, engine._executor._worker, "forward", KeyboardInterrupt(), after=False)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(prompt(), SamplingParams(constraint=Regex("[x-z]{7}", strategy="reference")))
    go_on.set()
    assert set(engine._runtime._open) == admitted
    assert len(other.wait().token_ids) == 5


def test_every_request_of_a_generate_is_ended_though_ending_one_is_interrupted(engine: Engine) -> None:
    from test_scheduler import watcher

    ended = []

    def interrupt(result: GenerationResult) -> None:
        ended.append(result.finish_reason)
        raise KeyboardInterrupt

    watcher.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.generate([prompt()] * 12, [SamplingParams(max_tokens=n) for n in range(1, 13)])
    assert ended == [FinishReason.LENGTH, *[FinishReason.ABORT] * 11]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, GeneratorExit])
def test_a_step_that_fails_ends_its_requests_and_not_the_engine(
    error: type[BaseException], engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cause = error("out of memory")
    streamed = engine.submit(prompt(), KINDS["greedy-schema"])
    stream = iter(streamed)
    next(stream)
    once(monkeypatch, engine._executor._worker, "forward", cause, after=False)
    with pytest.raises(GuidewayError, match=f"step failed: {error.__name__}: out of memory") as caught:
        list(stream)
    assert caught.value.__cause__ is cause
    assert streamed.result is not None
    assert streamed.result.finish_reason is FinishReason.INTERNAL_ERROR
    assert streamed.result.token_ids
    once(monkeypatch, engine._executor._worker, "sample", cause, after=True)
    results = engine.generate([prompt()] * NUM_RUNNING + ["later"], SamplingParams(max_tokens=3))
    assert [result.finish_reason for result in results[:-1]] == [FinishReason.INTERNAL_ERROR] * NUM_RUNNING
    assert all(result.error is not None and result.error.__cause__ is cause for result in results[:-1])
    assert results[-1].error is None
    assert "a step failed; its 8 sequences end" in caplog.text
    assert engine.generate([prompt()], SamplingParams(max_tokens=3))[0].error is None


def test_an_observer_may_abort_another_request_during_a_step(engine: Engine) -> None:
    from test_scheduler import watcher

    generations = [engine.submit(prompt(), SamplingParams(max_tokens=n)) for n in (2, 9, 4)]
    watcher.act = lambda _: generations[1].abort()
    while engine.has_work():
        engine.step()
    reasons = [generation.wait().finish_reason for generation in generations]
    assert reasons == [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.LENGTH]
    assert [len(generation.wait().token_ids) for generation in generations] == [2, 1, 4]
    assert ["".join(generation) for generation in generations] == [each.wait().text for each in generations]


def in_another_thread(use: Callable[[], object]) -> BaseException | None:
    """Return the error that `use` raises in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(use).exception()


def test_another_thread_is_turned_away_while_one_is_inside(engine: Engine) -> None:
    from test_scheduler import watcher

    running = engine.submit(prompt(), SamplingParams(max_tokens=9, temperature=1.0))
    params = SamplingParams(max_tokens=1)
    uses: list[Callable[[], object]] = [
        engine.step,
        engine.close,
        running.abort,
        running.fork,
        running.wait,
        lambda: list(running),
        lambda: engine.submit(prompt(), params),
        lambda: engine.submit(prompt(), params, wait=False),
        lambda: engine.generate([prompt()], params),
        lambda: engine.call_workers("a.b"),
    ]
    raised = []
    watcher.act = lambda _: raised.extend([in_another_thread(use) for use in uses] if not raised else [])
    engine.generate([prompt()], params)
    assert [type(error) for error in raised] == [EngineBusy] * len(uses)
    assert "use guideway.AsyncEngine" in str(raised[0])
    assert len(running.wait().token_ids) == 9


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InvalidRequest("")])
def test_a_thread_that_was_thrown_out_leaves_the_door_open(error: BaseException, engine: Engine) -> None:
    def interrupt(index: int, result: GenerationResult) -> None:
        raise error

    with pytest.raises(type(error)):
        engine.generate([prompt()], SamplingParams(max_tokens=1), on_result=interrupt)
    assert in_another_thread(lambda: engine.generate([prompt()], SamplingParams(max_tokens=1))) is None
    engine.step()


def test_a_hook_may_submit_but_not_step(engine: Engine) -> None:
    from test_scheduler import watcher

    submitted = []

    def submit_and_step(_: GenerationResult) -> None:
        watcher.act = lambda _: None
        submitted.append(engine.submit(prompt(), KINDS["countdown"], wait=False))
        with pytest.raises(EngineBusy, match="a step is running"):
            engine.step()

    generations = [engine.submit(prompt(), KINDS["countdown"]) for _ in range(2)]
    watcher.act = submit_and_step
    generations[1].wait()
    results = [generation.wait() for generation in (*generations, *submitted)]
    assert len(results) == 3
    assert {result.token_ids for result in results} == {results[0].token_ids}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("part", one_in(2, ["runtime", "cache", "waiting", "served"]))
def test_observers_hear_of_a_request_whose_end_was_interrupted(
    part: str, after: bool, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_scheduler import watcher

    scheduler = engine._scheduler
    owner, name = {
        "runtime": (scheduler._runtime, "release"),
        "cache": (scheduler._cache, "release"),
        "waiting": (scheduler._table.waiting, "discard"),
        "served": (scheduler._table.served, "leave"),
    }[part]
    heard: list[GenerationResult] = []
    watcher.act = heard.append
    generation = engine.submit(prompt(), KINDS["countdown"])
    engine.step()  # it has started
    once(monkeypatch, owner, name, KeyboardInterrupt(), after=after)
    with pytest.raises(KeyboardInterrupt):
        generation.wait()
    assert heard == []
    engine.step()
    assert heard == [generation.result]
    engine.step()
    assert len(heard) == 1


def test_closing_ends_what_runs_and_what_waits(shared: Engine) -> None:
    from test_scheduler import Countdown

    with Engine(shared.config) as engine:
        seen: list[GenerationResult] = []
        generations = [engine.submit(prompt(), KINDS["countdown"]) for _ in range(NUM_RUNNING + 2)]
        engine.step()
        before = Countdown.released
        engine.close()
        assert Countdown.released == before + NUM_RUNNING
        seen = [generation.wait() for generation in generations]
        assert [result.finish_reason for result in seen] == [FinishReason.ABORT] * (NUM_RUNNING + 2)
        assert [bool(result.token_ids) for result in seen] == [True] * NUM_RUNNING + [False] * 2
        assert list(generations[0]) == [seen[0].text]
        assert engine._scheduler._cache.capacity() == 2 * NUM_RUNNING
        assert not engine.has_work()
        for use in (engine.submit, engine.generate):
            with pytest.raises(EngineClosed, match="closed"):
                use("x", SamplingParams(max_tokens=1))
        engine.step()
        engine.close()


def test_closing_inside_a_generate_ends_it_with_what_there_is(shared: Engine) -> None:
    engine = Engine(shared.config)
    results = engine.generate(
        [prompt()] * (NUM_RUNNING + 3),
        [SamplingParams(max_tokens=n) for n in range(1, NUM_RUNNING + 4)],
        on_result=lambda *_: engine.close(),
    )
    assert [result.finish_reason for result in results] == [FinishReason.LENGTH] + [FinishReason.ABORT] * (
        NUM_RUNNING + 2
    )
