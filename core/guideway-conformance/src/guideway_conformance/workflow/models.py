"""The model on a worker: which one, of what type, and what it gives."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import GuidewayError, InvalidConfiguration, UnsupportedCapability

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.workflow.subject import WorkflowSubject, same

__all__: list[str] = []


@check("workflow", seconds=60)
def each_runner_has_its_model(subject: WorkflowSubject) -> None:
    """Runners of two models work side by side in one process: each computes with the model of its own context."""
    context = subject.other_context
    host = subject.host()
    work = host.prepared(subject.tasks(host, at_least=1))
    before = host.results(work)
    other = subject.part("runner", context)
    other.load()
    step = host.step_builder.build(work)
    of_other = other.execute(step)
    for request, one, two in zip(work, before, host.results(work), strict=True):
        expect(same(one, two), f"{request.task.value!r} gave {one}, and after another model was loaded {two}")
    host.runner.close()
    expect(_alike(of_other, other.execute(step)), "after the runner of another model was closed it gave other numbers")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return same(one, other)


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
    work = host.prepared(subject.tasks(host))
    step = host.step_builder.build(work)
    before = list(host.output_processor.results(work, host.runner.execute(step)))
    for wrong in (np.nan, np.inf):
        for first_alone in (False, True):
            output = _spoilt(host.runner.execute(step), wrong, first_alone=first_alone)
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


def _spoilt(output: Any, wrong: float, *, first_alone: bool) -> Any:
    """`output`, with `wrong` in the place of each number of floating point, or of the first of each array."""
    if isinstance(output, dict):
        return {name: _spoilt(value, wrong, first_alone=first_alone) for name, value in output.items()}
    if isinstance(output, list | tuple) and not hasattr(output, "_fields"):
        return type(output)(
            _spoilt(value, wrong, first_alone=False) if i == 0 or not first_alone else value
            for i, value in enumerate(output)
        )
    if isinstance(output, float):
        return wrong
    if not isinstance(output, np.ndarray) or not np.issubdtype(output.dtype, np.floating):
        return output
    spoilt = output.copy()
    spoilt[: 1 if first_alone else None] = wrong
    return spoilt
