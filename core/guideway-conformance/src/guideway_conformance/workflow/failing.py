"""Failures of a request: each ends that one alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from guideway.api import GuidewayError, InvalidRequest, LimitExceeded, Prepared, RequestProcessor, Task
from guideway.api.options import short_repr

from guideway_conformance.registry import check
from guideway_conformance.subjects import NotPerformed, expect
from guideway_conformance.workflow.parameters import names, values
from guideway_conformance.workflow.subject import FORMS, SPECIAL, UNKNOWN_WORD, Host, WorkflowSubject, expect_vocabulary

__all__: list[str] = []

MOST_VALUES = 5
"""The values of a parameter with which texts are cut."""
Outcome: TypeAlias = Prepared | GuidewayError

HALF = "\ud800"
"""Half a character, which no encoding of texts has."""
TEXTS = (HALF, UNKNOWN_WORD, f"w1 {HALF}", f"w1 {UNKNOWN_WORD} w2", "", " ", "\0", "é\u0301\u202e\U0010ffff")
WRONG_IDS: tuple[Any, ...] = (
    *(-1, -100, -(1 << 31), -(1 << 63), 1 << 31, 1 << 32, 10**12, (1 << 63) - 1, 1 << 63, 1 << 70),
    *(2.5, 2.0, math.nan, math.inf, None, "w1", "5", [1], True, np.int64(-1), np.float64(2.5), object()),
)
"""Values that are no token of any vocabulary, or no whole number."""
AROUND: tuple[tuple[list[int], list[int]], ...] = (([], []), ([2], []), ([], [2, 5]), ([2, 5], [6, 3]))
"""The ids before and behind such a one."""
IDS: tuple[Any, ...] = ([], *([*before, wrong, *behind] for wrong in WRONG_IDS for before, behind in AROUND))


def _named(lists: Sequence[Any]) -> Iterator[Any]:
    """The same lists of ids, in the other form that they come in."""
    yield from ({"prompt_token_ids": ids} for ids in lists)


def _passing(subject: WorkflowSubject, host: Host, values: Sequence[Any]) -> list[Task]:
    """The tasks of those inputs that the input processor lets pass."""
    found: list[Task] = []
    for value in values:
        task = subject.task(value, arrival=100 + len(found))
        try:
            host.input_processor.check(task)
        except InvalidRequest:
            continue
        found.append(task)
    return found


def _outcomes(processor: RequestProcessor, tasks: Sequence[Task]) -> list[Outcome]:
    """The request or the error of each task."""
    values = short_repr([task.value for task in tasks])
    try:
        found = processor.prepare(tasks)
    except BaseException as error:
        raise AssertionError(f"preparing {values} raised {error!r}, and returned no error") from error
    expect(len(found) == len(tasks), f"of the {len(tasks)} tasks {values} came {len(found)} requests and errors")
    for task, outcome in zip(tasks, found, strict=True):
        if isinstance(outcome, GuidewayError):
            expect(str(outcome).strip(), f"the error of {short_repr(task.value)} says nothing")
            continue
        expect(isinstance(outcome, Prepared), f"of {short_repr(task.value)} came {short_repr(outcome)}")
        expect_vocabulary(processor, outcome)
        expect(
            outcome.task is task,
            f"in the place of {short_repr(task.value)} came the request of {short_repr(outcome.task.value)}",
        )
    return found


def _same(one: Outcome, other: Outcome) -> bool:
    if isinstance(one, GuidewayError) or isinstance(other, GuidewayError):
        return type(one) is type(other)
    return np.array_equal(one.token_ids, other.token_ids) and one.truncated == other.truncated


def _expect_alike(processor: RequestProcessor, alone: dict[Task, Outcome], tasks: Sequence[Task], when: str) -> None:
    """Expect of `tasks`, prepared together, what came of each alone."""
    for task, outcome in zip(tasks, _outcomes(processor, tasks), strict=True):
        expect(
            _same(alone[task], outcome),
            f"{short_repr(task.value)} alone came to {_shown(alone[task])}, and {when} to {_shown(outcome)}",
        )


def _shown(outcome: Outcome) -> str:
    return repr(outcome) if isinstance(outcome, GuidewayError) else f"{outcome.num_tokens} tokens"


@check("workflow", seconds=60)
def what_cannot_be_prepared_ends_alone(subject: WorkflowSubject) -> None:
    """Preparing raises nothing: an input of which no tokens can be made comes to an error of its own, which says why,
    and is not answered as an empty one; those beside it and after it are, in order, what they are without it."""
    context = subject.strict_context
    processor = subject.part("request_processor", context)
    host = subject.host()
    good = subject.tasks(host, at_least=1)
    wrong = _passing(subject, host, [*(form(text) for text in TEXTS for form in FORMS), *IDS, *_named(IDS)])
    alone = {task: _outcomes(processor, [task])[0] for task in (*good, *wrong)}
    for task in wrong:
        _expect_alike(processor, alone, [good[0], task, *good[1:]], f"beside {short_repr(task.value)}")
    _expect_alike(processor, alone, [*wrong[::2], *good, *wrong[1::2]], "amid all of these")
    _expect_alike(processor, alone, good, "after all of these")
    no_tokens = (HALF,) if context is subject.context else (HALF, UNKNOWN_WORD)
    for form in FORMS:
        of_empty = [alone[task] for task in wrong if task.value == form("")]
        for task in wrong:
            outcome = alone[task]
            if task.value in map(form, no_tokens) and isinstance(outcome, Prepared):
                bare = context is not subject.context and set(outcome.token_ids.tolist()) <= SPECIAL
                expect(
                    outcome.num_tokens and not bare and not any(_same(outcome, each) for each in of_empty),
                    f"{short_repr(task.value)} has the tokens of an empty text, and no error",
                )


@check("workflow", seconds=60)
def too_long_is_cut_or_refused(subject: WorkflowSubject) -> None:
    """A request of more tokens than the context has is cut, which `truncated` says, or refused with `LimitExceeded`;
    one that is not cut has the tokens that it has in a longer context, and `truncated` is False; a parameter that is
    `left` or `right` cuts at different ends."""
    host = subject.host()
    whole = host.prepared(subject.tasks(host, at_least=1))
    if max(each.num_tokens for each in whole) < 2:
        raise NotPerformed("no request has more than one token, so that none is too long; add an example of several")
    longest = {each.num_tokens for each in whole}
    policies = [{}, *_policies(subject, host, whole[0].task)]
    for most in sorted({max(longest) - 1, *longest} - {1}, reverse=True):
        processor = subject.part("request_processor", replace(subject.context, max_model_len=most))
        for params in policies:
            asked = [replace(each.task, params={**each.task.params, **params}) for each in whole]
            found = host.request_processor.prepare(asked) if params else whole
            _expect_cut(processor, [each for each in found if isinstance(each, Prepared)], most)
    _expect_two_ends(subject, host, max(whole, key=lambda each: each.num_tokens))


def _expect_two_ends(subject: WorkflowSubject, host: Host, whole: Prepared) -> None:
    """That what is cut on the left and on the right has not the same tokens."""
    most = whole.num_tokens // 2
    processor = subject.part("request_processor", replace(subject.context, max_model_len=most))
    for name in names(subject, host, whole.task):
        passing = [value for value, passes in values(host, whole.task, name) if passes]
        if {"left", "right"} <= {value for value in passing if isinstance(value, str)}:
            tasks = [replace(whole.task, params={**whole.task.params, name: side}) for side in ("left", "right")]
            left, right = (_outcomes(processor, [task])[0] for task in tasks)
            expect(
                isinstance(left, GuidewayError) or not _same(left, right),
                f"in a context of {most}, of {short_repr(whole.task.value)}, which has {whole.num_tokens} tokens, "
                f"came the same with {name} = 'left' and with 'right'",
            )


def _policies(subject: WorkflowSubject, host: Host, task: Task) -> Iterator[dict[str, Any]]:
    """The parameters by which a caller may have a text cut: all that the workflow has, with some of the values that it
    takes."""
    for name in names(subject, host, task):
        passing = [value for value, passes in values(host, task, name) if passes]
        yield from ({name: value} for value in passing[:MOST_VALUES])


def _expect_cut(processor: RequestProcessor, whole: Sequence[Prepared], most: int) -> None:
    """Expect of requests, given `whole`, what may come of them in a context of `most` tokens."""
    tasks = [each.task for each in whole]
    alone = {task: _outcomes(processor, [task])[0] for task in tasks}
    for before in whole:
        asked = f" with {dict(before.task.params)}" if before.task.params else ""
        outcome = alone[before.task]
        what = f"{short_repr(before.task.value)}{asked}, which has {before.num_tokens} tokens"
        if isinstance(outcome, GuidewayError):
            expect(
                before.num_tokens <= most or isinstance(outcome, InvalidRequest if asked else LimitExceeded),
                f"in a context of {most}, of {what}, came {outcome!r}, and no LimitExceeded",
            )
            continue
        expect(outcome.num_tokens <= most, f"in a context of {most}, of {what}, came a request of {outcome.num_tokens}")
        is_whole = np.array_equal(outcome.token_ids, before.token_ids)
        expect(
            outcome.truncated is not is_whole,
            f"in a context of {most}, of {what}, came {'the same' if is_whole else 'others'}, and `truncated` is "
            f"{outcome.truncated}",
        )
    _expect_alike(processor, alone, tasks, "beside others")
