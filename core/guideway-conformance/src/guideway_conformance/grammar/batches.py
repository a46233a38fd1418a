"""Filling the rows of many sequences at once, with drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from guideway.api import DeadEnd, FillJob, GrammarStrategy, Matcher
from guideway.api.bitmask import Bitmask
from guideway.api.options import short_repr
from numpy.typing import NDArray

from guideway_conformance.grammar.dead_ends import dead_ends
from guideway_conformance.grammar.masks import POISON
from guideway_conformance.grammar.session import Session, expect_same, legal, new_rows, observe, row_of, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, note_filled
from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect


def filled(strategy: GrammarStrategy, jobs: Sequence[FillJob], bitmask: Bitmask, name: str) -> NDArray[np.int32]:
    """Fill, as all checks do, and fail unless it returns a count for each job in the form the contract has, and leaves
    the list of jobs and what is in them as they were. As in a host, a `fill` of the strategy's own gets its own
    matchers, and jobs with more drafts than those can roll back are filled by the default."""
    if type(strategy).fill is GrammarStrategy.fill:
        return _filled(strategy.fill, jobs, bitmask, name)
    own, others, lent = list[int](), list[int](), list[tuple[FillJob, Session]]()
    for i, job in enumerate(jobs):
        session, num_drafts = job.matcher, len(job.draft_token_ids)
        if isinstance(session, Session) and session.can_lend(num_drafts):
            lent.append((job, session))
        (others if isinstance(session, Session) and not session.can_lend(num_drafts) else own).append(i)
    for job, session in lent:
        job.matcher = session.lend(len(job.draft_token_ids))
    some = [jobs[i] for i in own] if others else jobs
    try:
        result = np.zeros(0, dtype=np.int32) if others and not some else _filled(strategy.fill, some, bitmask, name)
    finally:
        for job, session in lent:
            job.matcher = session
    note_filled(int((result >= 0).sum()))
    if not others:
        return result
    counts = np.empty(len(jobs), dtype=np.int32)
    counts[own] = result
    counts[others] = GrammarStrategy.fill(strategy, [jobs[i] for i in others], bitmask)
    return counts


def _filled(
    fill: Callable[[Sequence[FillJob], Bitmask], NDArray[np.int32]],
    jobs: Sequence[FillJob],
    bitmask: Bitmask,
    name: str,
) -> NDArray[np.int32]:
    given = [(job, job.matcher, tuple(job.draft_token_ids), job.first_row) for job in jobs]
    result = fill(jobs, bitmask)
    expect(isinstance(result, np.ndarray), f"{name}: fill returned a {type(result).__name__}, no array")
    expect(result.dtype == np.int32, f"{name}: fill of {len(jobs)} jobs returned {result.dtype}, not int32")
    expect(result.shape == (len(given),), f"{name}: fill of {len(given)} jobs returned shape {result.shape}")
    same = len(jobs) == len(given) and all(
        job is one and job.matcher is matcher and tuple(job.draft_token_ids) == drafts and job.first_row == row
        for job, (one, matcher, drafts, row) in zip(jobs, given, strict=True)
    )
    expect(same, f"{name}: fill changed its list of jobs, or a matcher, drafts or first row of one")
    return result


def why(job: FillJob) -> str:
    """The error of a job that failed, for messages."""
    return "" if job.error is None else f" (the job's error is {short_repr(job.error)})"


@dataclass
class Part:
    """A job, and what has to come of it."""

    session: Session
    drafts: Sequence[int]
    first_row: int
    job: FillJob = field(init=False)

    def __post_init__(self) -> None:
        self.job = FillJob(self.session.hosted(), tuple(self.drafts), self.first_row)

    @property
    def num_rows(self) -> int:
        return 1 + len(self.drafts)

    def wanted(self) -> tuple[int, list[NDArray[np.int32]]]:
        """Return how many drafts are accepted, and the rows that are filled, one token at a time."""
        session, rows = self.session.twin(), list[NDArray[np.int32]]()
        for accepted, draft in enumerate([None, *self.drafts]):
            if draft is not None and not session.accept([draft]):
                return accepted - 1, rows
            if session.is_terminated():
                return accepted, rows
            try:
                rows.append(row_of(session.matcher, session.vocabulary))
            except DeadEnd:
                return accepted - 1, rows
        return len(self.drafts), rows

    @property
    def what(self) -> str:
        return f"a job {self.session.place} with drafts {show(self.session.vocabulary, self.drafts)}"


def fill(parts: Sequence[Part], name: str, *, num_rows: int) -> tuple[NDArray[np.int32], Bitmask]:
    """Fill, and check the form of what comes back."""
    bitmask = new_rows(num_rows, parts[0].session.vocabulary, POISON)
    return filled(parts[0].session.strategy, tuple(part.job for part in parts), bitmask, name), bitmask


def expect_filled(parts: Sequence[Part], name: str, num_rows: int) -> None:
    """Fill, and fail unless counts and rows are those of one token at a time and no other row changed."""
    result, bitmask = fill(parts, name, num_rows=num_rows)
    untouched = set(range(num_rows))
    for part, count in zip(parts, result.tolist(), strict=True):
        accepted, rows = part.wanted()
        said = f"{name}: {part.what}: fill returned {count}{why(part.job) if count < 0 else ''}"
        expect(count == accepted, f"{said}, one at a time {accepted} are accepted")
        for i, row in enumerate(rows):
            same = (bitmask[part.first_row + i] == row).all()
            expect(same, f"{name}: {part.what}: row {i} of its rows is not the mask there")
            untouched.discard(part.first_row + i)
    changed = [row for row in sorted(untouched) if (bitmask[row] != POISON).any()]
    jobs = "; ".join(part.what for part in parts)
    expect(not changed, f"{name}: {jobs}: fill changed rows {changed[:5]}, which it has to leave untouched")


def _parts(case: Case, drafts: Sequence[Sequence[int]], at: Sequence[int]) -> list[Part]:
    """A job for each list of drafts, its matcher some way into a walk, rows one after another."""
    parts, row = [], 1
    for i, (offered, steps) in enumerate(zip(drafts, at, strict=True)):
        session = case.session()
        walk(session, i, steps)
        if session.is_terminated():
            session = case.session()
        parts.append(Part(session, offered, row))
        row += parts[-1].num_rows + 1
    return parts


def _legal_drafts(case: Case, seed: int, steps: int) -> list[int]:
    return walk(case.session(), seed, steps)


@check("grammar", acts=("fills",))
def fill_is_one_mask_after_another(subject: GrammarSubject) -> None:
    """A job's first row is the mask of its state, the row after draft i the mask once drafts up to i were accepted."""
    for case in subject.few():
        for seed in range(3):
            drafts = [_legal_drafts(case, seed, n) for n in (4, 0, 1, 7)]
            parts = _parts(case, drafts, [0, 0, 0, 0])
            expect_filled(parts, case.name, 24)


