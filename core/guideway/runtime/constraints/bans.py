"""Tokens and texts that a request bans in addition to its constraint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import BITS_PER_WORD, FULL, Bitmask, pack
from guideway.api.steps import Payload, StepBatch

__all__ = ["Bans", "MaskBans", "with_restrictions"]


@dataclass(frozen=True, slots=True)
class Bans:
    """The bans of a request, by parameter. If they leave no token, the constraint wins."""

    logit_bias: frozenset[int] = frozenset()
    """Tokens banned by their bias."""
    allowed_token_ids: frozenset[int] | None = None
    """Tokens that are not banned; None for all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Bad words as tokens. The last token of each is banned after the others."""
    min_tokens: int = 0
    """Stop tokens are banned until the output has this many tokens. Closing ignores it."""
    stop: tuple[bytes, ...] = ()
    """Stop strings: texts that would cut the output. Completions avoid them if they can; masks ignore them."""

    @property
    def of_masks(self) -> bool:
        """True if masks have tokens to exclude."""
        return bool(self.logit_bias or self.allowed_token_ids is not None or self.bad_words or self.min_tokens)

    @property
    def of_completion(self) -> bool:
        """True if completions have tokens or texts to avoid."""
        return bool(self.logit_bias or self.allowed_token_ids is not None or self.bad_words or self.stop)

    @property
    def most_before(self) -> int:
        """Most preceding tokens that can matter for a ban."""
        return max(map(len, (*self.bad_words, *self.stop)), default=0)

    def unbanned(self, num_tokens: int) -> NDArray[np.bool_]:
        """Return ``bool[num_tokens]``: True for tokens that are not banned at every position."""
        found = np.full(num_tokens, self.allowed_token_ids is None)
        found[[i for i in self.allowed_token_ids or () if i < num_tokens]] = True
        found[[i for i in self.logit_bias if i < num_tokens]] = False
        return found

    def ends(self, stop_token_ids: Iterable[int]) -> list[int]:
        """Return the stop tokens that may end a completion: all of them if all are banned."""
        stops = sorted(stop_token_ids)
        return [i for i in stops if not self.forbids((), (i,))] or stops

    def forbids(self, before: Sequence[int], token_ids: Sequence[int]) -> bool:
        """Return whether any of `token_ids`, which follow `before`, is a banned token."""
        if not self.logit_bias.isdisjoint(token_ids):
            return True
        if self.allowed_token_ids is not None and not self.allowed_token_ids.issuperset(token_ids):
            return True
        if not self.bad_words:
            return False
        whole, first = (*before, *token_ids), len(before) + 1
        return any(
            whole[end - len(word) : end] == word
            for word in self.bad_words
            for end in range(max(first, len(word)), len(whole) + 1)
        )


class MaskBans:
    """The bans of one running sequence, for a host that applies them through the masks."""

    def __init__(self, bans: Bans, stop_token_ids: frozenset[int], words: int) -> None:
        self._bans = bans
        self._stops = _row(stop_token_ids, words)
        self._always = {
            "logit_bias": _row(bans.logit_bias, words),
            "bad_words": _row((word[0] for word in bans.bad_words if len(word) == 1), words),
        }
        if bans.allowed_token_ids is not None:
            self._always["allowed_token_ids"] = ~_row(bans.allowed_token_ids, words)
        self._words = [word for word in bans.bad_words if len(word) > 1]
        self._overruled: list[tuple[str, ...]] = []

    def restrict(self, bitmask: Bitmask, rows: Sequence[int], past: Sequence[int], drafts: Sequence[int]) -> None:
        """Clear the banned bits in the rows of a step: the first row follows the tokens `past`, each other one a draft.
        A row that would become empty is left unchanged."""
        self._overruled = []
        past = [*past, *drafts]
        for row, num_tokens in zip(rows, range(len(past) - len(drafts), len(past) + 1), strict=True):
            found = self._after(past[:num_tokens])
            kept = bitmask[row] & ~np.bitwise_or.reduce(list(found.values()))
            if kept.any():
                bitmask[row] = kept
                self._overruled.append(())
            else:
                self._overruled.append(tuple(name for name, ban in found.items() if (bitmask[row] & ban).any()))

    def overruled(self, num_tokens: int) -> tuple[str, ...]:
        """Return the parameters that did not hold for the first `num_tokens` tokens of the last step."""
        return tuple(dict.fromkeys(name for names in self._overruled[:num_tokens] for name in names))

    def _after(self, past: Sequence[int]) -> dict[str, NDArray[np.int32]]:
        found = dict(self._always)
        ending = [word[-1] for word in self._words if tuple(past[1 - len(word) :]) == word[:-1]]
        if ending:
            found["bad_words"] = found["bad_words"] | _row(ending, len(self._stops))
        if len(past) < self._bans.min_tokens:
            found["min_tokens"] = self._stops
        return found


class Restriction(Protocol):
    """Forbids more tokens of a sequence than its constraint: `MaskBans`, `Opening`."""

    def restrict(self, bitmask: Bitmask, rows: Sequence[int], past: Sequence[int], drafts: Sequence[int]) -> None: ...


def with_restrictions(
    payload: Payload | None, batch: StepBatch, restricted: Mapping[int, tuple[Restriction, Sequence[int]]], words: int
) -> Payload:
    """Return the masks of a step with the restrictions of some sequences applied. `restricted` maps indices in the
    batch to the restriction and the generated tokens. `payload` has the constraints' masks as the array ``bitmask``,
    which is modified."""
    if payload is None:
        payload = Payload(np.empty(0, dtype=np.int32), {"bitmask": np.empty((0, words), dtype=np.int32)})
    starts = batch.row_start.tolist()
    concerned = [row for i in restricted for row in range(starts[i], starts[i + 1])]
    rows, bitmask = payload.rows, payload.arrays["bitmask"]
    # rows before a constraint begins and after it ends
    if open_rows := sorted(set(concerned).difference(rows.tolist())):
        rows = np.concatenate([rows, np.array(open_rows, dtype=np.int32)])
        bitmask = np.concatenate([bitmask, np.full((len(open_rows), words), FULL, dtype=np.int32)])
        payload = replace(payload, rows=rows, arrays={**payload.arrays, "bitmask": bitmask})
    places = {row: place for place, row in enumerate(rows.tolist())}
    for i, (restriction, past) in restricted.items():
        its_rows = [places[row] for row in range(starts[i], starts[i + 1])]
        restriction.restrict(bitmask, its_rows, past, batch.drafts(i).tolist())
    return payload


def _row(token_ids: Iterable[int], words: int) -> NDArray[np.int32]:
    """Return a row of a bitmask with these bits set."""
    allowed = np.zeros((1, words * BITS_PER_WORD), dtype=np.bool_)
    allowed[0, list(token_ids)] = True
    row: NDArray[np.int32] = pack(allowed)[0]
    return row
