"""The programs of grammar hosts: the nursery, which imports strategies and forks zygotes; zygotes, which build them and
fork hosts; and hosts.

Nursery and zygote have one thread and have compiled nothing, so that a fork of them is whole. A host has two: one for
commands, one for what takes long beside them; both with stacks that native recursion does not overflow at once.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from guideway.api.bitmask import num_words
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy, Matcher
from guideway.api.processes import enter_killable_host
from guideway.api.types import Constraint, JsonSchema, Losses
from guideway.api.vocabulary import Vocabulary
from guideway.errors import ConformanceError, InvalidConfiguration, close_each, contain
from guideway.plugins.building import build_strategies
from guideway.plugins.contract import check_returned, checked_names, checked_support
from guideway.plugins.index import PluginRecord
from guideway.plugins.loading import load
from guideway.runtime.closing import Beginnings, Budget, Closer, Lexicon, Reserve
from guideway.runtime.forced import Forcing
from guideway.runtime.grammar_hosts.joining import Listener
from guideway.runtime.grammar_hosts.messages import IDLE, MAX_GRAMMAR, Birth, Frames, Job, SharedMasks, words_of
from guideway.runtime.grammar_hosts.upkeep import (
    Heap,
    die_before_others,
    die_with_parent,
    limit_memory,
    show_as,
    show_owner,
)
from guideway.runtime.mask_block import GUARD, fill_between_guards
from guideway.runtime.replay import fill_jobs, new_matcher, recycle
from guideway.runtime.rewriting import IN_HOSTS, rewritings
from guideway.runtime.stacks import STACK_BYTES

__all__ = ["Answers", "Built", "Spec", "StrategySpec", "main"]

MOST_WAITING = 64
"""Processes that wait for a nursery, or a zygote, at once."""

SPEAKS_WITHIN = 5.0
"""Seconds until a process that has come for one says what it wants."""

APART = 8
"""For so many steps a batch that was slow is filled one by one."""


class Answers(Protocol):
    """The answers of a host, by the name of a command."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]: ...

    @property
    def beside(self) -> Mapping[str, Callable[..., Any]]:
        """The commands that take long, and are done beside the others."""
        ...


class Built(Protocol):
    """The objects that a zygote holds, and its hosts a copy of."""

    def answers(self, shared: SharedMasks, late_seconds: float) -> Answers:
        """Those of a host."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Spec(ABC):
    """The facts that a zygote is made from."""

    what: ClassVar[str]
    """The kind of its hosts."""
    path: tuple[str, ...]
    """The path where modules are found, as in the serving process."""
    variables: tuple[str, ...]
    """The environment variables that the operator gives them, as patterns."""
    records: tuple[PluginRecord, ...]
    """The components that its hosts run."""
    words: int
    """The number of words of a mask."""

    @property
    def shared(self) -> str | None:
        """The text that is equal where another process's zygote would do as well; None: none would."""
        return None

    @abstractmethod
    def build(self) -> Built:
        """Build the plugins. Raises what that raises."""


@dataclass(frozen=True, slots=True)
class StrategySpec(Spec):
    """The specification of hosts of grammar strategies."""

    what = "grammar"
    vocabulary: Vocabulary
    options: dict[str, dict[str, Any]]

    @property
    def shared(self) -> str | None:
        classes = [load(record).component for record in self.records]
        if any(cls.close is not GrammarStrategy.close for cls in classes):
            return None  # what one process closes would be gone for the others
        return repr((self.records, self.options, self.vocabulary.fingerprint))

    def build(self) -> Built:
        classes = [load(record).component for record in self.records]
        return _Strategies(build_strategies(classes, self.vocabulary, self.options), self.vocabulary)


class _Strategies:
    """The strategies of a zygote."""

    def __init__(self, strategies: dict[str, GrammarStrategy], vocabulary: Vocabulary) -> None:
        self._strategies = strategies
        self._vocabulary = vocabulary

    def answers(self, shared: SharedMasks, late_seconds: float) -> Answers:
        return _Host(self._strategies, self._vocabulary, shared, late_seconds)

    def close(self) -> None:
        close_each([(f"grammar.{name}", strategy.close) for name, strategy in self._strategies.items()])


