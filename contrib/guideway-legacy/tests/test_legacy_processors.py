"""The processors that an operator may write, the messages that refuse others, and batch-level ones of vLLM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from guideway.api import ConformanceError, InvalidConfiguration
from guideway_legacy import Processor
from guideway_legacy.batches import BatchOfOne, config_of_one
from guideway_legacy.calls import Past, checked
from guideway_legacy.processors import is_batch_level, make, processors_of, vllm_target
from torch import Tensor


def plain(token_ids: list[int], logits: Tensor) -> Tensor:
    return logits


def factory(**kwargs: Any) -> Any:
    return partial(plain, **kwargs)


class Called:
    def __init__(self, strength: int = 1) -> None:
        self.strength = strength

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        return logits


class PerRequest:
    def new_req_logits_processor(self, params: Any) -> None:
        return None


class Both(PerRequest):
    """Like a subclass of vLLM's AdapterLogitsProcessor, which has `update_state` for vLLM itself."""

    def update_state(self, update: Any) -> None:
        raise NotImplementedError


class BatchLevel:
    """Records the updates of its batch, and returns a given result."""

    def __init__(self, result: Callable[[Tensor], Any] = lambda logits: logits + 1) -> None:
        self.heard: list[Any] = []
        self.result = result

    def update_state(self, update: Any) -> None:
        self.heard.append(update)

    def apply(self, logits: Tensor) -> Any:
        return self.result(logits)


class OfV2:
    def add_request(self, slot: int, params: Any) -> bool:
        return False


def written(*processors: dict[str, Any]) -> tuple[Processor, ...]:
    return processors_of((), {"processors": list(processors)}, "here")


def refusal(call: Callable[[], Any]) -> tuple[str, str | None]:
    """Return the message of an error and the option that it names."""
    with pytest.raises(InvalidConfiguration) as caught:
        call()
    return str(caught.value), caught.value.field


def test_processors_are_declared_or_written() -> None:
    declared = Processor("callable", plain)
    assert processors_of([declared], {}, "here") == (declared,)
    keywords = {"kind": "callable", "target": "json:dumps", "kwargs": {"indent": 1}}
    assert written({**keywords, "per_sequence": True, "prompt": False}, {"kind": "vllm", "target": "a:b"}) == (
        Processor("callable", "json:dumps", {"indent": 1}, per_sequence=True, prompt=False),
        Processor("vllm", "a:b"),
    )
    text, _ = refusal(lambda: processors_of([declared], {"processors": []}, "here"))
    assert "unknown option 'processors'" in text
    assert refusal(lambda: written()) == ("here lists no processor", "here.processors")


@pytest.mark.parametrize(
    ("processor", "stateful"),
    [
        (Processor("callable", plain), False),
        (Processor("callable", factory, per_sequence=True), True),
        (Processor("transformers", plain), False),
        (Processor("vllm", PerRequest), True),
    ],
)
def test_what_has_one_for_each_sequence_may_remember(processor: Processor, stateful: bool) -> None:
    assert processor.stateful == stateful


def test_messages_name_a_processor_by_where_it_is() -> None:
    assert Processor("callable", "json:dumps").label == "json:dumps"
    assert Processor("callable", plain).label == f"{__name__}:plain"
    assert Processor("callable", Called).label == f"{__name__}:Called"
    assert Processor("callable", Called()).label == f"{__name__}:Called"


def test_prompt_false_is_for_callables() -> None:
    for kind in ("transformers", "vllm"):
        text, field = refusal(lambda kind=kind: written({"kind": kind, "target": "a:b", "prompt": False}))
        assert (text, field) == (f"prompt = false is for kind 'callable', not {kind!r}", "here.processors[0]")
        assert written({"kind": kind, "target": "a:b", "prompt": True})[0].prompt


def test_processors_of_vllm_take_no_keywords() -> None:
    text, field = refusal(lambda: written({"kind": "vllm", "target": "a:b", "kwargs": {}}))
    assert ("without kwargs" in text, field) == (True, "here.processors[0].kwargs")
    assert written({"kind": "callable", "target": "a:b", "kwargs": {}})[0].kwargs == {}


