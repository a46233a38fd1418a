"""Proxies in the serving process for grammars and matchers in hosts, with the same interface."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from guideway.api.bitmask import BITS_PER_WORD, Bitmask
from guideway.api.grammar import CompiledGrammar, FillJob, Matcher
from guideway.api.types import Constraint
from guideway.errors import LimitExceeded
from guideway.runtime.constraints.closing import Budget, Record, Reserve
from guideway.runtime.constraints.digests import constraint_digest
from guideway.runtime.constraints.mask_block import Late
from guideway.runtime.work.expiring import Expiring
from numpy.typing import NDArray

from guideway_hosts.codec import encode
from guideway_hosts.messages import Birth

__all__ = ["HostedGrammar", "HostedMatcher", "Refused"]

_NUMBERS = itertools.count()
"""The numbers of grammars and matchers, unique in all hosts of this process."""


class Refused:
    """Constraints that recently exceeded a limit or ended a host."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._why: Expiring[tuple[str, str, bytes], str] = Expiring()

    def remember(self, strategy: str, constraint: Constraint, why: str) -> None:
        self._why.put((strategy, constraint.kind, constraint_digest(constraint)), why, self._seconds)

    def check(self, strategy: str, constraint: Constraint) -> None:
        """Raise `LimitExceeded` for a constraint that is remembered."""
        if (why := self._why.get((strategy, constraint.kind, constraint_digest(constraint)))) is not None:
            raise LimitExceeded(
                f"{strategy} failed on this constraint recently: {why}; it is tried again {self._seconds:g} s after "
                "that",
                field="constraint",
            )


class Home(Protocol):
    """The part of `MatcherHost` that grammars and matchers call."""

    refused: Refused

    def unload(self, grammar: int) -> None: ...
    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]: ...
    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any: ...
    def forget(self, what: str, matcher: int, host: int) -> None: ...
    def end_for(self, matcher: int) -> None: ...


class Source(Protocol):
    """The part of `Room` that tells a matcher whether its rows were overwritten."""

    num_commands: int


class HostedGrammar(CompiledGrammar):
    """A grammar in a host, with the source to make it from again."""

    def __init__(
        self,
        home: Home,
        strategy: str,
        constraint: Constraint,
        data: bytes | None,
        nbytes: int,
        reserve: Reserve,
    ) -> None:
        self.number = next(_NUMBERS)
        self.strategy = strategy
        self.constraint = constraint
        self.data = data
        self.reserve = reserve
        """Tokens to keep for completing an output."""
        self._home = home
        self._nbytes = nbytes

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        self._home.refused.check(self.strategy, self.constraint)
        return HostedMatcher(self._home, self, stop_token_ids, [])

    @property
    def given(self) -> Constraint | bytes:
        """The constraint or the bytes that the strategy makes the grammar from."""
        return self.constraint if self.data is None else self.data

    @property
    def nbytes(self) -> int:
        return self._nbytes + len(self.data or b"")

    def recycle(self, matcher: Matcher) -> None:
        assert isinstance(matcher, HostedMatcher)
        matcher.recycled = True

    def __del__(self) -> None:
        self._home.unload(self.number)