def main(descriptor: int, listener: int | None = None) -> None:
    """Serve as a nursery over a socket until its other end is closed, in a process that nobody has as a child; over
    another one let processes have a nursery of their own, forked from this one."""
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the serving process, which closes the socket
    # the kernel sends one to all of the group when one of them ends while another is stopped, if its parent is then in
    # its session (`kill_orphaned_pgrp`): who stops one host would end all
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_before_others()
    enter_killable_host()
    gc.disable()  # what is imported stays: to look through it again and again takes time
    _keep_from_others(descriptor, *([] if listener is None else [listener]))
    _nurse(socket.socket(fileno=descriptor), None if listener is None else _listening(listener))


def _keep_from_others(*descriptors: int) -> None:
    """Let no program that a plugin starts have them."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


def _listening(descriptor: int) -> socket.socket:
    """The socket that other processes come to, who see there which process listens."""
    others = socket.socket(fileno=descriptor)
    others.listen(MOST_WAITING)
    return others


def _nurse(end: socket.socket, listening: socket.socket | None = None) -> None:
    """Fork zygotes, until the other end is closed."""
    show_as("nursery")
    control = Frames(end, most=1 << 40)
    with suppress(EOFError):
        others = None if listening is None else Listener(listening, control.receive_bytes())
        control.answer({"pid": os.getpid()})
        _fork_on_demand(control, {"fork": _zygote}, before=_import, others=others, joined=_nurse_another)


def _nurse_another(end: socket.socket, _: object) -> None:
    _nurse(end)


def _let_join(
    end: socket.socket,
    others: Listener,
    control: Frames,
    before: Callable[[Any], None] | None,
    joined: Callable[[socket.socket, Any], None],
) -> None:
    """Fork a process for another one, which knows the key and says what it wants, as nobody's child."""
    with end:
        end.settimeout(SPEAKS_WITHIN)
        owner, wanted = Frames(end).receive()
        end.settimeout(None)
        if before is not None:
            before(wanted)
        if pid := os.fork():
            os.waitpid(pid, 0)
            return
        try:
            if os.fork() == 0:
                control.close()
                others.close()
                os.setpgid(0, 0)
                show_owner(owner)
                joined(end, wanted)
        finally:
            os._exit(0)


def _import(records: Sequence[PluginRecord]) -> None:
    """Import what zygotes share. What cannot be imported they find out themselves, and say why."""
    for record in records:
        try:
            load(record)
        except BaseException as error:
            contain(error)


def _zygote(descriptors: Sequence[int], _: object) -> None:
    """Build the plugins, and fork hosts until the other end of the socket is closed."""
    control = Frames(socket.socket(fileno=descriptors[0]), most=1 << 40)
    listening = _listening(descriptors[1]) if len(descriptors) > 1 else None
    try:
        environ: dict[str, str]
        spec: Spec
        key: bytes
        environ, spec, key = control.receive()
        _set_environment(environ)  # it may be another one than when the nursery was started
        sys.path[:] = spec.path
        built = spec.build()
    except EOFError:
        raise
    except BaseException as error:
        contain(error)
        field = error.field if isinstance(error, InvalidConfiguration) else ""
        plugin = getattr(error, "plugin", "")
        control.answer({"error": {**words_of(error), "field": field, "plugin": plugin, "said": str(error)}})
        return
    _fork_hosts(control, spec, built, None if listening is None else Listener(listening, key))


def _set_environment(environ: Mapping[str, str]) -> None:
    """Set what the serving process says."""
    os.environ.clear()
    os.environ.update(environ)


def _fork_hosts(control: Frames, spec: Spec, built: Built, others: Listener | None = None) -> None:
    """Say that the plugins are built, and fork hosts until the other end of the socket is closed."""
    show_as("zygote")
    control.answer({"error": None})
    children: dict[str, Callable[[Sequence[int], Any], None]] = {
        "fork": partial(_host, spec, built),
        "spare": partial(_spare, spec, built),
    }
    try:
        _fork_on_demand(control, children, others=others, joined=partial(_zygote_of_another, spec, built))
    finally:
        built.close()


