"""Checks of what observers hear."""

from __future__ import annotations

from inspect import isawaitable

from guideway.api import GuidewayError, Request

from guideway_conformance.hooks.subject import HooksSubject, as_bytes, requests, results
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []

COMMANDS = ("config", "conform", "generate", "help", "plugins")
"""The commands of guideway itself."""


@check("hooks", trait="request_started")
def hears_of_every_start(subject: HooksSubject) -> None:
    """An observer hears of any admitted request without raising and without changing it."""
    for request in requests():
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
        for error in (GuidewayError("a plugin failed"), ValueError(), MemoryError(), SystemExit(3)):
            _start(subject, request)
            before = as_bytes(request)
            subject.call("request_failed", request=request, error=error)
            expect(as_bytes(request) == before, f"it changed request {request.request_id!r}")
            _finish(subject, request)


@check("hooks", trait="observes")
def an_observer_has_heard(subject: HooksSubject) -> None:
    """An observer has heard when it returns: it is an ordinary function, for nobody awaits what it returns."""
    request = requests()[0]
    arguments = {"request": request, "error": GuidewayError("a plugin failed"), "result": results(request)[0]}
    for hook, names in (
        ("request_started", ("request",)),
        ("request_failed", ("request", "error")),
        ("request_finished", ("request", "result")),
    ):
        for returned in subject.call(hook, **{name: arguments[name] for name in names}):
            expect(not isawaitable(returned), f"guideway_{hook} returned a {type(returned).__name__}, to be awaited")


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


def _start(subject: HooksSubject, request: Request) -> None:
    if "request_started" in subject.traits(subject.component):
        subject.call("request_started", request=request)


def _finish(subject: HooksSubject, request: Request) -> None:
    if "request_finished" in subject.traits(subject.component):
        subject.call("request_finished", request=request, result=results(request)[-1])


def _call(subject: HooksSubject, hook: str, **arguments: object) -> None:
    before = as_bytes(arguments)
    subject.call(hook, **arguments)
    expect(as_bytes(arguments) == before, "it changed what it was told")
