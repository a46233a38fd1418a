"""A sampler that decides which drafts are kept, in the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from guideway import Engine, EngineConfig, Regex, SamplingParams

KEEP = '''
import numpy as np
from guideway import api

class KeepSampler(api.Sampler):
    """Keeps every draft that is allowed."""

    def sample(self, logprobs, payload, step):
        own = step.ops.gather(logprobs, payload.rows)
        return step.ops.categorical(own, step.uniform("draw", payload.rows)[:, 0])

    def verify(self, logprobs, payload, drafts, step):
        ops, every = step.ops, step.ops.asarray(np.arange(len(payload), dtype=np.int32))
        columns = (drafts * (drafts >= 0))[:, None]
        allowed = ops.gather(ops.gather(logprobs, payload.rows), every, columns) > -np.inf
        kept = (drafts >= 0)[:, None] & allowed
        return ops.where_rows(self.sample(logprobs, payload, step)[:, None], every, kept, columns)[:, 0]

class Keep(api.LogitModifier):
    """Is lossy on purpose, so that a test sees who decides."""

    contract, name, stage, transform, derived = "1.0", "keep", api.Stage.SAMPLE, KeepSampler, True
    needs = frozenset({api.Need.UNIFORM, api.Need.DRAFTS})

    def start(self, request, sequence, compiled):
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch, states):
        return api.Payload(batch.select(states)[0])

class Ignore(Keep):
    name = "ignore"

    class transform(KeepSampler):
        verify = api.Sampler.verify
    needs = frozenset({api.Need.UNIFORM})
'''
PROMPT = list(range(65, 85))


@pytest.fixture(scope="module")
def modifiers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = Path(tmp_path_factory.mktemp("keep")) / "keep.py"
    path.write_text(KEEP, encoding="utf-8")
    return f"{path}:Keep", f"{path}:Ignore"


def answers(modifiers: tuple[str, ...], num_drafts: int, executor: str = "local") -> dict[str, tuple[int, ...]]:
    config = EngineConfig(
        model="demo",
        modifiers=modifiers,
        num_speculative_tokens=num_drafts,
        executor=executor,
        grammar=("llguidance",),
        forced_tokens="off",
    )
    # an output that repeats the prompt has drafts: what came after it there
    liked = dict.fromkeys(PROMPT, 100.0)
    common = {"max_tokens": 60, "temperature": 9.0, "seed": 11, "ignore_eos": True, "logit_bias": liked}
    asked = [SamplingParams(**common, modifiers={name: {}}) for name in ("keep", "ignore")]
    asked.append(
        SamplingParams(max_tokens=24, temperature=1.0, seed=1, modifiers={"keep": {}}, constraint=Regex("[A-F]{9}"))
    )
    with Engine(config) as engine:
        results = engine.generate([PROMPT] * 3, asked)
        assert [result.error for result in results] == [None] * 3
        assert len(results[2].text) == 9
        return {name: result.token_ids for name, result in zip(("keep", "ignore", "bound"), results, strict=True)}


def repeats(token_ids: tuple[int, ...], length: int) -> bool:
    """Return whether `length` tokens in a row occur twice in the prompt and its continuation."""
    whole = (*PROMPT, *token_ids)
    found = [whole[i : i + length] for i in range(len(whole) - length + 1)]
    return len(set(found)) < len(found)


def test_the_sampler_decides_which_drafts_are_kept(modifiers: tuple[str, ...]) -> None:
    plain, drafted = answers(modifiers, 0), answers(modifiers, 4)
    assert plain["ignore"] == drafted["ignore"]  # the default's drafts change no text
    assert drafted["keep"] != plain["keep"]
    # two tokens that were there before are followed by the four that followed them there
    assert repeats(drafted["keep"], 6)
    assert not repeats(plain["keep"], 6)


@pytest.mark.slow
def test_it_decides_alike_again_and_in_another_process(modifiers: tuple[str, ...]) -> None:
    assert answers(modifiers, 4) == answers(modifiers, 4) == answers(modifiers, 4, "process")
