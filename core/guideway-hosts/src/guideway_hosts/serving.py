"""The commands of a host: calls about objects, and calls without state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

from guideway.api.grammar import CompiledGrammar
from guideway.api.types import Constraint, JsonSchema, Losses, Request
from guideway.errors import contain, text_of
from guideway.plugins.contract import checked_names, checked_support
from guideway.runtime.constraints.closing import Budget, Lexicon
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.rewriting import IN_HOSTS
from guideway.runtime.constraints.tracking import TrackedGrammar

from guideway_hosts.codec import decode, unpack
from guideway_hosts.messages import IDLE, MAX_GRAMMAR, Job, SharedMasks, describe_error
from guideway_hosts.plugins import Plugins
from guideway_hosts.serving_matchers import Filler, LivingMatcher
from guideway_hosts.serving_states import LOOKS, LivingState, prepare

__all__ = ["Server"]

Living: TypeAlias = LivingMatcher | LivingState


class Server:
    """The commands of one host, by name. `beside` has the long ones, which a second thread executes."""

    def __init__(self, plugins: Plugins, masks: SharedMasks, late_seconds: float) -> None:
        self._plugins = plugins
        self._masks = masks
        lexicon = Lexicon(plugins.vocabulary)
        self._here = {name: Home(strategy, lexicon, IN_HOSTS) for name, strategy in plugins.strategies.items()}
        self._filler = Filler(plugins.vocabulary, masks, late_seconds)
        self._sources: dict[int, Any] = {}
        """By number, grammars with what their closers share, and compiled values."""
        self._objects: dict[int, Living] = {}
        self._compiled: tuple[Any, CompiledGrammar] | None = None
        """The last compiled grammar. The next command may ask for its shortest output."""
        self.commands: dict[str, Callable[..., Any]] = {
            "call": self._call,
            "again": self._again,
            "supports": self._supports,
            "takes": lambda name: sorted(checked_names(plugins.strategies[name].takes)),
            "rewritings": self._rewritings,
            "compile": self._compile,
            "shortest": self._shortest,
            "judge": _judge,
            "try": self._try,
            **{method: partial(self._look, method) for method in LOOKS},
        }
        self.beside: dict[str, Callable[..., Any]] = {"load": self._load}

    # Calls about objects

    def _call(
        self,
        name: str,
        method: str,
        told: Sequence[Any],
        news: Sequence[tuple[str, int]],
        given: Any,
    ) -> Any:
        """Call a method of each object, or of all at once, after bringing them to the state of the serving process.

        Return for each its result or its error, and what failed as earlier objects ended; None if there is nothing to
        tell. `name` is the name of the modifier, and empty for matchers.
        """
        self._filler.settle()
        failures = self._end(name, news)
        jobs = list(map(Job.read, told))
        errors: dict[int, BaseException] = {}
        data: bytes | None = None
        more: dict[str, Any] = {}
        ready, taken = self._ready(name, dict(enumerate(jobs)), errors)
        if method == "step":
            found, more = self._filler.step(jobs, ready, errors, taken, given)
            return _answer_of(found, errors, failures, more)
        elif method == "prepare":
            more["payload"], data = prepare(self._plugins.modifiers[name], jobs, ready, errors, self._masks, *given)
            found = [None] * len(jobs)
        else:
            found = [None] * len(jobs)
            if method == "close":
                self._plugins.modifiers[name].close()
            for i, living in ready.items() if method != "make" else ():
                self._masks.working_on = jobs[i].number
                try:
                    found[i] = self._answer(living, method, decode(given[i]))
                except BaseException as error:
                    errors[i] = error
            self._masks.working_on = IDLE
        return _answer_of(found, errors, failures, more), data

    def _again(
        self,
        news: Sequence[tuple[str, int]],
        removed: Sequence[int] = (),
        added: Sequence[tuple[int, Sequence[Any]]] = (),
        moves: bool = True,
    ) -> dict[str, Any] | None:
        """Do the last step again after each of its matchers accepted one more token, if it `moves`, without those at
        the `removed` places and with those of the `added` jobs, by place."""
        errors = dict[int, BaseException]()
        self._filler.remove(removed)
        failures = self._end("", news)
        jobs = {place: Job.read(told) for place, told in added}
        ready, taken = self._ready("", jobs, errors) if jobs else ({}, {})
        found, more = self._filler.again(jobs, ready, errors, taken, moves=moves)
        return _answer_of(found, errors, failures, more)

    def _ready(
        self, name: str, jobs: Mapping[int, Job], errors: dict[int, BaseException]
    ) -> tuple[dict[int, Any], dict[int, float]]:
        """Bring the objects of jobs to the state of the serving process. Return those that are ready, and the seconds
        that each took, by the place of the job."""
        ready, taken = dict[int, Any](), dict[int, float]()
        began = time.thread_time()
        for i, job in jobs.items():
            self._masks.working_on = job.number
            try:
                ready[i] = self._update(name, job)
            except BaseException as error:
                errors[i] = error
            began, before = time.thread_time(), began
            if job.birth is None:  # a rebuild may take long, so it does not count
                taken[i] = began - before
        self._masks.working_on = IDLE
        return ready, taken

    def _update(self, name: str, job: Job) -> Living:
        """Return a job's object, made if necessary, which has accepted the job's tokens."""
        if job.birth is not None:
            self._objects[job.number] = self._make(name, *job.birth[:3])
        living = self._objects[job.number]
        living.update(job)
        return living

    def _make(self, name: str, source: int, given: Any, history: Sequence[Any]) -> Living:
        if given is not None and source not in self._sources:
            self._load(source, *decode(given))
        plugin, made, beginnings = self._sources.get(source, ("", None, {}))
        if name:
            return LivingState(self._plugins.modifiers[name], made, *map(decode, history))
        strategy = plugin.removeprefix("grammar.")
        here = self._here[strategy]
        stop_token_ids, token_ids, budget, end = history
        past = (stop_token_ids, token_ids, unpack(budget), decode(end))
        return LivingMatcher(self._plugins.strategies[strategy], here, made, beginnings, *past)

    def _load(self, source: int, *made_from: Any) -> None:
        self._sources[source] = made_from[0], self._plugins.make(*made_from), {}

    def _answer(self, living: Living, method: str, arguments: Sequence[Any]) -> Any:
        if method == "fork" and isinstance(living, LivingState):
            self._objects[arguments[0]] = living.fork()
            return None
        return living.call(method, arguments)

    def _end(self, name: str, news: Sequence[tuple[str, int]]) -> list[str]:
        """Drop sources and objects that ended since the last command. Return what failed in it."""
        failures = []
        for what, number in news:
            if what == "unload":
                self._sources.pop(number, None)
                continue
            living = self._objects.pop(number, None)
            if what != "release" or (living is None and number >= 0):
                continue
            self._masks.working_on = number
            try:
                if living is not None:
                    living.release()
                else:  # of a sequence that has no state
                    self._plugins.modifiers[name].release(None)
            except BaseException as error:
                contain(error)
                what = f"modifier.{name} failed in release"
                if isinstance(living, LivingMatcher):
                    what = f"grammar.{living.strategy.name} failed in recycle"
                failures.append(f"{what}; its sequence had ended: {text_of(error)}")
            self._masks.working_on = IDLE
        return failures

    # Calls without state

    def _supports(self, strategy: str, constraint: Constraint) -> dict[str, Any]:
        support = checked_support(self._plugins.strategies[strategy].supports(constraint))
        return {
            "enforced": sorted(support.enforced),
            "unenforced": sorted(support.unenforced),
            "reason": support.reason,
        }

    def _rewritings(self, strategy: str, constraint: JsonSchema, repeats: bool) -> list[tuple[str, Losses, str]]:
        found = self._here[strategy].rewritings(constraint, repeats=repeats)
        return [(each.text, each.losses, each.ordered) for each in found]

    def _compile(self, strategy: str, constraint: Constraint) -> tuple[dict[str, Any], bytes | None]:
        """Return the grammar's size in bytes, its `Reserve`, and its serialized bytes if it can be sent."""
        self._compiled = None
        grammar, reserve = self._here[strategy].make(constraint)
        self._compiled = (strategy, constraint), grammar
        data = None
        if "serialize" in self._plugins.strategies[strategy].capabilities and not isinstance(grammar, TrackedGrammar):
            data = grammar.to_bytes()
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
        if self._compiled is None or self._compiled[0] != (strategy, constraint):
            self._compiled = None
            self._compiled = (strategy, constraint), self._plugins.make(f"grammar.{strategy}", given)
        return self._here[strategy].shortest(self._compiled[1], stop_token_ids, budget)

    def _look(self, method: str, name: str, request: Request) -> Any:
        """Return the answer, as JSON, of a modifier's method that takes a request."""
        return LOOKS[method](getattr(self._plugins.modifiers[name], method)(request))

    def _try(self, *made_from: Any) -> None:
        """Make a source that is not used."""
        self._plugins.make(*made_from)


def _answer_of(
    found: list[Any] | None, errors: Mapping[int, BaseException], failures: list[str], more: Mapping[str, Any]
) -> dict[str, Any] | None:
    if found is None and not failures:
        return None
    described = {i: describe_error(error) for i, error in errors.items()}
    return {"found": found, "errors": described, "failures": failures, **more}


def _judge(constraint: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
    """Return whether a finished text satisfies a schema, or None if that cannot be decided."""
    from guideway.json_schema.validity import is_valid

    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)  # JSON numbers may have any length; the host's deadline limits the work
    try:
        return is_valid(constraint.parsed, text, enforces_formats)
    finally:
        sys.set_int_max_str_digits(most)
