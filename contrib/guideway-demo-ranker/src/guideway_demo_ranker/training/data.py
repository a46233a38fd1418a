"""Synthetic questions, each with several texts, one of which answers it."""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from guideway_demo_ranker.training.entities import KINDS, Entities, Entity, Split

__all__ = ["Ranking", "Relation", "Source", "fillers", "relations"]

WRONG = ("fact", "alike", "fact", "entity", "alike", "fact", "random")
"""The kinds of texts that do not answer, in turn: another fact about the subject; the wanted fact about a similar
subject, or about another of the same kind; any fact."""

SECOND_FACT = 0.2
"""Share of texts with a second fact."""
FILLER = 0.35
"""Probability of another irrelevant sentence."""


@dataclass(frozen=True)
class Relation:
    """A kind of fact, such as the food of an animal: its questions, its passages, and its values."""

    kind: str
    name: str
    questions: tuple[str, ...]
    passages: tuple[str, ...]
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}"

    def wordings(self, split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the questions and the passages that `split` may use: ``test`` has the last of each."""
        part = slice(-1, None) if split == "test" else slice(-1)
        return self.questions[part], self.passages[part]


@dataclass(frozen=True)
class Ranking:
    """A question with documents; the one at index `answer` answers it."""

    relation: str
    query: str
    documents: tuple[str, ...]
    answer: int
    told: tuple[str, ...]
    """The relation of each document's main fact."""
    same_entity: tuple[bool, ...]
    """True for each document about the entity of the question."""


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("facts.toml").read_text("utf-8"))


@cache
def relations() -> tuple[Relation, ...]:
    """Return all kinds of facts."""
    return tuple(
        Relation(kind, name, tuple(said["questions"]), tuple(said["passages"]), tuple(said["values"]))
        for kind in KINDS
        for name, said in _file()[kind].items()
    )


def fillers() -> list[str]:
    """Return the irrelevant sentences."""
    return list(_file()["fillers"]["passages"])


class Source:
    """Endless rankings, the same for the same arguments. `entities` and `wordings` say which split each is drawn
    from."""

    def __init__(self, seed: str | int, *, entities: Split, wordings: Split) -> None:
        self._rng = random.Random(seed)
        self._entities = Entities(self._rng, entities)
        self._wordings: Split = wordings
        self._fillers = fillers()

    def ranking(self, num_documents: int, max_fillers: int = 2) -> Ranking:
        """Draw a question with `num_documents` texts, each with at most `max_fillers` irrelevant sentences."""
        rng = self._rng
        asked = rng.choice(relations())
        entity = self._entities.draw(asked.kind)
        facts = [self._wrong(WRONG[i % len(WRONG)], asked, entity) for i in range(num_documents - 1)]
        answer = rng.randrange(num_documents)
        facts.insert(answer, (asked, entity))
        return Ranking(
            relation=str(asked),
            query=_capitalize(rng.choice(asked.wordings(self._wordings)[0]).format(x=entity)),
            documents=tuple(self._text(relation, told_of, asked, max_fillers) for relation, told_of in facts),
            answer=answer,
            told=tuple(str(relation) for relation, _ in facts),
            same_entity=tuple(told_of == entity for _, told_of in facts),
        )

    def _wrong(self, how: str, asked: Relation, entity: Entity) -> tuple[Relation, Entity]:
        if how == "fact":
            return self._other_fact(asked, asked), entity
        if how == "random":
            relation = self._rng.choice([relation for relation in relations() if relation.kind != asked.kind])
            return relation, self._entities.draw(relation.kind)
        return asked, self._entities.other(entity, alike=how == "alike")

    def _other_fact(self, *told: Relation) -> Relation:
        return self._rng.choice([r for r in relations() if r.kind == told[0].kind and r not in told])

    def _text(self, relation: Relation, entity: Entity, asked: Relation, max_fillers: int) -> str:
        rng = self._rng
        sentences = [self._sentence(relation, entity)]
        if rng.random() < SECOND_FACT:
            told = (relation, asked) if relation.kind == asked.kind else (relation,)
            sentences.insert(rng.randint(0, 1), self._sentence(self._other_fact(*told), entity))
        beside = rng.sample(self._fillers, max_fillers)
        while beside and rng.random() < FILLER:
            sentences.insert(rng.randint(0, len(sentences)), beside.pop())
        return " ".join(sentences)

    def _sentence(self, relation: Relation, entity: Entity) -> str:
        value = self._rng.choice(relation.values)
        if value in KINDS:  # the value is an entity, too
            value = str(self._entities.draw(value))
        return _capitalize(self._rng.choice(relation.wordings(self._wordings)[1]).format(x=entity, v=value))


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]
