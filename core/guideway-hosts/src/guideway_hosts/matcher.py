"""Grammars and matchers that live in hosts, as the serving process sees them: under the contracts of any."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from guideway.api.bitmask import BITS_PER_WORD, Bitmask
from guideway.api.grammar import CompiledGrammar, FillJob, Matcher
from guideway.api.types import Constraint
from guideway.runtime.constraints.closing import Budget, Record, Reserve
from guideway.runtime.constraints.mask_block import Late
from numpy.typing import NDArray

from guideway_hosts.codec import encode
from guideway_hosts.messages import Birth, Job

__all__ = ["HostedGrammar", "HostedMatcher"]

_NUMBERS = itertools.count()
"""The numbers of grammars and matchers, in all hosts of this process."""


class Home(Protocol):
    """The home of matchers: `MatcherHost`."""

    def unload(self, grammar: int) -> None: ...
    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]: ...
    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any: ...
    def forget(self, what: str, matcher: int, host: int) -> None: ...
    def end_for(self, matcher: int) -> None: ...


class Source(Protocol):
    """The source of masks: `Room`."""

    num_commands: int


class HostedGrammar(CompiledGrammar):
    """A grammar in a matcher host, and what to make it from again."""

    def __init__(
        self,
        home: Home,
        strategy: str,
        constraint: Constraint,
        data: bytes | None,
        nbytes: int,
        reserve: Reserve,
        check: Callable[[Constraint], None],
    ) -> None:
        self.number = next(_NUMBERS)
        self.strategy = strategy
        self.constraint = constraint
        self.data = data
        self.reserve = reserve
        """The reserve that its outputs need at their end."""
        self._home = home
        self._nbytes = nbytes
        self._check = check
        """Raises `LimitExceeded` if a matcher of it broke a limit not long ago."""

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        self._check(self.constraint)
        return HostedMatcher(self._home, self, stop_token_ids, [])

    @property
    def given(self) -> Constraint | bytes:
        """The constraint or bytes that its strategy makes it from."""
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
    """Knows the masks of the last fill, and so what its matcher in the host will say of the tokens drawn from them:
    what was accepted is told with the next command, and what cannot be known is asked."""

    def __init__(self, home: Home, grammar: HostedGrammar, stop_token_ids: frozenset[int], accepted: list[int]) -> None:
        self._home = home
        self.grammar = grammar
        self.number = next(_NUMBERS)
        self.recycled = False
        """True if the strategy may use it again."""
        self.budget: Budget | None = None
        """Within which its output is to be complete; None: it need not. Set before its masks are asked for."""
        self.end: Record | None = None
        """The knowledge of its end."""
        self.ends: Sequence[Record] = ()
        """The same once a token was drawn from a row of the last fill; empty: no more than before."""
        self.first_closed: int | None = None
        """The first row of the last fill that does not allow all that its grammar does."""
        self.forced: tuple[int, ...] | None = None
        """The tokens that must come next (`Forcing`), as its host said; None: it has not said since the last token."""
        self._stop_token_ids = stop_token_ids
        self._accepted = accepted
        self.born_in = -1
        """The number of the host that has it."""
        self._to_roll_back = 0
        self._to_accept: list[int] = []
        """The changes that the host does not know yet: it rolls back first."""
        self._rows: NDArray[np.int32] | None = None
        """The masks of the last fill: of its state and of those after its drafts."""
        self._drafts: Sequence[int] = ()
        self._at: int | None = None
        """The number of the mask of the state now; None: none is."""
        self._filled_by: Source | None = None
        self._filled_in = -1

    # What is known

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
                allowed = True  # its host said so, and nobody has asked for the mask yet
            elif mask is None:
                return count + self._accept_there(tuple(token_ids[count:]))
            else:
                allowed = _allows(mask, token_id)
                if self._row() is None:  # a fill came between
                    return count + self._accept_there(tuple(token_ids[count:]))
            if not allowed:
                return count
            self._note(token_id)
            self._to_accept.append(token_id)
        return len(token_ids)

    def advance(self, token_id: int) -> int:
        """Do what `accept` does with one token, in half its time where nothing is unusual."""
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

    # What is asked

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

    # For its home

    def job(self, host: int, draft_token_ids: Sequence[int] = (), first_row: int = 0) -> Job:
        """Make the job that the host has to do for it."""
        if self.born_in == host:
            birth, rollback, news = None, self._to_roll_back, tuple(self._to_accept)
        else:
            birth, rollback, news = self._birth(), 0, ()
        drafts = tuple(draft_token_ids)
        return Job(self.number, birth, rollback, news, drafts, first_row)

    def _birth(self) -> Birth:
        stops = list(self._stop_token_ids)
        return Birth(self.grammar.number, stops, list(self._accepted), encode(self.budget), encode(self.end))

    def done(self, host: int) -> None:
        """The host has done it."""
        self.born_in, self._to_roll_back = host, 0
        self._to_accept.clear()

    def lost(self) -> None:
        """Note that what the host has of it is not to be used any more."""
        self.moves()
        self._rows = self._at = None

    def filled(self, masks: NDArray[np.int32], draft_token_ids: Sequence[int], room: Source | None) -> None:
        """Its masks are these, until the next command of the room they lie in; None: they are its own."""
        self._rows, self._drafts, self._at = masks, draft_token_ids, 0
        self._filled_by, self._filled_in = room, 0 if room is None else room.num_commands

    def keep_rows(self) -> None:
        """The next command of the room comes: keep the masks that may still be asked for."""
        if self._row() is not None:
            assert self._rows is not None
            self._rows, self._filled_by = self._rows.copy(), None

    def has_news(self) -> bool:
        """Return whether something happened to it that the host does not know."""
        return bool(self._to_accept or self._to_roll_back)

    def moves(self) -> None:
        """Another host has it from now on; what is known of its masks holds."""
        if self.born_in >= 0:
            self._home.forget("end", self.number, self.born_in)
        self.born_in = -1

    def num_filled(self, count: int, draft_token_ids: Sequence[int]) -> int:
        """Return how many of its rows a fill that accepted `count` drafts has written: none after the end."""
        return count if count and draft_token_ids[count - 1] in self._stop_token_ids else count + 1

    def _row(self) -> NDArray[np.int32] | None:
        """The row of the state now, if it is known."""
        if self._at is None or self._rows is None:
            return None
        if self._filled_by is not None and self._filled_in != self._filled_by.num_commands:
            return None
        mask: NDArray[np.int32] = self._rows[self._at]
        return mask

    def _note(self, token_id: int) -> None:
        """It was accepted."""
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
