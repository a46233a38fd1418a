"""The verdicts of a strategy on a schema and on texts, compared with a judge's."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from guideway.api import (
    CompiledGrammar,
    DeadEnd,
    GrammarStrategy,
    InvalidGrammar,
    JsonSchema,
    LimitExceeded,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import allocate, unpack
from guideway.api.types import PROPERTIES_ORDERS, PropertiesOrder, Whitespace
from guideway.json_schema.cursor import START, Place
from guideway.json_schema.prober import spoilt
from guideway.runtime.constraints.candidates import choose
from guideway.runtime.constraints.tracking import compile_grammar
from numpy.typing import NDArray

from tests.fuzz.instances import edit, edit_text, instance, write
from tests.support.json_strategies import build, takes
from tests.support.json_texts import TextJudge

__all__ = ["Case", "Examiner", "Outcome", "vocabulary"]

NUM_INSTANCES = 4
NUM_EDITS = 4
"""Edits of each instance."""
NUM_WALKS = 4
NUM_VALIDATED = 10
"""Tokens to compare with the mask at each step of a walk."""
SHORT_WALK, LONG_WALK = 25, 90
"""Tokens after which a walk tries to end, and gives up."""

LONGER_TOKENS = (
    *('{"', '":', '","', '"}', '": ', '", "', '"]', '["', "[[", "]]", "}}", "[]", "{}", '""', "},{", "],[", '":"'),
    *('{"a":', '{"b":', ',"a":', ',"b":', ', "a": ', '"a"', '"b"', '"k":', "\\u00", "\\u0061", "\\n", "\\ud83d", '\\"'),
    *("true", "false", "null", "ab", "abc", "aa", "10", "00", ".0", "e0", "E+1", "-1", "1,", "0.5", "  ", "\n  ", ", "),
    *("é", "😀", "a\\", 'b"', '1"', "1}", "1]"),
)
STOP = 256 + len(LONGER_TOKENS)


def vocabulary() -> Vocabulary:
    """Return a vocabulary of every byte, tokens across the borders of JSON's, and a stop token."""
    tokens = [*(bytes([i]) for i in range(256)), *(token.encode() for token in LONGER_TOKENS), b""]
    return Vocabulary(tokens, frozenset({STOP}), {STOP: "</s>"})


@dataclass(frozen=True)
class Case:
    """A text, a schema, and the strategy to be examined with them."""

    strategy: str
    schema: Any
    whitespace: Whitespace
    text: str
    """Bytes that are not UTF-8 are lone surrogates in it (``surrogateescape``)."""
    order: PropertiesOrder | None = None
    """The order of properties for `choose`; None for the strategy without it."""

    @property
    def size(self) -> int:
        return len(json.dumps(self.schema)) + len(self.text)

    def to_json(self) -> str:
        """Return a line for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Case:
        return cls(**json.loads(line))


@dataclass
class Outcome:
    """The results for one schema."""

    status: str = "judged"
    """``judged``; ``refused``, without texts; or ``named`` (a keyword is not enforced): an accepted text must then be
    JSON, but need not be valid. Of the forms of a schema, the first of these words."""
    num_texts: int = 0
    num_taken: int = 0
    num_unjudged: int = 0
    silent: list[Case] = field(default_factory=list)
    over_strict: list[Case] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Forbidden exceptions, and disagreements of masks and tokens."""


class Unjudged(Exception):
    """The judge cannot tell."""