@check("grammar")
def fill_writes_nowhere_else(subject: GrammarSubject) -> None:
    """The bitmask is a strategy's block of a larger array, and nothing around it is written to, near or far."""
    for case in subject.few():
        for around in (1, 300):
            parts = _parts(case, [_legal_drafts(case, around, n) for n in (4, 0, 1, 7)], [0, 0, 0, 0])
            large = new_rows(24 + 2 * around, case.vocabulary, POISON)
            filled(case.strategy, tuple(part.job for part in parts), large[around:-around], case.name)
            rows = np.flatnonzero((large != POISON).any(axis=1)) - around
            outside = [row for row in rows.tolist() if not 0 <= row < 24]
            expect(not outside, f"{case.name}: fill wrote to rows {outside[:5]} of a bitmask whose rows are 0 to 23")


@check("grammar")
def fill_stops_at_a_refused_draft(subject: GrammarSubject) -> None:
    """Drafts count up to the first refused one, and rows after it stay untouched."""
    for case in subject.few():
        ahead = _legal_drafts(case, 1, 6)
        for cut in range(min(3, len(ahead))):
            drafts = [[*ahead[:cut], 0, *ahead[cut:]], ahead[:cut], [0, 0], ahead]
            expect_filled(_parts(case, drafts, [0, 0, 0, 0]), case.name, 30)


