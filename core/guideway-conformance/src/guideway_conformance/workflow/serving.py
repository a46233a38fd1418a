"""From a request to its result."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidConfiguration,
    InvalidRequest,
    ModelFolder,
    Prepared,
    Task,
)
from guideway.api.options import short_repr

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import interleaved
from guideway_conformance.workflow.parameters import Incomparable, Undecided, names, values
from guideway_conformance.workflow.subject import FORMS, Host, WorkflowSubject, same

__all__: list[str] = []

ODD_VALUES: tuple[Any, ...] = (
    *(None, 5, 2.5, True, b"w1", object(), "", "\ud800", [], (), {}, ["w1", 5], ("w1", "w2", "w3"), [-1], [10**12]),
    *([[1]], {"prompt": 5}, {"prompt": "w1", "prompt_token_ids": [1]}, np.zeros((2, 2)), {"w1"}),
    *(np.array(["w1", "w2"]), np.array([2, 5, 3]), ("w1", Incomparable()), [Incomparable()], {"prompt": Undecided()}),
    *(Incomparable(), Undecided(), {"prompt": [[[]]]}, ("w1", ["w2"])),
)
NEAR: tuple[tuple[Any, ...], ...] = (
    (("w1 w2", " w3"), ("w1", " w2 w3"), ("w1 w2 w3", ""), ("", "w1 w2 w3"), "w1 w2 w3", {"prompt": "w1 w2 w3"}),
    (("w1", "w2"), ("w2", "w1"), ("w1 w2", ""), ("w1", "w1"), ("w2", "w2"), "w1w2", "w1 w2", "w2 w1"),
    *(((f"w1{gap}w2", "w3"), ("w1", f"w2{gap}w3")) for gap in ("", " ", ",", "|", "\0", "\n", "\t", "', '", "[SEP]")),
    ("w1", "W1", " w1", "w1 ", "w1\n", "w1  w1", "w1 w1", "w11", "\uff571", "w\u0661"),
    ([2, 5, 3], [2, 5, 6, 3], [25, 3], [5, 2, 3], (2, 5, 3), {"prompt_token_ids": [2, 6, 3]}, "2 5 3", "[2, 5, 3]"),
)
"""Inputs of which those in a row are nearly the same."""
NUM_THREADS = 4
ROUNDS = 20
LONG_BEGINNINGS = (40, 80, 300, 1100, 5000)
"""Characters of one word in which two texts are alike."""


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
    """`supports` returns None or a reason for any model, and of one that it supports the lengths are known, or
    `InvalidConfiguration` says what is missing."""
    configs: list[dict[str, Any]] = [
        {},
        {"model_type": "no such model"},
        {"model_type": "no such model", "architectures": ["NoSuchModelForNothing"]},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    ]
    for config in configs:
        said: Any = subject.component.supports(ModelFolder(Path("no-such-folder"), config))
        expect(said is None or (isinstance(said, str) and said.strip()), f"of {config} it said {said!r}")
    expect(subject.component.supports(subject.model) is None, "it serves a model, and then says that it does not")
    _expect_lengths(subject, subject.model, "")
    for name in subject.model.config:
        config = {key: value for key, value in subject.model.config.items() if key != name}
        model = ModelFolder(subject.model.path, config)
        if subject.component.supports(model) is None:
            _expect_lengths(subject, model, f" of a model without {name!r}, which it supports")


def _expect_lengths(subject: WorkflowSubject, model: ModelFolder, of_which: str) -> None:
    try:
        longest, default = subject.component.max_length(model), subject.component.default_length(model)
    except InvalidConfiguration as error:
        expect(of_which and str(error).strip(), f"asked for the lengths{of_which}, it raised {error!r}")
        return
    except BaseException as error:
        raise AssertionError(f"asked for the lengths{of_which}, it raised {error!r}") from error
    expect(0 < default <= longest, f"its longest request{of_which} has {longest} tokens, and by default {default}")


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
def checks_in_several_threads(subject: WorkflowSubject) -> None:
    """The input processor is asked by several callers at once, and says to each of them what it says to one alone."""
    host = subject.host()
    processor = host.input_processor
    texts = ("w1", "w2 w3", "", "\ud800")
    pairs = [(one, other) for one in texts for other in texts]
    good = subject.tasks(host, at_least=1)
    tasks = [*good, *(subject.task(value) for value in (*texts, *pairs, 5, [2, 5], [-1]))]
    for task in good[:3]:
        tasks.append(replace(task, params={**task.params, "no_such_parameter": 1}))
        for name in names(subject, host, task):
            said = {passes: value for value, passes in values(host, task, name)}
            tasks += [replace(task, params={**task.params, name: value}) for value in said.values()]
    expected = [_verdict(processor, task) for task in tasks]

    def ask(first: int) -> None:
        for i in range(first, first + ROUNDS * len(tasks)):
            task, alone = tasks[i % len(tasks)], expected[i % len(tasks)]
            said = _verdict(processor, task)
            expect(
                said == alone,
                f"to {short_repr(task.value)} it said {alone or 'yes'}, and beside other callers {said or 'yes'}",
            )

    with interleaved(type(processor)), ThreadPoolExecutor(NUM_THREADS) as threads:
        for done in [threads.submit(ask, 5 * i) for i in range(NUM_THREADS)]:
            done.result()


def _verdict(processor: InputProcessor, task: Task) -> str:
    """The name of its error, or nothing."""
    try:
        processor.check(task)
    except Exception as error:
        return type(error).__name__
    return ""


@check("workflow", seconds=60)
def a_wrong_request_is_wrong_alone(subject: WorkflowSubject) -> None:
    """Preparing gives for each task, in order, a request of at most as many tokens as the context has, all of them of
    the model's vocabulary, or the error that is its own; the others are what they are without it."""
    host = subject.host()
    good = subject.tasks(host)
    alone = host.prepared(good)
    long = "w1 " * (4 * subject.context.max_model_len)
    size = int(subject.model.config.get("vocab_size") or 1 << 62)
    ids = [size], [2, size, 3], {"prompt_token_ids": [size]}, [2, size - 1, 3]
    wrong = [subject.task(value, arrival=100) for value in (long, ("w1", long), [2] * 5000, {"prompt": long}, *ids)]
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
        if isinstance(result, Prepared) and task.value in ids:
            expect(
                result.token_ids.max() < size,
                f"{task.value} passed, with a token behind the last of the {size} that the model has",
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
    """The tokens of a request are int64 in one dimension, and the same whatever is prepared beside it or was before."""
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
    _expect_no_mistaken_identity(subject, host)
    for length in LONG_BEGINNINGS:
        for form in FORMS:
            one, other = (
                subject.task(form(f"{'x' * length} {word}"), arrival=i) for i, word in enumerate(("w1", "w2"))
            )
            try:
                host.input_processor.check(other)
            except InvalidRequest:
                continue
            (fresh,) = subject.part("request_processor").prepare([other])
            host.request_processor.prepare([one])
            (after,) = host.request_processor.prepare([other])
            if isinstance(fresh, Prepared) and isinstance(after, Prepared):
                expect(
                    np.array_equal(fresh.token_ids, after.token_ids),
                    f"a text has other tokens after one that begins with the same {length} characters",
                )


def _expect_no_mistaken_identity(subject: WorkflowSubject, host: Host) -> None:
    """That inputs which are nearly the same have tokens of their own, whichever of them came before."""
    for near in NEAR:
        tasks = [subject.task(value, arrival=i) for i, value in enumerate(near)]
        passing = [task for task in tasks if not _verdict(host.input_processor, task)]
        fresh = [subject.part("request_processor").prepare([task])[0] for task in passing]
        for order in (1, -1):
            processor = subject.part("request_processor")
            after = [processor.prepare([task])[0] for task in passing[::order]][::order]
            together = processor.prepare(passing)
            for task, *found in zip(passing, fresh, after, together, strict=True):
                ids = [each.token_ids.tolist() if isinstance(each, Prepared) else type(each) for each in found]
                expect(
                    ids[0] == ids[1] == ids[2],
                    f"{task.value!r} has the tokens {ids[0]}, and after or beside {[each.value for each in passing]} "
                    f"{ids[1]} and {ids[2]}",
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
    expect(same(list(first), list(second)), "a step gave other results once more")


@check("workflow", seconds=60)
def steps_may_overlap(subject: WorkflowSubject) -> None:
    """A step may be built before the one before it is computed, and computed before the results of that are made, while
    other tasks are prepared: each gives what it gives by itself."""
    host = subject.host()
    tasks = subject.tasks(host, at_least=1)
    work = host.prepared(tasks)
    works = [work, work[::-1], work[:1], work[-1:], work[:2], work[-2:], work]
    expected = [host.results(each) for each in works]
    host = subject.host()
    steps = [host.step_builder.build(each) for each in works]
    with ThreadPoolExecutor(1) as beside:
        preparing = [beside.submit(host.request_processor.prepare, tasks) for _ in range(5)]
        outputs = [host.runner.execute(step) for step in steps]
        found = [host.output_processor.results(*each) for each in zip(works[::-1], outputs[::-1], strict=True)][::-1]
        for done in preparing:
            done.result()
    for number, (each, one, other) in enumerate(zip(works, expected, found, strict=True)):
        values = [request.task.value for request in each]
        expect(
            len(one) == len(other) and all(map(same, one, other)),
            f"step {number}, of {short_repr(values)}, gave {one}, and with others on their way {other}",
        )


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
