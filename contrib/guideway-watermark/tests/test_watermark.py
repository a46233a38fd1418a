"""Distributions, detection, and the command, with texts drawn from a hash as a model."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    InvalidConfiguration,
    InvalidRequest,
    ModifierContext,
    Request,
    SamplingParams,
    SequenceInfo,
    StepBatch,
    Vocabulary,
    WorkerContext,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway_watermark import GumbelMax, Kgw
from guideway_watermark.command import add_watermark
from guideway_watermark.detection import detect_gumbel_max, detect_kgw

WIDTH = 64
VOCABULARY = Vocabulary(tokens=[b"x"] * 63 + [b""], stop_token_ids=frozenset({63}), logits_width=WIDTH)
CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=8, max_model_len=512)
DEVICE = NumpyDevice("cpu")
WORKER = WorkerContext(device=DEVICE, vocabulary_size=WIDTH, logits_width=WIDTH)


def logits_after(tokens: list[int]) -> np.ndarray:
    """Return logits of about 4 bits per token, a function of the last two tokens."""
    return np.random.default_rng(tokens[-2:]).normal(scale=1.5, size=(1, WIDTH)).astype(np.float32)


def begin(cls: Any, key: int, prompt: list[int], **wish: Any) -> tuple[Any, Any]:
    modifier = cls({}, CONTEXT)
    params = SamplingParams(temperature=1.0, modifiers={cls.name: {"key": key, **wish}})
    request = Request(request_id="r", prompt_token_ids=tuple(prompt), params=params)
    return modifier, modifier.start(request, SequenceInfo(index=0, seed=5, prompt_token_ids=tuple(prompt)), None)


def gumbel_text(key: int, prompt: list[int], length: int, *, drafts: list[int] | None = None) -> list[int]:
    """Return generated tokens; with `drafts` all in one step, each row as if the drafts before it were final."""
    modifier, state = begin(GumbelMax, key, prompt)
    sampler, step, tokens = GumbelMax.transform(WORKER, {}), SimpleNamespace(ops=DEVICE.ops), list(prompt)
    if drafts is not None:
        payload = modifier.prepare(StepBatch.build([0], [len(prompt)], [drafts]), [state])
        logits = np.concatenate([logits_after([*prompt, *drafts[:k]]) for k in range(len(drafts) + 1)])
        return sampler.sample(DEVICE.ops.log_softmax(logits), payload, step).tolist()
    for _ in range(length):
        payload = modifier.prepare(StepBatch.build([0], [len(tokens)]), [state])
        (token,) = sampler.sample(DEVICE.ops.log_softmax(logits_after(tokens)), payload, step).tolist()
        modifier.accept(state, (token,), None)
        tokens.append(token)
    return tokens[len(prompt) :]


def kgw_text(key: int, prompt: list[int], length: int) -> list[int]:
    modifier, state = begin(Kgw, key, prompt, gamma=0.25, delta=3.0)
    transform, tokens, rng = Kgw.transform(WORKER, {}), list(prompt), np.random.default_rng(key)
    payload = modifier.prepare(StepBatch.build([0], [1]), [state])
    for _ in range(length):
        history = np.array([tokens[-1:]], dtype=np.int32)
        step: Any = SimpleNamespace(ops=DEVICE.ops, history=lambda _, history=history: history)
        logits = transform.apply(logits_after(tokens), payload, step)
        tokens.append(int((logits[0] + rng.gumbel(size=WIDTH)).argmax()))
    return tokens[len(prompt) :]


@pytest.mark.slow
def test_gumbel_max_keeps_the_distribution_over_keys() -> None:
    for prompt in ([1, 2, 3], [7] * 9, [4, 60, 5, 6]):
        counts = np.zeros(WIDTH)
        for key in range(600):
            counts[gumbel_text(key, prompt, 1)[0]] += 1
        expected = 600 * np.exp(DEVICE.ops.log_softmax(logits_after(prompt))[0])
        large = expected >= 5
        seen = np.append(counts[large], counts[~large].sum())
        wanted = np.append(expected[large], expected[~large].sum())
        chi_square, freedom = ((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1
        assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_a_repeated_context_is_not_drawn_with_the_same_noise() -> None:
    modifier, state = begin(GumbelMax, 1, [9] * 8)
    seeds = []
    for _ in range(6):
        seeds.append(modifier.prepare(StepBatch.build([0], [8]), [state]).arrays["seed"][0])
        modifier.accept(state, (9,), None)
    assert len(set(seeds)) == 6


@pytest.mark.slow
def test_detectors_find_their_watermark_and_no_other() -> None:
    for text_of, detect in ((gumbel_text, detect_gumbel_max), (kgw_text, detect_kgw)):
        texts = [text_of(key, [1, 2, 3, key], 100) for key in range(15)]
        assert np.median([detect(text, key).p_value for key, text in enumerate(texts)]) < 1e-6
        others = [detect(text, key + other).p_value for key, text in enumerate(texts) for other in (100, 200, 300)]
        assert min(others) > 1e-4
        assert 0.3 < np.mean(others) < 0.7


def test_p_values_are_the_tails_of_exact_distributions() -> None:
    text = np.random.default_rng(3).integers(0, WIDTH, size=30).tolist()
    found = detect_kgw(text, 5, 0.25)
    drawn = np.random.default_rng(4)
    tail = (drawn.binomial(found.num_scored, 0.25, size=200_000) >= found.score).mean()
    assert found.p_value == pytest.approx(tail, abs=0.005)
    found = detect_gumbel_max(text, 5)
    tail = (drawn.gamma(found.num_scored, size=200_000) >= found.score).mean()
    assert found.p_value == pytest.approx(tail, abs=0.005)
    assert detect_gumbel_max([1, 2], 5).p_value == detect_kgw([], 5).p_value == 1


def test_drafts_change_nothing() -> None:
    text = gumbel_text(3, [1, 2], 12)
    assert gumbel_text(3, [1, 2], 12, drafts=text[:-1]) == text


def test_the_operator_may_have_the_key() -> None:
    params = SamplingParams(temperature=1.0, modifiers={"kgw": {}, "gumbel_max": {}}, n=2)
    request = Request(request_id="r", prompt_token_ids=(1,), params=params)
    sequence = SequenceInfo(index=0, seed=0, prompt_token_ids=(1,))
    state = Kgw({"key": 8}, CONTEXT).start(request, sequence, None)
    assert state is not None
    assert state.key == 8
    with pytest.raises(InvalidConfiguration, match=r"modifiers\.kgw needs the option 'key'"):
        Kgw({}, CONTEXT).start(request, sequence, None)
    with pytest.raises(InvalidRequest, match="n must be 1"):
        GumbelMax({"key": 8}, CONTEXT).start(request, sequence, None)
    with pytest.raises(InvalidConfiguration, match="did you mean 'key'"):
        Kgw({"kye": 8}, CONTEXT)


def run(monkeypatch: pytest.MonkeyPatch, text: str, *flags: str) -> None:
    from argparse import ArgumentParser

    parser = ArgumentParser()
    add_watermark(parser.add_subparsers())
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    args = parser.parse_args(["watermark", "detect", *flags])
    assert args.run(args) == 0


def test_the_command_prints_a_verdict_per_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    texts = [gumbel_text(3, [1, 2], 60), kgw_text(3, [1, 2], 60)]
    lines = f"{texts[0]}\n{json.dumps({'token_ids': texts[1]})}\n"
    run(monkeypatch, lines, "--key", "3")
    (tmp_path / "texts.jsonl").write_text(lines)
    run(monkeypatch, "", "--key", "3", "--modifier", "kgw", str(tmp_path / "texts.jsonl"))
    found = [json.loads(line)["p_value"] < 1e-4 for line in capsys.readouterr().out.splitlines()]
    assert found == [True, False, False, True]
    for wrong in ("[1, -2]", "{", '{"text": "x"}', "[" * 100_000):
        with pytest.raises(InvalidRequest, match="line 1 must be a list of token ids"):
            run(monkeypatch, wrong, "--key", "3")
