"""Hooks and modifiers in the engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pluggy
import pytest
from engine_support.prompts import PERSON, person
from guideway import (
    Engine,
    EngineConfig,
    FinishReason,
    GenerationResult,
    JsonSchema,
    SamplingParams,
)
from guideway.api import (
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    PluginLoadError,
    Stage,
    hookimpl,
)
from guideway.plugins import Hook
from guideway.plugins.selection import PluginSettings

from tests.support.distributions import install
from tests.support.probes import LastWord
from tests.support.stages import everyday


class Observer:
    """A hook that validates, records, and sometimes raises."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    @hookimpl
    def guideway_validate_request(self, request: Any) -> None:
        if request.params.max_tokens == 13:
            raise InvalidRequest("13 tokens are unlucky", field="max_tokens")

    @hookimpl
    def guideway_request_started(self, request: Any) -> None:
        self.events.append(("started", request.request_id))
        raise RuntimeError("observers may break")

    @hookimpl
    def guideway_request_finished(self, request: Any, result: GenerationResult) -> None:
        self.events.append((str(result.finish_reason), request.request_id))


observer = Observer()


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the probe modifiers and `observer`."""
    names = ("green_list", "gumbel", "guidance", "aligned", "last_word_a", "last_word_b")
    entries = {f"modifier.{name}": "tests.support.probes" for name in names}
    install(tmp_path, "probes", entries | {"hooks.observer": "test_engine_plugins:observer"})
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("probes")
def test_validators_and_observers_hear_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    from test_engine_plugins import observer  # the instance that the entry point names

    settings = PluginSettings(enable=("observer",))
    with Engine(EngineConfig(model="demo", plugins=settings)) as e:
        good, refused = e.generate([person(0)] * 2, [SamplingParams(max_tokens=3), SamplingParams(max_tokens=13)])
    assert refused.finish_reason is FinishReason.REFUSED
    assert str(refused.error) == "13 tokens are unlucky"
    assert observer.events == [("started", good.request_id), ("length", good.request_id)]
    assert "probes/hooks.observer failed" in caplog.text


@pytest.mark.usefixtures("probes")
def test_no_hook_is_called_while_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither pluggy's nor guideway's own hook calls happen between the start of a request and its end."""

    def refuse(self: Any, **_: Any) -> None:
        raise AssertionError("a hook was called during decoding")

    settings = PluginSettings(enable=("observer",))
    config = EngineConfig(model="demo", grammar=("llguidance",), modifiers=("green_list",), plugins=settings)
    wanted = SamplingParams(max_tokens=30, modifiers={"green_list": {"key": 1, "delta": 1.0}})
    with Engine(config) as e:
        constrained = e.submit(person(1), SamplingParams(max_tokens=60, constraint=JsonSchema(PERSON)))
        generations = [constrained, e.submit(person(2), wanted)]
        with monkeypatch.context() as patched:  # only here, because pytest calls hooks of its own
            patched.setattr(pluggy.HookCaller, "__call__", refuse)
            patched.setattr(Hook, "__call__", refuse)
            for _ in range(8):
                e.step()
            assert all(generation.result is None for generation in generations)
            with pytest.raises(InvalidRequest, match="during decoding"):  # the validator is an enabled hook
                e.submit(person(3))
        for generation in generations:
            assert generation.wait().error is None


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("num_speculative_tokens", everyday([0, 3], 3))
def test_modifiers_of_every_stage_run_in_the_engine(num_speculative_tokens: int) -> None:
    config = EngineConfig(
        model="demo",
        grammar=("llguidance",),
        modifiers=("green_list", "gumbel", "guidance", "aligned"),
        max_num_seqs=4,
        num_speculative_tokens=num_speculative_tokens,
    )
    guided = {"guidance": {"scale": 1.0, "negative_prompt": [4, 100, 200]}}
    strong = {"guidance": {"scale": 40.0, "negative_prompt": [4, 100, 200]}}
    wanted: list[dict[str, Any]] = [
        {},
        guided,
        strong,
        {"green_list": {"key": 1, "delta": 100.0}},
        {"gumbel": {}},
        {"aligned": {}},
        guided | {"gumbel": {}, "aligned": {}},
    ]
    params = [
        SamplingParams(max_tokens=90, constraint=JsonSchema(PERSON), modifiers=m, temperature=t, seed=1)
        for m, t in zip(wanted, [0, 0, 0, 0, 1, 0, 1], strict=True)
    ]
    with Engine(config) as e:
        results = e.generate([person(1)] * len(wanted), params)
    for result in results:
        assert result.error is None, result.error
        if result.finish_reason is FinishReason.STOP:
            jsonschema.validate(json.loads(result.text), PERSON)
    plain, neutral, guided_strongly, marked = results[:4]
    assert neutral.token_ids == plain.token_ids  # scale 1 means no guidance
    assert guided_strongly.token_ids != plain.token_ids
    assert marked.token_ids != plain.token_ids


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("executor", ["local", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize("names", [("last_word_a", "last_word_b"), ("last_word_b", "last_word_a")])
def test_modifiers_of_one_stage_act_in_the_order_of_the_configuration(names: tuple[str, str], executor: str) -> None:
    LastWord.heard.clear()
    wanted = {"last_word_a": {"id": 300}, "last_word_b": {"id": 301}}
    with Engine(EngineConfig(model="demo", modifiers=names, executor=executor)) as e:
        (result,) = e.generate([person(0)], SamplingParams(max_tokens=2, ignore_eos=True, modifiers=wanted))
    assert result.token_ids == (wanted[names[1]]["id"],) * 2, "the one listed last acts last, beside the model"
    assert LastWord.heard == [*names] * 2, "and hears last, beside the scheduler"


@pytest.mark.usefixtures("probes")
def test_what_modifiers_report_is_in_each_output() -> None:
    def asking(token_id: int, **more: Any) -> SamplingParams:
        return SamplingParams(ignore_eos=True, modifiers={"last_word_a": {"id": token_id}}, **{"max_tokens": 3, **more})

    with Engine(EngineConfig(model="demo", modifiers=("last_word_a",))) as e:
        cut, failed, plain = e.generate(
            [person(0)] * 3, [asking(300, n=2, temperature=1.0), asking(302), SamplingParams(max_tokens=3)]
        )
        stopped = e.generate([person(0)], asking(300, max_tokens=9, stop_token_ids=(300,)))[0]
        given_up = e.submit(person(0), asking(302, max_tokens=30))
        e.step()
        given_up.abort()
        aborted = given_up.wait()
    assert [output.reports for output in cut.outputs] == [{"last_word_a": {"said": 300}}] * 2
    assert [output.finish_reason for output in cut.outputs] == [FinishReason.LENGTH] * 2
    assert (stopped.finish_reason, stopped.reports) == (FinishReason.STOP, {"last_word_a": {"said": 300}})
    assert failed.finish_reason is FinishReason.INTERNAL_ERROR
    assert str(failed.error) == "modifier.last_word_a failed in report: RuntimeError: nothing to tell"
    assert failed.token_ids == (302,) * 3, "what was generated is there all the same"
    assert (plain.error, plain.reports) == (None, {})
    assert (aborted.finish_reason, aborted.reports) == (FinishReason.ABORT, {})


class Unbuildable(LogitTransform):
    def __init__(self, context: Any, options: Any) -> None:
        raise KeyError("weights")

    def apply(self, logits: Any, payload: Any, step: Any) -> Any:
        return logits


class Broken(LogitModifier[bool]):
    """A modifier whose transform cannot be built in the worker."""

    contract = "1.0"
    name, stage, transform = "broken", Stage.PRE_WARP, Unbuildable

    def start(self, request: Any, sequence: Any, compiled: Any) -> None:
        return None

    def prepare(self, batch: Any, states: Any) -> None:
        return None


class BrokenPlugin:
    @hookimpl
    def guideway_logit_modifier(self) -> type[Broken]:
        return Broken


broken_plugin = BrokenPlugin()


def test_a_transform_that_cannot_be_built_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "broken", {"modifier.broken": "test_engine_plugins:broken_plugin"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginLoadError, match=r"modifier\.broken failed.*KeyError: 'weights'") as caught:
        Engine(EngineConfig(model="demo", modifiers=("broken",)))
    assert caught.value.plugin == "modifier.broken"


@pytest.mark.slow
def test_the_built_in_devices_agree() -> None:
    params = [
        SamplingParams(max_tokens=60, constraint=c, temperature=t, seed=2)
        for c, t in ((JsonSchema(PERSON), 0.0), (JsonSchema(PERSON), 0.8), (None, 0.0), (None, 8.0))
    ]
    tokens = {}
    for backend in ("numpy", "torch"):
        with Engine(EngineConfig(model="demo", grammar=("llguidance",), device_backend=backend)) as e:
            results = e.generate([person(1)] * 4, params)
        assert [result.error for result in results] == [None] * 4
        assert json.loads(results[0].text) == {"name": "Zoë Garcia", "age": 21, "married": True}
        tokens[backend] = [result.token_ids for result in results]
    assert tokens["numpy"] == tokens["torch"]
    assert tokens["numpy"][2] != tokens["numpy"][3]  # both were sampled


def test_one_line_is_logged_at_the_start_and_certification_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(
        model="demo",
        grammar=("xgrammar", "llguidance"),
        modifiers=("hello",),
        plugins=PluginSettings(enable=("tenant_policy",)),
    )
    with caplog.at_level("INFO", logger="guideway_engine"), Engine(config):
        pass
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("INFO", "guideway_engine")
    assert re.fullmatch(
        r"guideway \S+ in its own engine: "
        r"strategies guideway-llguidance/grammar\.llguidance \S+, guideway-xgrammar/grammar\.xgrammar \S+; "
        r"modifiers guideway-hello/modifier\.hello \S+; worker mixins none; "
        r"hooks guideway-tenant-policy/hooks\.tenant_policy \S+; device guideway/device\.torch \S+; "
        r"grammar_host=process; fingerprint [0-9a-f]{64}",
        record.message,
    )
