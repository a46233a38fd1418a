"""A ragged row gives the same results as `transformers` gives for padded rows, or the model is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from engine_support.prompt_models import CONTEXT, FAMILIES, PADDING, VOCABULARY_SIZE, batch_of, model_of, padded
from guideway.errors import InvalidConfiguration, InvalidRequest, LimitExceeded, PluginNotFound, PluginUnavailable
from guideway.plugins.manager import Plugins
from guideway_engine.attention.naive.backend import NaiveAttention
from guideway_engine.prefill import forward as forward_module
from guideway_engine.prefill.forward import Forward, Ragged
from guideway_engine.prefill.padded import PaddedForward
from transformers import BertForTokenClassification, ConvBertConfig, ConvBertModel, MPNetConfig, MPNetModel

from tests.support.stages import everyday

LENGTHS = (5, 90, 1, 33, 5, 2, 61, 33, 17)
NEARLY_EQUAL = (20, 17, 3, 18, 20, 1)
"""Lengths of which several share a padded call."""
CLOSE = 1e-5
ORDINARY = ("BertModel", "RobertaForSequenceClassification", "ModernBertModel", "LlamaModel")
EVERY = sorted({*(f"{family}{what}" for family in FAMILIES for what in ("Model", "ForSequenceClassification"))})


def difference(found: torch.Tensor | None, wanted: torch.Tensor) -> float:
    assert found is not None
    assert found.shape == wanted.shape
    assert found.dtype == torch.float32
    return float((found - wanted).abs().max())


@pytest.mark.parametrize("name", everyday(EVERY, *ORDINARY))
def test_a_row_gives_what_padded_rows_give(name: str) -> None:
    model, batch = model_of(name), batch_of(*LENGTHS)
    wanted = padded(model, batch)
    output = Forward(model)(batch)
    classifies = name.endswith("ForSequenceClassification")
    assert (output.hidden is None, output.logits is None) == (classifies, not classifies)
    assert difference(output.logits if classifies else output.hidden, wanted) < CLOSE


@pytest.mark.parametrize("attention", everyday(["naive", "sdpa", "flex"], "naive", "sdpa"))
@pytest.mark.parametrize("name", ["ModernBertModel", "MistralModel"])
def test_every_backend_gives_the_same(name: str, attention: str) -> None:
    model, batch = model_of(name), batch_of(*NEARLY_EQUAL)
    wanted = padded(model, batch)
    forward = Forward(model, attention)
    assert (forward.attention, forward.reason) == (attention, "asked for by name")
    assert difference(forward(batch).hidden, wanted) < CLOSE


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_classifier_is_asked_how_it_pools(pooling: str) -> None:
    model, batch = model_of("ModernBertForSequenceClassification", classifier_pooling=pooling), batch_of(*LENGTHS)
    wanted = padded(model, batch)
    assert difference(Forward(model)(batch).logits, wanted) < CLOSE


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM"])
def test_of_a_language_model_the_last_layer_is_taken(name: str) -> None:
    model, batch = model_of(name), batch_of(*LENGTHS)
    wanted = padded(model, batch)
    assert difference(Forward(model)(batch).hidden, wanted) < CLOSE


def test_types_of_tokens_are_handed_on() -> None:
    model, batch = model_of("BertModel"), batch_of(*LENGTHS, types=True)
    wanted = padded(model, batch)
    forward = Forward(model)
    assert difference(forward(batch).hidden, wanted) < CLOSE
    without = forward(Ragged(batch.token_ids, batch.lengths)).hidden
    assert without is not None
    assert float((without - wanted).abs().max()) > 100 * CLOSE


def test_types_of_zero_are_no_types_where_a_model_takes_none() -> None:
    batch = batch_of(4, 3)
    forward = Forward(model_of("ModernBertModel"))
    plain = forward(batch).hidden
    zeros = forward(Ragged(batch.token_ids, batch.lengths, np.zeros(7, dtype=np.int64))).hidden
    assert plain is not None
    assert zeros is not None
    assert torch.equal(plain, zeros)
    with pytest.raises(InvalidRequest, match="ModernBertModel takes no token types"):
        forward(Ragged(batch.token_ids, batch.lengths, np.ones(7, dtype=np.int64)))


@pytest.mark.parametrize("name", ["RobertaModel", "LlamaForSequenceClassification"])
def test_padding_tokens_within_a_text_count_as_transformers_counts_them(name: str) -> None:
    model, batch = model_of(name), batch_of(6, 9, 4)
    batch.token_ids[[2, 8, 14, 18]] = PADDING  # includes the last tokens of the second and the third sequence
    wanted = padded(model, batch)
    output = Forward(model)(batch)
    assert difference(output.hidden if output.logits is None else output.logits, wanted) < CLOSE


def test_rows_are_cut_and_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of("BertModel"), batch_of(*LENGTHS)
    wanted = padded(model, batch)
    rows: list[int] = []
    monkeypatch.setattr(forward_module, "MAX_ROW_ON_CPU", 70)
    model.embeddings.word_embeddings.register_forward_hook(lambda _m, args, _o: rows.append(args[0].shape[1]))
    forward = Forward(model)
    rows.clear()
    assert difference(forward(batch).hidden, wanted) < CLOSE
    assert sum(rows) == sum(LENGTHS)
    assert len(rows) > 3
    assert all(length <= 70 or length in LENGTHS for length in rows)


def test_weights_stay_and_half_precision_is_close() -> None:
    model, batch = model_of("BertModel"), batch_of(*LENGTHS)
    wanted = padded(model, batch)
    half = copy.deepcopy(model).to(torch.bfloat16)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    Forward(model)(batch)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert difference(Forward(half)(batch).hidden, wanted) < 0.3


def test_a_batch_of_nothing_gives_nothing() -> None:
    empty = Ragged(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))
    hidden = Forward(model_of("BertModel"))(empty).hidden
    logits = Forward(model_of("BertForSequenceClassification"))(empty).logits
    assert hidden is not None
    assert logits is not None
    assert (hidden.shape, logits.shape) == ((0, 32), (0, 3))


@pytest.mark.parametrize(
    ("token_ids", "lengths", "error", "said"),
    [
        ([5, 6], [1], InvalidRequest, "lengths that add up to 1 do not fit 2 token ids"),
        ([5, 6], [2, 0], InvalidRequest, "sequence 1 has no token"),
        ([5, VOCABULARY_SIZE], [2], InvalidRequest, f"there is no token {VOCABULARY_SIZE}; the model has 300 tokens"),
        ([5, -1], [2], InvalidRequest, "there is no token -1"),
        ([5] * (CONTEXT - 1), [CONTEXT - 1], LimitExceeded, "sequence 0 has 95 tokens; RobertaModel takes at most 94"),
    ],
)
def test_what_a_model_cannot_take_is_refused(
    token_ids: list[int], lengths: list[int], error: type[Exception], said: str
) -> None:
    forward = Forward(model_of("RobertaModel"))
    with pytest.raises(error, match=said):
        forward(Ragged(np.array(token_ids), np.array(lengths, dtype=np.int32)))
    longest = CONTEXT - PADDING - 1
    assert forward.max_length == longest
    if "there is" not in said and error is InvalidRequest:
        with pytest.raises(error, match=said):
            PaddedForward(model_of("RobertaModel"), "")(Ragged(np.array(token_ids), np.array(lengths, dtype=np.int32)))
    assert forward(batch_of(longest)).hidden is not None


SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_models_that_cannot_run_so_are_refused_by_name() -> None:
    with pytest.raises(InvalidConfiguration, match=r"cannot run MPNetModel .*: none of its layers calls its attention"):
        Forward(MPNetModel(MPNetConfig(vocab_size=300, **SMALL)).eval())
    with pytest.raises(InvalidConfiguration, match="cannot run ConvBertModel"):
        Forward(ConvBertModel(ConvBertConfig(vocab_size=300, **SMALL)).eval())
    with pytest.raises(InvalidConfiguration, match=r"BertForTokenClassification .* nor a sequence classifier"):
        Forward(BertForTokenClassification(model_of("BertModel").config))


def test_a_model_whose_tokens_look_at_neighbours_elsewhere_is_refused() -> None:
    model = model_of("BertModel")
    norm = model.embeddings.LayerNorm
    norm.register_forward_hook(lambda _module, _args, output: output + output.roll(1, dims=1))
    with pytest.raises(InvalidConfiguration, match="side by side in one row give other results than each alone"):
        Forward(model)


def test_auto_says_what_it_took_and_why() -> None:
    forward = Forward(model_of("BertModel"))
    assert forward.attention == "packed"
    assert forward.reason == "auto: the quickest on a CPU, as it computes nothing for padding"


def test_a_backend_that_is_not_there_names_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginNotFound) as caught:
        Forward(model_of("BertModel"), "pakced")
    assert "packed" in str(caught.value)
    assert "those that can: auto, flex, naive, packed, sdpa" in str(caught.value)
    monkeypatch.setattr(NaiveAttention, "available", classmethod(lambda _: "it is too slow"))
    with pytest.raises(PluginUnavailable) as unavailable:
        Forward(model_of("BertModel"), "naive", plugins=Plugins())
    assert str(unavailable.value).startswith("attention 'naive' cannot run this model here: it is too slow\n")
    assert "\n  naive cannot run it: it is too slow" in str(unavailable.value)
    monkeypatch.undo()
    monkeypatch.setattr(NaiveAttention, "capabilities", frozenset({"float32"}))
    with pytest.raises(PluginUnavailable, match="it has no causal, grouped_query, which the model needs"):
        Forward(model_of("LlamaModel"), "naive")