def test_classes_and_targets_with_keywords_are_called_to_make_one() -> None:
    assert make(Processor("callable", plain), "here") is plain
    assert make(Processor("callable", factory, {}), "here").keywords == {}
    assert make(Processor("callable", factory, {"a": 1}), "here").keywords == {"a": 1}
    assert make(Processor("callable", Called), "here").strength == 1
    assert make(Processor("callable", Called, {"strength": 2}), "here").strength == 2
    for kwargs in (None, {"strength": 2}):
        assert make(Processor("callable", Called, kwargs, per_sequence=True), "here") is Called
    called = Called()
    assert make(Processor("callable", called), "here") is called
    assert make(Processor("callable", called, per_sequence=True), "here") is called


@pytest.mark.parametrize(
    ("processor", "said", "field"),
    [
        (Processor("callable", "json"), "a target is 'module:attribute', not 'json'", "target"),
        (Processor("callable", "json:"), "a target is 'module:attribute', not 'json:'", "target"),
        (Processor("callable", "no_such_module:f"), "'no_such_module:f' cannot be imported: ModuleNotFound", "target"),
        (Processor("callable", "json:no_such"), "'json:no_such' cannot be imported: AttributeError", "target"),
        (Processor("callable", "json:decoder.no_such"), "cannot be imported: AttributeError", "target"),
        (Processor("callable", "json:__name__"), "json:__name__ is no callable but 'json'", "target"),
        (Processor("callable", Called, {"weight": 2}), "Called could not be made with {'weight': 2}", "kwargs"),
        (Processor("callable", OfV2), "is no callable", "target"),
    ],
)
def test_what_is_no_processor_is_refused(processor: Processor, said: str, field: str) -> None:
    text, where = refusal(lambda: make(processor, "here"))
    assert said in text
    assert where == f"here.{field}"


def test_interfaces_of_vllm() -> None:
    for target in (PerRequest, PerRequest(), Both, Both(), BatchLevel):
        assert vllm_target(Processor("vllm", target), "here") is target
        assert make(Processor("vllm", target), "here") is target
        assert is_batch_level(target) == (target is BatchLevel)
    assert is_batch_level(BatchLevel())
    assert not is_batch_level(OfV2)
    for target, said in (
        (BatchLevel(), "it is an object, and a batch-level processor is made anew for each sequence; name its class"),
        (OfV2, "--logits-processors"),
        (plain, "it has neither new_req_logits_processor nor update_state"),
    ):
        text, where = refusal(lambda target=target: vllm_target(Processor("vllm", target), "here"))
        assert said in text
        assert where == "here.target"


# Batches of one


def test_a_batch_of_one_is_told_of_as_vllm_tells() -> None:
    processor, row = BatchLevel(), torch.zeros(4)
    call = BatchOfOne(processor, "params")
    assert call(Past([1, 2], 2), row).tolist() == [1.0] * 4
    (update,) = processor.heard
    ((index, params, prompt, output),) = update.added
    assert (update.batch_size, update.removed, update.moved) == (1, (), ())
    assert (index, params, prompt, list(output)) == (0, "params", [1, 2], [])
    call(Past([1, 2, 7], 2), row)
    call(Past([1, 2, 7, 8], 2), row)
    assert processor.heard[1:] == [None, None]
    assert output == [7, 8], "the list that the processor was given grows"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda _: None, "it returned a NoneType"),
        (lambda logits: logits.repeat(2, 1), "and shape [2, 4]"),
        (lambda logits: logits[:, :2], "and shape [2]"),
    ],
)
def test_what_a_batch_of_one_may_not_return(result: Any, said: str) -> None:
    call = checked("it", BatchOfOne(BatchLevel(result), None))
    with pytest.raises(ConformanceError) as caught:
        call(Past([1], 1), torch.zeros(4))
    assert said in str(caught.value)


def test_outside_of_vllm_there_is_little_of_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm.config", raising=False)
    config = config_of_one()
    assert config.scheduler_config.max_num_seqs == 1
    with pytest.raises(AttributeError, match="no 'model_config' of vllm_config"):
        _ = config.model_config


@dataclass(frozen=True)
class Scheduler:
    max_num_seqs: int = 256
    policy: str = "fcfs"


@dataclass(frozen=True)
class Config:
    scheduler_config: Scheduler
    model_config: str = "model"


def test_inside_of_vllm_its_configuration_is_for_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[Any] = [Config(Scheduler())]
    module = SimpleNamespace(get_current_vllm_config_or_none=lambda: current[0])
    monkeypatch.setitem(sys.modules, "vllm.config", module)
    assert config_of_one() == Config(Scheduler(max_num_seqs=1))
    assert current[0] == Config(Scheduler()), "that of vLLM itself stays as it is"
    current[0] = None
    assert config_of_one().scheduler_config.max_num_seqs == 1
