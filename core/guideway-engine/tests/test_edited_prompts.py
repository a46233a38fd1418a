"""A modifier edits the prompt: the output begins with what it took off, and the text does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from guideway import AsyncEngine, Engine, EngineConfig, InvalidRequest, Regex, SamplingParams
from guideway.api import UnsupportedCapability
from guideway.errors import PluginError

from tests.support.stages import everyday

CUT = '''
from guideway import api

class Nothing(api.LogitTransform):
    def apply(self, logits, payload, step):
        return logits

class Cut(api.LogitModifier):
    """Takes `bytes` off the end of the prompt, in whole tokens."""

    contract, name, stage, transform, derived = "1.0", "cut", api.Stage.PRE_WARP, Nothing, True
    needs = frozenset({api.Need.EDIT_PROMPT})

    def edit_prompt(self, request):
        wish = request.params.modifiers[self.name]
        if "raw" in wish:
            return wish["raw"]
        ids, taken = list(request.prompt_token_ids), b""
        while len(taken) < wish["bytes"]:
            taken = self.context.vocabulary.tokens[ids.pop()] + taken
        return ids, taken

    def start(self, request, sequence, compiled):
        return True if self.name in request.params.modifiers else None

    def report(self, state):
        return {}

    def prepare(self, batch, states):
        return None

class Cut2(Cut):
    name = "cut2"
'''
PROMPT = "Is Zoë Garcia married?"


@pytest.fixture(scope="module")
def modifiers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("cut") / "cut.py"
    path.write_text(CUT, encoding="utf-8")
    return f"{path}:Cut", f"{path}:Cut2"


@pytest.fixture(scope="module")
def engine(modifiers: tuple[str, ...]) -> Iterator[Engine]:
    with Engine(
        EngineConfig(model="demo", modifiers=modifiers, grammar=("llguidance",), num_speculative_tokens=2)
    ) as built:
        yield built


def params(num_bytes: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, "modifiers": {"cut": {"bytes": num_bytes}}} | more)


@pytest.mark.parametrize("num_bytes", [1, 4, 9])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_the_output_begins_with_what_was_taken(engine: Engine, num_bytes: int, temperature: float) -> None:
    tokens = engine.vocabulary.tokens
    given = engine.generate([PROMPT], SamplingParams(max_tokens=1))[0].prompt_token_ids
    asked = params(num_bytes, temperature=temperature, seed=3, n=1 if temperature == 0 else 3, echo=False)
    (result,) = engine.generate([PROMPT], asked)
    assert result.error is None
    kept = len(result.prompt_token_ids)
    assert result.prompt_token_ids == given[:kept]
    taken = b"".join(tokens[i] for i in given[kept:])
    assert len(taken) >= num_bytes
    for output in result.outputs:
        written = b"".join(tokens[i] for i in output.token_ids)
        assert written.startswith(taken)
        assert output.text == written[len(taken) :].decode(errors="replace")
    assert result.reports.keys() == {"cut"}


def test_prompt_and_text_are_what_the_caller_reads(engine: Engine) -> None:
    ids = engine.generate([PROMPT], SamplingParams(max_tokens=1))[0].prompt_token_ids
    for prompt in (PROMPT, list(ids)):
        plain, echoed = engine.generate([prompt] * 2, [params(5), params(5, echo=True)])
        whole = b"".join(engine.vocabulary.tokens[i] for i in ids).decode() if prompt is not PROMPT else PROMPT
        assert echoed.text == whole + plain.text
    pieces = [chunk.text for chunk in engine.submit(PROMPT, params(5)).chunks()]
    assert "".join(pieces) == engine.generate([PROMPT], params(5))[0].text
    short = engine.generate([PROMPT], params(9, max_tokens=1))[0]
    assert (short.error, short.finish_reason) == (None, "length")


@pytest.mark.parametrize(
    "arguments",
    everyday(
        [{"modifier_host": "process"}, {"executor": "process"}, {"kv_cache_tokens": 96}],
        {"modifier_host": "process"},
        {"kv_cache_tokens": 96},
    ),
)
def test_it_does_not_matter_where_the_parts_run(engine: Engine, modifiers: tuple[str, ...], arguments: Any) -> None:
    asked = [params(n, temperature=1.0, seed=n) for n in (1, 4, 9)]
    expected = engine.generate([PROMPT] * 3, asked)
    with Engine(EngineConfig(model="demo", modifiers=modifiers, max_model_len=64, **arguments)) as other:
        found = other.generate([PROMPT] * 3, asked)
    assert [result.error for result in found] == [None] * 3
    assert [result.token_ids for result in found] == [result.token_ids for result in expected]
    assert [result.text for result in found] == [result.text for result in expected]


@pytest.mark.slow
def test_asynchronously_too(modifiers: tuple[str, ...], engine: Engine) -> None:
    async def run() -> str:
        async with AsyncEngine(EngineConfig(model="demo", modifiers=modifiers)) as other:
            return (await other.generate(PROMPT, params(4))).text

    assert asyncio.run(run()) == engine.generate([PROMPT], params(4))[0].text


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        (params(3, constraint=Regex("a+")), UnsupportedCapability, "a constraint leaves no place"),
        (params(1, modifiers={"cut": {"raw": ((), b"")}}), InvalidRequest, "is empty"),
        (params(1, modifiers={"cut": {"raw": ((10**9,), b"")}}), InvalidRequest, "not in the vocabulary"),
        (params(1, modifiers={"cut": {"raw": ((5,), b"x" * 2000)}}), InvalidRequest, "at most 1024"),
        (params(1, modifiers={"cut": {"raw": ((5,), "x")}}), PluginError, "token ids and bytes"),
        (params(1, modifiers={"cut": {"raw": 5}}), PluginError, "token ids and bytes"),
        (
            params(1, modifiers={"cut": {"bytes": 1}, "cut2": {"bytes": 1}}),
            InvalidRequest,
            "'cut' and 'cut2' both edit the prompt",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(engine: Engine, asked: SamplingParams, kind: Any, said: str) -> None:
    (result,) = engine.generate([PROMPT], asked)
    assert isinstance(result.error, kind)
    assert said in str(result.error)


def test_an_edit_without_a_prefix_serves_a_constraint(engine: Engine) -> None:
    asked = params(0, modifiers={"cut": {"raw": ((5, 6), b"")}}, constraint=Regex("abc"))
    (result,) = engine.generate([PROMPT], asked)
    assert (result.error, result.prompt_token_ids, result.text) == (None, (5, 6), "abc")
