"""A failing plugin ends the request that it failed for, in the same step, and affects no other request.

Each case runs a batch of three healthy requests and one that fails, then the same batch with a healthy request of the
same length in its place: the neighbors' tokens are identical. One neighbor uses the plugin that fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from guideway.api import GuidewayError
from guideway.runtime.work.threads import ADMISSION_THREADS

from tests.support.processes import until
from tests.support.stages import everyday
from tests.vllm import faulty

PROMPTS = ("Anna Berg is 34 years old.", "Peter lives in Oslo.", "The library opens at nine.", "Maria sells apples.")
FAILING = 1
"""Index of the failing request among the four."""
STOPS_ONLY, LEGAL, NOTHING = "only stop tokens", "a legal token", "nothing"
OWNER = "modifier.faulty_sample"
"""It owns the draw, so it must act."""
KNOWN: dict[tuple[int, str, int], list[tuple[int, ...]]] = {}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 1}


@dataclass(frozen=True)
class Case:
    """One failure: the plugin, the request's plan, and the expected message."""

    plugin: str
    plan: dict[str, Any]
    said: str
    last: str = STOPS_ONLY
    """Tokens that the request may emit in the step of the failure."""

    @property
    def id(self) -> str:
        slow = ["slow"] if self.plan.get("slow") else []
        return "-".join([self.plugin.partition(".")[2], *slow, self.plan["phase"], self.plan["how"]])


def grammar(phase: str, how: str, said: str, last: str = STOPS_ONLY, strategy: str = "faulty", **more: Any) -> Case:
    return Case(f"grammar.{strategy}", {"bytes": 12, "phase": phase, "how": how} | more, said, last)


def modifier(stage: str, phase: str, how: str, said: str, last: str = STOPS_ONLY) -> Case:
    return Case(f"modifier.faulty_{stage}", {"phase": phase, "how": how}, said, last)


WITHOUT_VERDICT = [
    grammar("supports in the core", "raise", "failed in supports: RuntimeError", NOTHING),
    grammar("supports in the core", "panic", "failed in supports: Panic", NOTHING),
    grammar("supports in the core", "exit", "failed in supports: SystemExit", NOTHING),
    grammar("supports in the core", "type", "supports must return a Support", NOTHING),
]
"""In an engine core that admits a request by itself."""

