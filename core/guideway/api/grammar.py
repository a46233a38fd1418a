"""Grammar strategies compute which tokens may come next. They run on the CPU and never see logits.

A complete strategy plugin is three classes and one hook::

    class Strategy(GrammarStrategy):
        contract = "1.0"
        name = "mine"
        kinds = frozenset({"regex"})
        def supports(self, constraint): return Support(enforced=frozenset({"regex"}))
        def compile(self, constraint): return Compiled(constraint.source(), self.vocabulary)

    @hookimpl
    def guideway_grammar_strategy():
        return Strategy
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from guideway.errors import DeadEnd, UnsupportedCapability, contain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from guideway.api.bitmask import Bitmask
    from guideway.api.types import Constraint
    from guideway.api.vocabulary import Vocabulary

__all__ = ["CompiledGrammar", "FillJob", "GrammarExample", "GrammarStrategy", "Matcher", "Support"]


@dataclass(frozen=True, slots=True)
class Support:
    """A strategy's answer about a constraint: the keywords it enforces, or the reason to refuse. Keywords are named as
    in their specification (``maxLength``) and combinations are joined with ``+`` (``pattern+maxLength``). For a kind
    without keywords, the kind itself is the name."""

    enforced: frozenset[str] = frozenset()
    """Keywords of this constraint the strategy enforces."""
    unenforced: frozenset[str] = frozenset()
    """Keywords of this constraint that the strategy ignores or enforces only in part."""
    reason: str | None = None
    """Why the strategy refuses the whole constraint; None if it does not."""

    @property
    def refused(self) -> bool:
        """True if the strategy will not compile this constraint at all."""
        return self.reason is not None


@dataclass(frozen=True, slots=True)
class GrammarExample:
    """A constraint with texts inside and outside its language, for conformance runs of strategies whose kinds the
    suite cannot write constraints for."""

    constraint: Constraint
    accepted: tuple[bytes, ...]
    """Complete outputs."""
    rejected: tuple[bytes, ...] = ()
    """Texts that are not outputs."""


class Matcher(ABC):
    """The grammar state of one sequence. Used by one thread at a time; its forks may run in other threads.

    Token ids are ints inside the vocabulary, which the host has checked, in tuples. Only the bytes of an output count:
    every way to split them into tokens is legal and leads to the same state.

    Every answer depends only on the constraint, the stop tokens and the accepted tokens: it is the same after forks,
    rollbacks and replays, hours later, and in another process. A matcher holds references to everything it needs: the
    host may drop the grammar and the strategy, without closing it, while the matcher lives.
    """

    @abstractmethod
    def accept(self, token_ids: Sequence[int]) -> int:
        """Accept `token_ids` up to the first illegal one, and return the number accepted. ``accept(a + b)`` is
        ``accept(a)`` then ``accept(b)``. Returns 0 after termination. A bitmask filled in between must not change the
        states."""

    @abstractmethod
    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        """Overwrite `row` of the C-contiguous int32 `bitmask`, and nothing else, so that bit t is set exactly if
        ``accept([t]) == 1``; bits at and past the vocabulary's length are zero. The state does not change. Raises
        `DeadEnd`, leaving the row untouched, if no token is legal. Never called once terminated."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """Return whether a stop token was accepted, after which nothing is."""

    @abstractmethod
    def is_accepting(self) -> bool:
        """Return whether the output is complete; exactly then stop tokens are legal. Not called once terminated."""

    def validate(self, token_ids: Sequence[int]) -> int:
        """Return how many of `token_ids` `accept` would accept; the state does not change. The default accepts and
        rolls back, so it needs a `GrammarStrategy.max_rollback` of that many tokens. An override must take any number
        of tokens, whatever `max_rollback` is."""
        count = self.accept(token_ids)
        self.rollback(count)
        return count

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens, including a stop token; 0 is a no-op, and a negative number
        raises or changes nothing. The state, and every bitmask it fills, is then as before those tokens. A strategy
        that overrides this sets `GrammarStrategy.max_rollback`; for others the host replays instead."""
        if num_tokens:
            raise UnsupportedCapability(f"{type(self).__name__} cannot roll back", field="rollback")

    def fork(self) -> Matcher:
        """Return an independent matcher in the same state, which another thread may use while this one and other forks
        advance. A strategy that overrides this lists ``fork`` in its capabilities; for others the host replays
        instead."""
        raise UnsupportedCapability(f"{type(self).__name__} cannot fork", field="fork")

    def forced_tokens(self) -> Sequence[int]:
        """Return the only tokens that may come next, as the tokenizer would encode them; empty if there is a choice.
        The state does not change. Capability ``forced_tokens``."""
        return ()

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        """Return at most `limit` token ids that complete the output from here, the last of them a stop token; None if
        no completion is that short. Capability ``shortest_completion``."""
        raise UnsupportedCapability(f"{type(self).__name__} cannot complete", field="shortest_completion")


