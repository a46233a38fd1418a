"""Grammar strategies: which tokens may come next. They run on the CPU and never see logits.

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
from collections.abc import Mapping, Sequence
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
    """The answer of a strategy about a constraint: what it enforces, or why it refuses. Keywords are named as in their
    specification (``maxLength``), combinations joined with ``+`` (``pattern+maxLength``), kinds without keywords by the
    kind itself."""

    enforced: frozenset[str] = frozenset()
    """Keywords of this constraint the strategy enforces."""
    unenforced: frozenset[str] = frozenset()
    """Keywords of this constraint it would ignore or only partly enforce."""
    reason: str | None = None
    """Why it refuses the constraint altogether; None: it does not."""

    @property
    def refused(self) -> bool:
        """True if the strategy will not compile this constraint at all."""
        return self.reason is not None


@dataclass(frozen=True, slots=True)
class GrammarExample:
    """A constraint, and texts that are in its language or not: what a conformance run feeds a strategy whose kinds
    only its author can write constraints for."""

    constraint: Constraint
    accepted: tuple[bytes, ...]
    """Complete outputs."""
    rejected: tuple[bytes, ...] = ()
    """Texts that no output is."""


class Matcher(ABC):
    """The state of one sequence in its grammar. Used by one thread at a time; its forks may be in others.

    Token ids are ints the host has checked to lie inside the vocabulary; they come in tuples. What counts of an output
    is its bytes: however they are cut into tokens, every way is legal and leads to the same state.

    Every answer is a function of constraint, stop tokens and accepted tokens alone: it is the same after forks,
    rollbacks and replays, hours later, and in another process. A matcher keeps what it needs: the host may let go of
    its grammar and its strategy, without closing it, while the matcher lives.
    """

    @abstractmethod
    def accept(self, token_ids: Sequence[int]) -> int:
        """Advance over `token_ids` up to the first one that is not legal, keep those before it, and return their
        count. ``accept(a + b)`` is ``accept(a)`` then ``accept(b)``. Returns 0 after termination. Must give the
        same states whether or not a bitmask was filled in between."""

    @abstractmethod
    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        """Overwrite `row` of the C-contiguous int32 `bitmask`, and nothing else, so that bit t is set exactly if
        ``accept([t]) == 1``; bits at and past the vocabulary's length are zero. The state does not move.
        Raises `DeadEnd`, leaving the row untouched, if no token is legal. Never called once terminated."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """Return whether a stop token was accepted: nothing more can be."""

    @abstractmethod
    def is_accepting(self) -> bool:
        """Return whether the output is complete as it stands; exactly then stop tokens are legal. Not asked once
        terminated."""

    def validate(self, token_ids: Sequence[int]) -> int:
        """Return how many of `token_ids` `accept` would take. The state does not move. By default accepts and rolls
        back, which needs as much of `GrammarStrategy.max_rollback`; one that is overridden takes any number of tokens,
        and needs nothing of it."""
        count = self.accept(token_ids)
        self.rollback(count)
        return count

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens, also over a termination; 0 is a no-op, and a negative number
        raises or changes nothing. The state, and every bitmask it fills, is then what it was before those tokens. A
        strategy that overrides this says so in `GrammarStrategy.max_rollback`; for others the host replays instead."""
        if num_tokens:
            raise UnsupportedCapability(f"{type(self).__name__} cannot roll back", field="rollback")

    def fork(self) -> Matcher:
        """Make an independent matcher in the same state, which may be used in another thread while this one and other
        forks move. A strategy that overrides this lists ``fork`` in its capabilities; for others the host replays
        instead."""
        raise UnsupportedCapability(f"{type(self).__name__} cannot fork", field="fork")

    def forced_tokens(self) -> Sequence[int]:
        """Tokens that must come next whatever the model says, as the tokenizer would write them; may be empty.
        The state does not move. Capability ``forced_tokens``."""
        return ()

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        """At most `limit` token ids, a stop token last, that complete the output from here; None if there are none
        so short. Capability ``shortest_completion``."""
        raise UnsupportedCapability(f"{type(self).__name__} cannot complete", field="shortest_completion")


class CompiledGrammar(ABC):
    """A compiled constraint: a factory of matchers, shared by all sequences and threads that use it."""

    @abstractmethod
    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        """A new matcher at the start of the grammar, independent of all others. `stop_token_ids` (special tokens
        inside the vocabulary, at least one) become legal where the grammar is complete, and terminate it."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory this grammar holds, in bytes, as near as it can be told; bounds the host's cache."""

    def to_bytes(self) -> bytes:
        """The grammar for `GrammarStrategy.from_bytes` in another process. Capability ``serialize``."""
        raise UnsupportedCapability(f"{type(self).__name__} cannot be serialized", field="serialize")

    def recycle(self, matcher: Matcher) -> None:  # noqa: B027 (most make a new one each time)
        """Take back a matcher of this grammar, or a fork of one, whose sequence ended without a failure: the host calls
        it no more. May be called from several threads at once. A later `matcher` may return it, then as a new one:
        nothing of the earlier sequence is left in it. Nothing obliges a host to give a matcher back."""


