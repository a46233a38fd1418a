"""Prefill-only workflows return one result for each input, independent of the others."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import transformers
from engine_support.encoders import SIZES, encoder, stored, texts
from engine_support.models import randomized
from engine_support.workflow_parts import Interrupted, RecordingScheduler
from guideway import AsyncEngine, Engine, EngineClosed, GuidewayError, InvalidConfiguration, InvalidRequest, PluginError
from guideway.api import ModelFolder, Task, WorkflowContext
from guideway.errors import LimitExceeded, UnsupportedCapability, WorkerLost
from guideway_engine.executors import restarting
from guideway_engine.executors.restarting import ATTEMPTS
from guideway_engine.prefill.cutting import cut_text, is_cuttable
from guideway_engine.prefill.requests import Tokenizing
from guideway_engine.prefill.runner import PoolingRunner
from guideway_engine.prefill.workflows import EmbedOptions
from guideway_engine.workflows.computing import Computing
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.support.stages import one_in

DRIVERS = ("sync", "async", "double_buffered")
PARTS = "engine_support.workflow_parts"
SMALL = {"max_step_requests": 4, "max_step_tokens": 100}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(encoder("Bert"), tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def engine(bert: Path) -> Iterator[Engine]:
    with Engine(bert) as made:
        yield made


def opened(folder: Path, **options: Any) -> Engine:
    return Engine(folder, workflow="embed", options={"workflow.embed": options})


def vectors(results: Any) -> list[bytes | None]:
    return [None if result.vector is None else result.vector.tobytes() for result in results]


@pytest.mark.parametrize("where", ["prepare", "results"])
def test_an_interrupt_ends_the_call_of_the_caller_who_drives_and_no_other(bert: Path, where: str) -> None:
    parts = {
        "request_processor": f"{PARTS}:InterruptedTokenizing",
        "output_processor": f"{PARTS}:InterruptedOutputs",
    }
    both_are_in = threading.Barrier(2)

    def inputs(several: list[str]) -> Iterator[str]:
        yield from several[:-1]
        both_are_in.wait(30)  # both callers have inputs, so one of the two drives for both
        yield several[-1]

    def call(engine: Engine, tenant: str) -> list[Any] | None:
        try:
            return list(engine.embed(inputs(texts(6)), tenant=tenant))
        except KeyboardInterrupt:
            return None

    Interrupted.at = where
    with opened(bert, driver="sync", max_step_requests=64, **parts) as engine, ThreadPoolExecutor(1) as pool:
        driver = engine._serving._driver  # type: ignore[union-attr]
        turn, interrupted = driver._turn, threading.Event()

        def main_thread_first(entry: Any) -> bool:
            if threading.current_thread() is not threading.main_thread():
                interrupted.wait(30)
            return turn(entry)

        driver._turn = main_thread_first  # type: ignore[method-assign]
        other = pool.submit(call, engine, "first")
        mine = call(engine, "second")
        interrupted.set()
        theirs = other.result(60)
        assert Interrupted.at == "" and mine is None
        assert theirs is not None and vectors(theirs) == vectors(engine.embed(texts(6)))


def test_what_an_interrupted_caller_asked_for_is_not_computed_any_more(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(bert, driver="sync") as engine:
        computed: list[int] = []
        outputs = engine._serving._driver._parts.output_processor  # type: ignore[union-attr]
        results = outputs.results

        def interrupted(work: Any, output: Any) -> Any:
            computed.append(len(work))
            if len(computed) == 1:
                raise KeyboardInterrupt
            return results(work, output)

        monkeypatch.setattr(outputs, "results", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.embed(texts(5))
        assert engine.embed(texts(2))[0].error is None
    assert computed == [5, 2]


def test_drivers_give_identical_results_in_identical_steps(bert: Path) -> None:
    inputs: list[Any] = [*texts(60), 5, *texts(9)]
    found, steps = [], []
    for driver in DRIVERS:
        RecordingScheduler.steps = []
        with opened(bert, driver=driver, scheduler=f"{PARTS}:RecordingScheduler", **SMALL) as engine:
            found.append((vectors(engine.embed(inputs)), vectors(engine.embed(iter(inputs)))))
        steps.append(RecordingScheduler.steps)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == found[0][1]
    assert found[0][0].count(None) == 1
    assert steps[0] == steps[1] == steps[2]
    assert max(map(len, steps[0])) == 4


@pytest.mark.parametrize("driver", one_in(3, DRIVERS))
@pytest.mark.parametrize("runner", ["PoisonedRunner", "NotFinite"])
def test_a_poison_text_ends_alone(driver: str, runner: str, bert: Path) -> None:
    clean = texts(12, 6)
    poisoned = [*clean[:5], "w1 w13 w2", *clean[5:], "w13"]
    clean = [text for text in clean if "w13" not in text.split()]
    with opened(bert, driver=driver, runner=f"{PARTS}:{runner}") as engine:
        results = engine.embed(poisoned)
        again = engine.embed(clean)
    for text, result in zip(poisoned, results, strict=True):
        assert (result.error is not None) == ("w13" in text.split()), text
    assert all(result.error is None for result in again)
    if runner == "PoisonedRunner":
        assert isinstance(results[5].error, PluginError)
        assert "workflow.embed failed" in str(results[5].error) and "poison" in str(results[5].error)


@pytest.mark.parametrize("driver", one_in(3, DRIVERS))
def test_a_text_over_which_preparing_raises_ends_alone(driver: str, bert: Path) -> None:
    with opened(bert, driver=driver, request_processor=f"{PARTS}:BrokenTokenizing") as engine:
        before, broken, after = engine.embed(["w1 w2", "broken", "w3"])
        alone = engine.embed(["w1 w2", "w3"])
    assert isinstance(broken.error, PluginError) and "broken" in str(broken.error)
    for result, expected in zip((before, after), alone, strict=True):
        assert result.error is None
        assert result.vector is not None and expected.vector is not None
        np.testing.assert_array_equal(result.vector, expected.vector)


@pytest.mark.parametrize("driver", one_in(3, DRIVERS))
@pytest.mark.parametrize(
    ("part", "cls", "said"),
    [("request_processor", "BrokenTokenizing", "broken"), ("output_processor", "Forgetful", "0 results of 1")],
    ids=["tokenizing", "results"],
)
def test_a_part_that_breaks_its_contract_is_named(driver: str, part: str, cls: str, said: str, bert: Path) -> None:
    with opened(bert, driver=driver, **{part: f"{PARTS}:{cls}"}) as engine:
        (result,) = engine.embed(["broken"])
    assert isinstance(result.error, PluginError)
    assert said in str(result.error)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "an input is text"),
        ([], "holds at least one"),
        ([1, 285], "token id 285 is not in the vocabulary, which has 285"),
        ([-1], "token id -1"),
        ([True], "an input is text"),
        ("\ud800", "lone surrogate"),
        (("a", "b"), "no vector of its own"),
        ({"text": "a"}, "has one of 'prompt'"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "has one of"),
        ({"prompt": [1]}, "'prompt' is text"),
        (b"a", "an input is text"),
        ("w1 " * 100, "the input has 102 tokens, and the model takes 80"),
        ([1] * 81, "the input has 81 tokens"),
    ],
    ids=itertools.count(),
)
def test_wrong_inputs_are_refused_alone_and_say_why(value: Any, said: str, engine: Engine) -> None:
    before, result, after = engine.embed(["w1", value, "w1"])
    assert isinstance(result.error, InvalidRequest)
    assert said in str(result.error)
    assert vectors([before]) == vectors([after]) != [None]


def test_all_forms_of_a_text_are_one(engine: Engine) -> None:
    ids = [2, 6, 7, 3]
    forms = ["w1 w2", {"prompt": "w1 w2"}, ids, {"prompt_token_ids": ids}, np.array(ids), tuple(ids)]
    assert len(set(vectors(engine.embed(forms)))) == 1


def test_bytes_are_bounded_before_tokenising(bert: Path) -> None:
    with opened(bert, max_input_bytes=10) as engine:
        fits, long = engine.embed(["w1 w2 w3 4", "w1 w2 w3 45"])
    assert fits.error is None
    assert isinstance(long.error, LimitExceeded) and "max_input_bytes" in str(long.error)


@pytest.mark.parametrize("side", ["right", "left"])
def test_what_is_cut_is_what_cutting_afterwards_gives(side: str, engine: Engine) -> None:
    words = [f"w{i % 280}" for i in range(5000)]
    kept = words[:78] if side == "right" else words[-78:]
    for number in (100, 5000):
        long = words[:number] if side == "right" else words[-number:]
        (cut,) = engine.embed([" ".join(long)], truncate=side)  # type: ignore[call-overload]
        (whole,) = engine.embed([" ".join(kept)])
        assert cut.truncated and not whole.truncated
        assert cut.num_tokens == 80
        assert vectors([cut]) == vectors([whole])


@pytest.mark.slow
def test_other_threads_go_on_while_a_long_text_is_tokenised(bert: Path) -> None:
    """For example a thread that decodes."""
    requests = Tokenizing(WorkflowContext(model=ModelFolder.read(bert), max_model_len=80, options=EmbedOptions()))
    text = " ".join(f"w{i % 280}" for i in range(200_000))
    ended, pauses = threading.Event(), [0.0]

    def tick() -> None:
        last = time.perf_counter()
        while not ended.wait(0.001):
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    clock = threading.Thread(target=tick)
    clock.start()
    began = time.perf_counter()
    (refused,) = requests.prepare([Task(request_id="", kind="embed", value=text)])
    taken = time.perf_counter() - began
    ended.set()
    clock.join()
    assert isinstance(refused, LimitExceeded)
    assert max(pauses) < taken / 2


def test_long_texts_are_cut_before_they_are_tokenised() -> None:
    rng = random.Random(0)
    letters = "abcdeé,.!?'\t\n  \u00a0\u3000\u0301中😀0123"
    corpus = ["".join(rng.choices(letters + "   ", k=20_000)) for _ in range(4)]
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.train_from_iterator([corpus[0]], trainers.BpeTrainer(vocab_size=400, show_progress=False))
    word_piece = Tokenizer.from_str(byte_level.to_str())
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for tokenizer, text, side, most in itertools.product((byte_level, word_piece), corpus, ("right", "left"), (1, 50)):
        assert is_cuttable(tokenizer.to_str())
        read: list[int] = []

        def encode(piece: str, tokenizer: Tokenizer = tokenizer, read: list[int] = read) -> Any:
            read.append(len(piece))
            return tokenizer.encode(piece, add_special_tokens=False)

        encoding = cut_text(text, most, side, encode)  # type: ignore[arg-type]
        wanted = tokenizer.encode(text, add_special_tokens=False).ids
        assert (encoding.ids[:most] if side == "right" else encoding.ids[-most:]) == (
            wanted[:most] if side == "right" else wanted[-most:]
        )
        assert len(encoding.ids) > most
        assert sum(read) < len(text) / 4


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_of_few_tokens_is_read_further(side: str) -> None:
    words = [letter * 30 for letter in "abcdefgh"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = " ".join(random.Random(0).choices(words, k=2000))

    def encode(piece: str) -> Any:
        return tokenizer.encode(piece, add_special_tokens=False)

    found, wanted = cut_text(text, 50, side, encode).ids, encode(text).ids  # type: ignore[arg-type]
    assert 50 < len(found) < 500
    assert found == (wanted[: len(found)] if side == "right" else wanted[-len(found) :])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("length", [1, 4, 9])
def test_little_more_is_read_than_is_kept(length: int, side: str) -> None:
    words = ["abcdefgh"[i] * length for i in range(8)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    read: list[int] = []

    def encode(piece: str) -> Any:
        read.append(len(piece))
        return tokenizer.encode(piece, add_special_tokens=False)

    text = " ".join(random.Random(0).choices(words, k=100_000))
    assert len(cut_text(text, 510, side, encode).ids) > 510  # type: ignore[arg-type]
    assert sum(read) < 1.6 * 510 * (length + 1)


def test_a_pair_loses_the_end_of_its_second_text(tmp_path: Path) -> None:
    folder = stored(encoder("Bert", "ForSequenceClassification", num_labels=1), tmp_path)
    document = " ".join(f"w{i}" for i in range(200))
    with Engine(folder) as engine:
        refused, *_ = engine.rerank("w1 w2", [document])
        cut, *_ = engine.rerank("w1 w2", [document], truncate="right")
        whole, *_ = engine.rerank("w1 w2", [" ".join(document.split()[:75])])
        alone, *_ = engine.rerank(document, ["w1"], truncate="right")
        assert "the input has 205 tokens" in str(refused.error)
        assert (cut.logit, cut.num_tokens, cut.truncated) == (whole.logit, 80, True)
        assert "the first text of the pair has 200 tokens" in str(alone.error)
        with pytest.raises(InvalidRequest, match="documents must be a list"):
            engine.rerank("w1", "w2")


@pytest.mark.slow
def test_an_iterator_is_read_as_results_are(bert: Path) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"w{read % 280}"

    for driver in DRIVERS:
        read = 0
        with opened(bert, driver=driver, **SMALL) as engine:
            results = engine.embed(endless())
            for number, result in enumerate(itertools.islice(results, 100)):
                assert result.error is None
                assert read <= number + 8 * 4 + 1
            results.close()  # type: ignore[attr-defined]
            assert not engine._serving._driver._entries  # type: ignore[union-attr]
            assert len(engine.embed(texts(3))) == 3


def test_several_threads_share_an_engine(bert: Path) -> None:
    inputs = [texts(30)[i::3] for i in range(3)]
    for driver in DRIVERS:
        with opened(bert, driver=driver, **SMALL) as engine, ThreadPoolExecutor(3) as pool:
            found = list(pool.map(engine.embed, inputs))
            alone = [engine.embed(each) for each in inputs]
        for several, one in zip(found, alone, strict=True):
            for a, b in zip(several, one, strict=True):
                np.testing.assert_allclose(a.vector, b.vector, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.slow  # a process that imports torch
def test_the_worker_may_live_in_another_process(bert: Path, engine: Engine) -> None:
    with Engine(bert, executor="process") as other:
        for there, here in zip(other.embed(texts(5)), engine.embed(texts(5)), strict=True):
            np.testing.assert_allclose(there.vector, here.vector, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.slow  # several processes that import torch
def test_a_text_that_kills_the_worker_ends_alone(bert: Path, engine: Engine) -> None:
    options = {"workflow.embed": {"runner": f"{PARTS}:DeadlyRunner", "driver": "async", **SMALL}}
    given = ["w1", "w2", "w13", *texts(6, 5)[1:]]
    with Engine(bert, workflow="embed", executor="process", options=options) as other:
        results = other.embed(given)
    assert [isinstance(result.error, WorkerLost) for result in results] == ["w13" in text.split() for text in given]
    for result, alone in zip(results, engine.embed(given), strict=True):
        if result.error is None:
            np.testing.assert_allclose(result.vector, alone.vector, atol=1e-6)  # type: ignore[arg-type]


def test_options_are_for_the_workflow_that_the_model_is_opened_with(bert: Path) -> None:
    with Engine(bert, options={"workflow.embed": {"truncate": "right"}}) as opened:
        assert [result.truncated for result in opened.embed(["w1", "w1 " * 100])] == [False, True]
    parts = {"scheduler": "guideway_engine.scheduling.scheduler:Scheduler"}
    with Engine("demo", options={"workflow.decode": parts}) as decoder:
        assert decoder.workflow == "decode"
    for model, other in (("demo", "embed"), (bert, "rerank"), (bert, "decode"), (bert, "of nobody")):
        with pytest.raises(InvalidConfiguration, match="is opened with the workflow") as caught:
            Engine(model, options={f"workflow.{other}": {}})
        assert caught.value.field == f"options.workflow.{other}"
    with pytest.raises(InvalidConfiguration, match="which this configuration does not use"):
        Engine(bert, workflow="embed", options={"workflow.rerank": {}})


def test_steps_of_one_worker_that_is_lost_bring_one_other() -> None:
    executor = Dying(1)
    computing = computing_with(executor)
    steps: list[Any] = [["a", "b"], ["c", "d"]]
    sent = [computing.submit(work) for work in steps]  # both steps are sent
    for work, call in zip(steps, sent, strict=True):
        assert computing.results(work, call) == ["execute"] * 2
    assert executor.restarts == 1


@pytest.mark.parametrize(("deaths", "restarts"), [(1, 1), (2, 2), (3, 2)])
def test_a_request_is_blamed_for_the_second_death_while_it_is_tried_alone(deaths: int, restarts: int) -> None:
    executor = Dying(deaths)
    computing = computing_with(executor)
    work: list[Any] = ["a"]
    (result,) = computing.results(work, computing.submit(work))
    assert executor.restarts == restarts
    if deaths < 3:
        assert result == "execute"
    else:
        assert isinstance(result, WorkerLost)


def test_a_worker_that_cannot_be_restarted_ends_all_there_is_after_the_last_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarting, "LONGEST_PAUSE", 0.0)
    executor = Dying(1 + ATTEMPTS, method="load")
    computing = computing_with(executor)
    work: list[Any] = ["a", "b"]
    results = computing.results(work, computing.submit(work))
    assert executor.restarts == ATTEMPTS and computing.failure is results[0] is results[1]
    assert "could not be restarted in 8 attempts: the worker died" in str(computing.failure)
    assert computing.results(work, computing.submit(work)) == ["execute"] * 2
    assert computing.failure is None


class Dying:
    """An executor whose workers die `deaths` times."""

    def __init__(self, deaths: int, method: str = "execute") -> None:
        self.deaths = deaths
        self.method = method
        self.restarts = 0
        self.lost = True

    def submit(self, method: str, *_: Any) -> Any:
        dies = self.lost and method in ("execute", self.method)
        return SimpleNamespace(result=self.die if dies else lambda: method, wait=lambda _: True)

    def restart(self) -> None:
        self.restarts += 1
        self.deaths -= 1
        self.lost = self.deaths > 0

    def die(self) -> None:
        raise WorkerLost("the worker died")


def computing_with(executor: Dying) -> Computing:
    """Return the steps of a workflow whose results are the executor's."""

    class Outputs:
        def results(self, work: list[Any], output: Any) -> list[Any]:
            return [output] * len(work)

    parts = SimpleNamespace(output_processor=Outputs(), step_builder=SimpleNamespace(build=list))
    return Computing("embed", cast("Any", parts), cast("Any", executor))