class CompiledGrammar(ABC):
    """A compiled constraint: a factory of matchers, shared by all sequences and threads that use it."""

    @abstractmethod
    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        """Return a new matcher at the start of the grammar, independent of all others. `stop_token_ids` (special
        tokens inside the vocabulary, at least one) are legal where the grammar is complete, and terminate it."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Estimate of the memory of this grammar, in bytes; bounds the host's cache."""

    def to_bytes(self) -> bytes:
        """Serialize the grammar for `GrammarStrategy.from_bytes` in another process. Capability ``serialize``."""
        raise UnsupportedCapability(f"{type(self).__name__} cannot be serialized", field="serialize")

    def recycle(self, matcher: Matcher) -> None:  # noqa: B027 (most create a new one each time)
        """Take back a matcher of this grammar, or a fork of one, that the host no longer uses because its sequence
        ended without a failure. May be called from several threads at once. A later `matcher` call may return it, reset
        to the start. A host need not give matchers back."""


@dataclass(slots=True)
class FillJob:
    """One sequence's part of a batch fill: its rows are `first_row` and the following row for each draft token.

    A host keeps one job per sequence and updates it each step. A strategy must not use the jobs or their list after
    `fill` returns: the host changes them and may pass the same objects in the next step.
    """

    matcher: Matcher
    """The sequence's matcher: for a strategy that overrides `fill`, one of its own, as returned by
    `CompiledGrammar.matcher` or `Matcher.fork`. The default `fill` may get a matcher of the host, which replays."""
    draft_token_ids: Sequence[int] = ()
    first_row: int = 0
    error: BaseException | None = None
    """Why this job's result is -1; set by `GrammarStrategy.fill`."""


