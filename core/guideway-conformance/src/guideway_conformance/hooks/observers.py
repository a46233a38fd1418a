"""Checks of what observers hear."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any

from guideway.api import GuidewayError, InvalidRequest, Request

from guideway_conformance.hooks.subject import (
    HooksSubject,
    as_bytes,
    environment,
    extremes,
    requests,
    results,
    variables,
)
from guideway_conformance.recorded import recorded
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []

COMMANDS = ("config", "conform", "generate", "help", "plugins")
"""The commands of guideway itself."""
ERRORS = (
    *(GuidewayError("a plugin failed"), ValueError(), MemoryError(), SystemExit(3), KeyError("a"), KeyboardInterrupt()),
    *(
        OSError(28, "No space left"),
        ValueError(5, None),
        InvalidRequest("\ud800", field="input"),
        RuntimeError("a\nb\0"),
    ),
)
"""Failures of several types, with and without words."""
CALLS = 6
BROKEN = (b'{"\xfc": 5, "\xff', '["\u00fc", 5]'.encode(), b'{"a": ', b'{"no such": {}}', b"\0")
"""The contents of files that no plugin can make sense of."""


@check("hooks", trait="request_started")
def hears_of_every_start(subject: HooksSubject) -> None:
    """An observer hears of any admitted request without raising and without changing it."""
    for request in (*requests(), *extremes()):
        _call(subject, "request_started", request=request)


@check("hooks", trait="request_finished")
def hears_of_every_end(subject: HooksSubject) -> None:
    """An observer hears of any end without raising and without changing request or result."""
    for request in requests():
        for result in results(request):
            _start(subject, request)
            _call(subject, "request_finished", request=request, result=result)


@check("hooks", trait="request_failed")
def hears_of_every_failure(subject: HooksSubject) -> None:
    """An observer hears of a failure of any type, which the end follows, without raising or changing the request."""
    for request in requests():
        for error in ERRORS:
            _start(subject, request)
            written: list[str] = []
            lent = recorded(request, written)
            before = as_bytes(lent)
            subject.call("request_failed", request=lent, error=error)
            expect(as_bytes(lent) == before and not written, f"it changed request {request.request_id!r}")
            _finish(subject, request)


@check("hooks", trait="observes")
def an_observer_has_heard(subject: HooksSubject) -> None:
    """An observer has heard when it returns: it is an ordinary function, for nobody awaits what it returns, and leaves
    what it is told of to no thread that it starts for that."""
    request = requests()[0]
    arguments = {"request": request, "error": GuidewayError("a plugin failed"), "result": results(request)[0]}
    hooks = {
        "request_started": ("request",),
        "request_failed": ("request", "error"),
        "request_finished": ("request", "result"),
    }
    left: dict[str, int] = dict.fromkeys(hooks, 0)
    for _ in range(CALLS):
        for hook, names in hooks.items():
            with _threads_begin_late() as started:
                found = subject.call(hook, **{name: arguments[name] for name in names})
                left[hook] += any(thread.is_alive() for thread in started)
            for returned in found:
                expect(
                    not isawaitable(returned), f"guideway_{hook} returned a {type(returned).__name__}, to be awaited"
                )
    for hook, number in left.items():  # one that is started once, for all that comes, is none of a request's
        expect(number < CALLS, f"guideway_{hook} starts a thread at each call, which goes on when it has returned")


@contextlib.contextmanager
def _threads_begin_late() -> Iterator[list[threading.Thread]]:
    """The threads that are started within, each of which does its work a moment later, as on a busy machine."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def late(thread: threading.Thread) -> None:
        run = thread.run

        def later() -> None:
            time.sleep(0.01)
            run()

        thread.run = later  # type: ignore[method-assign]
        started.append(thread)
        start(thread)

    threading.Thread.start = late  # type: ignore[method-assign, assignment]
    try:
        yield started
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@check("hooks", trait="observes")
def an_observer_goes_on_without_its_files(subject: HooksSubject) -> None:
    """An observer that cannot read or write a file, from one moment to the next, raises nothing."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, "missing", "file"), Path(folder)]
        for i, content in enumerate(BROKEN):
            paths.append(Path(folder, f"broken {i}"))
            paths[-1].write_bytes(content)
        for name in variables(subject):
            for path in paths:
                for early in (False, True):
                    _hear_without(subject, f"{name} = {path}", environment(name, str(path)), early=early)
            good = Path(folder, "good")
            for early in (False, True):
                good.write_text("{}", encoding="utf-8")
                with environment(name, str(good)):
                    _hear_without(subject, "no file that can be opened", _nothing_opens(), early=early)
    for early in (False, True):
        _hear_without(subject, "no file that can be opened", _nothing_opens(), early=early)


def _hear_without(
    subject: HooksSubject, what: str, without: contextlib.AbstractContextManager[None], *, early: bool
) -> None:
    """Tell an object of a request, of whose end, and of whose start if `early`, it hears as in `without`."""
    again = HooksSubject(subject.component, subject.settings)
    request = next(each for each in requests() if each.params.max_tokens == 1)
    told = {"error": GuidewayError("it failed"), "result": results(request)[0]}
    hooks = (("request_started", ()), ("request_failed", ("error",)), ("request_finished", ("result",)))
    hears = again.traits(again.component)
    with contextlib.ExitStack() as stack:
        for hook, names in hooks:
            if hook == ("request_started" if early else "request_failed"):
                stack.enter_context(without)
            if hook not in hears:
                continue
            try:
                again.call(hook, request=request, **{name: told[name] for name in names})
            except BaseException as error:
                raise AssertionError(f"with {what}, guideway_{hook} raised {error!r}") from error


@contextlib.contextmanager
def _nothing_opens() -> Iterator[None]:
    """A disk of which no file can be opened."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    known = builtins.open, io.open, os.open
    builtins.open = io.open = os.open = refuse
    try:
        yield
    finally:
        builtins.open, io.open, os.open = known


@check("hooks", trait="observes", tier="extended")
def hears_of_many_at_once(subject: HooksSubject) -> None:
    """Requests overlap and end in any order, and an observer hears of that without raising."""
    made = requests()
    for request in made:
        _start(subject, request)
    for i, request in enumerate(reversed(made)):
        if "request_failed" in subject.traits(subject.component) and i % 2:
            subject.call("request_failed", request=request, error=GuidewayError("it failed for a test"))
        _finish(subject, request)
    for request in made:  # a caller may give a name again, once it is free
        _start(subject, request)
        _finish(subject, request)


def _start(subject: HooksSubject, request: Request) -> None:
    if "request_started" in subject.traits(subject.component):
        subject.call("request_started", request=request)


def _finish(subject: HooksSubject, request: Request) -> None:
    if "request_finished" in subject.traits(subject.component):
        subject.call("request_finished", request=request, result=results(request)[-1])


def _call(subject: HooksSubject, hook: str, **arguments: object) -> None:
    written: list[str] = []
    lent = {name: recorded(value, written) for name, value in arguments.items()}
    before = as_bytes(lent)
    subject.call(hook, **lent)
    expect(as_bytes(lent) == before, "it changed what it was told")
    expect(not written, f"it wrote to parts of what it was told, and took that back: {', '.join(written[:3])}")
