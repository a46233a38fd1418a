"""vLLM's own backends as guideway's strategies: several in one batch, each request with the first that can serve it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EVEN = {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000}
SHORT = {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}
PROMPT = "Anna Berg is 34 years old."


def params(max_tokens: int = 80, *, extra: dict[str, Any] | None = None, **constraint: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    outputs = StructuredOutputsParams(**constraint) if constraint else None
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=outputs, extra_args=extra)


def generate(llm: Any, wanted: list[Any]) -> tuple[list[str], list[str | None]]:
    """The texts, and the strategies that served them."""
    outputs = llm.generate([PROMPT] * len(wanted), wanted)
    told = [output.kv_transfer_params for output in outputs]
    return [output.outputs[0].text for output in outputs], [
        None if t is None else t["guideway"]["strategy"] for t in told
    ]


def test_a_batch_is_served_by_several_backends_and_none_is_latched(start: Callable[..., Any]) -> None:
    llm = start({})
    wanted = [
        params(json=SCHEMA),
        params(json=EVEN),
        params(json=SHORT),
        params(json=SCHEMA),
        params(regex="[a-z]{3}"),
        params(choice=["yes", "no"]),
        params(grammar='start: "ab" | "cd"'),
        params(grammar='root ::= "ab" | "cd"'),
        params(json_object=True, max_tokens=24),
        params(max_tokens=6),
        *(
            params(json=SCHEMA, extra={"guideway.strategy": f"vllm_{name}"})
            for name in ("xgrammar", "guidance", "outlines")
        ),
    ]
    texts, served = generate(llm, wanted)
    assert served == [
        "vllm_xgrammar",
        "vllm_guidance",
        "vllm_guidance",
        *["vllm_xgrammar"] * 6,
        None,
        "vllm_xgrammar",
        "vllm_guidance",
        "vllm_outlines",
    ]
    for text in (texts[0], texts[3], *texts[10:]):
        value = json.loads(text)
        assert set(value) == {"name", "age"}
        assert len(value["name"]) <= 12
    assert json.loads(texts[1]) % 7 == 0
    assert re.fullmatch('"[a-z]{1,3}"', texts[2])
    assert re.fullmatch("[a-z]{3}", texts[4])
    assert texts[5] in ("yes", "no")
    assert texts[6] in ("ab", "cd")
    assert texts[7] in ("ab", "cd")
    assert texts[8].lstrip().startswith("{")
