"""Both modifiers against independent computations, over drawn texts, with drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from guideway.api import (
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    ModifierContext,
    Request,
    SamplingParams,
    SequenceInfo,
    StepBatch,
    Vocabulary,
)
from guideway_repetition import Dry, NoRepeatNgram
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor

VOCABULARY = Vocabulary(tokens=[b"a", b"b", b"c", b"d\n", b":", b""], stop_token_ids=frozenset({5}), logits_width=8)
CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=512)


def rows(cls: type[LogitModifier[Any]], wish: dict[str, Any], prompt: list[int], output: list[int], drafts: list[int]):
    """Return the modifier's addition to the logits of each row, ``float32[1 + drafts, width]``."""
    modifier = cls({}, CONTEXT)
    params = SamplingParams(modifiers={cls.name: wish})
    request = Request(request_id="r", prompt_token_ids=tuple(prompt), params=params)
    sequence = SequenceInfo(index=0, seed=0, prompt_token_ids=request.prompt_token_ids)
    state = modifier.start(request, sequence, modifier.compile(request, None))
    other = modifier.fork(state)
    modifier.accept(state, tuple(output), None)
    modifier.accept(other, (0, 0, 0, 0), None)
    batch = StepBatch.build([0], [len(prompt) + len(output)], [drafts])
    payload = modifier.prepare(batch, [state])
    added = np.zeros((1 + len(drafts), VOCABULARY.logits_width), dtype=np.float32)
    if payload is not None:
        for row, ids, values in zip(payload.rows, payload.arrays["ids"], payload.arrays["values"], strict=True):
            np.add.at(added[row], ids, values)
    return added


def dry(tokens: list[int], multiplier: float, base: float, allowed_length: int, breakers: set[int]) -> np.ndarray:
    """Return the penalties by their definition: for each earlier place, the longest common suffix."""
    penalties = np.zeros(VOCABULARY.logits_width, dtype=np.float64)
    for place in range(1, len(tokens)):
        length = 0
        while length < place and length < 50 and tokens[place - 1 - length] == tokens[-1 - length]:
            if tokens[-1 - length] in breakers:
                break
            length += 1
        if length >= allowed_length and tokens[place] not in breakers:
            penalties[tokens[place]] = min(penalties[tokens[place]], -multiplier * base ** (length - allowed_length))
    return penalties


TEXT = st.lists(st.integers(0, 4), max_size=60)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    TEXT,
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(1, 4),
)
def test_dry_is_its_definition(prompt: list[int], output: list[int], drafts: list[int], allowed: int) -> None:
    found = rows(Dry, {"multiplier": 1.5, "base": 2.0, "allowed_length": allowed}, prompt, output, drafts)
    for k, row in enumerate(found):
        expected = dry([*prompt, *output, *drafts[:k]], 1.5, 2.0, allowed, {3, 4})
        np.testing.assert_allclose(row, expected, rtol=1e-6)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    TEXT,
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(1, 5),
)
def test_no_repeat_ngram_is_that_of_transformers(
    prompt: list[int], output: list[int], drafts: list[int], size: int
) -> None:
    found = rows(NoRepeatNgram, {"ngram_size": size}, prompt, output, drafts)
    for k, row in enumerate(found):
        tokens = torch.tensor([[*prompt, *output, *drafts[:k]]])
        expected = NoRepeatNGramLogitsProcessor(size)(tokens, torch.zeros(1, VOCABULARY.logits_width))
        assert np.array_equal(row, expected[0].numpy())


def test_long_repeats_count_as_fifty_tokens() -> None:
    found = rows(Dry, {}, [0, 1] * 100, [], [])
    assert found[0].tolist() == pytest.approx([-0.8 * 1.75**48, *[0] * 7])


@pytest.mark.parametrize(
    ("cls", "wish", "message"),
    [
        (NoRepeatNgram, {"ngram_size": 0}, "ngram_size' of modifiers.no_repeat_ngram must be a whole number from 1"),
        (NoRepeatNgram, {}, "needs the option 'ngram_size'"),
        (Dry, {"base": float("nan")}, "'base' of modifiers.dry must be a number from 1 to 4"),
        (Dry, {"breakers": [""]}, "none empty"),
        (Dry, {"breaker": ["x"]}, "did you mean 'breakers'"),
    ],
)
def test_wrong_wishes_are_refused(cls: type[LogitModifier[Any]], wish: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidConfiguration, InvalidRequest), match=message):
        rows(cls, wish, [0], [], [])
