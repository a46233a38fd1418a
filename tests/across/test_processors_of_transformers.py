"""Every logits processor of `transformers` through guideway-legacy: the scores that a direct call gives, in rows of
several sequences and after drafts, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from guideway.api import ModifierContext, Request, SamplingParams, StepBatch, WorkerContext
from guideway.devices.torch.device import TorchDevice
from guideway.pipeline import Pipeline
from guideway.runtime.runtime import Runtime
from guideway_legacy import LegacyModifier, Processor
from transformers.generation import logits_process as theirs

from tests.support.vocabularies import tiny

WIDTH = 128
VOCABULARY = tiny(width=WIDTH)
SIZE = len(VOCABULARY)
PROMPTS = ([20, 21, 22, 20, 21], [30] * 6, [5, 6, 7, 30, 30, 20])
DRAFTS = [[20, 21], [], [30]]


def allowed_after(batch_id: int, sent: torch.Tensor) -> list[int]:
    """Return a few tokens, by the last one of the sequence."""
    return [int(sent[-1]), (int(sent[-1]) + 3) % SIZE, 7 + batch_id]


IDS = torch.tensor([[20, 21, 22, 5]])
CASES: dict[str, dict[str, Any]] = {
    "MinLengthLogitsProcessor": {"min_length": 8, "eos_token_id": [2, 5]},
    "MinNewTokensLengthLogitsProcessor": {"prompt_length_to_skip": 5, "min_new_tokens": 2, "eos_token_id": 5},
    "TemperatureLogitsWarper": {"temperature": 0.5},
    "RepetitionPenaltyLogitsProcessor": {"penalty": 2.0},
    "EncoderRepetitionPenaltyLogitsProcessor": {"penalty": 2.0, "encoder_input_ids": IDS},
    "TopPLogitsWarper": {"top_p": 0.8, "min_tokens_to_keep": 2},
    "TopKLogitsWarper": {"top_k": 3},
    "TopHLogitsWarper": {"top_h": 0.4},
    "MinPLogitsWarper": {"min_p": 0.1},
    "TypicalLogitsWarper": {"mass": 0.5},
    "EpsilonLogitsWarper": {"epsilon": 0.01},
    "EtaLogitsWarper": {"epsilon": 0.01},
    "NoRepeatNGramLogitsProcessor": {"ngram_size": 2},
    "EncoderNoRepeatNGramLogitsProcessor": {"encoder_ngram_size": 2, "encoder_input_ids": IDS},
    "SequenceBiasLogitsProcessor": {"sequence_bias": [[[20], 3.0], [[30, 30], -4.0], [[20, 21, 22], 9.0]]},
    "NoBadWordsLogitsProcessor": {"bad_words_ids": [[4], [30, 30], [20, 21, 22]], "eos_token_id": 2},
    "PrefixConstrainedLogitsProcessor": {"prefix_allowed_tokens_fn": allowed_after, "num_beams": 1},
    "ForcedBOSTokenLogitsProcessor": {"bos_token_id": 1},
    "ForcedEOSTokenLogitsProcessor": {"max_length": 8, "eos_token_id": 5},
    "InfNanRemoveLogitsProcessor": {},
    "ExponentialDecayLengthPenalty": {
        "exponential_decay_length_penalty": (1, 1.5),
        "eos_token_id": 5,
        "input_ids_seq_length": 5,
    },
    "LogitNormalization": {},
    "SuppressTokensAtBeginLogitsProcessor": {"begin_suppress_tokens": [4, 20], "begin_index": 7},
    "SuppressTokensLogitsProcessor": {"suppress_tokens": [4, 20]},
    "AlternatingCodebooksLogitsProcessor": {"input_start_len": 5, "semantic_vocab_size": 40, "codebook_size": 20},
    "BarkEosPrioritizerLogitsProcessor": {"eos_token_id": 5, "min_eos_p": 0.001},
    "WatermarkLogitsProcessor": {"vocab_size": WIDTH, "device": "cpu"},
    "SynthIDTextWatermarkLogitsProcessor": {
        "ngram_len": 3,
        "keys": [3, 7, 11],
        "sampling_table_size": 64,
        "sampling_table_seed": 0,
        "context_history_size": 16,
        "device": torch.device("cpu"),
    },
}
REMEMBERING = ("SynthIDTextWatermarkLogitsProcessor",)
"""Processors with a state: one for each sequence, which takes no drafts."""
OTHERS = {
    "WhisperTimeStampLogitsProcessor": "audio",
    "WhisperNoSpeechDetection": "audio",
    "DiaClassifierFreeGuidanceLogitsProcessor": "audio",
    "DiaEOSChannelFilterLogitsProcessor": "audio",
    "DiaEOSDelayPatternLogitsProcessor": "audio",
    "ClassifierFreeGuidanceLogitsProcessor": "rows of two prompts in one batch; guideway-cfg does it",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "runs the model itself; guideway-cfg does it",
}
"""Processors that are not for the rows of a text model, and why."""


def test_every_processor_is_a_case_or_has_a_reason() -> None:
    found = {
        name
        for name, cls in vars(theirs).items()
        if isinstance(cls, type) and issubclass(cls, theirs.LogitsProcessor) and cls is not theirs.LogitsProcessor
    }
    assert found == CASES.keys() | OTHERS.keys()


def make(name: str) -> Any:
    return getattr(theirs, name)(**CASES[name])


def legacy(name: str) -> type[LegacyModifier]:
    if name in REMEMBERING:
        processor = Processor("transformers", partial(make, name), per_sequence=True)
    else:
        processor = Processor("transformers", make(name))
    return type("Wrapped", (LegacyModifier,), {"name": "wrapped", "processors": (processor,)})


def context() -> ModifierContext:
    return ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)


def pipeline_of(runtime: Runtime) -> Pipeline:
    context = WorkerContext(device=TorchDevice("cpu"), vocabulary_size=SIZE, logits_width=WIDTH)
    return Pipeline(runtime.modifier_classes(), context)


# a processor with a state takes no drafts
RUNS = [
    (name, has_drafts) for name in CASES for has_drafts in (False, True) if not (has_drafts and name in REMEMBERING)
]


@pytest.mark.parametrize(("name", "has_drafts"), RUNS)
def test_scores_are_those_of_a_direct_call(name: str, has_drafts: bool) -> None:
    cls, drafts = legacy(name), DRAFTS if has_drafts else [[] for _ in PROMPTS]
    runtime = Runtime(context(), strategies={}, modifiers=[cls({}, context())])
    pipeline = pipeline_of(runtime)
    direct: list[Callable[..., torch.Tensor]] = [make(name) for _ in PROMPTS]
    pasts = [list(prompt) for prompt in PROMPTS]
    for slot, past in enumerate(pasts):
        params = SamplingParams(modifiers={"wrapped": {}})
        request = Request(request_id=str(slot), prompt_token_ids=tuple(past), params=params)
        runtime.start(runtime.admit(request), slot)
    changed = False
    for number in range(5):
        batch = StepBatch.build([0, 1, 2], [len(past) for past in pasts], drafts)
        logits = 3 * torch.randn(batch.num_rows, WIDTH, generator=torch.Generator().manual_seed(number))
        logits, plain = logits.clone(), logits
        found, output = pipeline.mask(logits, runtime.prepare(batch))
        assert not output.faults
        row = 0
        for i, past in enumerate(pasts):
            for k in range(1 + len(drafts[i])):
                scores = direct[i](torch.tensor([[*past, *drafts[i][:k]]]), plain[row : row + 1].clone())
                assert torch.equal(found[row, :SIZE], scores[0, :SIZE].float()), (number, i, k)
                changed |= not torch.equal(scores[0, :SIZE], plain[row, :SIZE])
                row += 1
        token_ids = [[(20, 30, 21)[(number + i) % 3]] for i in range(len(pasts))]
        runtime.accept(batch, token_ids, output)
        for past, ids in zip(pasts, token_ids, strict=True):
            past += ids
    assert changed or name in ("InfNanRemoveLogitsProcessor", "ForcedBOSTokenLogitsProcessor")
    pipeline.close()
    runtime.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nan_and_infinity_are_removed_but_nothing_forbidden_is_allowed(dtype: torch.dtype) -> None:
    """What `transformers` checks of its own processor, in the smaller types that a model may have."""
    runtime = Runtime(context(), strategies={}, modifiers=[legacy("InfNanRemoveLogitsProcessor")({}, context())])
    pipeline = pipeline_of(runtime)
    for slot in range(2):
        params = SamplingParams(modifiers={"wrapped": {}})
        request = Request(request_id=str(slot), prompt_token_ids=(5,), params=params)
        runtime.start(runtime.admit(request), slot)
    logits = torch.zeros(2, WIDTH, dtype=dtype)
    logits[0, :2] = torch.tensor([float("nan"), float("inf")])
    logits[1, 0] = -float("inf")
    found, output = pipeline.mask(logits, runtime.prepare(StepBatch.build([0, 1], [1, 1])))
    assert found[0, :2].tolist() == [0, torch.finfo(dtype).max]
    assert list(output.faults) == [1]
    assert "allowed a token that was forbidden before it" in str(output.faults[1])
    pipeline.close()
    runtime.close()
