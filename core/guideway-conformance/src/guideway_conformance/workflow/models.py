"""The model on a worker: which one, of what type, and what it gives."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from guideway.api import GuidewayError, InvalidConfiguration, Prepared, Task, UnsupportedCapability

from guideway_conformance.apart import apart
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.workflow.subject import OTHER_WORDS, OVERFLOWING, WORDS, WorkflowSubject, same

__all__: list[str] = []


@check("workflow", seconds=60)
def each_runner_has_its_model(subject: WorkflowSubject) -> None:
    """Runners of two models work side by side in one process, as do processors of their requests, and whatever their
    folders are called: each has the model and the tokenizer of its own context."""
    context = subject.other_context
    alone = apart(partial(_output_of_other, subject))
    host = subject.host()
    tasks = subject.tasks(host, at_least=1)
    work = host.prepared(tasks)
    _expect_own_tokenizer(subject, work)
    before = host.results(work)
    other = subject.part("runner", context)
    other.load()
    step = host.step_builder.build(work)
    of_other = other.execute(step)
    expect(same(alone, of_other), "beside another model the runner gave other numbers than in a process of its own")
    for request, one, two in zip(work, before, host.results(work), strict=True):
        expect(same(one, two), f"{request.task.value!r} gave {one}, and after another model was loaded {two}")
    host.runner.close()
    expect(same(of_other, other.execute(step)), "after the runner of another model was closed it gave other numbers")


def _output_of_other(subject: WorkflowSubject) -> Any:
    """Return what the runner of another model gives, where there is no other."""
    host = subject.host(load=False)
    step = host.step_builder.build(host.prepared(subject.tasks(host, at_least=1)))
    runner = subject.part("runner", subject.other_context)
    runner.load()
    return runner.execute(step)


def _expect_own_tokenizer(subject: WorkflowSubject, work: Sequence[Prepared]) -> None:
    """That of words with other ids in another model's tokenizer come those ids."""
    if subject.other_context is subject.context:
        return
    tasks = [request.task for request in work]
    of_other = subject.part("request_processor", subject.other_context).prepare(tasks)
    for request, found in zip(work, of_other, strict=True):
        words = {word for word in re.findall(r"\w+", str(request.task.value)) if word in WORDS}
        if not words or not {WORDS.index(word) for word in words} <= set(request.token_ids.tolist()):
            continue  # it makes its tokens in another way
        expect(
            not isinstance(found, Prepared)
            or {OTHER_WORDS.index(word) for word in words} <= set(found.token_ids.tolist()),
            f"of {request.task.value!r} came tokens of another model than that of the context",
        )


@check("workflow", seconds=60)
def weights_are_as_the_context_says(subject: WorkflowSubject) -> None:
    """A runner loads the weights with the `dtype` and on the `device` of its context, or refuses them."""
    host = subject.host()
    work = host.prepared(subject.tasks(host, at_least=1))
    for dtype in ("bfloat16", "float16"):
        runner = subject.part("runner", replace(subject.context, dtype=dtype))
        try:
            runner.load()
        except (InvalidConfiguration, UnsupportedCapability):
            continue
        types = {str(weight.dtype).removeprefix("torch.") for weight in _weights(runner)}
        expect(not types or dtype in types, f"of a model that was to be {dtype} the weights are {', '.join(types)}")
        found = replace(host, runner=runner).results(work)
        for request, result in zip(work, found, strict=True):
            expect(not isinstance(result, GuidewayError), f"in {dtype}, of {request.task.value!r} came {result!r}")
    runner = subject.part("runner", replace(subject.context, device="meta"))  # which every torch has
    try:
        runner.load()
    except Exception:  # it holds no numbers, and a runner may need some
        return
    devices = {weight.device.type for weight in _weights(runner)}
    expect(not devices or "meta" in devices, f"of a model that was to be on 'meta' weights are on {', '.join(devices)}")