def test_what_an_engine_does_not_serve_is_refused_by_name(bert: Path, engine: Engine) -> None:
    with pytest.raises(UnsupportedCapability, match=r"runs the workflow 'embed' with BertModel; call embed\(\)"):
        engine.generate("w1")
    with pytest.raises(UnsupportedCapability, match="serves embed and not rerank"):
        engine.rerank("w1", ["w2"])
    engine.check_health()
    for refused in (lambda: engine.step(), lambda: engine.vocabulary):
        with pytest.raises(UnsupportedCapability):
            refused()
    (result,) = engine.run("embed", ["w1"], {"constraint": object()})
    assert "generates nothing, so constraint would have no effect" in str(result.error)
    (result,) = engine.run("embed", ["w1"], {"dimension": 3})
    assert "known: truncate, dimensions" in str(result.error)
    (result,) = engine.embed(["w1"], dimensions=33)
    assert "the model has 32" in str(result.error)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"modifiers": ("hello",)}, "modifiers is about generating"),
        ({"grammar": ("llguidance",)}, "grammar is about generating"),
        ({"num_speculative_tokens": 2}, "num_speculative_tokens is about generating"),
        ({"workflow": "rerank"}, "BertModel is no sequence classifier"),
        ({"workflow": "decode"}, "not a causal language model"),
        ({"workflow": "embedd"}, "embedd"),
        ({"max_model_len": 81}, "its context is 80"),
        ({"workflow": "embed", "options": {"workflow.embed": {"driver": "fast"}}}, "driver of workflow.embed must be"),
        ({"workflow": "embed", "options": {"workflow.embed": {"pool": "cls"}}}, "pool"),
        ({"workflow": "embed", "options": {"workflow.embed": {"runner": "x"}}}, "must be 'module:Class'"),
        ({"workflow": "embed", "options": {"workflow.embed": {"runner": "no:X"}}}, "cannot be imported"),
        ({"workflow": "embed", "options": {"workflow.embed": {"runner": "json:JSONDecoder"}}}, "no subclass"),
    ],
    ids=itertools.count(),
)
def test_a_configuration_that_cannot_be_is_refused(settings: dict[str, Any], said: str, bert: Path) -> None:
    with pytest.raises((InvalidConfiguration, PluginError), match=said):
        Engine(bert, **settings)