class HostedMatcher(Matcher):
    """A matcher in a host, with the masks of its last fill.

    The masks decide whether a token is accepted, without asking the host. The next command sends the accepted tokens.
    Methods that need more than the masks ask the host.
    """

    def __init__(self, home: Home, grammar: HostedGrammar, stop_token_ids: frozenset[int], accepted: list[int]) -> None:
        self._home = home
        self.grammar = grammar
        self.number = next(_NUMBERS)
        self.recycled = False
        """True if the strategy may use the matcher again."""
        self.budget: Budget | None = None
        """Budget within which the output must be complete; None: no limit. Set before the first masks are requested."""
        self.end: Record | None = None
        """The closing record of the output (see `Record`)."""
        self.ends: Sequence[Record] = ()
        """The closing record after a token was drawn from each row of the last fill; empty: `end` does not change."""
        self.first_closed: int | None = None
        """The first row of the last fill in which closing removed tokens that the grammar allows."""
        self.forced: tuple[int, ...] | None = None
        """The tokens that must come next (`Forcing`), as found by the host; None: not searched since the last token."""
        self._stop_token_ids = stop_token_ids
        self._accepted = accepted
        self.born_in = -1
        """The number of the host that has the matcher; -1: no host has it."""
        self._to_roll_back = 0
        self._to_accept: list[int] = []
        """The changes that the host does not know yet. The rollback is first."""
        self._rows: NDArray[np.int32] | None = None
        """The masks of the last fill: for the state then, and for the state after each draft."""
        self._drafts: Sequence[int] = ()
        self._at: int | None = None
        """The index in `_rows` of the current state's mask; None: its mask is unknown."""
        self._filled_by: Source | None = None
        self._filled_in = -1

    # Answered from the masks

    def accept(self, token_ids: Sequence[int]) -> int:
        if not token_ids:
            return 0
        if self.ends:
            self.end = self.ends[min(len(token_ids), len(self.ends)) - 1]
        forced, self.ends, self.forced = self.forced or (), (), None
        for count, token_id in enumerate(token_ids):
            if self.is_terminated():
                return count
            mask = self._row()
            if mask is None and forced[: count + 1] == tuple(token_ids[: count + 1]):
                allowed = True  # the host found this token as forced, and its mask was not requested yet
            elif mask is None:
                return count + self._accept_there(tuple(token_ids[count:]))
            else:
                allowed = _allows(mask, token_id)
                if self._row() is None:  # another command overwrote the mask while it was read
                    return count + self._accept_there(tuple(token_ids[count:]))
            if not allowed:
                return count
            self._note(token_id)
            self._to_accept.append(token_id)
        return len(token_ids)

    def advance(self, token_id: int) -> int:
        """Accept one token like `accept`, in half the time if the mask is known and there are no drafts."""
        mask = self._row()
        if mask is None or self._drafts or self.ends or self.is_terminated():
            return self.accept((token_id,))
        word = token_id >> 5
        if not 0 <= word < len(mask) or not mask.item(word) >> (token_id & 31) & 1 or self._row() is None:
            return self.accept((token_id,))
        self.forced = self._at = None
        self._accepted.append(token_id)
        self._to_accept.append(token_id)
        return 1

    def is_terminated(self) -> bool:
        return bool(self._accepted) and self._accepted[-1] in self._stop_token_ids

    def is_accepting(self) -> bool:
        mask = self._row()
        if mask is not None:
            return any(_allows(mask, token_id) for token_id in self._stop_token_ids)
        return bool(self._home.ask(self, "is_accepting"))

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self._accepted):
            raise ValueError(f"{num_tokens} tokens cannot be rolled back: {len(self._accepted)} were accepted")
        if num_tokens == 0:
            return
        self.forced = None
        del self._accepted[-num_tokens:]
        unknown = min(num_tokens, len(self._to_accept))
        if unknown:
            del self._to_accept[-unknown:]
        self._to_roll_back += num_tokens - unknown
        self._at = self._at - num_tokens if self._at is not None and self._at >= num_tokens else None

    def fork(self) -> Matcher:
        child = HostedMatcher(self._home, self.grammar, self._stop_token_ids, list(self._accepted))
        child._rows, child._drafts, child._at = self._rows, self._drafts, self._at
        child._filled_by, child._filled_in = self._filled_by, self._filled_in
        child.budget, child.end, child.ends = self.budget, self.end, self.ends
        return child

    # Answered by the host

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        job = FillJob(self, (), row)
        while self._home.fill((job,), bitmask)[0] < 0:
            assert job.error is not None
            if not isinstance(job.error, Late):
                raise job.error

    def validate(self, token_ids: Sequence[int]) -> int:
        return int(self._home.ask(self, "validate", tuple(token_ids)))

    def forced_tokens(self) -> Sequence[int]:
        return tuple(self._home.ask(self, "forced_tokens"))

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        found = self._home.ask(self, "shortest_completion", limit)
        return None if found is None else tuple(found)

    # For `MatcherHost`

    @property
    def changes(self) -> tuple[int, tuple[int, ...]]:
        """The changes that the host does not know: how many tokens to roll back, and then the tokens to accept."""
        return self._to_roll_back, tuple(self._to_accept)

    def birth(self) -> Birth:
        """Return the source that a host makes the matcher from."""
        stops = list(self._stop_token_ids)
        return Birth(self.grammar.number, stops, list(self._accepted), encode(self.budget), encode(self.end))

    def done(self, host: int) -> None:
        """Record that a host has executed the job, so that it knows all changes."""
        self.born_in, self._to_roll_back = host, 0
        self._to_accept.clear()

    def lost(self) -> None:
        """Record that the host's copy must not be used again, and forget the masks."""
        self.moves()
        self._rows = self._at = None

    def filled(self, masks: NDArray[np.int32], draft_token_ids: Sequence[int], room: Source | None) -> None:
        """Set the masks. They are valid until the next command of `room`; None: the matcher owns the array."""
        self._rows, self._drafts, self._at = masks, draft_token_ids, 0
        self._filled_by, self._filled_in = room, 0 if room is None else room.num_commands

    def keep_rows(self) -> None:
        """Copy the masks that may still be needed, because the next command of the room overwrites them."""
        if self._row() is not None:
            assert self._rows is not None
            self._rows, self._filled_by = self._rows.copy(), None

    def moves(self) -> None:
        """Remove the matcher from its host, so that another host rebuilds it. The known masks stay valid."""
        if self.born_in >= 0:
            self._home.forget("end", self.number, self.born_in)
        self.born_in = -1

    def num_filled(self, count: int, draft_token_ids: Sequence[int]) -> int:
        """Return how many rows a fill that accepted `count` drafts wrote. There is no row after a stop token."""
        return count if count and draft_token_ids[count - 1] in self._stop_token_ids else count + 1

    def _row(self) -> NDArray[np.int32] | None:
        """Return the current state's mask, or None if it is unknown or was overwritten."""
        if self._at is None or self._rows is None:
            return None
        if self._filled_by is not None and self._filled_in != self._filled_by.num_commands:
            return None
        mask: NDArray[np.int32] = self._rows[self._at]
        return mask

    def _note(self, token_id: int) -> None:
        """Record an accepted token, and move to the mask after it if it is the next draft."""
        self._accepted.append(token_id)
        if self._at is not None:
            at, masks = self._at, self._rows
            followed = at < len(self._drafts) and self._drafts[at] == token_id
            self._at = at + 1 if followed and masks is not None and at + 1 < len(masks) else None

    def _accept_there(self, token_ids: tuple[int, ...]) -> int:
        count = int(self._home.ask(self, "accept", token_ids))
        self._accepted += token_ids[:count]
        self._at = None
        return count

    def __del__(self) -> None:
        self._home.end_for(self.number)
        if self.born_in >= 0:
            self._home.forget("recycle" if self.recycled else "end", self.number, self.born_in)


def _allows(mask: NDArray[np.int32], token_id: int) -> bool:
    word, bit = divmod(token_id, BITS_PER_WORD)
    return 0 <= word < len(mask) and bool(int(mask[word]) >> bit & 1)
