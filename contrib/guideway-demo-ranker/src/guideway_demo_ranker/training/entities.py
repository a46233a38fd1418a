"""The subjects of texts: animals, places, articles, persons, towns and trains. Some are held out for the evaluation."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

__all__ = ["KINDS", "Entities", "Entity", "Split", "is_held_out", "names"]

Split: TypeAlias = Literal["train", "test"]

NUM_NAMES = 4000
HELD_OUT_SHARE = 5
"""One of this many names, and of this many animals, is held out."""


def _words(text: str) -> list[str]:
    return text.split()


ONSETS = _words("b c d f g h k l m n p r s t v w y z br dr gr kr st tr sh th")
VOWELS = _words("a e i o u ai ee ou")
CODAS = ["", "", "n", "r", "l", "s", "m", "ck", "nd", "rt"]

FIRST_NAMES = _words(
    "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Liam Maria Nina Oscar Paul Rosa Sam Tina Victor "
    "Wendy Yara Anna Peter John Jane Mary James Laura Daniel"
)

NOUNS = {
    "animal": _words(
        "otter badger heron beaver hedgehog fox wolf bear lynx owl eagle falcon raven crane stork swan goose duck "
        "salmon trout pike eel newt toad turtle lizard viper bat mole shrew hare rabbit squirrel marten weasel deer "
        "elk bison boar goat ibex seal walrus dolphin whale penguin puffin gull tern pelican flamingo parrot monkey "
        "lemur panda koala kangaroo wombat zebra giraffe lion tiger leopard cheetah hyena camel llama donkey"
    ),
    "place": _words("bakery museum library pharmacy cinema gallery bookshop hotel restaurant theater bank gym"),
    "article": _words("kettle lamp chair bicycle tent backpack clock radio toaster desk drill guitar"),
    "train": _words("express shuttle sleeper ferry tram coach"),
    "person": FIRST_NAMES,
    "town": [],
}
KINDS = tuple(NOUNS)


@dataclass(frozen=True)
class Entity:
    """The subject of a text: an otter, the Velmar otter, Anna Velmar, Velmar."""

    kind: str
    name: str
    """Invented name; empty for an animal without one."""
    noun: str
    """Noun, or the first name of a person; empty for a town."""

    def __str__(self) -> str:
        if self.kind == "person":
            return f"{self.noun} {self.name}"
        if self.kind == "town":
            return self.name
        return " ".join(word for word in ("the", self.name, self.noun) if word)


@cache
def names() -> tuple[str, ...]:
    """Return all invented names, of two or three syllables each."""
    rng = random.Random("names")
    found: dict[str, None] = {}
    while len(found) < NUM_NAMES:
        syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.choice((2, 2, 3)))]
        found["".join(syllables).capitalize()] = None
    return tuple(found)


def is_held_out(word: str) -> bool:
    """Return whether only the evaluation may use a name, or an animal without one, by its CRC-32."""
    return zlib.crc32(word.encode()) % HELD_OUT_SHARE == 0


class Entities:
    """Draws entities of one split. First names, and nouns next to a name, are not split."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._rng = rng
        self._names = [name for name in names() if is_held_out(name) == (split == "test")]
        self._animals = [noun for noun in NOUNS["animal"] if is_held_out(noun) == (split == "test")]
        self._nouns = {**NOUNS, "animal": [noun for noun in NOUNS["animal"] if not is_held_out(noun)]}

    def draw(self, kind: str) -> Entity:
        """Draw an entity of `kind`."""
        rng = self._rng
        if kind == "animal" and rng.random() < 0.5:
            return Entity(kind, "", rng.choice(self._animals))
        return Entity(kind, rng.choice(self._names), rng.choice(self._nouns[kind]) if self._nouns[kind] else "")

    def other(self, entity: Entity, *, alike: bool) -> Entity:
        """Draw another entity of the same kind; `alike`: with the same name or the same noun, if it has both."""
        alike = alike and bool(entity.name and entity.noun)
        keeps_name = self._rng.random() < 0.5
        while True:
            found = self.draw(entity.kind)
            if alike and found.name:
                name, noun = (entity.name, found.noun) if keeps_name else (found.name, entity.noun)
                found = Entity(entity.kind, name, noun)
            if found != entity and (found.name or not alike):
                return found