@dataclass(slots=True)
class FillJob:
    """One sequence's part of a batch fill: its rows are `first_row` and one after it per draft token.

    A host keeps one job per sequence and updates it from step to step. The jobs and their list are a strategy's for the
    call of `fill` alone: right after it the host changes them, and the next step may come with the same objects.
    """

    matcher: Matcher
    """For a `fill` that a strategy overrides, one of its own, as `CompiledGrammar.matcher` or `Matcher.fork` returned.
    The default may get one of the host's, which replays."""
    draft_token_ids: Sequence[int] = ()
    first_row: int = 0
    error: BaseException | None = None
    """Why this job's result is -1; set by `GrammarStrategy.fill`."""


class GrammarStrategy(ABC):
    """Compiles constraints for one vocabulary.

    `options` are the operator's, as written in the configuration; `parse_options` checks them. Raises
    `InvalidConfiguration` for options or a vocabulary it cannot work with; a strategy that looks at its options refuses
    one that it does not know.
    """

    contract: ClassVar[str]
    """The version of the contract it was written for, such as ``"1.0"``: each plugin's class states its own."""
    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]]
    """Constraint kinds it can compile: ``json_schema``, ``json_object``, ``regex``, ``choice``,
    ``grammar:<dialect>``, ``structural_tag``."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """Optional features: ``fork``, ``forced_tokens``, ``shortest_completion``, ``serialize``."""
    max_rollback: ClassVar[int | None] = 0
    """The number of tokens that its matchers can roll back; None: all of them. A rollback uses them up, that of a
    fill's drafts too, until as many are accepted anew. Beyond it the host replays."""

    inline: ClassVar[bool] = False
    """True if it needs objects of the serving process, and so cannot live in a grammar host."""
    examples: ClassVar[Sequence[GrammarExample]] = ()
    """For conformance runs; needed for kinds ``grammar:<dialect>``, whose language guideway does not know."""

    limits: Mapping[str, int] = MappingProxyType({})
    """The limits of the constraints it can bear where they differ from the defaults, by rule of
    `guideway.api.limits.RULES`: the host counts every constraint, and one over a limit never reaches `supports`. The
    host adds what its operator set in the option ``limits``, which every strategy has."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def available(cls) -> str | None:
        """None if this strategy can be built in this process, else the reason why not. Never raises. A host that
        chooses among what is installed leaves out what cannot; what an operator chose is refused with the reason."""
        return None

    @abstractmethod
    def supports(self, constraint: Constraint) -> Support:
        """Tell which keywords of `constraint` would be enforced. Cheap; rests on a table probed from the installed
        library. `constraint.kind` is in `kinds` and its source well formed, as JSON where it is JSON: whether it is a
        schema nobody has looked. Never raises for a constraint."""

    @abstractmethod
    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Compile; slow, and called from several threads at once. Constraints are the same only if they are so to the
        last character: case, white space and the form of an accent count. Raises `InvalidGrammar` or
        `UnsupportedGrammar` and nothing else; a grammar that matches no text at all is invalid."""

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        """Read what `CompiledGrammar.to_bytes` wrote, for an equal vocabulary and equal options."""
        raise UnsupportedCapability(f"{self.name} cannot read serialized grammars", field="serialize")

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Once, when the host needs it no more, also where another part failed to start: no compilation is under way,
        and nothing of it, its grammars or their matchers is used later. What it raises is logged."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """Fill the rows of every job; ``int32[len(jobs)]``: how many of its drafts each job would accept, or -1 if
        its matcher failed (`FillJob.error` says why), which leaves all other jobs' rows correct.

        `bitmask` is a block of rows for these jobs, the host's again after the call, as the returned array is: a fill
        writes every row it owes, though it wrote the same one before. The rows before and after theirs are guards: a
        strategy that writes to one has failed, and nobody else's rows are touched. A job's first row is the mask of its
        state, the row after draft i the mask once drafts up to i were accepted. Rows after the first refused draft,
        after a draft that terminates and after one that leads to a dead end (it counts as refused) stay untouched. All
        matchers end in the state they started in. Override where the library fills batches in parallel: a job then has
        at most `max_rollback` drafts, and the host fills those with more by the default.
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

    A draft that leads to a dead end counts as refused: it is a guess, and the token drawn in its place may live.
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