def test_a_model_is_opened_as_what_it_is_for(tmp_path: Path) -> None:
    one = stored(encoder("Bert", "ForSequenceClassification", num_labels=1), tmp_path / "one")
    with Engine(one) as engine:
        assert engine._serving is not None and engine._serving.workflow.name == "rerank"
        with pytest.raises(UnsupportedCapability, match=r"call rerank\(\)"):
            engine.generate("w1")
    decoder = Engine("demo", max_num_seqs=1, max_model_len=32)
    with decoder, pytest.raises(UnsupportedCapability, match="workflow='embed'"):
        decoder.embed(["a"])
    with Engine("demo", workflow="embed") as engine:
        assert engine.embed(["a"])[0].error is None
    unknown = stored(encoder("Bert"), tmp_path / "unknown")
    config = (unknown / "config.json").read_text().replace('"model_type": "bert"', '"model_type": "swin"')
    (unknown / "config.json").write_text(config)
    with pytest.raises(InvalidConfiguration, match=r"(?s)no workflow serves it.*embed: models of type 'swin'"):
        Engine(unknown)


def test_coroutines_get_what_threads_get(bert: Path, engine: Engine) -> None:
    async def main() -> list[Any]:
        async with AsyncEngine(bert) as several:
            found = await asyncio.gather(*(several.embed(text) for text in texts(20)))
            with pytest.raises(UnsupportedCapability, match="generates no text"):
                await several.submit("w1")
            with pytest.raises(UnsupportedCapability, match="not rerank"):
                await several.rerank("w1", ["w2"])
            return [result for (result,) in found]

    for one, other in zip(asyncio.run(main()), engine.embed(texts(20)), strict=True):
        np.testing.assert_allclose(one.vector, other.vector, atol=1e-6)  # type: ignore[arg-type]


def test_a_closed_engine_takes_nothing(bert: Path) -> None:
    engine = Engine(bert)
    late = engine.embed(iter(texts(2)))
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed):
        engine.embed("w1")
    with pytest.raises(GuidewayError, match="closed"):
        next(late)


def test_a_stranger_s_workflow_says_how_a_model_of_no_known_family_is_pooled(tmp_path: Path) -> None:
    config = transformers.ErnieConfig(**SIZES)
    model = ModelFolder.read(stored(randomized(transformers.ErnieModel(config), 0, scale=6), tmp_path / "ernie"))

    def runner(pooling: str | None) -> PoolingRunner:
        options = EmbedOptions(pooling=pooling)  # type: ignore[arg-type]
        return PoolingRunner(WorkflowContext(model=model, max_model_len=80, options=options))

    runner("cls").load()
    with pytest.raises(InvalidConfiguration, match="type 'ernie' are not in the registry, which has bert, camembert"):
        runner(None).load()
