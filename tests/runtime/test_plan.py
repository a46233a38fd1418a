"""`RuntimePlan`: runtimes built here and in another process give the same masks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from guideway.api import JsonSchema, ModifierContext, Request, SamplingParams, StepBatch
from guideway.errors import InvalidConfiguration, PluginLoadError
from guideway.plugins import Plugins
from guideway.plugins.hooks import Hook, Hooks
from guideway.runtime import RuntimePlan
from guideway.runtime.plan import placement
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.hostility import VOCABULARY, Ban

CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)
PLAN = RuntimePlan(context=CONTEXT, strategies=(ReferenceStrategy,), modifiers=(Ban,), model="m")
REQUEST = Request(
    request_id="r",
    prompt_token_ids=(1, 2),
    params=SamplingParams(constraint=JsonSchema({"type": "integer"}), modifiers={"ban": {"id": 3}}, seed=1),
)


def masks(plan: RuntimePlan) -> bytes:
    """Return the masks of its runtime at the start of a request."""
    runtime = plan.build()
    runtime.start(runtime.admit(REQUEST), 0)
    step = runtime.prepare(StepBatch.build([0], [2]))
    arrays = [(name, key, array) for name, p in sorted(step.payloads.items()) for key, array in p.arrays.items()]
    runtime.close()
    assert {name for name, _, _ in arrays} == {"grammar", "ban"}
    return b"".join(np.ascontiguousarray(array).tobytes() for _, _, array in arrays)


@pytest.mark.slow
def test_another_process_builds_the_same() -> None:
    program = (
        "import pickle, sys\n"
        "from tests.runtime.test_plan import masks\n"
        "sys.stdout.buffer.write(masks(pickle.load(sys.stdin.buffer)))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(PLAN), capture_output=True, check=True)
    assert done.stdout == masks(PLAN)


def test_what_cannot_be_built_is_named() -> None:
    class Broken(Ban):
        name = "broken"

        def __init__(self, *_: object) -> None:
            raise RuntimeError("boom")

    with pytest.raises(PluginLoadError, match=r"modifier\.broken failed while it was built: RuntimeError: boom"):
        RuntimePlan(context=CONTEXT, strategies=(), modifiers=(Broken,)).build()


def test_hooks_validate_what_it_admits() -> None:
    seen: list[str] = []
    hook = Hook("dist/hooks.seen", lambda request: seen.append(request.request_id), ("request",))
    runtime = PLAN.build(Hooks(validate_request=(hook,)))
    runtime.admit(REQUEST)
    runtime.close()
    assert seen == ["r"]


@pytest.mark.parametrize("field", ["grammar_host", "modifier_host"])
def test_without_hosts_everything_is_inline_unless_hosts_were_asked_for(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, strategies=(Plugins().load("grammar", "reference"),))
    monkeypatch.setitem(sys.modules, "guideway_hosts", None)  # as if it were not installed
    runtime = plan.build()
    assert "grammar_host=inline, because guideway-hosts is not installed" in placement("auto", runtime)
    assert not runtime.foresees
    assert runtime.checker.judge(JsonSchema({"type": "integer"}), "9" * 5000, enforces_formats=True).result(60) is None
    assert runtime.checker.judge(JsonSchema({"type": "integer"}), "9.5", enforces_formats=True).result(60) is False
    runtime.close()
    with pytest.raises(InvalidConfiguration, match=f"{field} is 'process', but.*pip install") as refusal:
        replace(plan, **{field: "process"}).build()
    assert refusal.value.field == field