def _weights(runner: Any) -> Iterator[Any]:
    """The weights of floating point that a runner of torch holds, as far as it does so in plain sight."""
    try:
        from torch.nn import Module
    except ImportError:
        return
    seen: set[int] = set()
    level: list[Any] = [vars(runner), *(vars(cls) for cls in type(runner).__mro__[:-1])]
    for _ in range(5):
        for each in level:
            if isinstance(each, Module):
                yield from (weight for weight in each.parameters() if weight.is_floating_point())
                return
        seen.update(map(id, level))
        level = [
            held
            for held in gc.get_referents(*level)
            if id(held) not in seen and not isinstance(held, type | str | bytes | int | float)
        ]


@check("workflow", seconds=60)
def what_is_not_finite_ends_alone(subject: WorkflowSubject) -> None:
    """`results` raises nothing where the model gives numbers that are not finite, and has a result or an error in the
    place of each request; where they are of one, the others have theirs."""
    host = subject.host()
    tasks = subject.tasks(host)
    work = host.prepared(tasks)
    step = host.step_builder.build(work)
    before = list(host.output_processor.results(work, host.runner.execute(step)))
    for wrong in (np.nan, np.inf):
        for first_alone in (False, True):
            output = _spoilt(host.runner.execute(step), wrong, len(work), first_alone=first_alone)
            try:
                found = list(host.output_processor.results(work, output))
            except BaseException as error:
                raise AssertionError(f"of an output with {wrong} it made no results, but raised {error!r}") from error
            expect(len(found) == len(work), f"of an output with {wrong} came {len(found)} results of {len(work)}")
            kept = sum(map(same, before, found))
            expect(
                not first_alone or kept or len(work) < 3,
                f"with {wrong} in its first place alone, an output changed every result",
            )
    _expect_others_served(subject, tasks)


def _expect_others_served(subject: WorkflowSubject, tasks: Sequence[Task]) -> None:
    """That what a model gives for texts without a certain word, for which it has no finite numbers, is the same beside
    one with that word."""
    if subject.overflowing_context is None:
        return
    host = subject.host(subject.overflowing_context)
    work = host.prepared(tasks)
    good = [request for request in work if OVERFLOWING not in str(request.task.value)]
    alone = [host.results([request])[0] for request in good]
    for wrong in (request for request in work if OVERFLOWING in str(request.task.value)):
        for among in ([wrong, *good], [*good, wrong]):
            found = dict(zip(among, host.results(among), strict=True))
            for request, before in zip(good, alone, strict=True):
                expect(
                    same(before, found[request]),
                    f"{request.task.value!r} alone gave {before}, and beside {wrong.task.value!r}, for which the model "
                    f"has no finite numbers, {found[request]}",
                )


def _spoilt(output: Any, wrong: float, number: int, *, first_alone: bool) -> Any:
    """`output` of `number` requests, with `wrong` in the place of each number of floating point, or of the first of
    each array."""
    if isinstance(output, dict):
        return {name: _spoilt(value, wrong, number, first_alone=first_alone) for name, value in output.items()}
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return output._replace(**_spoilt_fields(output._asdict(), wrong, number, first_alone=first_alone))  # type: ignore[attr-defined]
    if is_dataclass(output) and not isinstance(output, type):
        held = {each.name: getattr(output, each.name) for each in fields(output) if each.init}
        return replace(output, **_spoilt_fields(held, wrong, number, first_alone=first_alone))
    if isinstance(output, list | tuple):
        return type(output)(
            _spoilt(value, wrong, number, first_alone=False) if i == 0 or not first_alone else value
            for i, value in enumerate(output)
        )
    if isinstance(output, float):
        return wrong
    if not isinstance(output, np.ndarray) or not np.issubdtype(output.dtype, np.floating):
        return output
    spoilt = output.copy()
    spoilt[: 1 if first_alone else None] = wrong
    return spoilt


def _spoilt_fields(held: dict[str, Any], wrong: float, number: int, *, first_alone: bool) -> dict[str, Any]:
    """The same of fields by name; what is too short to have a number for each request is no request's."""
    return {
        name: value
        if first_alone and (not isinstance(value, np.ndarray) or value.ndim == 0 or len(value) < number)
        else _spoilt(value, wrong, number, first_alone=first_alone)
        for name, value in held.items()
    }
