"""From a request to its result."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import GuidewayError, InvalidRequest, ModelFolder, Prepared

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.workflow.subject import WorkflowSubject, same

__all__: list[str] = []

ODD_VALUES: tuple[Any, ...] = (
    *(None, 5, 2.5, True, b"w1", object(), "", "\ud800", [], (), {}, ["w1", 5], ("w1", "w2", "w3"), [-1], [10**12]),
    *([[1]], {"prompt": 5}, {"prompt": "w1", "prompt_token_ids": [1]}, np.zeros((2, 2)), {"w1"}),
)


@check("workflow", tier="smoke", seconds=60)
def serves(subject: WorkflowSubject) -> None:
    """Every request that passes the check goes through all six parts and has a result that is no error."""
    host = subject.host()
    work = host.prepared(subject.tasks(host, at_least=1))
    for request, result in zip(work, host.results(work), strict=True):
        expect(
            result is not None and not isinstance(result, GuidewayError),
            f"of {request.task.value!r} came {result!r}",
        )


@check("workflow")
def supports_says_why(subject: WorkflowSubject) -> None:
    """`supports` returns None or a reason for any model, and of one that it supports the lengths are known."""
    configs: list[dict[str, Any]] = [
        {},
        {"model_type": "no such model"},
        {"model_type": "no such model", "architectures": ["NoSuchModelForNothing"]},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    ]
    for config in configs:
        said: Any = subject.component.supports(ModelFolder(Path("no-such-folder"), config))
        expect(said is None or (isinstance(said, str) and said.strip()), f"of {config} it said {said!r}")
    longest, default = subject.component.max_length(subject.model), subject.component.default_length(subject.model)
    expect(0 < default <= longest, f"its longest request has {longest} tokens, and by default {default}")


@check("workflow")
def passes_or_refuses(subject: WorkflowSubject) -> None:
    """The input processor passes or raises `InvalidRequest`, whatever the input and its parameters are."""
    processor = subject.part("input_processor")
    tasks = [subject.task(value) for value in ODD_VALUES]
    tasks += [subject.task("w1", params={name: object()}) for name in ("truncate", "no_such_parameter", "dimensions")]
    for task in tasks:
        try:
            processor.check(task)
        except InvalidRequest:
            continue
        except BaseException as error:
            raise AssertionError(f"of {task.value!r} with {dict(task.params)} it raised {error!r}") from error


@check("workflow", seconds=60)
def a_wrong_request_is_wrong_alone(subject: WorkflowSubject) -> None:
    """Preparing gives for each task, in order, a request of at most as many tokens as the context has, or the error
    that is its own; the others are what they are without it."""
    host = subject.host()
    good = subject.tasks(host)
    alone = host.prepared(good)
    long = "w1 " * (4 * subject.context.max_model_len)
    wrong = [subject.task(value, arrival=100) for value in (long, ("w1", long), [2] * 5000, {"prompt": long})]
    for task in wrong:
        try:
            host.input_processor.check(task)
        except InvalidRequest:
            continue
        tasks = [good[0], task, *good[1:]]
        found = host.request_processor.prepare(tasks)
        expect(len(found) == len(tasks), f"of {len(tasks)} tasks came {len(found)}")
        result = found.pop(1)
        expect(
            isinstance(result, GuidewayError)
            or (isinstance(result, Prepared) and result.num_tokens <= subject.context.max_model_len),
            f"of an input that is too long came {type(result).__name__}, and no error",
        )
        for request, before in zip(found, alone, strict=True):
            expect(isinstance(request, Prepared), f"beside an input that is too long another one came to {request!r}")
            assert isinstance(request, Prepared)
            expect(
                request.task is before.task and np.array_equal(request.token_ids, before.token_ids),
                f"beside an input that is too long {request.task.value!r} has other tokens",
            )


@check("workflow", seconds=60)
def tokens_are_their_own(subject: WorkflowSubject) -> None:
    """The tokens of a request are int64 in one dimension, and the same whatever is prepared beside it."""
    host = subject.host()
    tasks = subject.tasks(host)
    for together, task in zip(host.prepared(tasks), tasks, strict=True):
        ids = together.token_ids
        expect(
            isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.ndim == 1,
            f"token ids are {getattr(ids, 'dtype', type(ids))} of {getattr(ids, 'ndim', 0)} dimensions",
        )
        (alone,) = host.prepared([task])
        expect(
            np.array_equal(alone.token_ids, ids), f"{task.value!r} alone has the tokens {alone.token_ids}, not {ids}"
        )


@check("workflow", seconds=60)
def steps_stay_as_they_are(subject: WorkflowSubject) -> None:
    """Executing a step changes neither the step nor what the next one gives."""
    host = subject.host()
    work = host.prepared(subject.tasks(host))
    step = host.step_builder.build(work)
    before = pickle.dumps(step)
    first = host.output_processor.results(work, host.runner.execute(step))
    expect(pickle.dumps(step) == before, "executing a step changed it")
    second = host.output_processor.results(work, host.runner.execute(step))
    expect(same(list(first), list(second)) or all(map(same, first, second)), "a step gave other results once more")


@check("workflow", seconds=60)
def company_changes_nothing(subject: WorkflowSubject) -> None:
    """A request's result is the same alone, among others, and in another order."""
    host = subject.host()
    work = host.prepared(subject.tasks(host))
    together = host.results(work)
    backwards = host.results(work[::-1])[::-1]
    for request, among, other in zip(work, together, backwards, strict=True):
        (alone,) = host.results([request])
        expect(same(alone, among), f"{request.task.value!r} alone gave {alone}, and among others {among}")
        expect(same(among, other), f"{request.task.value!r} gave {among}, and in another order {other}")


@check("workflow")
def what_failed_has_a_result(subject: WorkflowSubject) -> None:
    """`failed` gives a result for any task and error, one that was never prepared among them; one that has an `error`
    has that."""
    processor = subject.part("output_processor")
    for error in (GuidewayError("it failed"), InvalidRequest("not so", field="input")):
        for value in ("w1", None, object()):
            result = processor.failed(subject.task(value), error)
            expect(result is not None, f"of a task that came to nothing it made {result!r}")
            told = getattr(result, "error", error)
            expect(told is error, f"the error of a result is {told!r}, and it was {error!r}")


@check("workflow", seconds=60)
def closes(subject: WorkflowSubject) -> None:
    """A runner can be closed, loaded or not, and another one then still works."""
    subject.part("runner").close()
    host, other = subject.host(), subject.host()
    work = host.prepared(subject.tasks(host, at_least=1))
    expected = host.results(work)
    host.runner.close()
    for request, before, after in zip(work, expected, other.results(work), strict=True):
        expect(same(before, after), f"{request.task.value!r} gave {before}, and after another was closed {after}")
