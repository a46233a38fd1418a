"""Masks, in vocabularies of all sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from guideway.api import Vocabulary
from guideway.api.bitmask import allow_only, num_words

from saboteurs import saboteur
from saboteurs.grammar.base import Full, Place, Sane

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask


@saboteur("grammar.bits_are_what_accept_takes")
class OneIdPerText(Sane):
    """Masks hold the first alone of tokens with equal bytes."""

    class State(Place):
        def legal(self) -> list[int]:
            texts: dict[bytes, int] = {}
            legal = super().legal()
            for token_id in legal:
                texts.setdefault(self.vocabulary.tokens[token_id] or b"%d" % -token_id, token_id)
            return sorted(texts.values())


@saboteur("grammar.fill_touches_only_its_row")
class AddsToTheRow(Sane):
    """Bits are set in what the row held before."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            before = bitmask[row].copy()
            super().fill_bitmask(bitmask, row)
            bitmask[row] |= before


@saboteur("grammar.fill_touches_only_its_row")
class RunsIntoTheNextRow(Sane):
    """It writes a word too many."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            super().fill_bitmask(bitmask, row)
            if row + 1 < len(bitmask):
                bitmask[row + 1, 0] = 0


@saboteur("grammar.fill_takes_any_contiguous_bitmask")
class WritesToTheBase(Sane):
    """It writes to the array the bitmask is a part of."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            super().fill_bitmask(bitmask if bitmask.base is None else bitmask.base, row)


@saboteur("grammar.bits_past_the_vocabulary_are_zero")
class LeavesThePadding(Sane):
    """It clears no word past the vocabulary."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            size = num_words(len(self.vocabulary))
            past = bitmask[row, size:].copy()
            super().fill_bitmask(bitmask, row)
            bitmask[row, size:] = past


@saboteur("grammar.filling_moves_nothing")
class TiresOfFilling(Sane):
    """A second fill in one state lacks the last token."""

    class State(Place):
        filled = 0

        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            super().fill_bitmask(bitmask, row)
            if self.filled == len(self.states) and len(self.legal()) > 1:
                allow_only(bitmask, row, self.legal()[:-1])
            self.filled = len(self.states)


@saboteur("grammar.a_dead_end_is_raised")
class EmptyMasks(Sane):
    """Leaves the row empty where no token is legal, and says nothing."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            allow_only(bitmask, row, self.legal())


@saboteur("grammar.a_dead_end_is_raised")
class StopsAtADeadEnd(Sane):
    """Masks have the stop tokens where no token is legal, as if the output were complete."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            allow_only(bitmask, row, self.legal() or self.stop_token_ids)


@saboteur("grammar.a_dead_end_is_raised")
class ClearsBeforeItRaises(Sane):
    """DeadEnd is raised after the row was overwritten."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            bitmask[row] = 0
            super().fill_bitmask(bitmask, row)


@saboteur("grammar.a_dead_end_accepts_nothing")
class StopsAnywhereDead(Sane):
    """Accepts a stop token where no token is legal."""

    class State(Place):
        def accept(self, token_ids: Sequence[int]) -> int:
            if token_ids and token_ids[0] in self.stop_token_ids and not self.is_terminated() and not self.legal():
                self.push(token_ids[0])
                return 1
            return super().accept(token_ids)


@saboteur("grammar.vocabularies_of_any_size_work")
class LosesTheLastToken(Sane):
    """With a vocabulary of whole words, the mask lacks the last token."""

    class State(Place):
        def legal(self) -> list[int]:
            size = len(self.vocabulary)
            return [t for t in super().legal() if size % 32 or t != size - 1]


@saboteur("grammar.logits_of_any_width_work")
class ClearsLittlePadding(Sane):
    """It clears three words past the vocabulary and no more."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            size = num_words(len(self.vocabulary)) + 3
            past = bitmask[row, size:].copy()
            super().fill_bitmask(bitmask, row)
            bitmask[row, size:] = past


@saboteur("grammar.a_vocabulary_of_one_token_works")
class NeedsTwoTokens(Sane):
    """It fails with IndexError on a vocabulary without text."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.first = [token for token in vocabulary.tokens if token][0][0]  # noqa: RUF015


@saboteur("grammar.an_encoder_is_not_needed_for_masks")
class MasksNeedAnEncoder(Sane):
    """Without an encoder only single bytes are legal."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            cannot = self.vocabulary.encoder is None and len(self.vocabulary.tokens[token_id]) > 1
            return not cannot and super().is_legal(token_id)


@saboteur("grammar.rows_are_the_hosts")
class RemembersRows(Sane):
    """The first row that was filled in a state is copied from then on, wherever it lies."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            known: dict[Any, Any] = vars(self.compiled).setdefault("rows", {})
            if self.state in known:
                bitmask[row] = known[self.state]
                return
            super().fill_bitmask(bitmask, row)
            known[self.state] = bitmask[row]


@saboteur("grammar.rows_are_the_hosts")
class ClearsTheLastRow(Sane):
    """Before a row is filled, the one filled last is closed."""

    class State(Place):
        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            last = vars(self.compiled).get("last")
            if last is not None:
                last[:] = 0
            super().fill_bitmask(bitmask, row)
            vars(self.compiled)["last"] = bitmask[row]


@saboteur("grammar.tokens_over_many_levels_work")
class FourLevels(Sane):
    """Its masks look at the four innermost levels: a token that closes more is not in them."""

    class State(Place):
        def legal(self) -> list[int]:
            tokens = self.vocabulary.tokens
            return [t for t in super().legal() if sum(map(tokens[t].count, (b"]", b"}", b")"))) < 5]


@saboteur("grammar.strategies_of_other_vocabularies_are_independent")
class OneForEqualTokens(Sane):
    """All vocabularies of as many tokens share what it makes of the first."""

    known: ClassVar[dict[int, Any]] = {}

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.reference = self.known.setdefault(len(vocabulary), self.reference)


@saboteur("grammar.strategies_of_other_vocabularies_are_independent")
class OneTokenizerForAll(Full):
    """All vocabularies of the same tokens share what it makes of the first, whatever their tokenizers write."""

    known: ClassVar[dict[Sequence[bytes], Any]] = {}

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.reference = self.known.setdefault(vocabulary.tokens, self.reference)