IN_THE_CORE = [
    grammar("compile", "raise", "failed in compile: RuntimeError", NOTHING, slow=True),
    grammar("compile", "panic", "failed in compile: Panic", NOTHING, slow=True),
    grammar("compile", "interrupt", "failed in compile: KeyboardInterrupt", NOTHING, slow=True),
    grammar("compile", "type", "failed in nbytes: AttributeError", NOTHING, slow=True),
    grammar("compile", "invalid", "this is no grammar", NOTHING, slow=True),
    grammar("matcher", "raise", "failed in start: RuntimeError: matcher was asked to fail", at=1, slow=True),
    grammar("matcher", "type", "failed in fill: AttributeError", at=1, slow=True),
    grammar("fill_bitmask", "raise", "failed in fill: RuntimeError: fill_bitmask was asked to fail"),
    grammar("fill_bitmask", "panic", "failed in fill: Panic"),
    grammar("fill_bitmask", "exit", "failed in fill: SystemExit"),
    grammar("fill_bitmask", "leave", "failed in fill: GeneratorExit"),
    grammar("fill_bitmask", "dead_end", "failed in fill: DeadEnd: nothing may follow"),
    grammar("fill_bitmask", "empty", "failed in fill: ConformanceError: it filled a row that allows no token"),
    grammar("fill_bitmask", "raise", "failed in fill: RuntimeError", strategy="replayed"),
    grammar("fill", "minus", "failed in fill: ConformanceError: fill returned -1"),
    grammar("accept", "raise", "failed in accept: RuntimeError", LEGAL),
    grammar("accept", "panic", "failed in accept: Panic", LEGAL),
    grammar("accept", "leave", "failed in accept: GeneratorExit", LEGAL),
    grammar("accept", "refuse", "failed in accept: it refused token", LEGAL),
    grammar("accept", "type", "failed in accept", LEGAL),
    grammar("accept", "count", "failed in accept", LEGAL),
    grammar("is_terminated", "raise", "is_terminated was asked to fail"),
    *[
        case
        for stage in faulty.STAGES
        for case in (
            modifier(stage, "start in the core", "raise", "RuntimeError: start in the core was asked to fail"),
            modifier(stage, "prepare", "raise", "failed in prepare: RuntimeError"),
            modifier(stage, "prepare", "panic", "failed in prepare: Panic"),
            modifier(stage, "prepare", "leave", "failed in prepare: GeneratorExit"),
            modifier(stage, "prepare", "type", "failed in prepare: ConformanceError"),
            modifier(stage, "prepare", "rows", "failed in prepare: ConformanceError"),
            modifier(stage, "prepare", "others", "failed in prepare: ConformanceError"),
            modifier(stage, "accept", "raise", "failed in accept: RuntimeError", LEGAL),
            modifier(stage, "accept", "type", "failed in accept: ConformanceError", LEGAL),
            modifier(stage, "accept", "fail", "failed in accept: it gives up", LEGAL),
        )
    ],
    *[
        case
        for stage in ("pre_warp", "mask", "post_warp")
        for case in (
            modifier(stage, "apply", "raise", "failed in apply: RuntimeError"),
            modifier(stage, "apply", "panic", "failed in apply: Panic"),
            modifier(stage, "apply", "type", "failed in apply: ConformanceError"),
            modifier(stage, "apply", "shape", "failed in apply: ConformanceError"),
            modifier(stage, "apply", "dtype", "failed in apply: ConformanceError"),
            modifier(stage, "apply", "nan", "failed in apply: the logits are not numbers (NaN)"),
        )
    ],
    modifier("sample", "sample", "raise", "failed in sample: RuntimeError"),
    modifier("sample", "sample", "panic", "failed in sample: Panic"),
    modifier("sample", "sample", "type", "failed in sample: ConformanceError"),
    modifier("sample", "sample", "shape", "failed in sample: ConformanceError"),
    modifier("sample", "sample", "dtype", "failed in sample: ConformanceError"),
    modifier("sample", "sample", "value", "failed in sample: it drew a token id outside"),
]

AT_ADMISSION = [
    grammar("supports", "raise", "failed in supports: RuntimeError"),
    grammar("supports", "type", "supports must return a Support"),
    grammar("compile", "raise", "failed in compile: RuntimeError"),
    grammar("compile", "panic", "failed in compile: Panic"),
    grammar("compile", "interrupt", "failed in compile: KeyboardInterrupt"),
    grammar("supports", "leave", "failed in supports: GeneratorExit"),
    grammar("matcher", "raise", "matcher was asked to fail", at=1),
    modifier("pre_warp", "start", "raise", "failed in start: RuntimeError"),
    modifier("post_warp", "start", "panic", "failed in start: Panic"),
]


@pytest.fixture(scope="session")
def guideway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Configuration of an engine with all faulty plugins."""
    folder = tmp_path_factory.mktemp("faulty")
    faulty.install(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield {**faulty.GUIDEWAY, "worker_mixins": ["faulty"]}


@pytest.fixture
def drafting(start: Callable[..., Any], guideway: dict[str, Any]) -> Any:
    """The same with drafts."""
    llm = start(guideway, **options(), speculative_config=NGRAM)
    llm.wait_for_completion(use_tqdm=False)
    return llm


@pytest.fixture
def llm(start: Callable[..., Any], guideway: dict[str, Any]) -> Any:
    llm = start(guideway, **options())
    llm.wait_for_completion(use_tqdm=False)  # requests that a failed test left
    return llm


def options() -> dict[str, Any]:
    return {
        "max_num_seqs": 16,
        "enable_prefix_caching": False,  # otherwise the first of two equal batches would differ
        "worker_extension_cls": "guideway_vllm.worker.WorkerExtension",
    }


def params(plugin: str = "", plan: dict[str, Any] | None = None, **sampling: Any) -> Any:
    """Return the parameters of a request that uses `plugin`, or none."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    extra: dict[str, Any] = {}
    outputs = None
    kind, _, name = plugin.partition(".")
    if kind == "grammar":
        outputs = StructuredOutputsParams(grammar=json.dumps(plan))
        extra["guideway.dialect"] = name
        extra["guideway.close"] = False  # closing would call the matcher with tokens that are not drawn
    elif kind == "modifier":
        extra["guideway.modifiers"] = {name: plan}
    # a grammar decides where the output may end
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 8, "ignore_eos": outputs is None} | sampling
    return SamplingParams(structured_outputs=outputs, extra_args=extra or None, **sampling)


