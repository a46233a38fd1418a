"""Parameters of a call: what a caller may say with them, and what is none."""

from __future__ import annotations

import contextlib
import math
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import numpy as np
from guideway.api import GuidewayError, InvalidRequest, Prepared, Task
from guideway.api.options import short_repr

from guideway_conformance.apart import apart
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.workflow.subject import Host, WorkflowSubject, same

__all__ = ["Incomparable", "Undecided", "names", "values"]


class Incomparable:
    """A value that cannot be compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        raise ValueError("it cannot be compared")


class Undecided:
    """A value of which it is neither true nor false that it is another, nor that it is one."""

    __hash__ = object.__hash__

    def __eq__(self, _other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


def _nested(levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 2.5, math.nan, math.inf, 10**30, -(10**30), "", "right", "left", "5", "no such"),
    *(b"right", [], ["right"], {}, {"right": 1}, (), {1, 2}, object(), int),
    *(
        10**400,
        -(10**400),
        1e308,
        5e-324,
        -0.0,
        -math.inf,
        0.5,
        100,
        "\ud800",
        "w1 " * 10_000,
        [[]],
        ["\ud800"],
        [10**400],
    ),
    *(Incomparable(), Undecided(), np.array(["right", "left"]), np.array([1, 2]), np.array(1), np.bool_(True)),
    *(np.int64(1), np.float32(0.5), _nested(100), {"right": _nested(100)}),
)


WORD = re.compile(r"[a-z][a-z0-9_]{0,40}")
"""A word that may be the name of a parameter."""
MOST_WORDS = 100
"""The words of a table of parameters."""


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

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def keys(self) -> Any:
        self.names.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        self.names.update(super().keys())
        return super().items()

    def values(self) -> Any:
        self.names.update(super().keys())
        return super().values()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


def _served(host: Host, tasks: list[Task]) -> list[Any]:
    """The result or the error of each, in one step."""
    requests = host.request_processor.prepare(tasks)
    expect(len(requests) == len(tasks), f"of {len(tasks)} tasks came {len(requests)} requests and errors")
    work = [request for request in requests if isinstance(request, Prepared)]
    results = iter(host.results(work) if work else ())
    return [next(results) if isinstance(request, Prepared) else request for request in requests]


def names(subject: WorkflowSubject, host: Host, plain: Task) -> list[str]:
    """The parameters that the workflow asks for, those that the settings use, its options, one of which a caller might
    set, and the words in the code of its check that it takes for one."""
    read = _Read(plain.params)
    task = replace(plain, params=read)
    host.input_processor.check(task)
    _served(host, [task])
    asked = {name for each in subject.settings.requests for name in each.get("params", {})}
    options = getattr(subject.component.options, "__dataclass_fields__", {})
    known = {*read.names, *asked, *options}
    written = {name for name in _words(host.input_processor) - known if _takes(host, plain, name)}
    return sorted(known | written)


def _takes(host: Host, plain: Task, name: str) -> bool:
    """Return whether the check lets a value of the parameter `name` pass."""
    for value in VALUES:
        with contextlib.suppress(Exception):
            host.input_processor.check(replace(plain, params={**plain.params, name: value}))
            return True
    return False


def _words(processor: object) -> set[str]:
    """The words that stand in the code of a part, or in a table that it reads."""
    found: set[str] = set()
    seen: set[object] = set()
    for cls in type(processor).__mro__:
        module = vars(sys.modules[cls.__module__])
        left: list[Any] = [vars(cls)[name] for name in vars(cls)]
        while left:
            held = left.pop()
            if isinstance(held, FunctionType | CodeType) and held not in seen:
                seen.add(held)
                code = held if isinstance(held, CodeType) else held.__code__
                left += [*code.co_consts, *(module[name] for name in code.co_names if name in module)]
            elif isinstance(held, str) and WORD.fullmatch(held):
                found.add(held)
            elif isinstance(held, tuple | list | set | frozenset | Mapping) and len(held) < MOST_WORDS:
                parts = [*held, *(held.values() if isinstance(held, Mapping) else ())]
                left += [each for each in parts if isinstance(each, str | CodeType | tuple | frozenset)]
    return found


def values(host: Host, plain: Task, name: str) -> Iterator[tuple[Any, bool]]:
    """Values of the parameter `name`, those that its refusals or its code name among them, and whether the check lets
    each pass."""
    named: dict[str, None] = dict.fromkeys(sorted(_words(host.input_processor) - {name}))
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
    tried = [value for value in VALUES if isinstance(value, str)]
    for value in named:
        if value in tried:
            continue
        try:
            host.input_processor.check(replace(plain, params={name: value}))
        except Exception:  # of what kind, others ask
            continue
        yield value, True


@check("workflow", seconds=60)
def what_it_does_not_know_is_refused(subject: WorkflowSubject) -> None:
    """Nothing that a caller asks for is ignored: a parameter that the workflow does not know is refused, and one
    that it takes, with several values, is read by a part that makes something of it."""
    host = subject.host()
    _expect_readers(subject, host)
    for task in subject.tasks(host, at_least=1):
        for params in ({"no_such_parameter": 1}, {**task.params, "no_such_parameter": None}):
            try:
                host.input_processor.check(replace(task, params=params))
            except InvalidRequest:
                continue
            raise AssertionError(f"{short_repr(task.value)} passed with the parameters {params}")


def _expect_readers(subject: WorkflowSubject, host: Host) -> None:
    """That each parameter that passes the check, with two values or more, is read afterwards."""
    unread: dict[str, str] = {}
    read: set[str] = set()
    for plain in subject.tasks(host, at_least=1):
        for name in names(subject, host, plain):
            if name in read:
                continue
            passing = [value for value, passes in values(host, plain, name) if passes and value is not None]
            if len({short_repr(value) for value in passing}) < 2:
                continue
            for value in passing[:4]:
                params = _Read({**plain.params, name: value})
                _served(host, [replace(plain, params=params)])
                _offer(subject, host, replace(plain, params=params))
                read.update(params.names & {name})
            unread.setdefault(name, f"{name} = {' or '.join(map(short_repr, passing[:3]))}")
    for name, what in unread.items():
        expect(name in read, f"it takes {what}, and no part reads that, of the requests that the suite has")


def _offer(subject: WorkflowSubject, host: Host, task: Task) -> None:
    """Give `task` to parts that might read its parameters, where its text is too long, and to the scheduler."""
    (request,) = host.request_processor.prepare([task])
    if not isinstance(request, Prepared):
        return
    subject.part("request_processor", replace(subject.context, max_model_len=max(request.num_tokens - 1, 1))).prepare(
        [task]
    )
    scheduler = subject.part("scheduler")
    scheduler.add(task)
    for each in scheduler.upcoming():
        scheduler.prepared(replace(request, task=each))
    scheduler.next(more=False)


@check("workflow", seconds=60)
def any_value_is_served_or_refused(subject: WorkflowSubject) -> None:
    """A value of a parameter, whatever it is, is refused with `InvalidRequest`, or each of the parts can deal with it;
    and it is for its request alone: what comes of one does not depend on the values that others had."""
    first = apart(partial(_first, subject))
    host = subject.host()
    _expect_as_first(subject, host, first)
    for plain in subject.tasks(host, at_least=1)[:4]:
        (before,) = _served(host, [plain])
        for name in names(subject, host, plain):
            if name in plain.params:
                continue
            for value, passes in values(host, plain, name):
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


Asking: TypeAlias = tuple[str, str]
"""A parameter, and in words the value of it with which the first request is asked."""
MOST_FIRST = 3
"""The values of a parameter of each of which the first request that a process serves is asked."""


def _askings(subject: WorkflowSubject, host: Host) -> dict[Asking, Task]:
    """The first request with several values of each of its parameters."""
    plain = subject.tasks(host, at_least=1)[0]
    found: dict[Asking, Task] = {}
    for name in names(subject, host, plain):
        passing = [value for value, passes in values(host, plain, name) if passes]
        passing.sort(key=lambda value: not isinstance(value, str | bool))
        for value in passing[:MOST_FIRST]:
            found[name, short_repr(value)] = replace(plain, params={**plain.params, name: value})
    return found


def _first(subject: WorkflowSubject) -> dict[Asking, bytes]:
    """Return what comes of each asking in a process that has served no other, as far as results pickle."""
    asked = apart(lambda: list(_askings(subject, subject.host())))
    return {each: apart(partial(_alone, subject, each)) for each in asked}


def _alone(subject: WorkflowSubject, asking: Asking) -> bytes:
    host = subject.host()
    plain = subject.tasks(host, at_least=1)[0]
    value = next(v for v, _ in values(host, plain, asking[0]) if short_repr(v) == asking[1])
    try:
        return pickle.dumps(_served(host, [replace(plain, params={**plain.params, asking[0]: value})]))
    except Exception:  # which is said of what is served here
        return b""


def _expect_as_first(subject: WorkflowSubject, host: Host, first: Mapping[Asking, bytes]) -> None:
    """That one process, which serves all askings one after the other, gives what each process of its own gave."""
    asked = _askings(subject, host)
    for each in (*asked, *reversed(asked)):
        if not first.get(each):
            continue
        task = asked[each]
        try:
            found = _served(host, [task])
        except AssertionError:
            raise
        except BaseException as error:
            raise AssertionError(f"{each[0]} = {each[1]}, which passed the check, made it raise {error!r}") from error
        expected = pickle.loads(first[each])
        expect(
            same(list(expected), list(found)),
            f"{short_repr(task.value)} with {each[0]} = {each[1]} gave {found[0]}, after others, "
            f"and {expected[0]} in a process of its own",
        )
