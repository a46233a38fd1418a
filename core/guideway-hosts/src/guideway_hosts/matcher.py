"""Proxies in the serving process for grammars and matchers in hosts, with the same interface."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from guideway.api.bitmask import BITS_PER_WORD, Bitmask
from guideway.api.grammar import CompiledGrammar, FillJob, Matcher
from guideway.api.types import Constraint
from guideway.errors import GuidewayError, LimitExceeded
from guideway.runtime.constraints.closing import Budget, Record, Reserve
from guideway.runtime.constraints.digests import constraint_digest
from guideway.runtime.constraints.mask_block import Late
from guideway.runtime.work.expiring import Expiring
from numpy.typing import NDArray

from guideway_hosts.codec import encode, pack
from guideway_hosts.room import LIVING, Remote, Source

__all__ = ["NOBODY", "Filled", "Group", "HostedGrammar", "HostedMatcher", "Refused", "Rows"]

NOBODY = -1
"""The number at a place of a group that no matcher has."""


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


class Rows:
    """The masks that one command filled."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: NDArray[np.int32]) -> None:
        self.block = block
        """``int32[n, words]``: the memory that the host wrote, until its next command, and a copy after that."""

    def allows(self, row: int, token_id: int) -> bool:
        """Return whether a mask allows a token."""
        word, bit = divmod(token_id, BITS_PER_WORD)
        while True:
            block = self.block
            allowed = 0 <= word < block.shape[1] and bool(block.item(row, word) >> bit & 1)
            if self.block is block:  # otherwise another command may have overwritten it
                return allowed

    def allow(self, rows: NDArray[np.intp], token_ids: NDArray[np.integer[Any]]) -> bool:
        """Return whether the masks at `rows` allow their tokens."""
        block, words = self.block, token_ids // BITS_PER_WORD
        if not 0 <= int(words.min()) <= int(words.max()) < block.shape[1]:
            return False
        return bool((block[rows, words] >> token_ids % BITS_PER_WORD & 1).all())


class Group:
    """The matchers of a step that go on together: each accepts one token between two steps. Each has a place, at which
    the step has its mask.

    A matcher leaves with its first call of its own. Only then it is told the tokens. Others may join in its place.
    """

    def __init__(self) -> None:
        self.rows: Rows | None = None
        """Their masks, by place; None: the masks of their states are unknown."""
        self.log: list[NDArray[np.int32]] = []
        """The tokens that they accepted together, by place."""
        self.numbers: list[int] = []
        """The number of the matcher at each place; `NOBODY` at a free one."""
        self.is_told = True
        """False while their host does not know the last tokens."""
        self.stop_token_ids: frozenset[int] = frozenset()
        """The stop tokens of all matchers."""

    def join(self, matchers: Mapping[int, HostedMatcher]) -> None:
        """Let matchers join at these places, which are free or new, and have the masks there."""
        self.numbers += [NOBODY] * (1 + max(matchers, default=-1) - len(self.numbers))
        self.stop_token_ids = self.stop_token_ids.union(*{each.stop_token_ids for each in matchers.values()})
        for place, matcher in matchers.items():
            matcher.join(self, place)
            self.numbers[place] = matcher.number

    def keep(self, numbers: Collection[int]) -> None:
        """Let the matchers leave that have none of these numbers."""
        for place, number in enumerate(self.numbers):
            if number != NOBODY and number not in numbers:
                matcher = LIVING.get(number)
                if isinstance(matcher, HostedMatcher):
                    matcher.leave()
                self.numbers[place] = NOBODY

    def settle(self) -> None:
        """Tell all matchers the tokens, so that the log does not grow with the outputs."""
        for matcher in map(LIVING.get, self.numbers):
            if isinstance(matcher, HostedMatcher):
                matcher.catch_up()
                matcher.num_known = 0
        self.log.clear()


