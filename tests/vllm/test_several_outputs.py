"""Reports of several outputs of one request, for which vLLM has one field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from guideway_vllm.answers import report_of, set_report

from tests.vllm.probes_in_vllm import check_nothing_left, params

pytestmark = pytest.mark.vllm

PROMPT = "Describe what you see."
DRAWN = {"temperature": 1.5, "max_tokens": 12, "regex": "([a-z]{1,4} ?){1,9}[.]"}
"""Some outputs end by themselves, and closing ends the others."""


def generate(llm: Any, wanted: Any) -> tuple[Any, dict[str, Any]]:
    (output,) = llm.generate([PROMPT], [wanted], use_tqdm=False)
    return output, output.kv_transfer_params["guideway"]


def test_each_is_told_of(start: Callable[..., Any]) -> None:
    llm = start({"grammar": ["llguidance"]})
    # vLLM adds the index of an output to the seed
    alone = [generate(llm, params(seed=7 + i, **DRAWN)) for i in range(8)]
    output, together = generate(llm, params(seed=7, n=8, **DRAWN))
    assert [one.text for one in output.outputs] == [single.outputs[0].text for single, _ in alone]
    each = together.pop("outputs")
    assert each == [of_one for _, of_one in alone]
    closed = [of_one.get("closed_early", False) for of_one in each]
    assert any(closed) and not all(closed), closed
    assert together == {"strategy": "llguidance", "closed_early": True}
    check_nothing_left(llm)


@pytest.mark.parametrize("n", [1, 2])
def test_what_is_told_before_the_end_changes_nothing(start: Callable[..., Any], n: int) -> None:
    """With stop strings the core reports on a request at every step, since vLLM may find its end in any."""
    llm = start({"grammar": ["llguidance"]})
    output, said = generate(llm, params(seed=7, n=n, temperature=1.0, max_tokens=8, regex="[a-c]{3,5}", stop=["z"]))
    assert [one.finish_reason for one in output.outputs] == ["stop"] * n
    assert said.pop("outputs", []) == ([] if n == 1 else [said] * n)
    assert said == {"strategy": "llguidance"}


def result(index: int, text: str, finish_reason: str | None, said: dict[str, Any] | None = None) -> Any:
    """Return one output of a stream."""
    from vllm.outputs import CompletionOutput, RequestOutput

    one = CompletionOutput(index, text, [1], None, None, finish_reason=finish_reason)
    if said is not None:
        set_report(one, said)
    field = None if said is None else {"guideway": said, "connector": index}
    return RequestOutput("x", PROMPT, [1], None, [one], finish_reason is not None, kv_transfer_params=field)


def test_results_that_become_one_keep_what_is_told() -> None:
    """Results are merged if a stream is read more slowly than it is written."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    waiting = result(0, "a", None)
    waiting.add(result(0, "b", "stop", {"closed_early": True, "unenforced": ["format"]}), aggregate=True)
    assert waiting.kv_transfer_params == {
        "connector": 0,
        "guideway": {"closed_early": True, "unenforced": ["format"]},
    }
    waiting.add(result(1, "c", None), aggregate=True)
    assert report_of(waiting.outputs[0]) == {"closed_early": True, "unenforced": ["format"]}
    waiting.add(result(1, "d", "error", {"error": "it failed", "unenforced": ["closing", "format"]}), aggregate=True)
    assert [one.text for one in waiting.outputs] == ["ab", "cd"]
    first, second = map(report_of, waiting.outputs)
    assert waiting.kv_transfer_params["guideway"] == {
        "error": "it failed",
        "closed_early": True,
        "unenforced": ["format", "closing"],
        "outputs": [first, second],
    }
