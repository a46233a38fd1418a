"""Outputs drawn from masks that closing restricts, over a vocabulary of bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from guideway.api import CompiledGrammar, GrammarStrategy, Matcher
from guideway.api.bitmask import unpack
from guideway.json_schema.cursor import START, JsonCursor
from guideway.json_schema.prober import byte_vocabulary
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing import Beginnings, Budget, Closer, Lexicon, Reserve, closer
from guideway.runtime.constraints.closing.avoiding import Avoided, Avoiding
from guideway.runtime.constraints.closing.positions import Position
from guideway.runtime.constraints.closing.search import Search
from guideway.runtime.constraints.closing.ways import Prover
from guideway.runtime.sequences.replay import new_matcher

__all__ = [
    "LEXICON",
    "STOPS",
    "VOCABULARY",
    "allowed_after",
    "beginning_with",
    "completion",
    "drawn",
    "record",
    "watch_searches",
]

VOCABULARY = byte_vocabulary()
STOPS = VOCABULARY.stop_token_ids
LEXICON = Lexicon(VOCABULARY)

Choose = Callable[[random.Random, list[int], list[int]], int]


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def allowed_after(matcher: Matcher, closer: Closer) -> list[int]:
    """Return the ids of the tokens that a sequence may draw next."""
    bitmask = np.zeros((1, LEXICON.words), dtype=np.int32)
    matcher.fill_bitmask(bitmask, 0)
    closer.restrict(matcher, (), bitmask)
    return [int(i) for i in np.flatnonzero(unpack(bitmask, len(VOCABULARY))[0])]


def completion(
    matcher: Matcher,
    limit: int,
    cursor: JsonCursor | None = START,
    *,
    past: Sequence[int] = (),
    bans: Bans | None = None,
    witnesses: tuple[str, ...] = (),
    work: int = closer.WORK,
) -> list[int] | None:
    """Return a completion of at most `limit` tokens that a search finds."""
    avoiding = Avoiding(matcher, Avoided(bans or Bans(), LEXICON, STOPS), past)
    reserve = Reserve(0, 0, cursor is not None, witnesses)
    return Search(Prover(avoiding, STOPS, work), LEXICON, reserve, limit, Position(cursor)).completion()


class Watched(NamedTuple):
    """A search of closing."""

    is_first: bool
    """True if it was made before the first token."""
    is_bridge: bool
    """True if it was made to judge one token."""
    work: int


def watch_searches(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Return a list that gets the searches of closing."""
    done = list[Watched]()

    class Counted(Search):
        def completion(self) -> list[int] | None:
            before = self.prover.num_left
            found = Search.completion(self)
            is_bridge = self.most_worse == closer.MOST_WORSE
            done.append(Watched(self.position.json == START, is_bridge, before - self.prover.num_left))
            return found

    monkeypatch.setattr(closer, "Search", Counted)
    return done


def at_random(rng: random.Random, allowed: list[int], output: list[int]) -> int:
    return rng.choice(allowed)


def beginning_with(text: bytes) -> Choose:
    """Return a model that writes a text if it may, and letters after it."""
    wanted = [LEXICON.ids[bytes([byte])] for byte in text]

    def choose(rng: random.Random, allowed: list[int], output: list[int]) -> int:
        place = len(output)
        if place < len(wanted) and wanted[place] in allowed and output == wanted[:place]:
            return wanted[place]
        return rng.choice([i for i in allowed if VOCABULARY.tokens[i].isalpha() and i not in STOPS] or allowed)

    return choose


def drawn(
    strategy: GrammarStrategy,
    grammar: CompiledGrammar,
    budget: Budget,
    seed: int,
    choose: Choose = at_random,
    *,
    beginnings: Beginnings | None = None,
) -> bytes | None:
    """Return the text of an output; None if it is not complete within its budget. JSON is complete with a stop token,
    other text also without one."""
    rng, matcher = random.Random(seed), new_matcher(strategy, grammar, STOPS)
    closer, output = Closer(LEXICON, STOPS, budget, None, beginnings), list[int]()
    while len(output) < budget.num_tokens and not matcher.is_terminated():
        token_id = choose(rng, allowed_after(matcher, closer), output)
        assert matcher.accept((token_id,)) == 1
        closer.accept((token_id,))
        output.append(token_id)
    is_whole = matcher.is_terminated() or (not budget.reserve.is_json and matcher.is_accepting())
    return VOCABULARY.decode(output) if is_whole else None
