"""The commands about grammars and matchers, as a host executes them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from guideway.api.bitmask import num_words
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy, Matcher
from guideway.api.types import Constraint, JsonSchema, Losses
from guideway.errors import ConformanceError, contain
from guideway.plugins.contract import checked_names, checked_support
from guideway.runtime.constraints.closing import Beginnings, Budget, Closer, Lexicon
from guideway.runtime.constraints.forced import Forcing
from guideway.runtime.constraints.here import Here
from guideway.runtime.constraints.mask_block import GUARD, fill_between_guards
from guideway.runtime.constraints.rewriting import IN_HOSTS
from guideway.runtime.constraints.tracking import TrackedGrammar
from guideway.runtime.sequences.replay import fill_jobs, new_matcher, recycle

from guideway_hosts.codec import decode
from guideway_hosts.messages import IDLE, MAX_GRAMMAR, Job, SharedMasks, describe_error
from guideway_hosts.modifier_serving import News, StateServer
from guideway_hosts.plugins import Plugins

__all__ = ["Server"]

APART = 8
"""Steps for which jobs are filled one by one after a slow batch, to find the slow one."""


class Server:
    """The commands of one host, by name. `beside` has the long ones, which a second thread executes."""

    def __init__(self, plugins: Plugins, masks: SharedMasks, late_seconds: float) -> None:
        of_states, vocabulary = StateServer(plugins, masks), plugins.vocabulary
        self._plugins = plugins
        lexicon = Lexicon(vocabulary)
        self._here = {name: Here(strategy, lexicon, IN_HOSTS) for name, strategy in plugins.strategies.items()}
        self._masks = masks
        self._late_seconds = late_seconds
        self._apart = 0
        """Steps left in which jobs are filled one by one, to find the slow one."""
        self._usual_seconds = late_seconds
        """Seconds that a batch may take before its jobs are filled one by one: doubled if no single job was slow."""
        self._grammars: dict[int, tuple[str, CompiledGrammar, Beginnings]] = {}
        """By number: the name of the strategy, the grammar, and what its closers share."""
        self._matchers: dict[int, _Living] = {}
        self._forcing = Forcing(vocabulary.tokens, num_words(vocabulary.logits_width))
        self._compiled: tuple[str, Constraint, CompiledGrammar] | None = None
        """The last compiled grammar. The next command may ask for its shortest output."""
        self.commands: dict[str, Callable[..., Any]] = {
            "supports": self._supports,
            "takes": self._takes,
            "rewritings": self._rewritings,
            "compile": self._compile,
            "shortest": self._shortest,
            "step": self._step,
            "ask": self._ask,
            "judge": _judge,
            **of_states.commands,
        }
        self.beside: dict[str, Callable[..., Any]] = {"load": self._load, **of_states.beside}

    # For constraints

    def _supports(self, strategy: str, constraint: Constraint) -> dict[str, Any]:
        support = checked_support(self._plugins.strategies[strategy].supports(constraint))
        return {
            "enforced": sorted(support.enforced),
            "unenforced": sorted(support.unenforced),
            "reason": support.reason,
        }

    def _takes(self, strategy: str) -> list[str]:
        return sorted(checked_names(self._plugins.strategies[strategy].takes))

    def _rewritings(self, strategy: str, constraint: JsonSchema, repeats: bool) -> list[tuple[str, Losses, str]]:
        found = self._here[strategy].rewritings(constraint, repeats=repeats)
        return [(each.text, each.losses, each.ordered) for each in found]

    def _compile(self, strategy: str, constraint: Constraint) -> tuple[dict[str, Any], bytes | None]:
        """Return the grammar's size in bytes, its `Reserve`, and its serialized bytes if it can be sent."""
        self._compiled = None
        grammar, reserve = self._here[strategy].make(constraint)
        self._compiled = strategy, constraint, grammar
        is_whole = "serialize" in self._plugins.strategies[strategy].capabilities and not isinstance(
            grammar, TrackedGrammar
        )
        data = grammar.to_bytes() if is_whole else None
        if data is not None and len(data) > MAX_GRAMMAR:
            data = None
        return {"nbytes": max(0, int(grammar.nbytes)), "reserve": asdict(reserve)}, data

    def _shortest(
        self,
        strategy: str,
        constraint: Constraint,
        given: Constraint | bytes,
        stop_token_ids: frozenset[int],
        budget: Budget,
    ) -> int | None:
        """Return the number of tokens of the shortest output found, or None."""
        if self._compiled is None or self._compiled[:2] != (strategy, constraint):
            self._compiled = None
            self._compiled = strategy, constraint, self._plugins.make_grammar(strategy, given)
        return self._here[strategy].shortest(self._compiled[2], stop_token_ids, budget)

    # For sequences

    def _load(self, grammar: int, strategy: str, given: Constraint | bytes) -> None:
        self._grammars[grammar] = strategy, self._plugins.make_grammar(strategy, given), {}

    def _step(
        self,
        integers: int | list[int],
        births: dict[str, Any],
        news: News,
        search_seconds: float | None,
    ) -> dict[str, Any]:
        """Update matchers and fill their rows.

        Return the number of drafts that each job accepted, -1 with an error; None if all numbers are 0. Jobs that
        failed in one batch are listed in `apart`, because it is unknown which caused it: they must be sent alone.
        """
        self._forget(news)
        masks = self._masks
        jobs = masks.read_jobs(integers, births)
        counts, errors, apart = [-1] * len(jobs), {}, []
        ready: dict[int, FillJob] = {}
        taken, found = [0.0] * len(jobs), False
        first, began = 1, time.thread_time()
        for i, job in enumerate(jobs):
            masks.working_on = job.matcher
            try:
                living = self._update(job)
                if job.num_forced and not living.matcher.is_terminated():
                    searching = time.thread_time()
                    until = float("inf") if search_seconds is None else searching + search_seconds
                    run = self._forcing.run(living.matcher, living.stop_token_ids, job.num_forced, until)
                    jobs[i] = job = job._replace(draft_token_ids=run)
                    found = found or bool(run)
                    began += time.thread_time() - searching  # a search makes no row late
                ready[i] = FillJob(living.matcher, job.draft_token_ids, first)
            except BaseException as error:
                errors[i] = describe_error(error)
            first += 1 + len(job.draft_token_ids)
            ended_at = time.thread_time()
            if job.birth is None:  # a rebuild may take long, so it does not count
                taken[i] = ended_at - began
            began = ended_at
        block = masks.rows[: first + 1]
        block[0] = block[-1] = GUARD
        for indices in self._group(jobs, ready):
            masks.working_on = jobs[indices[0]].matcher if len(indices) == 1 else IDLE
            some = tuple(ready[i] for i in indices)
            strategy = self._matchers[jobs[indices[0]].matcher].strategy
            clock = time.thread_time if len(indices) == 1 else time.process_time
            began = clock()
            try:
                filled = fill_between_guards(partial(fill_jobs, strategy), some, block)
            except BaseException as error:  # matchers and rows are in an unknown state now
                errors |= dict.fromkeys(indices, describe_error(error))
                apart += indices if len(indices) > 1 else []
                continue
            if len(indices) == 1:
                taken[indices[0]] += clock() - began
            elif (seconds := clock() - began) > self._usual_seconds:
                self._apart, self._usual_seconds = APART, 2 * seconds
            for i, count in zip(indices, filled.tolist(), strict=True):
                counts[i] = count
                if count < 0:
                    silent = ConformanceError("fill returned -1 without setting the job's error")
                    errors[i] = describe_error(ready[i].error or silent)
        closing = self._close(jobs, counts, ready, errors)
        self._drop([jobs[i] for i in errors])
        masks.working_on = IDLE
        self._apart = max(0, self._apart - 1)
        slow = [i for i, seconds in enumerate(taken) if seconds > self._late_seconds]
        if slow:
            self._usual_seconds = self._late_seconds
        drafts = [job.draft_token_ids for job in jobs] if found else None
        plain = counts if any(counts) else None
        return {"counts": plain, "drafts": drafts, "errors": errors, "apart": apart, "slow": slow, "closing": closing}

    def _close(
        self, jobs: Sequence[Job], counts: list[int], ready: Mapping[int, FillJob], errors: dict[int, Any]
    ) -> dict[int, Any]:
        """Remove tokens that lead to outputs that cannot be completed within their budget.

        Return by job what changed: the first row that lost tokens, and the fields of the `Record` of each row.
        """
        closing = {}
        for i, job in enumerate(jobs):
            living = self._matchers.get(job.matcher)
            if living is None or (closer := living.closer) is None or (count := counts[i]) < 0:
                continue
            if closer.is_far(1 + count):
                continue
            self._masks.working_on = job.matcher
            try:
                rows = self._masks.rows[ready[i].first_row :]
                with self._closing():
                    first = closer.restrict(living.matcher, job.draft_token_ids[:count], rows)
            except BaseException as error:
                counts[i], errors[i] = -1, describe_error(error)
                continue
            if first is not None or any(record is not closer.record for record in closer.records):
                closing[i] = first, [record.to_json() for record in closer.records]
        return closing

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Allow the time of a search for a completion in the body."""
        self._masks.is_closing = True
        try:
            yield
        finally:
            self._masks.working_on = IDLE  # first, so that the search's time does not count for the next matcher
            self._masks.is_closing = False

    def _group(self, jobs: Sequence[Job], ready: dict[int, FillJob]) -> list[list[int]]:
        """Return the jobs that are filled by one call: all of a strategy if it fills batches itself and no recent batch
        was slow."""
        groups: dict[tuple[GrammarStrategy, int], list[int]] = {}
        for i in ready:
            strategy = self._matchers[jobs[i].matcher].strategy
            batches = type(strategy).fill is not GrammarStrategy.fill and not self._apart
            groups.setdefault((strategy, -1 if batches else i), []).append(i)
        return list(groups.values())

    def _ask(
        self,
        integers: int | list[int],
        births: dict[str, Any],
        news: News,
        method: str,
        arguments: Sequence[Any],
    ) -> Any:
        """Return the result of a matcher's method."""
        self._forget(news)
        (job,) = self._masks.read_jobs(integers, births)
        self._masks.working_on = job.matcher
        try:
            living = self._update(job)
            answer = getattr(living.matcher, method)(
                *[tuple(each) if type(each) is list else each for each in arguments]
            )
            if living.closer is not None and method == "accept":
                living.closer.accept(arguments[0][:answer])
        except BaseException:
            self._drop([job])
            raise
        self._masks.working_on = IDLE
        return list(answer) if isinstance(answer, list | tuple) else answer

    def _update(self, job: Job) -> _Living:
        """Return a job's matcher, made if necessary and with the job's changes applied."""
        if job.birth is not None:
            if job.birth.given is not None and job.birth.grammar not in self._grammars:
                self._load(job.birth.grammar, job.birth.strategy, decode(job.birth.given))
            name, grammar, beginnings = self._grammars[job.birth.grammar]
            strategy, stop_token_ids = self._plugins.strategies[name], frozenset(job.birth.stop_token_ids)
            matcher = new_matcher(strategy, grammar, stop_token_ids)
            _accept(matcher, tuple(job.birth.token_ids))
            budget, end, closer = decode(job.birth.budget), decode(job.birth.end), None
            if budget is not None:
                closer = self._here[name].ending(matcher, stop_token_ids, budget, end, beginnings)
                closer.accept(job.birth.token_ids)
            self._matchers[job.matcher] = _Living(strategy, grammar, matcher, stop_token_ids, closer)
        living = self._matchers[job.matcher]
        if job.rollback:
            living.matcher.rollback(job.rollback)
        _accept(living.matcher, tuple(job.accept))
        if living.closer is not None:
            living.closer.rollback(job.rollback)
            living.closer.accept(job.accept)
        return living

    def _drop(self, failed: Sequence[Job]) -> None:
        """Drop the matchers of failed jobs, and the grammars sent with them unless other matchers use them. The serving
        process sends `Birth` again."""
        for job in failed:
            self._matchers.pop(job.matcher, None)
        in_use = {id(living.grammar) for living in self._matchers.values()}
        for birth in [job.birth for job in failed if job.birth is not None and job.birth.given is not None]:
            if id(self._grammars.get(birth.grammar, (None, None))[1]) not in in_use:
                self._grammars.pop(birth.grammar, None)

    def _forget(self, news: News) -> None:
        for what, number in news:
            if what == "unload":
                self._grammars.pop(number, None)
                continue
            living = self._matchers.pop(number, None)
            if living is not None and what == "recycle":
                try:
                    recycle(living.grammar, living.matcher)
                except BaseException as error:
                    contain(error)


@dataclass(slots=True)
class _Living:
    """A matcher with the objects that it was made from."""

    strategy: GrammarStrategy
    grammar: CompiledGrammar
    matcher: Matcher
    stop_token_ids: frozenset[int]
    closer: Closer | None = None


def _judge(constraint: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
    """Return whether a finished text satisfies a schema, or None if that cannot be decided."""
    from guideway.json_schema.validity import is_valid

    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)  # JSON numbers may have any length; the host's deadline limits the work
    try:
        return is_valid(constraint.parsed, text, enforces_formats)
    finally:
        sys.set_int_max_str_digits(most)


def _accept(matcher: Matcher, token_ids: tuple[int, ...]) -> None:
    if token_ids and matcher.accept(token_ids) != len(token_ids):
        raise ConformanceError("it refused a token that its own mask allowed")
