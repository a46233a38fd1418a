"""The scheduler's half and the worker's: the payload of sequences, and the calls of processors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from guideway.api import (
    ConformanceError,
    InvalidConfiguration,
    InvalidRequest,
    ModifierContext,
    Payload,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    StepBatch,
    UnsupportedCapability,
    Vocabulary,
    WorkerContext,
)
from guideway.devices.torch.device import TorchDevice
from guideway_legacy import LegacyModifier, Processor
from guideway_legacy.calls import ProcessorFailed
from guideway_legacy.params import LACKING, VllmParams
from torch import Tensor

WIDTH = 16
VOCABULARY = Vocabulary(tokens=[b"x"] * (WIDTH - 1) + [b""], stop_token_ids=frozenset({WIDTH - 1}))
DEVICE = TorchDevice("cpu")
PROMPT = (1, 2)


def raising(token_id: int, logits: Tensor) -> Tensor:
    """Return the row with one token that is much more likely than the others."""
    raised = logits.clone()
    raised[token_id] = 50.0
    return raised


def last(token_ids: list[int], logits: Tensor) -> Tensor:
    return raising(token_ids[-1] if token_ids else 0, logits)


class Count:
    """A stateful processor: its n-th call raises token ``first + n``."""

    def __init__(self, first: int = 4) -> None:
        self.next = first

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        self.next += 1
        if self.next == 9:
            raise RuntimeError("nine")
        if self.next == 12:
            raise KeyboardInterrupt
        return raising(self.next - 1, logits)


class PerRequest:
    """A per-request processor of vLLM."""

    made: Any = None

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        type(self).made = (vllm_config.scheduler_config.max_num_seqs, device, is_pin_memory)

    @classmethod
    def validate_params(cls, params: Any) -> None:
        if params.extra_args.get("token") == 0:
            raise ValueError("token 0 is taken")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[..., Tensor] | None:
        if "whole" in params.extra_args:
            return lambda prompt, output, logits: raising(prompt[0] + 2 * len(output), logits)
        token_id = params.extra_args.get("token")
        return None if token_id is None else lambda output, logits: raising(token_id + len(output), logits)


class Free(PerRequest):
    """A per-request processor that accepts all parameters."""

    validate_params: Any = None


class Invariant(PerRequest):
    """A processor that vLLM would apply later than guideway does."""

    def is_argmax_invariant(self) -> bool:
        return True


class Demanding(PerRequest):
    """A processor that reads more of the configuration than there is."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.longest = vllm_config.model_config.max_model_len


