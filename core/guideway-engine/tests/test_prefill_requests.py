"""Each text gets the model's prompt, and texts without tokens are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_support.encoders import encoder, stored, write_recipe
from guideway import Engine, InvalidConfiguration, InvalidRequest

from tests.support.stages import one_in

HEAD = "ForSequenceClassification"
PROMPT = "W7 w8 "


def without_special_tokens(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    return folder


def opened(folder: Path, **options: Any) -> Engine:
    return Engine(folder, workflow="embed", options={"workflow.embed": {"driver": "sync", **options}})


def refused(result: Any) -> bool:
    return isinstance(result.error, InvalidRequest) and "the text has no token" in str(result.error)


@pytest.mark.parametrize("name", ["Bert", "MPNet"], ids=["packed", "padded"])
@pytest.mark.parametrize("pooling", one_in(3, ["mean", "cls", "last"]))
def test_a_text_without_a_token_is_refused_alone(name: str, pooling: str, tmp_path: Path) -> None:
    folder = without_special_tokens(stored(encoder(name), tmp_path))
    with opened(folder, pooling=pooling) as engine:
        before, empty, long, after = engine.embed(["w1 w2", "", " " * 5000, "w3"])
        (alone,) = engine.embed([{"prompt": ""}])
        wanted = engine.embed(["w1 w2", "w3"])
    assert refused(empty) and refused(long) and refused(alone)
    for found, each in zip((before, after), wanted, strict=True):
        np.testing.assert_allclose(found.vector, each.vector, atol=1e-6)  # type: ignore[arg-type]


def test_pairs_and_texts_for_a_label_without_a_token_are_refused_alone(tmp_path: Path) -> None:
    one = without_special_tokens(stored(encoder("Bert", HEAD, num_labels=1), tmp_path / "one"))
    with Engine(one) as engine:
        whole, half = engine.rerank("w1", ["w2", ""])
        (nothing,) = engine.rerank("", [""])
    assert whole.error is None and half.error is None and refused(nothing)
    two = without_special_tokens(stored(encoder("Bert", HEAD, num_labels=2), tmp_path / "two"))
    with Engine(two) as engine:
        text, empty, pair, ids = engine.classify(["w1", "", ("", ""), []])
    assert text.error is None and refused(empty) and refused(pair)
    assert isinstance(ids.error, InvalidRequest)


@pytest.fixture
def prompted(tmp_path: Path) -> Iterator[Path]:
    """Yield a model whose files put `PROMPT` before each text, and convert text to lower case."""
    folder = stored(encoder("Bert"), tmp_path / "prompted")
    write_recipe(folder, "pooling_mode_mean_tokens", normalize=True)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    prompts = {"prompts": {"query": PROMPT, "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    yield folder


def test_the_default_prompt_stands_before_each_text(prompted: Path) -> None:
    given: list[Any] = ["w1 w2", "9", [2, 6, 7, 3]]
    with opened(prompted) as engine:
        found = engine.embed(given)
    with opened(prompted, prompt="") as engine:
        wanted = engine.embed([PROMPT + given[0], PROMPT + given[1], given[2]])
        without = engine.embed(given)
    with opened(prompted, prompt="w8") as engine:  # prompt and text are tokenized together
        joined = engine.embed(["9"])
    assert [result.num_tokens for result in found] == [6, 5, 4]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.vector, other.vector, atol=1e-6)  # type: ignore[arg-type]
    assert np.abs(found[0].vector - without[0].vector).max() > 1e-3  # type: ignore[operator]
    assert joined[0].num_tokens == 3


def test_the_prompt_counts_towards_the_context(prompted: Path) -> None:
    words = [f"w{i}" for i in range(200)]
    fits, long = " ".join(words[:76]), " ".join(words[:77])
    with opened(prompted) as engine:
        whole, refused_ = engine.embed([fits, long])
        cut, cut_before = engine.embed([long, " ".join(words * 20)], truncate="right")
        (left,) = engine.embed([long], truncate="left")
        (ids,) = engine.embed([[1] * 81], truncate="left")
    assert whole.num_tokens == 80 and "the input has 81 tokens" in str(refused_.error)
    for each in (cut, cut_before):
        assert (each.num_tokens, each.truncated) == (80, True)
        np.testing.assert_allclose(each.vector, whole.vector, atol=1e-6)  # type: ignore[arg-type]
    assert "truncate='left' would cut off the prompt 'W7 w8 '" in str(left.error)
    assert ids.truncated and ids.error is None


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "is 'query', and its prompts are none"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "q", "prompts": {"query": "a", "document": "b"}},
            "is 'q', and its prompts are 'query', 'document'",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
    ids=["none", "unknown", "pooled without"],
)
def test_a_prompt_that_is_not_understood_is_refused(
    file: str, content: dict[str, Any], said: str, prompted: Path
) -> None:
    (prompted / file).write_text(json.dumps(content))
    with pytest.raises(InvalidConfiguration, match=said):
        Engine(prompted)


@pytest.mark.parametrize("num_labels", [1, 2])
def test_a_model_with_a_head_and_a_default_prompt_is_refused(num_labels: int, tmp_path: Path) -> None:
    folder = stored(encoder("Bert", HEAD, num_labels=num_labels), tmp_path)
    prompts = {"prompts": {"query": "w1"}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with pytest.raises(InvalidConfiguration, match="names the default prompt 'query'"):
        Engine(folder)