def _zygote_of_another(spec: Spec, built: Built, end: socket.socket, environ: Mapping[str, str]) -> None:
    """Fork hosts for another process, which would have built the same."""
    _set_environment(environ)
    control = Frames(end, most=1 << 40)
    control.answer({"pid": os.getpid()})
    _fork_hosts(control, spec, built)


def _spare(spec: Spec, built: Built, descriptors: Sequence[int], _: object) -> None:
    """Wait, as nobody's child, to take the place of the zygote that forked this process."""
    if os.fork():
        return
    show_as("spare")
    control = Frames(socket.socket(fileno=descriptors[0]), most=1 << 40)
    control.answer({"pid": os.getpid()})
    control.receive()  # nothing but that it is time
    _fork_hosts(control, spec, built)


def _fork_on_demand(
    control: Frames,
    children: dict[str, Callable[[Sequence[int], Any], None]],
    before: Callable[[Any], None] | None = None,
    *,
    others: Listener | None,
    joined: Callable[[socket.socket, Any], None],
) -> None:
    """Answer commands until the other end of the socket is closed, which raises EOFError. A child, by the command to
    fork it, has the descriptors and the argument of the command; `before` is given the argument before. Nobody is told
    of a spare, which nobody waits for. At `others` come processes that are to have one of their own, which does what
    `joined` does with the end that they have and what they want."""
    while True:
        if others is not None:
            ready = select.select([control.socket, *others.sockets()], [], [], others.seconds)[0]
            if control.socket not in ready:
                for joining in others.proven(ready):
                    with suppress(Exception):  # whatever comes there must not end what is served here
                        _let_join(joining, others, control, before, joined)
                continue
        command, argument = control.receive()
        if command == "reap":
            try:
                _, status = os.waitpid(argument, 0)  # it has ended, or was killed
                control.answer({"status": os.waitstatus_to_exitcode(status)})
            except ChildProcessError:
                control.answer({"status": None})
            continue
        _, descriptors, _, _ = socket.recv_fds(control.socket, 1, 3)
        _keep_from_others(*descriptors)
        if before is not None:
            before(argument)
        try:
            pid = os.fork()
        except OSError as error:
            pid = -1
            if command != "spare":
                control.answer({"error": str(error)})
        if pid == 0:
            status = 70
            try:
                control.close()
                if others is not None:  # else nobody could tell that the nursery has ended
                    others.close()
                die_with_parent()
                children[command](descriptors, argument)
                status = 0
            except EOFError:
                status = 0
            except BaseException:
                pass
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0 and command == "spare":
            os.waitpid(pid, 0)  # it has forked the spare, which speaks for itself
        elif pid > 0:
            control.answer({"pid": pid})


def _host(spec: Spec, built: Built, descriptors: Sequence[int], given: tuple[str, int, float]) -> None:
    role, memory_bytes, late_seconds = given
    show_as(role)
    _silence_native_code()
    limit_memory(memory_bytes)
    gc.freeze()  # else the first collection would write to all that is shared
    gc.enable()
    commands, beside, shared = descriptors
    host = built.answers(SharedMasks(spec.words, shared), late_seconds)
    threading.stack_size(STACK_BYTES)
    threads = [
        threading.Thread(target=_answer, args=(Frames(socket.socket(fileno=end), most=1 << 40), answers), daemon=True)
        for end, answers in ((commands, host.commands), (beside, host.beside))
    ]
    for thread in threads:
        thread.start()
    threads[0].join()


