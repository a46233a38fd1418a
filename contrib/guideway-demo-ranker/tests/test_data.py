"""The data: repeatable, one answer to each question, and without held-out values in the training texts."""

from __future__ import annotations

import random
import re

import pytest
from guideway_demo_ranker.training.data import Ranking, Relation, Source, fillers, relations
from guideway_demo_ranker.training.entities import NOUNS, Entities, is_held_out, names


def drawn(count: int, seed: int = 5, **splits: str) -> list[Ranking]:
    source = Source(seed, entities=splits.get("entities", "train"), wordings=splits.get("wordings", "train"))  # type: ignore[arg-type]
    return [source.ranking(20) for _ in range(count)]


def slots(template: str, entity: str = "(?P<x>.+)") -> re.Pattern[str]:
    """Return a pattern for the texts that `template` expands to."""
    return re.compile(re.escape(template).replace(r"\{x\}", entity).replace(r"\{v\}", ".+"), re.IGNORECASE)


def tells(document: str, relation: Relation, entity: str) -> bool:
    """Return whether a sentence of `document` is a fact of `relation` about `entity`."""
    patterns = [slots(passage, re.escape(entity)) for passage in relation.passages]
    sentences = re.split(r"(?<=\.) ", document)
    return any(pattern.fullmatch(sentence) for pattern in patterns for sentence in sentences)


def test_the_same_seed_gives_the_same_rankings() -> None:
    assert drawn(20) == drawn(20) != drawn(20, seed=6)


@pytest.mark.parametrize(("entities", "wordings"), [("train", "train"), ("test", "train"), ("test", "test")])
def test_exactly_one_document_answers(entities: str, wordings: str) -> None:
    every = {f"{relation.kind}.{relation.name}": relation for relation in relations()}
    for ranking in drawn(60, entities=entities, wordings=wordings):
        relation = every[ranking.relation]
        entity = next(m["x"] for q in relation.questions if (m := slots(q).fullmatch(ranking.query)))
        answering = [tells(document, relation, entity) for document in ranking.documents]
        assert [index for index, tell in enumerate(answering) if tell] == [ranking.answer], ranking


def test_what_is_held_out_is_in_no_text_of_the_training() -> None:
    held_out = {name for name in names() if is_held_out(name)} | {n for n in NOUNS["animal"] if is_held_out(n)}
    told = [text for r in relations() for text in (*r.questions, *r.passages, *r.values)]
    nouns = [noun for kind in NOUNS for noun in NOUNS[kind] if not is_held_out(noun) or kind != "animal"]
    common = " ".join([*told, *nouns, *fillers()])
    kept = {word.lower() for word in held_out} - {word.lower() for word in re.findall(r"\w+", common)}
    assert len(kept) > 700
    for ranking in drawn(200):
        words = re.findall(r"\w+", " ".join([ranking.query, *ranking.documents]).lower())
        assert not kept & {*words}, ranking
    for ranking in drawn(200, entities="test"):
        assert held_out & {*re.findall(r"\w+", ranking.query)}, ranking.query


def test_a_fifth_of_the_names_is_held_out() -> None:
    assert len(names()) == len({*names()}) == 4000
    assert 0.18 < sum(map(is_held_out, names())) / 4000 < 0.22


def test_wordings_are_split_whole() -> None:
    for which in (0, 1):
        trained = [text for r in relations() for text in r.wordings("train")[which]]
        held_out = [f"{r.kind}: {text}" for r in relations() for text in r.wordings("test")[which]]
        assert len(held_out) == len({*held_out}) == len(relations())
        assert not {text.partition(": ")[2] for text in held_out} & {*trained}
    for relation in relations():
        assert len({*relation.questions}) == len({*relation.passages}) - 1 == 5
        assert all("{x}" in question and "{v}" not in question for question in relation.questions)
        assert all("{x}" in passage and "{v}" in passage for passage in relation.passages)


def test_another_entity_is_another_and_may_be_alike() -> None:
    entities = Entities(random.Random(1), "train")
    for kind in NOUNS:
        for _ in range(50):
            entity = entities.draw(kind)
            other, alike = entities.other(entity, alike=False), entities.other(entity, alike=True)
            assert entity not in (other, alike)
            assert other.kind == alike.kind == kind
            if entity.name and entity.noun:
                assert (alike.name == entity.name) != (alike.noun == entity.noun)


def test_a_text_has_no_more_sentences_beside_the_point_than_asked_for() -> None:
    source = Source(3, entities="train", wordings="train")
    documents = [document for _ in range(40) for document in source.ranking(20, max_fillers=1).documents]
    counts = [sum(document.count(filler) for filler in fillers()) for document in documents]
    assert {*counts} == {0, 1}