class BatchLevel:
    """A batch-level processor of vLLM: raises the token that a request names, and each time the next one."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, tuple[Any, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, update: Any) -> None:
        for index, params, _, output in () if update is None else update.added:
            self.rows[index] = (params, output)

    def apply(self, logits: Tensor) -> Tensor:
        for index, (params, output) in self.rows.items():
            logits[index, params.extra_args["token"] + len(output)] = 50.0
        return logits


def subclass(*processors: Processor) -> type[LegacyModifier]:
    return type("Mine", (LegacyModifier,), {"name": "mine", "processors": processors})


def remembering(**kwargs: Any) -> type[LegacyModifier]:
    return subclass(Processor("callable", Count, kwargs or None, per_sequence=True))


class Host:
    """A modifier with its transform, and their steps."""

    def __init__(self, cls: type[LegacyModifier]) -> None:
        self.modifier = cls({}, ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64))
        self.transform: Any = self.worker()

    def worker(self) -> Any:
        context = WorkerContext(device=DEVICE, vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
        return self.modifier.transform(context, {})

    def start(self, request_id: str = "a", index: int = 0, prompt: Sequence[int] = PROMPT, **wanted: Any) -> Any:
        params = SamplingParams(temperature=0.5, max_tokens=7, modifiers={"mine": wanted})
        request = Request(request_id=request_id, prompt_token_ids=tuple(prompt), params=params)
        return self.modifier.start(request, SequenceInfo(index=index, seed=0, prompt_token_ids=tuple(prompt)), None)

    def prepare(self, *states: Any, drafts: list[list[int]] | None = None) -> Payload:
        lengths = [0 if state is None else state.length for state in states]
        payload = self.modifier.prepare(StepBatch.build(list(range(len(states))), lengths, drafts), states)
        assert payload is not None
        return payload

    def apply(self, payload: Payload, logits: Tensor | None = None) -> Tensor:
        given = torch.zeros(8, WIDTH) if logits is None else logits
        step: Any = SimpleNamespace(ops=DEVICE.ops)
        found: Tensor = self.transform.apply(given, DEVICE.upload(payload), step)
        return found[torch.from_numpy(np.asarray(payload.rows)).long()]

    def step(self, *states: Any) -> list[int]:
        """Draw the likeliest token for each sequence."""
        found: list[int] = self.apply(self.prepare(*states)).argmax(dim=1).tolist()
        for state, token_id in zip(states, found, strict=True):
            self.modifier.accept(state, (token_id,), None)
        return found


# The scheduler's half


def test_a_subclass_has_a_transform_of_its_own() -> None:
    processor = Processor("callable", last)
    transform: Any = subclass(processor).transform
    assert (transform.__name__, transform.where, transform.processors) == (
        "MineTransform",
        "modifier.mine",
        (processor,),
    )


def test_a_subclass_has_what_all_its_bases_give_it() -> None:
    class Listed:
        names: ClassVar[list[str]] = []

        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            cls.names.append(cls.__name__)

    class Mine(LegacyModifier, Listed):
        name, processors = "mine", (Processor("callable", last),)

    assert Listed.names == ["Mine"]
    options: dict[str, Any] = {}
    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)
    modifier = Mine(options, context)
    assert (modifier.options, modifier.context) == (options, context)


def test_extra_args_are_for_processors_of_vllm() -> None:
    with pytest.raises(InvalidRequest, match="no processor of 'mine' reads extra_args") as caught:
        Host(subclass(Processor("callable", last))).start(extra_args={"a": 1})
    assert caught.value.field == "modifiers.mine.extra_args"
    assert Host(subclass(Processor("vllm", PerRequest))).start(extra_args={"a": 1}) is not None


def test_a_processor_of_vllm_may_refuse_a_request() -> None:
    with pytest.raises(InvalidRequest, match="token 0 is taken") as caught:
        Host(subclass(Processor("vllm", PerRequest))).start(extra_args={"token": 0})
    assert caught.value.field == "modifiers.mine.extra_args"
    assert Host(subclass(Processor("vllm", Free))).start(extra_args={"token": 0}) is not None


def test_a_sequence_has_one_key_however_often_it_is_started() -> None:
    host = Host(remembering())
    first, second = host.start("a", 0), host.start("a", 1)
    again = host.start("a", 0)
    payload = host.prepare(first, again, second)
    key, same, other = payload.arrays["key"].tolist()
    assert key == same != other
    assert payload.shared["live"].tolist() == [key, other]
    assert min(key, other) > 1, "it would be as likely in a process that takes the place of this one"
    host.modifier.release(first)
    assert host.prepare(again).shared["live"].tolist() == [key, other]
    host.modifier.release(again)
    assert host.prepare(second).shared["live"].tolist() == [other]
    later = host.prepare(host.start("a", 0))
    assert later.arrays["key"].tolist() not in ([key], [other])
    assert Host(remembering()).start().key not in (key, other)
    host.modifier.release(None)


def test_what_is_shared_has_no_key() -> None:
    host = Host(subclass(Processor("callable", last)))
    state = host.start()
    payload = host.prepare(state)
    assert (payload.arrays["key"].tolist(), payload.shared["live"].tolist()) == ([-1], [])
    host.modifier.release(state)


def test_parameters_go_along_until_the_first_token() -> None:
    host = Host(subclass(Processor("vllm", PerRequest)))
    short, long = host.start("a", extra_args={"token": 5}), host.start("b", extra_args={"token": 5, "more": "x" * 40})
    sent = [bytes(row).rstrip(b"\0") for row in host.prepare(short, long).arrays["params"]]
    assert [json.loads(text)["extra_args"].get("more", "") for text in sent] == ["", "x" * 40]
    host.step(short, long)
    assert host.prepare(short, long).arrays["params"].shape == (2, 0)


def test_a_row_has_the_tokens_before_it() -> None:
    host = Host(subclass(Processor("callable", last)))
    one, other = host.start("a"), host.start("b", prompt=(3,))
    host.modifier.accept(one, (4, 5), None)
    payload = host.prepare(None, one, other, drafts=[[], [6, 7], []])
    assert payload.rows.tolist() == [1, 2, 3, 4]
    assert payload.arrays["num_tokens"].tolist() == [4, 5, 6, 1]
    assert payload.arrays["num_prompt"].tolist() == [2, 2, 2, 1]
    pasts = [ids[:n] for ids, n in zip(payload.arrays["token_ids"].tolist(), [4, 5, 6, 1], strict=True)]
    assert pasts == [[1, 2, 4, 5], [1, 2, 4, 5, 6], [1, 2, 4, 5, 6, 7], [3]]
    assert host.apply(payload).argmax(dim=1).tolist() == [5, 6, 7, 3]


@pytest.mark.parametrize("drafts", [[3], [3, 4]])
def test_what_remembers_gets_no_drafts(drafts: list[int]) -> None:
    host, shared = Host(remembering()), Host(subclass(Processor("callable", last)))
    state = host.start()
    assert host.modifier.validate(state, drafts) == 0
    assert shared.modifier.validate(shared.start(), drafts) == len(drafts)
    assert len(host.prepare(state, drafts=[[]])) == 1
    with pytest.raises(UnsupportedCapability, match="'mine' runs processors that keep state per sequence"):
        host.prepare(state, drafts=[drafts])


def test_what_remembers_is_not_forked() -> None:
    host, shared = Host(remembering()), Host(subclass(Processor("callable", last)))
    with pytest.raises(UnsupportedCapability, match="refuses to fork"):
        host.modifier.fork(host.start())
    parent = shared.start()
    fork = shared.modifier.fork(parent)
    shared.modifier.accept(fork, (9,), None)
    assert shared.step(parent, fork) == [2, 9]


def make_params(**given: Any) -> VllmParams:
    return VllmParams.of(SamplingParams(**given), VOCABULARY, {"a": [1]}, "somewhere")


def test_parameters_are_those_that_vllm_has_too() -> None:
    params = make_params(
        temperature=0.5, max_tokens=7, stop_token_ids=(3,), stop=("x",), logit_bias={4: -np.inf}, top_k=5
    )
    assert (params.extra_args, params.temperature, params.max_tokens) == ({"a": [1]}, 0.5, 7)
    assert (params.stop_token_ids, params.all_stop_token_ids) == ([3], {3, WIDTH - 1})
    assert (params.eos_token_id, params.n, params.stop) == (WIDTH - 1, 1, ["x"])
    assert (params.logit_bias, params.structured_outputs, params.sampling_type) == ({4: -np.inf}, None, 1)
    assert VllmParams.from_json(params.to_json()) == params == params.clone()
    assert (make_params(temperature=0.0, top_k=5).top_k, make_params(temperature=0.0).sampling_type) == (0, 0)
    assert (make_params(ignore_eos=True).eos_token_id, make_params(seed=4, temperature=1.0).sampling_type) == (None, 2)
    with pytest.raises(AttributeError, match=r"top_k, top_p of the sampling parameters, not 'n_beams'"):
        _ = params.n_beams
    with pytest.raises(InvalidRequest, match="extra_args must be JSON") as caught:
        VllmParams.of(SamplingParams(), VOCABULARY, {"a": object()}, "somewhere")
    assert caught.value.field == "somewhere"


READERS: dict[str, Callable[[Any, str], Any]] = {
    "plainly": getattr,
    "with a default": lambda params, name: getattr(params, name, None),
    "by hasattr": hasattr,
}


def reader(when: str, how: str, batch: bool) -> type:
    """Return a processor that reads an attribute when it is made for a request, or in its first call."""
    read = READERS[how]

    class Adapter(PerRequest):
        validate_params: Any = None

        def new_req_logits_processor(self, params: Any) -> Any:
            name = params.extra_args["name"]
            if when == "made":
                read(params, name)

            def call(output: list[int], logits: Tensor) -> Tensor:
                read(params, name)
                return logits

            return call

    class Batch(BatchLevel):
        def update_state(self, update: Any) -> None:
            super().update_state(update)
            if when == "made":
                read(self.rows[0][0], self.rows[0][0].extra_args["name"])

        def apply(self, logits: Tensor) -> Tensor:
            read(self.rows[0][0], self.rows[0][0].extra_args["name"])
            return logits

    return Batch if batch else Adapter


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("when", ["made", "called"])
def test_what_a_processor_reads_is_there_or_refused_at_admission(when: str, how: str, batch: bool) -> None:
    host = Host(subclass(Processor("vllm", reader(when, how, batch))))

    def admit(name: str, **given: Any) -> None:
        wanted = SamplingParams(modifiers={"mine": {"extra_args": {"name": name}}}, **given)
        request = Request(request_id=name, prompt_token_ids=PROMPT, params=wanted)
        assert host.modifier.compile_key(request) is not None
        host.modifier.compile(request, None)
        host.step(host.start(name, extra_args={"name": name}))

    for name in ("all_stop_token_ids", "eos_token_id", "temperature", "structured_outputs"):
        admit(name)
    for name in sorted(LACKING - {"structured_outputs"}):
        with pytest.raises(UnsupportedCapability, match=rf"reads params\.{name}, which guideway does not") as caught:
            admit(name)
        assert caught.value.field == "modifiers.mine"
    with pytest.raises(UnsupportedCapability, match=r"reads params\.structured_outputs"):
        admit("structured_outputs", constraint=Regex("x"))


def test_what_fails_in_the_trial_for_another_reason_is_no_refusal() -> None:
    host = Host(subclass(Processor("vllm", BatchLevel)))  # it needs the name of a token
    request = Request(request_id="a", prompt_token_ids=PROMPT, params=SamplingParams(modifiers={"mine": {}}))
    host.modifier.compile(request, None)


def test_a_validation_that_reads_what_is_not_there_refuses() -> None:
    class Validating(PerRequest):
        @classmethod
        def validate_params(cls, params: Any) -> None:
            params.bad_words.clear()

    with pytest.raises(UnsupportedCapability, match=r"Validating reads params\.bad_words"):
        Host(subclass(Processor("vllm", Validating))).start()


# The worker's half


def test_a_processor_that_remembers_is_called_once_for_each_token() -> None:
    host = Host(remembering())
    one, other = host.start("a"), host.start("b", prompt=(3,))
    assert host.step(one) == [4]
    payload = host.prepare(one, other)
    for _ in range(3):
        assert host.apply(payload).argmax(dim=1).tolist() == [5, 4]
    assert host.step(one, other) == [5, 4]
    assert host.step(one) == [6]


def test_a_failure_is_repeated_too() -> None:
    host = Host(remembering(first=8))
    state = host.start()
    for _ in range(3):
        with pytest.raises(ProcessorFailed, match=r"Count raised RuntimeError: nine"):
            host.apply(host.prepare(state))


def test_after_an_interrupt_nothing_is_known() -> None:
    host = Host(remembering(first=11))
    state = host.start()
    with pytest.raises(KeyboardInterrupt):
        host.apply(host.prepare(state))
    with pytest.raises(ProcessorFailed, match="a call was interrupted"):
        host.apply(host.prepare(state))


@pytest.mark.parametrize("past", [[1], [1, 9], [1, 2, 4, 5], [1, 9, 4]])
def test_what_cannot_come_next_is_refused(past: list[int]) -> None:
    host = Host(remembering())
    state = host.start()
    host.step(state)
    payload = host.prepare(state)
    given = {"token_ids": np.array([past], dtype=np.int32), "num_tokens": np.array([len(past)], dtype=np.int32)}
    with pytest.raises(ProcessorFailed, match=f"must hear of 3 tokens next, not of {len(past)}: what they remember"):
        host.apply(Payload(payload.rows, {**payload.arrays, **given}, payload.shared))
    assert host.step(state) == [5]


def test_the_worker_forgets_who_has_ended() -> None:
    host = Host(remembering())
    one, other = host.start("a"), host.start("b")
    host.step(one, other)
    assert set(host.transform._sequences) == {one.key, other.key}
    host.modifier.release(one)
    host.step(other)
    assert set(host.transform._sequences) == {other.key}


def test_a_lost_worker_is_told_of() -> None:
    host = Host(remembering())
    state = host.start()
    host.step(state)
    host.transform = host.worker()
    with pytest.raises(ProcessorFailed, match="were lost with the worker"):
        host.step(state)
    assert host.step(host.start("b")) == [4]


def test_what_was_forbidden_stays_so() -> None:
    logits = torch.zeros(8, WIDTH)
    logits[0, 2] = -torch.inf
    host = Host(subclass(Processor("callable", last)))
    with pytest.raises(ConformanceError, match="allowed a token that was forbidden before it"):
        host.apply(host.prepare(host.start()), logits)


def test_a_callable_gets_the_prompt_or_not() -> None:
    for prompt, found in ((True, [2, 2, 2]), (False, [0, 0, 0])):
        host = Host(subclass(Processor("callable", last, prompt=prompt)))
        state = host.start()
        assert [host.step(state)[0] for _ in range(3)] == found


def test_processors_act_in_order_on_a_copy_of_the_past_each() -> None:
    def meddles(token_ids: list[int], logits: Tensor) -> Tensor:
        token_ids.clear()
        return raising(7, logits)

    host = Host(subclass(Processor("callable", meddles), Processor("callable", last)))
    assert (host.apply(host.prepare(host.start()))[0] == 50.0).nonzero().flatten().tolist() == [2, 7]


@pytest.mark.parametrize("per_sequence", [False, True])
@pytest.mark.parametrize(
    ("kind", "returns", "said"),
    [
        ("callable", lambda _: None, "it returned a NoneType"),
        ("callable", lambda row: row[:-1], "it returned a Tensor of torch.float32 and shape [15]"),
        ("callable", lambda row: row.double(), "it returned a Tensor of torch.float64 and shape [16]"),
        ("callable", lambda row: row.numpy(), "it returned a ndarray of float32 and shape [16]"),
        ("callable", lambda row: row + torch.nan, "returned NaN or +inf"),
        ("callable", lambda row: row + torch.inf, "returned NaN or +inf"),
        ("transformers", lambda _: None, "it returned a NoneType"),
        ("transformers", lambda scores: scores.repeat(2, 1), "of torch.float32 and shape [2, 16]"),
        ("transformers", lambda scores: scores.numpy(), "it returned a ndarray of float32 and shape [1, 16]"),
    ],
)
def test_what_is_no_row_of_logits_is_refused(kind: Any, returns: Any, said: str, per_sequence: bool) -> None:
    def odd(token_ids: Any, logits: Tensor) -> Any:
        return returns(logits)

    target = partial(lambda: odd) if per_sequence else odd
    host = Host(subclass(Processor(kind, target, per_sequence=per_sequence)))
    state = host.start()
    with pytest.raises(ConformanceError) as caught:
        host.apply(host.prepare(state))
    assert said in str(caught.value)
    if "returned NaN" not in said:
        assert "must return logits, a Tensor of torch.float32 and shape [16]" in str(caught.value)


def test_a_shared_processor_that_remembers_is_never_trusted_again() -> None:
    host = Host(subclass(Processor("callable", Count())))
    state = host.start()
    host.apply(host.prepare(state))
    for _ in range(2):
        with pytest.raises(ConformanceError, match=r"Count keeps state between calls \('next' changed\)"):
            host.apply(host.prepare(state))


def test_a_factory_is_called_for_each_sequence_with_its_keywords() -> None:
    host = Host(remembering(first=6))
    one, other = host.start("a"), host.start("b")
    assert [host.step(one), host.step(one, other)] == [[6], [7, 6]]
    failing = Host(remembering(no_such=1))
    with pytest.raises(ProcessorFailed, match="Count raised TypeError when it was made for a sequence"):
        failing.step(failing.start())


@pytest.mark.parametrize("made", [False, True])
def test_processors_of_vllm_are_made_for_each_request_that_uses_them(made: bool, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "vllm.config", None)
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8))
    host = Host(subclass(Processor("vllm", PerRequest(config, torch.device("cpu"), True) if made else PerRequest)))
    assert PerRequest.made == ((8, torch.device("cpu"), True) if made else (1, torch.device("cpu"), False))
    short, whole = host.start("a", extra_args={"token": 5}), host.start("b", extra_args={"whole": True})
    free = host.start("c")
    assert [host.step(short, whole, free) for _ in range(2)] == [[5, 1, 0], [6, 3, 0]]


def test_batch_level_processors_of_vllm_have_each_sequence_alone(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "vllm.config", None)
    host = Host(subclass(Processor("vllm", BatchLevel)))
    one, other = (host.start(name, extra_args={"token": token}) for name, token in (("a", 3), ("b", 8)))
    assert [host.step(one), host.step(one, other), host.step(other)] == [[3], [4, 8], [9]]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Invariant, "Invariant says is_argmax_invariant, so vLLM applies it after the temperature"),
        (Demanding, "Demanding could not be made: AttributeError: outside of vLLM, guideway has no 'model_config'"),
    ],
)
def test_processors_of_vllm_that_cannot_run_here_are_refused(target: Any, said: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "vllm.config", None)
    with pytest.raises(InvalidConfiguration) as caught:
        Host(subclass(Processor("callable", last), Processor("vllm", target)))
    assert said in str(caught.value)
    assert caught.value.field == "modifier.mine.processors[1].target"