@dataclass(slots=True)
class Filled:
    """The rows that a host filled for a matcher."""

    rows: Rows
    first: int
    """The index of the first row in `rows`."""
    drafts: tuple[int, ...] = ()
    """The drafts, or the forced tokens that the host found as drafts."""
    count: int = 0
    """Drafts accepted."""
    first_closed: int | None = None
    """The first row in which closing removed tokens that the grammar allows; None if there is no such row."""
    ends: Sequence[Record] = ()
    """The closing record for each row, valid after a token was drawn from it; empty if the record did not change."""


class HostedGrammar(Source, CompiledGrammar):
    """A grammar in hosts. `data` are its serialized bytes, if it is made again from them."""

    def __init__(
        self, home: Home, strategy: str, constraint: Constraint, data: bytes | None, nbytes: int, reserve: Reserve
    ) -> None:
        self.given = constraint if data is None else data
        super().__init__(home.unload, f"grammar.{strategy}", self.given)
        self.strategy = strategy
        self.constraint = constraint
        self.reserve = reserve
        """Tokens to keep for completing an output."""
        self._home = home
        self._nbytes = nbytes + len(data or b"")

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        self._home.refused.check(self.strategy, self.constraint)
        return HostedMatcher(self._home, self, stop_token_ids, [])

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def recycle(self, matcher: Matcher) -> None:
        assert isinstance(matcher, HostedMatcher)
        if matcher.room is not None:
            matcher.room.tell("release", matcher.number, matcher.born_in)
        matcher.born_in = -1