class Examiner:
    """One strategy, with the vocabulary of `vocabulary`; with `chains`, as hosts ask it, for each form of a schema."""

    def __init__(self, name: str, *, chains: bool = False) -> None:
        self.name = name
        self.chains = chains
        self._vocabulary = vocabulary()
        self._strategy: GrammarStrategy = build(name, self._vocabulary)
        self._tokens = _Tokens(self._vocabulary)

    def names_nothing(self, schema: Any) -> bool:
        """Return whether the strategy accepts a schema and claims to enforce all of it."""
        if self.chains:
            return True
        support = self._strategy.supports(JsonSchema(schema))
        return not support.refused and not support.unenforced

    def examine(self, schema: Any, whitespace: Whitespace, random: Random) -> Outcome:
        """Judge many texts under a schema."""
        outcome = Outcome("refused")
        asked = Case(self.name, schema, whitespace, "", random.choice(PROPERTIES_ORDERS) if self.chains else None)
        try:
            for status, compiled in self._forms(asked):
                outcome.status = min(status, outcome.status)  # `judged` if any is
                self._examine(outcome, asked, status, compiled, random)
        except LimitExceeded:
            pass
        except Exception as error:
            outcome.broken.append(f"{type(error).__name__}: {error} ({json.dumps(schema)})"[:2000])
        return outcome

    def _examine(self, outcome: Outcome, asked: Case, status: str, compiled: CompiledGrammar, random: Random) -> None:
        judge = _Judge(asked.schema if status == "judged" else True)
        texts = set()
        for _ in range(NUM_INSTANCES):
            value = instance(random, asked.schema)
            plain = _plain(value, asked.whitespace)
            self._look(outcome, replace(asked, text=plain), status, compiled, judge, plain=True)
            texts |= {text.decode(errors="surrogateescape") for text in spoilt(_bytes(plain))}
            for _ in range(NUM_EDITS):
                other = edit(random, value) if random.random() < 0.6 else value
                text = write(random, other, asked.whitespace)
                texts.add(edit_text(random, text) if random.random() < 0.25 else text)
        for text in sorted(texts):
            self._look(outcome, replace(asked, text=text), status, compiled, judge, plain=False)
        for text in self._walks(outcome, status, compiled, asked.schema, random):
            self._look(outcome, replace(asked, text=text), status, compiled, judge, plain=False)

    def verdict(self, case: Case) -> str:
        """Return ``silent``, ``over-strict``, ``taken``, ``not taken``, ``unjudged``, or why the schema is not
        judged: of the first form for which it is ``silent``, or of the last."""
        found = "refused"
        for status, compiled in self._forms(case):
            found = self._verdict(case, status, compiled)
            if found == "silent":
                break
        return found

    def _verdict(self, case: Case, status: str, compiled: CompiledGrammar) -> str:
        taken = takes(compiled, _bytes(case.text), frozenset({STOP}))
        try:
            valid = _Judge(case.schema if status == "judged" else True)(case.text)
        except Unjudged:
            return "unjudged"
        if taken:
            return "taken" if valid else "silent"
        return "over-strict" if valid else "not taken"

    def _forms(self, case: Case) -> Iterator[tuple[str, CompiledGrammar]]:
        """Yield the status of an outcome and the grammar, for each form of a schema that the strategy compiles."""
        constraint = JsonSchema(case.schema, whitespace=case.whitespace)
        forms: list[tuple[JsonSchema, bool]] = []
        with suppress(InvalidGrammar, UnsupportedGrammar):
            if case.order is None:
                support = self._strategy.supports(constraint)
                forms += [] if support.refused else [(constraint, bool(support.unenforced))]
            else:
                constraint = replace(constraint, properties_order=case.order)
                chosen = choose(constraint, {self.name: self._strategy}).candidates
                forms += [(each.served(constraint), bool(each.unenforced)) for each in chosen]
        for form, is_named in forms:
            with suppress(InvalidGrammar, UnsupportedGrammar):
                yield "named" if is_named else "judged", compile_grammar(self._strategy, form)

    def _look(
        self, outcome: Outcome, case: Case, status: str, compiled: CompiledGrammar, judge: _Judge, *, plain: bool
    ) -> None:
        outcome.num_texts += 1
        taken = takes(compiled, _bytes(case.text), frozenset({STOP}))
        outcome.num_taken += taken
        if not taken and not plain:
            return
        try:
            valid = judge(case.text)
        except Unjudged:
            outcome.num_unjudged += 1
            return
        if taken and not valid:
            outcome.silent.append(case)
        elif valid and not taken and status == "judged":
            outcome.over_strict.append(case)

    def _walks(
        self, outcome: Outcome, status: str, compiled: CompiledGrammar, schema: Any, random: Random
    ) -> Iterator[str]:
        """Yield random texts that the masks allow."""
        weights = self._tokens.weights(json.dumps(schema, ensure_ascii=False))
        for _ in range(NUM_WALKS):
            matcher, text = compiled.matcher(frozenset({STOP})), b""
            for step in range(LONG_WALK):
                bitmask = allocate(1, self._vocabulary.logits_width)
                try:
                    matcher.fill_bitmask(bitmask, 0)
                except DeadEnd:
                    # at other places there may be a dead end, if nothing satisfies the schema
                    if status == "judged" and START.after(text).place in (Place.KEY, Place.KEY_START):
                        outcome.broken.append(f"no name can follow {text!r}: {json.dumps(schema)}")
                    break
                allowed = unpack(bitmask, self._vocabulary.logits_width)[0]
                for other in random.sample(range(STOP), NUM_VALIDATED):
                    if matcher.validate([other]) != allowed[other]:
                        outcome.broken.append(f"mask and token {other} disagree after {text!r}: {json.dumps(schema)}")
                token_id = self._tokens.draw(random, allowed, weights, hurried=step >= SHORT_WALK)
                if matcher.accept([token_id]) != 1:
                    outcome.broken.append(
                        f"token {token_id} is allowed after {text!r} and refused: {json.dumps(schema)}"
                    )
                    break
                if token_id == STOP:
                    yield text.decode(errors="surrogateescape")
                    break
                text += self._vocabulary.tokens[token_id]