@check("grammar")
def fill_stops_at_a_draft_that_terminates(subject: GrammarSubject) -> None:
    """A draft that terminates counts as accepted, and the rows after it stay untouched."""
    for case in subject.few():
        token_ids = case.output()
        if token_ids is None:
            continue
        stop = max(case.vocabulary.stop_token_ids)
        for tail in ([stop], [stop, stop], [stop, *token_ids[:2]]):
            session = case.session().take(token_ids[:-2])
            part = Part(session, [*token_ids[-2:], *tail], 1)
            expect_filled([part], case.name, part.num_rows + 2)
            expect(not session.is_terminated(), f"{case.name}: {part.what} left its matcher terminated")


@check("grammar", acts=("fills",))
def fill_leaves_every_state(subject: GrammarSubject) -> None:
    """All matchers end a fill in the state they started in."""
    for case in subject.few():
        for seed in range(3):
            drafts = [_legal_drafts(case, seed, 4), [], [*_legal_drafts(case, seed, 2), 0]]
            parts = _parts(case, drafts, [0, 2, 0])
            before = [observe(part.session) for part in parts]
            fill(parts, case.name, num_rows=24)
            for part, seen in zip(parts, before, strict=True):
                expect_same(part.session, seen, case.vocabulary, f"{case.name}: {part.what}: fill moved the matcher")
                part.session.take(legal(part.session)[:1])
                twin = part.session.twin()
                expect_same(part.session, twin, case.vocabulary, f"{case.name}: {part.what}: after a fill")


@check("grammar", acts=("fills",))
def fill_takes_jobs_in_any_order(subject: GrammarSubject) -> None:
    """Each job's rows are where its `first_row` says, in whichever order the jobs come."""
    parts = []
    for number, case in enumerate(2 * subject.few()):
        parts.append(Part(case.session(), _legal_drafts(case, 3, 5)[: number % 4], 0))
    row = 0
    for part in reversed(parts):
        part.job.first_row = part.first_row = row
        row += part.num_rows + 1
    order = [*parts[1::2], *parts[0::2]]
    expect_filled(order, "jobs out of order", row + 2)


@check("grammar", acts=("fills",))
def jobs_are_updated_from_step_to_step(subject: GrammarSubject) -> None:
    """A job that is used again, with other drafts and another row, gives what a new one gives."""
    for case in subject.few(most=1):
        part = Part(case.session(), [], 0)
        for step in range(6):
            ahead = walk(part.session.twin(), step, 3)
            part.drafts = part.job.draft_token_ids = tuple(ahead[: step % 3])
            part.first_row = part.job.first_row = 5 - step
            expect_filled([part], f"{case.name}, step {step}", 10)
            if not ahead or ahead[0] in part.session.stop_token_ids:
                break
            part.session.take(ahead[:1])


@check("grammar")
def fill_of_no_jobs_is_nothing(subject: GrammarSubject) -> None:
    """No jobs give no results, and touch no row."""
    case = subject.few(most=1)[0]
    bitmask = new_rows(2, case.vocabulary, POISON)
    filled(case.strategy, (), bitmask, case.name)
    expect((bitmask == POISON).all(), "fill of no jobs changed the bitmask")


@check("grammar")
def a_failed_job_fails_alone(subject: GrammarSubject) -> None:
    """The result of a job whose matcher failed, at a dead end or otherwise, is -1, its `error` says why, and all other
    jobs are filled right."""
    rows = (5, 3, 1)  # later jobs have earlier rows
    for dead in dead_ends(subject):
        for failing, drafts in product(range(3), (dead.token_ids[:1], [])):
            parts = [Part(dead.twin() if i == failing else dead.fresh(), drafts, rows[i]) for i in range(3)]
            _expect_failed_alone(parts, failing, f"{dead.name}: three jobs", "where no token is legal")
    for case in subject.few(most=1):
        for failing, error in product((0, 2, NUM_MANY - 1), ERRORS):
            parts = []
            for i in range(NUM_MANY if failing > 2 else 3):
                parts.append(Part(case.session(), walk(case.session(), i, i % 2), 2 * i))
            if not break_matcher(parts[failing].session, error):
                break
            _expect_failed_alone(parts, failing, f"{case.name}: {len(parts)} jobs", "whose matcher is broken", error)
        for failing in range(3):
            parts = [Part(case.session(), walk(case.session(), i, min(1, i)), (5, 3, 1)[i]) for i in range(3)]
            parts[failing].job.matcher = Broken()
            try:
                _expect_failed_alone(parts, failing, f"{case.name}: three jobs", "whose matcher is broken")
            except Bug:
                raise AssertionError(f"{case.name}: fill raised what the matcher of one job did") from None
            except AssertionError:
                raise
            except Exception:
                return  # it takes no matcher but its own


