"""What a front end has checked is not checked again in the engine core, and nobody else can say that it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from guideway.runtime import runtime as runtime_module
from guideway.runtime.constraints import candidates

from tests.vllm.conftest import USES_V2
from tests.vllm.probes_in_vllm import core_of
from tests.vllm.test_steady_in_vllm import INLINE

pytestmark = pytest.mark.skipif(USES_V2, reason="the guest is the same")

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", 1.0]}}, "required": ["a"], "additionalProperties": False}


def params(schema: Any, mark: str | None = None, **extra: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    outputs = StructuredOutputsParams(json=schema)
    outputs._backend = mark
    return SamplingParams(temperature=0, max_tokens=30, structured_outputs=outputs, extra_args=extra or None)


@pytest.fixture
def llm(start: Callable[..., Any]) -> Any:
    return start(INLINE)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that runtimes check, in the front end and in the core."""
    found: list[Any] = []
    validate = runtime_module.validate_request

    def counted(request: Any, *args: Any) -> Any:
        found.append(request)
        return validate(request, *args)

    monkeypatch.setattr(runtime_module, "validate_request", counted)
    return found


@pytest.mark.parametrize("given", [SCHEMA, json.dumps(SCHEMA, indent=2)])
def test_a_request_is_checked_once(llm: Any, checked: list[Any], given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, core, arrived = params(given), core_of(llm), []
    admit = core.admit

    def seen(request: Any, *args: Any) -> Any:
        arrived.append(request.sampling_params.structured_outputs.json)
        return admit(request, *args)

    choose, chosen = candidates.choose, []
    monkeypatch.setattr(candidates, "choose", lambda *args: (chosen.append(args), choose(*args))[1])
    monkeypatch.setattr(core, "admit", seen)
    (once,) = llm.generate(["x"], asked, use_tqdm=False)
    assert len(checked) == 1
    assert len(chosen) <= 1, "front end and core together"
    assert type(arrived[0]) is str, "vLLM sends no subclass to another process"
    assert asked.structured_outputs.json == given, "the caller's own"
    # without the mark the core checks it itself
    monkeypatch.setattr(core, "_verdict", lambda _: None)
    (twice,) = llm.generate(["x"], params(given), use_tqdm=False)
    assert len(checked) == 3
    assert once.outputs[0].token_ids == twice.outputs[0].token_ids
    assert json.loads(once.outputs[0].text)["a"] in ("b", 1)


def test_a_verdict_from_outside_is_refused(llm: Any, checked: list[Any]) -> None:
    """A mark that comes with a request does not keep the front end from checking it; no text becomes one."""
    from pydantic import TypeAdapter, ValidationError
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    mark = f"guideway.{core_of(llm).plan.fingerprint} [[], {{}}]"
    with pytest.raises(VLLMValidationError, match="strin"):
        llm.generate(["x"], params({"type": "strin"}, mark), use_tqdm=False)
    assert len(checked) == 1
    for key in ("guideway.verdict", "guideway._backend"):
        with pytest.raises(VLLMValidationError, match="unknown key"):
            llm.generate(["x"], params(SCHEMA, **{key: mark}), use_tqdm=False)
    try:
        read = TypeAdapter(StructuredOutputsParams).validate_json(json.dumps({"json": SCHEMA, "_backend": mark}))
    except ValidationError:
        return
    assert read._backend is None


def test_a_front_end_with_other_plugins_is_not_believed(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.llm_engine.input_processor.guideway, "_fingerprint", "other")
    (output,) = llm.generate(["x"], params(SCHEMA), use_tqdm=False)
    assert output.outputs[0].finish_reason == "error"
    assert "do not run the same plugins" in output.kv_transfer_params["guideway"]["error"]


def test_a_trial_without_modifiers_starts_no_matcher(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What refuses a limit is the search for the shortest output, not a start."""
    from vllm.exceptions import VLLMValidationError

    front_end, started = llm.llm_engine.input_processor.guideway, []
    start = front_end._runtime.start
    monkeypatch.setattr(front_end._runtime, "start", lambda *args: (started.append(args), start(*args)))
    asked = params(SCHEMA, **{"guideway.short_budget": "refuse"})
    (output,) = llm.generate(["x"], asked, use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"
    asked.max_tokens = 2
    with pytest.raises(VLLMValidationError, match="into the 2 tokens that are left for it"):
        llm.generate(["x"], asked, use_tqdm=False)
    assert not started