class HostedMatcher(Remote, Matcher):
    """A matcher in a host, with the masks of its last fill.

    The masks decide whether a token is accepted, without asking the host. The next command sends the accepted tokens.
    Methods that need more than the masks ask the host.
    """

    def __init__(self, home: Home, grammar: HostedGrammar, stop_token_ids: frozenset[int], accepted: list[int]) -> None:
        super().__init__(grammar)
        self._home = home
        self.grammar = grammar
        self.num_late = 0
        """How many of its steps were late."""
        self.answer: Filled | GuidewayError | None = None
        """The result of the last command, until a step takes it."""
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
        self.stop_token_ids = stop_token_ids
        self._accepted = accepted
        self._to_accept: list[int] = []
        """The last of them, which the host does not know yet."""
        self._rows: Rows | None = None
        """The masks of the last fill; None: the current state's mask is unknown."""
        self._at = 0
        """The index in `_rows` of the mask for the current state."""
        self._drafts: tuple[int, ...] = ()
        """The next drafts, each followed by a mask."""
        self._group: Group | None = None
        """The group that it is in, which then has its masks and its last tokens, at `_at`."""
        self.num_known = 0
        """Tokens in the group's log that it knows, or that were accepted before it joined."""

    # Answered from the masks

    def accept(self, token_ids: Sequence[int]) -> int:
        if not token_ids:
            return 0
        self.leave()
        if self.ends:
            self.end = self.ends[min(len(token_ids), len(self.ends)) - 1]
        forced, self.ends, self.forced = self.forced or (), (), None
        for count, token_id in enumerate(token_ids):
            if self.is_terminated():
                return count
            if self._rows is not None:
                if not self._rows.allows(self._at, token_id):
                    return count
            elif forced[: count + 1] != tuple(token_ids[: count + 1]):  # forced tokens are allowed, as the host found
                return count + self._accept_there(tuple(token_ids[count:]))
            self._accepted.append(token_id)
            self._to_accept.append(token_id)
            if self._drafts[:1] == (token_id,):
                self._at, self._drafts = self._at + 1, self._drafts[1:]
            else:
                self._rows = None
        return len(token_ids)

    def advance(self, token_id: int) -> int:
        """Accept one token like `accept`, in half the time if the mask is known and there are no drafts."""
        self.leave()
        rows = self._rows
        if rows is None or self._drafts or self.ends or self.is_terminated() or not rows.allows(self._at, token_id):
            return self.accept((token_id,))
        self.forced = self._rows = None
        self._accepted.append(token_id)
        self._to_accept.append(token_id)
        return 1

    def is_terminated(self) -> bool:
        self.leave()
        return bool(self._accepted) and self._accepted[-1] in self.stop_token_ids

    def rollback(self, num_tokens: int) -> None:
        self.leave()
        if not 0 <= num_tokens <= len(self._accepted):
            raise ValueError(f"{num_tokens} tokens cannot be rolled back: {len(self._accepted)} were accepted")
        if num_tokens > len(self._to_accept):
            self.move()  # it is made again from the tokens that are left
        elif num_tokens:
            del self._to_accept[-num_tokens:]
        del self._accepted[len(self._accepted) - num_tokens :]
        if num_tokens:
            self._rows = self.forced = None

    def fork(self) -> Matcher:
        self.leave()
        child = HostedMatcher(self._home, self.grammar, self.stop_token_ids, list(self._accepted))
        child._rows, child._at, child._drafts = self._rows, self._at, self._drafts
        child.budget, child.end, child.ends = self.budget, self.end, self.ends
        return child

    # Answered by the host

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        job = FillJob(self, (), row)
        while self._home.fill((job,), bitmask)[0] < 0:
            assert job.error is not None
            if not isinstance(job.error, Late):
                raise job.error

    def is_accepting(self) -> bool:
        return bool(self._home.ask(self, "is_accepting"))

    def validate(self, token_ids: Sequence[int]) -> int:
        return int(self._home.ask(self, "validate", tuple(token_ids)))

    # For `MatcherHost`

    @property
    def has_changed(self) -> bool:
        """True if its state has changed since the last command."""
        return bool(self._to_accept) or self.born_in < 0

    def place_in(self, group: Group) -> int | None:
        """Return its place in a group; None if it is not there."""
        return self._at if self._group is group else None

    def join(self, group: Group, place: int) -> None:
        """Join a group, which has the mask of the current state at this place. There are no drafts."""
        self.leave()
        self._group, self._at, self._drafts, self.num_known = group, place, (), len(group.log)
        self.first_closed, self.ends, self.deaths = None, (), 0

    def leave(self) -> None:
        """Leave the group."""
        if (group := self._group) is not None:
            self.catch_up()
            if not group.is_told:
                self._to_accept.append(self._accepted[-1])
            self._rows, self._group, group.numbers[self._at] = group.rows, None, NOBODY

    def catch_up(self) -> None:
        """Add the tokens that it accepted with its group."""
        assert self._group is not None
        self._accepted += [token_ids.item(self._at) for token_ids in self._group.log[self.num_known :]]
        self.num_known = len(self._group.log)

    def take_changes(self) -> Sequence[int]:
        self.leave()
        changes, self._to_accept = self._to_accept, []
        return changes

    def history(self) -> tuple[list[Any], int]:
        self.leave()
        stops = list(self.stop_token_ids)
        return [stops, list(self._accepted), pack(self.budget), encode(self.end)], len(self._accepted)

    def fail(self, is_new: bool) -> None:
        self.move()  # it may be in any state
        self.leave()
        self._rows = None

    def take(self, rows: Rows, first: int, draft_token_ids: tuple[int, ...] = ()) -> None:
        """Set the masks of the current state and of the states after each draft."""
        self.leave()
        self._rows, self._at, self._drafts = rows, first, draft_token_ids
        self.deaths = 0

    def count_rows(self, count: int, draft_token_ids: Sequence[int]) -> int:
        """Return how many rows a fill that accepted `count` drafts wrote. There is no row after a stop token."""
        return count if count and draft_token_ids[count - 1] in self.stop_token_ids else count + 1

    def _accept_there(self, token_ids: tuple[int, ...]) -> int:
        count = int(self._home.ask(self, "accept", token_ids))
        self._accepted += token_ids[:count]
        self._rows = self.answer = None
        return count
