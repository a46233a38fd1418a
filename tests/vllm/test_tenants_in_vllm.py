"""Isolated tenants: they share neither vLLM's prefix cache nor guideway's grammar cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

TENANTS = {"grammar": ["llguidance"], "isolate_tenants": True}


def test_isolated_tenants_share_no_prefixes(start: Callable[..., Any]) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = start(TENANTS, block_size=32)
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


def test_a_server_sends_the_request_that_was_tried(start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants of a server are isolated too: what admission changes in a request reaches the engine core."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = start(TENANTS, block_size=32).llm_engine
    processor, sent, cloned = engine.input_processor, [], []

    async def send(request: Any, *_: Any) -> None:
        sent.append(request)

    async def tasks() -> tuple[str, ...]:
        return ("generate",)

    server = SimpleNamespace(
        errored=False,
        input_processor=processor,
        vllm_config=engine.vllm_config,
        model_config=engine.model_config,
        observability_config=engine.vllm_config.observability_config,
        get_supported_tasks=tasks,
        _run_output_handler=lambda: None,
        _add_request=send,
    )
    clone = SamplingParams.clone
    monkeypatch.setattr(SamplingParams, "clone", lambda params: (cloned.append(params), clone(params))[1])
    outputs = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}})
    params = SamplingParams(max_tokens=20, structured_outputs=outputs, extra_args={"guideway.tenant": "a"})
    prompt = {"type": "token", "prompt_token_ids": [1, 2, 3], "cache_salt": "own"}
    asyncio.run(AsyncLLM.add_request(server, "r", prompt, params))  # type: ignore[arg-type]
    (request,) = sent
    assert request.cache_salt == repr(("a", "own"))
    assert request.sampling_params.structured_outputs._backend.startswith("guideway.")
    assert len(cloned) == 1, "vLLM processes a request once"