class _Tokens:
    """Draws tokens, preferring those in a schema."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._texts = vocabulary.tokens
        self._base = np.array([_weight(token) for token in self._texts])
        self._hurried = np.array([30.0 if token and set(token) <= set(b'"]}') else 1.0 for token in self._texts])
        self._hurried[STOP] = 100

    def weights(self, schema: str) -> NDArray[np.float64]:
        data = schema.encode()
        known = [3.0 if token and token in data else 1.0 for token in self._texts]
        found: NDArray[np.float64] = self._base * np.array(known)
        return found

    def draw(self, random: Random, allowed: NDArray[Any], weights: NDArray[np.float64], *, hurried: bool) -> int:
        sums = np.cumsum(np.where(allowed, weights * self._hurried if hurried else weights, 0.0))
        return int(np.searchsorted(sums, random.random() * sums[-1], side="right"))


def _weight(token: bytes) -> float:
    if not token:
        return 8.0  # the stop token
    if token.isspace():
        return 0.1
    if token in b'"{}[],:0123456789.-e':
        return 4.0
    return 1.0 if len(token) > 1 or 32 <= token[0] < 127 else 0.1


class _Judge:
    """A judge of texts, which raises `Unjudged` for every failure to judge."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    @cached_property
    def _judge(self) -> TextJudge:
        return TextJudge(self._schema)

    def __call__(self, text: str) -> bool:
        try:
            _bytes(text).decode()
        except UnicodeDecodeError:
            return False
        if r"\\p" in json.dumps(self._schema) and any(unicodedata.category(c) == "Cn" for c in text):
            raise Unjudged("a newer Unicode may have this character")
        try:
            return self._judge(text)
        except (RecursionError, OverflowError) as error:
            raise Unjudged from error
        except ValueError as error:
            if "digits" not in str(error):
                raise
            raise Unjudged("Python does not write an integer of so many digits, which a message would have") from error


def _plain(value: Any, whitespace: Whitespace) -> str:
    separators = (", ", ": ") if whitespace == "spaced" else (",", ":")
    return json.dumps(value, ensure_ascii=False, separators=separators)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
