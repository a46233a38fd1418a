"""Training in seconds: a tiny model learns, the same each time, and is stored unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from guideway_demo_ranker.training.data import Source, relations
from guideway_demo_ranker.training.network import Hints, new_model
from guideway_demo_ranker.training.tokenizer import CONTEXT, train_tokenizer
from guideway_demo_ranker.training.train import Recipe, main, train
from transformers import AutoModelForSequenceClassification, AutoTokenizer

TINY = Recipe(steps=30, queries=2, documents=4, hidden=32, layers=1, tokenizer_queries=100)
TEXTS = [text for relation in relations() for text in relation.passages] * 20


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model_and_another_does_not(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    losses = train(TINY, tmp_path / "first")
    assert train(TINY, tmp_path / "again") == losses
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert sum(losses[-5:]) < sum(losses[:5])
    other = train(Recipe(steps=1, queries=2, documents=4, hidden=32, layers=1, tokenizer_queries=100, seed=1), tmp_path)
    assert other[0] != losses[0]


def test_the_command_leaves_a_model_that_transformers_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"steps": 50, "queries": 1, "documents": 2, "hidden": 32, "layers": 1, "tokenizer-queries": 50}
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    assert main(["--out", str(tmp_path), *flags]) == 0
    assert capsys.readouterr().out.startswith("50 steps, a loss of ")
    (logged,) = (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
    assert json.loads(logged).keys() == {"steps", "loss", "seconds"}
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.num_labels == 1
    assert model(**tokenizer("a", "b", return_tensors="pt")).logits.shape == (1, 1)


def test_the_same_texts_give_the_same_tokenizer() -> None:
    first, second = train_tokenizer(TEXTS), train_tokenizer(TEXTS)
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert first.model_max_length == CONTEXT


def test_every_ascii_text_has_tokens_of_its_own() -> None:
    tokenizer = train_tokenizer(TEXTS)
    ids = tokenizer("Zqxj7 x@y.z (\"#$%&\") 'Zoë' ~9~ jjqq").input_ids
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.unk_token_id in tokenizer("猫").input_ids


def test_a_pair_is_one_sequence_of_two_types() -> None:
    encoded = train_tokenizer(TEXTS)("a", "b")
    assert encoded["token_type_ids"] == [0, 0, 0, 1, 1]
    assert encoded["input_ids"][0] == 2 and encoded["input_ids"][-1] == 3


def test_a_new_model_looks_for_tokens_that_are_the_same() -> None:
    torch.manual_seed(0)
    model = new_model(500, hidden=128, layers=1)
    words = torch.arange(10, 30)
    ids = torch.cat([words, words])[None]
    types = torch.tensor([0] * 20 + [1] * 20)[None]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        heads = model.bert(ids, token_type_ids=types, output_attentions=True).attentions[0][0]
    others = (ids[0][:, None] == ids[0][None]).float() - torch.eye(40)
    on_others = (heads * others).sum(-1).mean(-1)
    assert on_others[:2].min() > 0.2  # nearly as much as on itself
    assert on_others[2:].max() < 0.05  # the average by chance is one in forty


def test_hints_tell_what_the_rankings_hold() -> None:
    torch.manual_seed(0)
    source = Source(1, entities="train", wordings="train")
    rankings = [source.ranking(4) for _ in range(3)]
    for ranking in rankings:
        both = [told == ranking.relation and same for told, same in zip(ranking.told, ranking.same_entity, strict=True)]
        assert [index for index, each in enumerate(both) if each] == [ranking.answer]
    vectors = torch.randn(12, 16)
    hints = Hints(16)
    optimizer = torch.optim.Adam(hints.parameters(), 0.1)
    losses = []
    for _ in range(60):
        loss = hints(vectors, vectors, rankings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < 3 < losses[0]  # twelve vectors of sixteen numbers can contain it all
