"""Isolated tenants: they share neither vLLM's prefix cache nor guideway's grammar cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_isolated_tenants_share_no_prefixes(start: Callable[..., Any]) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = start({"grammar": ["llguidance"], "isolate_tenants": True}, block_size=32)
    prompt = "Anna Berg is 34 years old, lives in Kiel and likes long walks by the sea. " * 4

    def num_cached(tenant: str) -> int:
        params = SamplingParams(
            temperature=0,
            max_tokens=4,
            structured_outputs=StructuredOutputsParams(regex="[a-z]{3}"),
            extra_args={"guideway.tenant": tenant},
        )
        (output,) = llm.generate([prompt], params)
        return int(output.num_cached_tokens or 0)

    assert num_cached("a") == 0
    assert num_cached("a") >= 32
    assert num_cached("b") == 0
    assert num_cached("") == 0