NUM_MANY = 12
"""Jobs of a batch that is worth more than one thread."""
ERRORS = (RuntimeError, MemoryError, KeyError, OSError)


def break_matcher(session: Session, kind: type[Exception]) -> bool:
    """Make every method of the strategy's own matcher fail with an error of this kind, as one of a library with a bug
    does; False if that cannot be done to an object of its class. What a host adds of its own stays whole."""
    matcher = session.matcher

    def fail(*_: Any, **__: Any) -> Any:
        raise kind("a matcher that is broken")

    methods = {
        name: fail
        for cls in type(matcher).__mro__[:-1]
        if not cls.__module__.startswith(("guideway.runtime.", "guideway_hosts."))
        for name, value in vars(cls).items()
        if callable(value) and not name.startswith("__") and not isinstance(value, type | staticmethod)
    }
    try:
        matcher.__class__ = type(type(matcher).__name__, (type(matcher),), {**methods, "__slots__": ()})
    except TypeError:
        return False
    return True


class Bug(RuntimeError):
    """The error of a matcher that is broken."""


class Broken(Matcher):
    """Fails at whatever it is asked, as a matcher does whose library has a bug."""

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise Bug("a matcher that is broken")

    accept = fill_bitmask = is_terminated = is_accepting = validate = rollback = fork = _fail


def _expect_failed_alone(
    parts: Sequence[Part], failing: int, name: str, how: str, broken: type[Exception] | None = None
) -> None:
    """`broken`: the error that all methods of the matcher fail with; a fill that calls none has nothing to report."""
    num_rows = 2 + max(part.first_row + part.num_rows for part in parts)
    failed = parts[failing]
    try:
        result, bitmask = fill(parts, name, num_rows=num_rows)
    except AssertionError:
        raise
    except Exception as error:
        if broken is None:
            raise
        said = f"{name}, {failed.what}, {how}: fill raised {error!r} instead of returning -1 for this job"
        raise AssertionError(said) from error
    if broken is not None and result[failing] >= 0:
        return
    expect(result[failing] == -1, f"{name}, {failed.what}, {how}: fill returned {result[failing]}, not -1")
    has_error = isinstance(failed.job.error, BaseException)
    expect(has_error, f"{name}, {failed.what}: its result is -1, but its error is {failed.job.error!r}")
    for part, count in zip(parts, result.tolist(), strict=True):
        if part is failed:
            continue
        said = f"{name}, {part.what}, beside one that failed"
        accepted, rows = part.wanted()
        failed_too = why(part.job) if count < 0 else ""
        expect(count == accepted, f"{said}: fill returned {count}{failed_too}, not {accepted}")
        for i, row in enumerate(rows):
            expect((bitmask[part.first_row + i] == row).all(), f"{said}: row {i} of its rows is wrong")
    theirs = {row for part in parts for row in range(part.first_row, part.first_row + part.num_rows)}
    changed = [row for row in range(num_rows) if row not in theirs and (bitmask[row] != POISON).any()]
    expect(not changed, f"{name}, one of which failed: fill changed rows {changed}, which are none of theirs")


@check("grammar")
def a_draft_into_a_dead_end_is_refused(subject: GrammarSubject) -> None:
    """A draft after which no token is legal counts as refused, and its row stays untouched."""
    for dead in dead_ends(subject):
        session = dead.fresh().take(dead.token_ids[:-1])
        last = dead.token_ids[-1:]
        for drafts in (last, [*last, *last]):
            parts = [Part(session.twin(), drafts, 0), Part(session.twin(), [], 5)]
            expect_filled(parts, f"{dead.name}: a draft into a dead end", 7)