class GrammarStrategy(ABC):
    """A compiler of constraints for one vocabulary.

    `options` come from the operator's configuration; `parse_options` checks them. Raises `InvalidConfiguration` for an
    unsuitable vocabulary and for wrong options; a strategy that reads its options refuses unknown ones.
    """

    contract: ClassVar[str]
    """The version of the contract that the class was written for, such as ``"1.0"``. Every plugin's class sets it."""
    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]]
    """Constraint kinds that the strategy can compile: ``json_schema``, ``json_object``, ``regex``, ``choice``,
    ``grammar:<dialect>``, ``structural_tag``."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """Optional features: ``fork``, ``forced_tokens``, ``shortest_completion``, ``serialize``."""
    max_rollback: ClassVar[int | None] = 0
    """The number of tokens that its matchers can roll back; None: all. Each rollback, also of a fill's drafts, uses up
    that many until as many tokens are accepted again. Beyond the number the host replays."""

    inline: ClassVar[bool] = False
    """True if it needs objects of the serving process, and so cannot run in a grammar host."""
    examples: ClassVar[Sequence[GrammarExample]] = ()
    """Examples for conformance runs; required for kinds ``grammar:<dialect>``, whose language guideway does not
    know."""

    limits: Mapping[str, int] = MappingProxyType({})
    """Limits that differ from the defaults, by rule of `guideway.api.limits.RULES`. The host measures every
    constraint, and one over a limit never reaches `supports`. The host adds the limits that its operator set in the
    option ``limits``, which every strategy has."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def available(cls) -> str | None:
        """Return None if this strategy can be built in this process, else the reason. Never raises. A host that
        chooses among installed strategies skips those that cannot be built; one that the operator chose is refused with
        the reason."""
        return None

    @property
    def takes(self) -> Set[str]:
        """Names of keywords of JSON Schema that the library compiles in every schema, as returned by
        `guideway.json_schema.keywords`; ``format:*`` for all formats. For a schema that `supports` does not enforce in
        full, or that has other keywords, the host also offers a schema in these keywords: an equivalent one, or a
        weaker one whose `Losses` it names. Empty, the default: the host offers no other schemas."""
        return frozenset()

    @abstractmethod
    def supports(self, constraint: Constraint) -> Support:
        """Return which keywords of `constraint` would be enforced. Cheap; relies on a table probed from the installed
        library. `constraint.kind` is in `kinds` and its source is well formed; a JSON source is valid JSON, but not
        checked to be a schema. Never raises for a constraint."""

    @abstractmethod
    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Compile `constraint`; slow, and called from several threads at once. Constraints are equal only if every
        character is: case, white space and Unicode normalization count. Raises only `InvalidGrammar` or
        `UnsupportedGrammar`; a grammar that matches no text at all is invalid."""

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        """Deserialize the output of `CompiledGrammar.to_bytes`, for an equal vocabulary and equal options."""
        raise UnsupportedCapability(f"{self.name} cannot read serialized grammars", field="serialize")

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Called once, when the host no longer needs the strategy, also if another part failed to start: no
        compilation is running, and the strategy, its grammars and their matchers are not used later. Exceptions are
        logged."""

    def advance(self, matchers: Sequence[Matcher], token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Accept one token in each of several matchers: ``token_ids[i]`` in ``matchers[i]``, as `Matcher.accept` does.
        Return ``int32[n]``: 1 if it was accepted, 0 if it was refused, -1 if the matcher failed, which changes nothing
        for the others. The host replaces a matcher that failed by a new one, which it asks alone; if the whole call
        raises, it does so with all.

        No matcher is given twice, and there may be none. The strategy must not use the list and the array after the
        call, and the returned array belongs to the host. Override this if the library accepts batches: it then gets its
        own matchers, as `fill` does, also terminated ones, which refuse every token.
        """
        accepted = np.empty(len(matchers), dtype=np.int32)
        for i, (matcher, token_id) in enumerate(zip(matchers, token_ids.tolist(), strict=True)):
            try:
                accepted[i] = matcher.accept((token_id,))
            except BaseException as error:
                contain(error)
                accepted[i] = -1
        return accepted

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """Fill the rows of every job and return ``int32[len(jobs)]``: the number of drafts each job would accept, or
        -1 if its matcher failed (`FillJob.error` is the reason), which leaves all other jobs' rows correct.

        `bitmask` is a block of rows for these jobs. After the call it belongs to the host, as does the returned array,
        so every call must write all of its rows. The rows before and after the jobs' are guards: writing to one counts
        as a failure of the strategy and harms no other strategy's rows. A job's first row is the mask of its state, the
        row after draft i the mask once drafts up to i were accepted. Rows after the first refused draft, after a draft
        that terminates and after one that leads to a dead end (it counts as refused) stay untouched. All matchers end
        in the state they started in. Override this if the library fills batches in parallel: a job then has at most
        `max_rollback` drafts, and the host uses the default for jobs with more.
        """
        accepted = np.zeros(len(jobs), dtype=np.int32)
        for i, job in enumerate(jobs):
            try:
                job.matcher.fill_bitmask(bitmask, job.first_row)
                if job.draft_token_ids:
                    accepted[i] = fill_drafts(job, bitmask)
            except BaseException as error:
                contain(error)
                job.error = error
                accepted[i] = -1
        return accepted


def fill_drafts(job: FillJob, bitmask: Bitmask) -> int:
    """Fill the rows after `job`'s first one and return how many drafts were accepted; the matcher is rolled back.

    A draft that leads to a dead end counts as refused: it is a guess, and the token drawn in its place may not lead to
    one.
    """
    matcher, accepted, dead = job.matcher, 0, 0
    try:
        for token_id in job.draft_token_ids:
            if not matcher.accept((token_id,)):
                break
            accepted += 1
            if matcher.is_terminated():
                break
            try:
                matcher.fill_bitmask(bitmask, job.first_row + accepted)
            except DeadEnd:
                dead = 1
                break
    finally:
        matcher.rollback(accepted)
    return accepted - dead
