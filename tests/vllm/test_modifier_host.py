"""Modifier hosts inside vLLM: tokens and reports are the same, even while hosts are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from guideway_hosts.modifier import HostedModifier

from tests.support.stages import everyday
from tests.vllm.probes_in_vllm import GUIDEWAY, core_of, installed, params, prompt
from tests.vllm.test_grammar_host import NGRAM
from tests.vllm.test_modifiers_in_vllm import PATTERN

MIXED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"chain": {}}, {}),
    ({"chain": {}, "hello": {"letter": "e"}}, {"regex": PATTERN}),
    ({"chain": {"strength": 3.0}, "finisher": {"after": 11}}, {}),
    ({"legacy": {}}, {"regex": PATTERN}),
    ({"green_list": {"key": 3, "delta": 4.0}}, {"temperature": 1.0, "seed": 3}),
    ({"gumbel": {}}, {"temperature": 1.0, "seed": 5}),
    ({"second": {"label": "hosts"}}, {"temperature": 1.8, "top_k": 40, "seed": 5}),
    ({"last_word_a": {"id": 300}}, {"max_tokens": 3, "ignore_eos": True}),
    ({}, {"regex": PATTERN}),
    ({}, {}),
]


@pytest.fixture(scope="module", autouse=True)
def probes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("installed")):
        yield


def generate(llm: Any, drafts: bool) -> list[Any]:
    found = []
    asked = []
    for modifiers, given in MIXED:
        drawn_by_guideway = modifiers.keys() & {"gumbel", "second"}
        if drafts and "temperature" in given and not drawn_by_guideway:  # vLLM draws these differently with drafts
            continue
        asked.append(params(modifiers, logprobs=None if drawn_by_guideway else 1, **({"max_tokens": 60} | given)))
    for output in llm.generate([prompt(i) for i in range(len(asked))], asked, use_tqdm=False):
        (one,) = output.outputs
        logprobs = [{token_id: entry.logprob for token_id, entry in row.items()} for row in one.logprobs or ()]
        found.append((list(one.token_ids), one.finish_reason, logprobs, output.kv_transfer_params))
    return found


@pytest.mark.parametrize("options", everyday([{}, {"speculative_config": NGRAM}], {}), ids=["plain", "drafts"])
def test_the_tokens_stay_also_while_hosts_are_killed(start: Callable[..., Any], options: dict[str, Any]) -> None:
    here = generate(start(GUIDEWAY, **options), bool(options))
    assert len({tuple(tokens) for tokens, *_ in here}) == len(here), "the modifiers act"
    llm = start(GUIDEWAY | {"modifier_host": "process"}, **options)
    homes = [m._room for m in core_of(llm).runtime._by_name.values() if isinstance(m, HostedModifier)]
    assert {home.name for home in homes} == set(GUIDEWAY["modifiers"])
    assert generate(llm, bool(options)) == here

    killed: set[int] = set()
    done = threading.Event()

    def kill() -> None:
        for _ in range(2):  # a third kill during the same sequence would end it
            for home in homes:
                if (living := home.host) is not None and living.alive:
                    os.kill(living.pid, signal.SIGKILL)
                    killed.add(living.pid)
            done.wait(0.5)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert generate(llm, bool(options)) == here
    finally:
        done.set()
        killer.join()
    assert killed
    assert generate(llm, bool(options)) == here