def neighbors(plugin: str, **sampling: Any) -> list[Any]:
    """Return three requests: one with a grammar, one without guideway, and one with a modifier."""
    strategy = plugin if plugin.startswith("grammar.") else "grammar.faulty"
    name = plugin if plugin.startswith("modifier.") else "modifier.faulty_pre_warp"
    asked = [
        params(strategy, {"bytes": 9}, seed=21, max_tokens=12, **sampling),
        params(seed=22, **sampling),
        params(name, {}, seed=23, **sampling),
    ]
    if name == OWNER:
        asked[2].temperature = 1.0
    return asked


def batch(llm: Any, plugin: str, subject: Any, **sampling: Any) -> list[Any]:
    """Return four outputs, with the one of `subject` at index `FAILING`, or three if `subject` is None."""
    asked = neighbors(plugin, **sampling)
    asked.insert(FAILING, subject)
    for prompt, one in zip(PROMPTS, asked, strict=True):
        if one is not None:
            llm.enqueue(prompt, one, use_tqdm=False)
    return llm.wait_for_completion(use_tqdm=False)


def ids(outputs: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def without(llm: Any, plugin: str, num_tokens: int) -> list[tuple[int, ...]]:
    """Return the neighbors' tokens in a batch with a healthy request of `num_tokens` tokens."""
    key = (id(llm), plugin, num_tokens)
    if key not in KNOWN:
        outputs = batch(llm, plugin, params(max_tokens=num_tokens) if num_tokens else None)
        if num_tokens:
            assert len(outputs.pop(FAILING).outputs[0].token_ids) == num_tokens
        KNOWN[key] = ids(outputs)
    return KNOWN[key]


def assert_nothing_is_left(llm: Any) -> None:
    """Check that front end and engine core hold no slot or state of a request, and that the engine serves."""
    core = llm.llm_engine.engine_core.engine_core.scheduler.guest
    assert core._states == {}
    assert sorted(core._free) == list(range(core.runtime.context.max_num_sequences))
    assert (core._outputs, core.finished) == ({}, {})
    for runtime in (core.runtime, llm.llm_engine.input_processor.guideway._runtime):
        assert not runtime._slots.taken()
        assert not runtime._open
    assert all(state.released for state in faulty.FaultyModifier.states)
    faulty.FaultyModifier.states.clear()
    (after,) = llm.generate(PROMPTS[0], params("grammar.faulty", {"bytes": 3}), use_tqdm=False)
    assert re.fullmatch("[a-z]{3}", after.outputs[0].text)


def check(llm: Any, case: Case) -> None:
    outputs = batch(llm, case.plugin, params(case.plugin, case.plan))
    subject = outputs.pop(FAILING)
    emitted = ids([subject])[0]
    assert subject.outputs[0].finish_reason == "error"
    error = subject.kv_transfer_params["guideway"]["error"]
    # an invalid request is not a plugin's failure
    assert error.startswith(case.plugin) is (case.plan["how"] != "invalid")
    assert case.said in error

    stops = llm.llm_engine.input_processor.guideway._runtime.context.vocabulary.stop_token_ids
    assert not stops.intersection(emitted[:-1])
    if case.last == NOTHING:
        assert emitted == ()
    else:
        assert (emitted[-1] in stops) is (case.last == STOPS_ONLY)
    assert [o.outputs[0].finish_reason for o in outputs] == ["stop", "length", "length"]
    assert_nothing_is_left(llm)

    assert ids(outputs) == without(llm, case.plugin, len(emitted))


def one_stage_each(cases: Sequence[Case]) -> list[Case]:
    """Return `cases` with each failure of a modifier at one stage only; the stages take turns."""
    places: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        is_modifier = case.plugin.startswith("modifier.")
        place = (case.plan["phase"], case.plan["how"]) if is_modifier else (case.id,)
        places.setdefault(place, []).append(case)
    return [found[number % len(found)] for number, found in enumerate(places.values())]


@pytest.mark.parametrize("case", everyday(IN_THE_CORE, *one_stage_each(IN_THE_CORE)), ids=lambda case: case.id)
def test_one_request_ends_alone(llm: Any, case: Case) -> None:
    check(llm, case)


@pytest.fixture
def without_verdict(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep from the core what the front end has decided."""
    monkeypatch.setattr(llm.llm_engine.engine_core.engine_core.scheduler.guest, "_verdict", lambda _: None)


@pytest.mark.usefixtures("without_verdict")
@pytest.mark.parametrize("case", WITHOUT_VERDICT, ids=lambda case: case.id)
def test_so_does_one_that_the_core_admits_by_itself(llm: Any, case: Case) -> None:
    check(llm, case)


@pytest.mark.parametrize("case", AT_ADMISSION, ids=lambda case: case.id)
def test_what_fails_in_the_trial_is_refused(llm: Any, case: Case) -> None:
    """The neighbors already wait in the engine, and run as if the request had never been sent."""
    asked = neighbors(case.plugin)
    llm.enqueue(PROMPTS[0], asked[0], use_tqdm=False)
    with pytest.raises(GuidewayError, match=f"^{re.escape(case.plugin)}.*{re.escape(case.said)}"):
        llm.enqueue(PROMPTS[1], params(case.plugin, case.plan), use_tqdm=False)
    for prompt, one in zip(PROMPTS[2:], asked[1:], strict=True):
        llm.enqueue(prompt, one, use_tqdm=False)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert_nothing_is_left(llm)
    assert ids(outputs) == without(llm, case.plugin, 0)


@pytest.mark.usefixtures("without_verdict")
def test_requests_that_are_given_up_while_the_core_admits_them_leave_nothing(llm: Any, tmp_path: Path) -> None:
    """Some are being admitted when they are aborted, and others wait for that."""
    engine, core = llm.llm_engine, llm.llm_engine.engine_core.engine_core.scheduler.guest
    gates = [tmp_path / str(i) for i in range(ADMISSION_THREADS + 2)]
    neighbor = without(llm, "grammar.faulty", 0)
    plans = [{"bytes": 5, "gate in the core": str(gate)} for gate in gates]
    with ThreadPoolExecutor(1) as another:  # a server reads requests in a thread
        added = [
            another.submit(engine.add_request, p["gate in the core"], PROMPTS[0], params("grammar.faulty", p))
            for p in plans
        ]
    given_up = [each.result(60) for each in added]
    until(lambda: sum(gate.with_suffix(".reached").exists() for gate in gates) == ADMISSION_THREADS)
    engine.step()
    engine.abort_request(given_up, internal=True)
    for gate in gates:
        gate.with_suffix(".open").touch()
    assert ids(batch(llm, "grammar.faulty", None)) == neighbor
    until(lambda: not core.runtime._open)
    assert sum(gate.with_suffix(".reached").exists() for gate in gates) == ADMISSION_THREADS
    assert core._entering == {}
    assert_nothing_is_left(llm)


@pytest.mark.parametrize(
    ("tenant", "said"),
    [
        ("raise", "faulty failed, so the request is refused: RuntimeError: validate_request was asked to fail"),
        ("panic", "faulty failed, so the request is refused: Panic: validate_request was asked to panic"),
        ("leave", "faulty failed, so the request is refused: GeneratorExit: validate_request was asked to leave"),
        ("refused", "this tenant is not served"),
    ],
)
def test_a_validator_that_fails_refuses_the_request_it_judged(llm: Any, tenant: str, said: str) -> None:
    from vllm.exceptions import VLLMValidationError

    judged = params(max_tokens=4)
    judged.extra_args = {"guideway.tenant": tenant}
    with pytest.raises(VLLMValidationError, match=re.escape(said)):
        llm.enqueue(PROMPTS[FAILING], judged, use_tqdm=False)
    outputs = batch(llm, "", None)
    assert ids(outputs) == without(llm, "", 0)
    assert_nothing_is_left(llm)


@pytest.mark.parametrize("how", ["raise", "panic"])
@pytest.mark.parametrize("phase", ["before_step", "after_step"])
def test_a_worker_mixin_ends_the_requests_of_its_step(llm: Any, phase: str, how: str) -> None:
    """The four sequences of that step end; a later request is not affected."""
    llm.collective_rpc("guideway", args=("faulty.fail_in", phase, how, 4))
    outputs = batch(llm, "", params(max_tokens=4))
    assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 4
    for output in outputs:
        assert output.kv_transfer_params["guideway"]["error"].startswith(f"worker.faulty failed in {phase}: ")
        assert len(output.outputs[0].token_ids) == 1
    assert_nothing_is_left(llm)
    again = batch(llm, "", None)
    assert ids(again) == without(llm, "", 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_keep_no_failing_request_alive(llm: Any, temperature: float) -> None:
    subject = params("modifier.faulty_pre_warp", {"phase": "apply", "how": "raise"}, temperature=temperature)
    subject.min_tokens = 6
    failed = batch(llm, "", subject)[FAILING]
    assert (failed.outputs[0].finish_reason, len(failed.outputs[0].token_ids)) == ("error", 3)
    assert_nothing_is_left(llm)


DRAFTED = [
    grammar("fill_bitmask", "raise", "failed in fill: RuntimeError", bytes=40, at=6),
    grammar("accept", "raise", "failed in fill: RuntimeError: accept was asked to fail", bytes=40, at=7),
    grammar("rollback", "raise", "RuntimeError: rollback was asked to fail", bytes=40),
    grammar("validate", "raise", "failed in validate: RuntimeError", bytes=40),
    grammar("validate", "type", "failed in validate: TypeError", bytes=40),
    grammar("fill_bitmask", "raise", "failed in fill: RuntimeError", strategy="replayed", bytes=40, at=6),
    modifier("pre_warp", "validate", "raise", "failed in validate: RuntimeError"),
    modifier("pre_warp", "validate", "type", "failed in validate: ConformanceError"),
    modifier("pre_warp", "prepare", "raise", "failed in prepare: RuntimeError"),
    modifier("pre_warp", "apply", "raise", "failed in apply: RuntimeError"),
    modifier("post_warp", "apply", "nan", "failed in apply"),
]


@pytest.mark.parametrize("case", everyday(DRAFTED, *DRAFTED[:2]), ids=lambda case: case.id)
def test_one_request_ends_alone_among_drafts(drafting: Any, case: Case) -> None:
    """All rows of a failed request are closed, those after its drafts too. Where vLLM draws, it is greedy, because its
    verification of drafts is not reproducible."""
    llm = drafting
    healthy = {"bytes": case.plan["bytes"]} if case.plugin.startswith("grammar.") else {}
    temperature = 1.0 if case.plugin == OWNER else 0.0
    together = [
        batch(llm, case.plugin, params(case.plugin, plan, temperature=temperature, max_tokens=24), temperature=0.0)
        for plan in (case.plan, healthy)
    ]
    failed, worked = (outputs.pop(FAILING) for outputs in together)
    assert failed.outputs[0].finish_reason == "error"
    error = failed.kv_transfer_params["guideway"]["error"]
    assert error.startswith(case.plugin)
    assert case.said in error
    *legal, last = failed.outputs[0].token_ids
    assert last in llm.llm_engine.input_processor.guideway._runtime.context.vocabulary.stop_token_ids
    assert legal == worked.outputs[0].token_ids[: len(legal)]
    assert worked.outputs[0].finish_reason in ("stop", "length")
    assert ids(together[0]) == ids(together[1])
    assert_nothing_is_left(llm)


def test_a_ctrl_c_while_the_core_admits_refuses_nothing(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM runs in one process, so the interrupt is raised in the caller of `generate`."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = start({"grammar": ["llguidance"]})
    core = llm.llm_engine.engine_core.engine_core.scheduler.guest
    params = SamplingParams(max_tokens=3, structured_outputs=StructuredOutputsParams(regex="[a-c]{6}"))

    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    with monkeypatch.context() as patch:
        patch.setattr(core.runtime, "admit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["Hello"], params)
