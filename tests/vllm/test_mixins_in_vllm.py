"""Worker mixins inside vLLM: several at once, called by name, and closed with their worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from guideway.api import (
    InvalidConfiguration,
    PluginConflict,
    SequencesFailed,
    UnsupportedCapability,
    Worker,
    WorkerMixin,
    WorkerStep,
    hookimpl,
)

from tests.support.distributions import install

EXTENSION = "guideway_vllm.worker.WorkerExtension"


class Counter(WorkerMixin):
    """Counts its calls; fails in the next step on request."""

    contract = "1.0"
    name = "counter"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.refuses: tuple[str, int] | None = None
        self.blames: tuple[str, str] | None = None
        self._closed = options.get("closed")

    def on_model_loaded(self, worker: Worker) -> None:
        self.heard.append(("loaded", type(worker.model).__name__, worker.device, worker.rank, worker.num_workers))

    def before_step(self, step: WorkerStep) -> None:
        self.heard.append(("before", step.num_sequences, step.num_tokens, step.num_rows))
        if self.refuses and step.num_sequences == self.refuses[1]:
            (message, _), self.refuses = self.refuses, None
            raise ValueError(message)
        self._blame("before", step)

    def after_step(self, step: WorkerStep) -> None:
        self.heard.append(("after", step.num_sequences, step.num_tokens, step.num_rows))
        self._blame("after", step)

    def _blame(self, phase: str, step: WorkerStep) -> None:
        if self.blames and self.blames[0] == phase:
            (_, begin), self.blames = self.blames, None
            raise SequencesFailed("not this one", sequence_ids=[i for i in step.sequence_ids if i.startswith(begin)])

    def blame(self, phase: str, begin: str) -> None:
        """Blame, in the next step, the sequences whose id begins with `begin`."""
        self.blames = phase, begin

    def take(self) -> list[tuple[Any, ...]]:
        heard, self.heard = self.heard, []
        return heard

    def refuse(self, message: str, num_sequences: int) -> None:
        """Fail in the next step of `num_sequences` sequences."""
        self.refuses = message, num_sequences

    def broken(self, *, key: str) -> None:
        raise KeyError(key)

    def close(self) -> None:
        if self._closed:
            Path(self._closed).write_text("closed", encoding="utf-8")


class Rival(WorkerMixin):
    """Has an attribute with the same name as `Counter`."""

    contract = "1.0"
    name = "rival"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.heard = 0


@hookimpl
def guideway_worker_mixin(name: str) -> type[WorkerMixin]:
    return {"counter": Counter, "rival": Rival}[name]


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "counters", dict.fromkeys(["worker.counter", "worker.rival"], __name__))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("closed") / "file"


@pytest.fixture(scope="module")
def llm(start: Callable[..., Any], plugin: None, closed: Path) -> Any:
    guideway = {
        "grammar": ["xgrammar"],
        "worker_mixins": ["layer_timing", "counter"],
        "options": {"worker.layer_timing": {"each_layer": False}, "worker.counter": {"closed": str(closed)}},
    }
    return start(guideway, worker_extension_cls=EXTENSION)


def call(llm: Any, address: str, *args: Any, **kwargs: Any) -> Any:
    (answer,) = llm.collective_rpc("guideway", args=(address, *args), kwargs=kwargs)
    return answer


def generate(llm: Any, *prompts: str, max_tokens: int = 4) -> list[tuple[list[int], str]]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    free = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    constrained = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        structured_outputs=StructuredOutputsParams(regex="[a-z]{4,40}"),
        extra_args={"guideway.close": False},
    )
    params = [constrained if prompt.endswith(":") else free for prompt in prompts]
    outputs = [output.outputs[0] for output in llm.generate(list(prompts), params)]
    return [(list(output.token_ids), output.finish_reason) for output in outputs]


def test_mixins_hear_of_the_model_and_of_each_step(llm: Any) -> None:
    assert call(llm, "counter.take")[0] == ("loaded", "LlamaForCausalLM", "cpu", 0, 1)
    generate(llm, "Hello", "World", max_tokens=3)
    heard = call(llm, "counter.take")
    befores, afters = heard[::2], heard[1::2]
    assert [what for what, *_ in befores] == ["before"] * 3
    assert [("after", *rest) for _, *rest in befores] == afters
    assert [rows for *_, rows in befores] == [2, 2, 2]
    assert befores[0][2] > 2
    assert befores[1:] == [("before", 2, 2, 2)] * 2


def test_a_report_comes_through_vllms_own_call(llm: Any) -> None:
    call(llm, "layer_timing.reset")
    generate(llm, "Hello", max_tokens=5)
    report = call(llm, "layer_timing.report")
    assert report.startswith("5 steps, ")
    (layers,) = [line.split() for line in report.splitlines() if ".layers.*" in line]
    assert int(layers[1]) == 5 * 6
    assert float(layers[2]) > 0


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("counter.tke", "no method 'tke' to call; did you mean 'take'"),
        ("conter.take", "no worker mixin named 'conter' is configured; did you mean 'counter'"),
        ("counter.close", "only the host calls it"),
        ("take", "as 'name.method'"),
    ],
)
def test_what_cannot_be_called_is_refused(llm: Any, address: str, said: str) -> None:
    with pytest.raises(UnsupportedCapability, match=said):
        call(llm, address)


def test_a_method_that_raises_is_named(llm: Any) -> None:
    with pytest.raises(Exception, match=r"worker\.counter failed in broken: KeyError: 'lock'"):
        call(llm, "counter.broken", key="lock")


def test_a_failing_step_ends_the_requests_of_that_step_only(llm: Any) -> None:
    prompts = ("Hello", "Letters:")
    before = generate(llm, *prompts, max_tokens=6)
    assert [reason for _, reason in before] == ["length", "length"]
    call(llm, "counter.refuse", "not today", 2)
    ended = generate(llm, *prompts, max_tokens=6)
    assert [reason for _, reason in ended] == ["error", "error"]
    assert generate(llm, *prompts, max_tokens=6) == before

    # if requests arrive one after the other, only one step's requests end
    from vllm import SamplingParams

    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    engine.add_request("first", prompts[0], params)
    engine.step()
    call(llm, "counter.refuse", "not the first", 1)
    reasons = {o.request_id: o.outputs[0].finish_reason for o in engine.step() if o.finished}
    engine.add_request("second", prompts[0], params)
    while engine.has_unfinished_requests():
        reasons |= {o.request_id: o.outputs[0].finish_reason for o in engine.step() if o.finished}
    assert {request_id[:5]: reason for request_id, reason in reasons.items()} == {"first": "error", "secon": "length"}


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("constrained", [True, False])
def test_a_mixin_may_end_some_requests_of_a_step(llm: Any, phase: str, constrained: bool) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    engine = llm.llm_engine

    def run(blamed: str | None) -> dict[str, tuple[str, list[int], Any]]:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        letters = StructuredOutputsParams(regex="[a-z]{4,40}")
        engine.add_request("free", "Hello", params)
        engine.add_request("letters", "Hello", SamplingParams(temperature=0, max_tokens=6, structured_outputs=letters))
        if blamed is not None:
            call(llm, "counter.blame", phase, blamed)
        found = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    done = output.outputs[0]
                    found[output.request_id] = done.finish_reason, list(done.token_ids), output.kv_transfer_params
        return found

    wanted = run(None)
    blamed, spared = ("letters", "free") if constrained else ("free", "letters")
    found = run(blamed)
    assert found[spared][:2] == wanted[spared][:2]
    reason, token_ids, report = found[blamed]
    assert reason == "error"
    assert report["guideway"]["error"] == f"worker.counter failed in {phase}_step: not this one"
    assert len(token_ids) <= 1
    assert run(None) == wanted


@pytest.mark.parametrize("whole_step", [False, True])
@pytest.mark.parametrize("constrained", [False, True])
def test_what_ends_by_itself_in_the_step_that_fails_it_has_failed(
    llm: Any, constrained: bool, whole_step: bool
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    engine = llm.llm_engine
    letters = StructuredOutputsParams(regex="[a-z]{4,40}") if constrained else None
    engine.add_request("blamed", "Hello", SamplingParams(max_tokens=1, structured_outputs=letters))
    if whole_step:
        call(llm, "counter.refuse", "not this one", 1)
    else:
        call(llm, "counter.blame", "after", "blamed")
    (output,) = [output for output in iter_steps(engine) if output.finished]
    assert output.outputs[0].finish_reason == "error"
    assert "not this one" in output.kv_transfer_params["guideway"]["error"]
    assert [reason for _, reason in generate(llm, "Hello", "Letters:", max_tokens=1)] == ["length"] * 2


def iter_steps(engine: Any) -> Iterator[Any]:
    while engine.has_unfinished_requests():
        yield from engine.step()


def test_what_cannot_work_together_is_refused_at_start_up(
    demo_model: str, llm: Any, closed: Path, start: Callable[..., Any]
) -> None:
    """Two conflicting mixins, unknown options of a mixin, and mixins without vLLM's flag. The engine of the earlier
    tests ends first, with its mixins."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    assert closed.read_text(encoding="utf-8") == "closed"

    def refused(kind: type[Exception], said: str, guideway: dict[str, Any], **options: Any) -> None:
        additional = {"guideway": {"grammar": ["xgrammar"], **guideway}}
        with pytest.raises(kind, match=said):
            LLM(demo_model, dtype="float32", enforce_eager=True, additional_config=additional, **options)
        cleanup_dist_env_and_memory()

    both = {"worker_mixins": ["counter", "rival"]}
    names = r"'counter' \(.*Counter\) and 'rival' \(.*Rival\) both define the attribute 'heard'"
    refused(PluginConflict, names, both, worker_extension_cls=EXTENSION)
    wrong = {"worker_mixins": ["layer_timing"], "options": {"worker.layer_timing": {"each_lyer": True}}}
    refused(InvalidConfiguration, "did you mean 'each_layer'", wrong, worker_extension_cls=EXTENSION)
    refused(InvalidConfiguration, rf"counter.*--worker-extension-cls {EXTENSION}$", {"worker_mixins": ["counter"]})
    other = {"worker_mixins": ["counter"]}
    refused(InvalidConfiguration, "not 'mine.Extension'", other, worker_extension_cls="mine.Extension")
