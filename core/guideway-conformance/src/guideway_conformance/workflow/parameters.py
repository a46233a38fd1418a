"""Parameters of a call: what a caller may say with them, and what is none."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from guideway.api import GuidewayError, InvalidRequest, Prepared, Task
from guideway.api.options import short_repr

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.workflow.subject import Host, WorkflowSubject, same

__all__: list[str] = []

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 2.5, math.nan, math.inf, 10**30, -(10**30), "", "right", "left", "5", "no such"),
    *(b"right", [], ["right"], {}, {"right": 1}, (), {1, 2}, object(), int),
)


class _Read(dict[str, Any]):
    """Parameters that know which names they were asked for."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def _served(host: Host, tasks: list[Task]) -> list[Any]:
    """The result or the error of each, in one step."""
    requests = host.request_processor.prepare(tasks)
    expect(len(requests) == len(tasks), f"of {len(tasks)} tasks came {len(requests)} requests and errors")
    work = [request for request in requests if isinstance(request, Prepared)]
    results = iter(host.results(work) if work else ())
    return [next(results) if isinstance(request, Prepared) else request for request in requests]


def _names(subject: WorkflowSubject, host: Host, plain: Task) -> list[str]:
    """The parameters that the workflow asks for, those that the settings use, and its options, one of which a caller
    might set."""
    read = _Read(plain.params)
    task = replace(plain, params=read)
    host.input_processor.check(task)
    _served(host, [task])
    asked = {name for each in subject.settings.requests for name in each.get("params", {})}
    options = getattr(subject.component.options, "__dataclass_fields__", {})
    return sorted({*read.names, *asked, *options})


def _values(host: Host, plain: Task, name: str) -> Iterator[tuple[Any, bool]]:
    """Values of the parameter `name`, those that its refusals name among them, and whether the check lets each pass."""
    named: dict[str, None] = {}
    for value in VALUES:
        try:
            host.input_processor.check(replace(plain, params={name: value}))
        except InvalidRequest as error:
            named.update(dict.fromkeys(re.findall(r"'([^']{1,30})'", str(error))))
            yield value, False
        except BaseException as error:
            raise AssertionError(f"with {name} = {short_repr(value)} its check raised {error!r}") from error
        else:
            yield value, True
    for value in named:
        try:
            host.input_processor.check(replace(plain, params={name: value}))
        except InvalidRequest:
            continue
        yield value, True


@check("workflow")
def what_it_does_not_know_is_refused(subject: WorkflowSubject) -> None:
    """Nothing that a caller asks for is ignored: a parameter that the workflow does not know is refused."""
    host = subject.host()
    for task in subject.tasks(host, at_least=1):
        for params in ({"no_such_parameter": 1}, {**task.params, "no_such_parameter": None}):
            try:
                host.input_processor.check(replace(task, params=params))
            except InvalidRequest:
                continue
            raise AssertionError(f"{short_repr(task.value)} passed with the parameters {params}")


@check("workflow", seconds=60)
def any_value_is_served_or_refused(subject: WorkflowSubject) -> None:
    """A value of a parameter, whatever it is, is refused with `InvalidRequest`, or each of the parts can deal with it;
    and it is for its request alone."""
    host = subject.host()
    for plain in subject.tasks(host, at_least=1)[:4]:
        (before,) = _served(host, [plain])
        for name in _names(subject, host, plain):
            if name in plain.params:
                continue
            for value, passes in _values(host, plain, name):
                if not passes:
                    continue
                what = f"{short_repr(plain.value)} with {name} = {short_repr(value)}"
                asking = replace(plain, params={**plain.params, name: value})
                try:
                    (alone,) = _served(host, [asking])
                    together = _served(host, [plain, asking, plain])
                    (after,) = _served(host, [plain])
                except AssertionError:
                    raise
                except BaseException as error:
                    raise AssertionError(f"{what}, which passed the check, made it raise {error!r}") from error
                expect(same(alone, together[1]), f"{what} gave {alone}, and beside others {together[1]}")
                expect(
                    all(same(before, each) for each in (together[0], together[2], after)),
                    f"{short_repr(plain.value)} gave {before}, and beside or after {what} {after}",
                )
                expect(not isinstance(alone, GuidewayError) or str(alone).strip(), f"the error of {what} says nothing")
