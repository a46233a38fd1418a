"""What may happen when a request comes in."""

from __future__ import annotations

import contextlib

from guideway.api import InvalidRequest

from guideway_conformance.hooks.subject import HooksSubject, as_bytes, requests
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []


@check("hooks", tier="smoke")
def implements_a_hook(subject: HooksSubject) -> None:
    """A plugin of kind hooks implements at least one of guideway's hooks."""
    expect(subject.traits(subject.component), "it implements none: its functions need @guideway.api.hookimpl")


@check("hooks", tier="smoke")
def implements_guideways_hooks(subject: HooksSubject) -> None:
    """Each hook it implements is one that guideway has."""
    expect(not subject.unknown, f"guideway has no hook {', '.join(subject.unknown)}: it is never called")


@check("hooks", trait="validate_request")
def passes_or_refuses(subject: HooksSubject) -> None:
    """A validator returns for a request that may pass and raises InvalidRequest for any other."""
    for request in requests():
        try:
            subject.call("validate_request", request=request, context=subject.context)
        except InvalidRequest:
            continue
        except Exception as error:
            raise AssertionError(
                f"for request {request.request_id!r} it raised {type(error).__name__}, which is no InvalidRequest"
            ) from error


@check("hooks", trait="validate_request")
def a_validator_returns_nothing(subject: HooksSubject) -> None:
    """What a validator returns is not used, so it returns None."""
    for request in requests():
        try:
            returned = subject.call("validate_request", request=request, context=subject.context)
        except Exception:  # of what kind, `passes_or_refuses` asks
            continue
        expect(not returned, f"it returned {returned[:1]!r}; a request cannot be replaced, only refused")


@check("hooks", trait="validate_request")
def a_refusal_names_a_field(subject: HooksSubject) -> None:
    """An InvalidRequest names the part of the request to change and says something."""
    for request in requests():
        try:
            subject.call("validate_request", request=request, context=subject.context)
        except InvalidRequest as refusal:
            expect(isinstance(refusal.field, str) and refusal.field, f"its refusal has the field {refusal.field!r}")
            expect(str(refusal).strip(), "its refusal has no message")
        except Exception:  # which `passes_or_refuses` finds
            continue


@check("hooks", trait="validate_request")
def a_validator_changes_nothing(subject: HooksSubject) -> None:
    """A validator leaves the request and its context as they are, whether it passes or refuses."""
    for request in requests():
        before = as_bytes((request, subject.context))
        with contextlib.suppress(Exception):  # of what kind, `passes_or_refuses` asks
            subject.call("validate_request", request=request, context=subject.context)
        expect(as_bytes((request, subject.context)) == before, f"it changed request {request.request_id!r}")
