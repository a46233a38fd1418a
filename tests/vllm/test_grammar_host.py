"""Grammar hosts inside vLLM: the tokens are the same, even while hosts are killed, and no host survives vLLM."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.processes import hosts_of, is_alive, role_of
from tests.vllm.conftest import end_all

GUIDEWAY = {"grammar": ["llguidance", "xgrammar"]}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = 'Anna Berg is 34 years old. {"name":"Bert","age":35}'


def generate(llm: Any) -> list[tuple[list[int], str]]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    constraints: list[dict[str, Any]] = [
        {"json": SCHEMA},
        {"json": SCHEMA, "extra": {"guideway.strategy": "xgrammar"}},
        {"regex": "[a-z]{3,20}"},
        {"choice": ["perhaps", "perhaps not"]},
        {"grammar": 'root ::= "ab" | "cd" "e"+ "f"'},
        {},
    ]
    params = []
    for constraint in constraints:
        extra = constraint.pop("extra", None)
        outputs = StructuredOutputsParams(**constraint) if constraint else None
        params.append(SamplingParams(temperature=0, max_tokens=60, structured_outputs=outputs, extra_args=extra))
    outputs = llm.generate([PROMPT] * len(params), params)
    return [(list(output.outputs[0].token_ids), output.outputs[0].finish_reason) for output in outputs]


def hosts() -> set[int]:
    """Return the hosts of this process, without what forks them."""
    return {pid for pid in hosts_of(os.getpid()) if role_of(pid) != "fork-server"}


@pytest.mark.slow
def test_the_tokens_stay_also_while_hosts_are_killed(start: Callable[..., Any]) -> None:
    before = hosts()  # as below
    here = generate(start(GUIDEWAY | {"grammar_host": "inline"}, speculative_config=NGRAM))
    assert {reason for _, reason in here[:5]} == {"stop"}
    assert hosts() <= before

    llm = start(GUIDEWAY | {"grammar_host": "process"}, speculative_config=NGRAM)
    assert generate(llm) == here
    assert hosts() - before

    killed: set[int] = set()
    done = threading.Event()

    def kill() -> None:
        for _ in range(2):  # a third kill in a row would end the request
            for pid in hosts():
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            done.wait(0.3)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert generate(llm) == here
    finally:
        done.set()
        killer.join()
    assert killed
    assert generate(llm) == here


def test_no_host_is_left_when_vllm_ends(start: Callable[..., Any], running: list[Any]) -> None:
    end_all(running)
    before = hosts()  # vLLM may still hold the front end of an earlier engine
    llm = start(GUIDEWAY | {"grammar_host": "process"})
    generate(llm)
    left = hosts() - before
    assert left
    del llm
    gc.unfreeze()  # vLLM freezes all objects after an engine has started, and its front end is in a reference cycle
    end_all(running)
    start(GUIDEWAY | {"grammar_host": "inline"})
    deadline = time.monotonic() + 10
    while living := {pid for pid in left if is_alive(pid)}:
        assert time.monotonic() < deadline, living
        time.sleep(0.05)