def _silence_native_code() -> None:
    """Drop what native code writes to standard error, such as a grammar library's warnings about schemas, whose losses
    are in `unenforced`. Python still writes to `sys.stderr`. No effect if warnings are enabled (``python -W``,
    PYTHONWARNINGS, PYTHONDEVMODE)."""
    stream = sys.__stderr__
    if sys.warnoptions or sys.flags.dev_mode or stream is None or sys.stderr is not stream:
        return
    stream.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115, PTH123
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _answer(frames: Frames, answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer commands until the other end is closed."""
    heap = Heap()
    try:
        while True:
            name, *arguments = frames.receive()
            data = None
            try:
                answer = answers[name](*arguments)
                if isinstance(answer, tuple):
                    answer, data = answer
                frames.answer({"value": answer, "bytes": data is not None})
            except EOFError:
                raise
            except BaseException as error:
                frames.answer({"error": words_of(error)})
            if data is not None:
                frames.send_bytes(data)
            answer = data = arguments = None
            heap.tidy()
    except EOFError:
        return


class _Host:
    """The answers of one host."""

    def __init__(
        self,
        strategies: dict[str, GrammarStrategy],
        vocabulary: Vocabulary,
        masks: SharedMasks,
        late_seconds: float,
    ) -> None:
        self._strategies = strategies
        self._vocabulary = vocabulary
        self._masks = masks
        self._late_seconds = late_seconds
        self._apart = 0
        """For how many steps jobs are filled one by one, to find out which is slow."""
        self._usual_seconds = late_seconds
        """The seconds that a batch may take before it is looked at one by one: more, once nobody in it was slow."""
        self._grammars: dict[int, tuple[GrammarStrategy, CompiledGrammar, Beginnings]] = {}
        self._matchers: dict[int, _Living] = {}
        self._forcing = Forcing(vocabulary.tokens, num_words(vocabulary.logits_width))
        self._lexicon: Lexicon | None = None
        self._compiled: tuple[str, Constraint, CompiledGrammar] | None = None
        """The last one: its shortest output may be asked for next."""
        self.commands: dict[str, Callable[..., Any]] = {
            "supports": self._supports,
            "takes": self._takes,
            "rewritings": self._rewritings,
            "compile": self._compile,
            "shortest": self._shortest,
            "step": self._step,
            "ask": self._ask,
        }
        self.beside: dict[str, Callable[..., Any]] = {"load": self._load}

    # For any constraint

    def _supports(self, strategy: str, constraint: Constraint) -> dict[str, Any]:
        support = checked_support(self._strategies[strategy].supports(constraint))
        return {
            "enforced": sorted(support.enforced),
            "unenforced": sorted(support.unenforced),
            "reason": support.reason,
        }

    def _takes(self, strategy: str) -> list[str]:
        return sorted(checked_names(self._strategies[strategy].takes))

    def _rewritings(self, strategy: str, constraint: JsonSchema, repeats: bool) -> list[tuple[str, Losses]]:
        takes = checked_names(self._strategies[strategy].takes)
        return [(each.text, each.losses) for each in rewritings(constraint, takes, IN_HOSTS, repeats=repeats)]

    def _compile(self, strategy: str, constraint: Constraint) -> tuple[dict[str, Any], bytes | None]:
        """Return how many bytes the grammar holds, its `Reserve`, and itself if it can be handed over."""
        owner, self._compiled = self._strategies[strategy], None
        grammar = owner.compile(constraint)
        check_returned(grammar, CompiledGrammar)
        self._compiled = strategy, constraint, grammar
        data = grammar.to_bytes() if "serialize" in owner.capabilities else None
        if data is not None and len(data) > MAX_GRAMMAR:
            data = None
        reserve = asdict(Reserve.of(constraint, self._vocabulary))
        return {"nbytes": max(0, int(grammar.nbytes)), "reserve": reserve}, data

    def _shortest(
        self,
        strategy: str,
        constraint: Constraint,
        given: Constraint | bytes,
        stop_token_ids: frozenset[int],
        budget: Budget,
    ) -> int | None:
        """Return how many tokens the shortest output that is found has."""
        owner = self._strategies[strategy]
        if self._compiled is not None and self._compiled[:2] == (strategy, constraint):
            grammar = self._compiled[2]
        else:
            self._compiled, grammar = None, _made(owner, given)
        matcher = new_matcher(owner, grammar, stop_token_ids)
        return Closer(self._known_lexicon(), stop_token_ids, budget).shortest(matcher)

    # For sequences

    def _load(self, grammar: int, strategy: str, given: Constraint | bytes, unloaded: Sequence[int]) -> None:
        self._forget((), unloaded)
        owner = self._strategies[strategy]
        self._grammars[grammar] = owner, _made(owner, given), {}

    def _step(
        self, told: list[tuple[Any, ...]], ended: Sequence[tuple[int, bool]], unloaded: Sequence[int], num_forced: int
    ) -> dict[str, Any]:
        """Bring matchers up to date and fill their rows: how many drafts each accepted, -1 with an error; None: none
        accepted any, and none failed. The drafts are those of the jobs, or at most `num_forced` that are forced."""
        self._forget(ended, unloaded)
        jobs = [Job._make(job) for job in told]
        masks, counts, errors = self._masks, [-1] * len(jobs), {}
        ready: dict[int, FillJob] = {}
        taken = [0.0] * len(jobs)
        first, began = 1, time.thread_time()
        for i, job in enumerate(jobs):
            masks.working_on = job.matcher
            try:
                living = self._living(job)
                if num_forced and not living.matcher.is_terminated():
                    found = self._forcing.run(living.matcher, living.stop_token_ids, num_forced)
                    jobs[i] = job = job._replace(draft_token_ids=found)
                ready[i] = FillJob(living.matcher, job.draft_token_ids, first)
            except BaseException as error:
                errors[i] = words_of(error)
            first += 1 + len(job.draft_token_ids)
            ended_at = time.thread_time()
            if job.birth is None:  # what is told anew takes its time
                taken[i] = ended_at - began
            began = ended_at
        block = masks.rows[: first + 1]
        block[0] = block[-1] = GUARD
        for indices in self._together(jobs, ready):
            masks.working_on = jobs[indices[0]].matcher if len(indices) == 1 else IDLE
            some = tuple(ready[i] for i in indices)
            strategy = self._matchers[jobs[indices[0]].matcher].strategy
            clock = time.thread_time if len(indices) == 1 else time.process_time
            began = clock()
            try:
                filled = fill_between_guards(partial(fill_jobs, strategy), some, block)
            except BaseException as error:  # matchers and rows may be anywhere now
                errors |= dict.fromkeys(indices, words_of(error))
                continue
            if len(indices) == 1:
                taken[indices[0]] += clock() - began
            elif (seconds := clock() - began) > self._usual_seconds:
                self._apart, self._usual_seconds = APART, 2 * seconds
            for i, count in zip(indices, filled.tolist(), strict=True):
                counts[i] = count
                if count < 0:
                    unsaid = ConformanceError("fill returned -1 without setting the job's error")
                    errors[i] = words_of(ready[i].error or unsaid)
        closing = self._close(jobs, counts, ready, errors)
        self._drop([jobs[i] for i in errors])
        masks.working_on = IDLE
        self._apart = max(0, self._apart - 1)
        slow = [i for i, seconds in enumerate(taken) if seconds > self._late_seconds]
        if slow:
            self._usual_seconds = self._late_seconds
        drafts = [job.draft_token_ids for job in jobs] if num_forced else None
        plain = counts if any(counts) else None
        return {"counts": plain, "drafts": drafts, "errors": errors, "slow": slow, "closing": closing}

    def _close(
        self, jobs: Sequence[Job], counts: list[int], ready: Mapping[int, FillJob], errors: dict[int, Any]
    ) -> dict[int, Any]:
        """Keep the rows of those whose budget ends to what can be completed. What is known of their end, where that is
        new: the first row that lost something, and the fields of the `Record` of each row."""
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
                counts[i], errors[i] = -1, words_of(error)
                continue
            if first is not None or any(record is not closer.record for record in closer.records):
                told = [(r.free_until, r.at, r.path, r.lifts_bans, r.bans_at) for r in closer.records]
                closing[i] = first, told
        return closing

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Around what may take as long as a search for a completion does."""
        self._masks.is_closing = True
        try:
            yield
        finally:
            self._masks.working_on = IDLE  # first: what it took is not held against what comes then
            self._masks.is_closing = False

    def _together(self, jobs: Sequence[Job], ready: dict[int, FillJob]) -> list[list[int]]:
        """The jobs that are filled by one call: all, where the strategy fills batches by itself and is fast."""
        if not ready:
            return []
        strategy = self._matchers[jobs[next(iter(ready))].matcher].strategy
        batches = type(strategy).fill is not GrammarStrategy.fill
        return [list(ready)] if batches and not self._apart else [[i] for i in ready]

    def _ask(self, job: Job, method: str, arguments: Sequence[Any], ended: Sequence[tuple[int, bool]]) -> Any:
        """Return what a matcher's method returns."""
        self._forget(ended, ())
        self._masks.working_on = job.matcher
        try:
            living = self._living(job)
            answer = getattr(living.matcher, method)(*arguments)
            if living.closer is not None and method == "accept":
                living.closer.accept(arguments[0][:answer])
        except BaseException:
            self._drop([job])
            raise
        self._masks.working_on = IDLE
        return list(answer) if isinstance(answer, list | tuple) else answer

    def _living(self, job: Job) -> _Living:
        """The matcher of a job, with everything done that was not."""
        if job.birth is not None:
            if job.birth.given is not None and job.birth.grammar not in self._grammars:
                self._load(job.birth.grammar, job.birth.strategy, job.birth.given, ())
            strategy, grammar, beginnings = self._grammars[job.birth.grammar]
            matcher = new_matcher(strategy, grammar, job.birth.stop_token_ids)
            _accept(matcher, job.birth.token_ids)
            stop_token_ids, closer = job.birth.stop_token_ids, self._closer(job.birth, beginnings)
            self._matchers[job.matcher] = _Living(strategy, grammar, matcher, stop_token_ids, closer)
        living = self._matchers[job.matcher]
        if job.rollback:
            living.matcher.rollback(job.rollback)
        _accept(living.matcher, job.accept)
        if living.closer is not None:
            living.closer.rollback(job.rollback)
            living.closer.accept(job.accept)
        return living

    def _closer(self, birth: Birth, beginnings: Beginnings) -> Closer | None:
        """The closer of a matcher which is born."""
        if birth.budget is None:
            return None
        closer = Closer(self._known_lexicon(), birth.stop_token_ids, birth.budget, birth.end, beginnings)
        closer.accept(birth.token_ids)
        return closer

    def _known_lexicon(self) -> Lexicon:
        if self._lexicon is None:
            self._lexicon = Lexicon(self._vocabulary)
        return self._lexicon

    def _drop(self, failed: Sequence[Job]) -> None:
        """Keep nothing of these: who asks for them again says again what they are made from."""
        for job in failed:
            self._matchers.pop(job.matcher, None)
        in_use = {id(living.grammar) for living in self._matchers.values()}
        for birth in [job.birth for job in failed if job.birth is not None and job.birth.given is not None]:
            if id(self._grammars.get(birth.grammar, (None, None))[1]) not in in_use:
                self._grammars.pop(birth.grammar, None)

    def _forget(self, ended: Sequence[tuple[int, bool]], unloaded: Sequence[int]) -> None:
        for matcher, whole in ended:
            living = self._matchers.pop(matcher, None)
            if living is not None and whole:
                try:
                    recycle(living.grammar, living.matcher)
                except BaseException as error:
                    contain(error)
        for grammar in unloaded:
            self._grammars.pop(grammar, None)


@dataclass(slots=True)
class _Living:
    """A matcher, and where it is from."""

    strategy: GrammarStrategy
    grammar: CompiledGrammar
    matcher: Matcher
    stop_token_ids: frozenset[int]
    closer: Closer | None = None


def _made(owner: GrammarStrategy, given: Constraint | bytes) -> CompiledGrammar:
    return owner.from_bytes(given) if isinstance(given, bytes) else owner.compile(given)


def _accept(matcher: Matcher, token_ids: tuple[int, ...]) -> None:
    if token_ids and matcher.accept(token_ids) != len(token_ids):
        raise ConformanceError("it refused a token that its own mask allowed")
