"""Checks of what may happen when a request comes in."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

from guideway.api import InvalidRequest

from guideway_conformance.hooks.subject import Asked, HooksSubject, as_bytes
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__: list[str] = []

NUM_THREADS = 8
ROUNDS = 20


@check("hooks", tier="smoke")
def implements_a_hook(subject: HooksSubject) -> None:
    """A plugin of kind hooks implements at least one of guideway's hooks."""
    expect(subject.traits(subject.component), "it implements none: its functions need @guideway.api.hookimpl")


@check("hooks", tier="smoke")
def implements_guideways_hooks(subject: HooksSubject) -> None:
    """Each hook it implements is one that guideway has."""
    expect(not subject.unknown, f"guideway has no hook {', '.join(subject.unknown)}: it is never called")


@check("hooks", trait="validates")
def passes_or_refuses(subject: HooksSubject) -> None:
    """A validator returns for what may pass and raises InvalidRequest for anything else."""
    for asked in subject.validated():
        _pass_or_refuse(subject, asked)


@check("hooks", trait="validates")
def a_validator_serves_several_threads(subject: HooksSubject) -> None:
    """A validator may be called from several threads at once."""
    every = list(subject.validated())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            for done in [threads.submit(_pass_or_refuse, subject, asked) for asked in every * ROUNDS]:
                done.result()
    finally:
        sys.setswitchinterval(interval)


@check("hooks", trait="validates")
def a_validator_returns_nothing(subject: HooksSubject) -> None:
    """A validator returns None, for what it returns is not used."""
    for asked in subject.validated():
        try:
            returned = subject.call(asked.hook, **asked.arguments)
        except Exception:  # of what kind, `passes_or_refuses` asks
            continue
        expect(not returned, f"it returned {returned[:1]!r}; a request cannot be replaced, only refused")


@check("hooks", trait="validates")
def a_refusal_names_a_field(subject: HooksSubject) -> None:
    """An InvalidRequest names the part of the request to change and says something."""
    for asked in subject.validated():
        try:
            subject.call(asked.hook, **asked.arguments)
        except InvalidRequest as refusal:
            expect(isinstance(refusal.field, str) and refusal.field, f"its refusal has the field {refusal.field!r}")
            expect(str(refusal).strip(), "its refusal has no message")
        except Exception:  # which `passes_or_refuses` finds
            continue


@check("hooks", trait="validates")
def a_validator_changes_nothing(subject: HooksSubject) -> None:
    """A validator leaves the submission or request and its context as they are, whether it passes or refuses."""
    for asked in subject.validated():
        before = as_bytes(asked.arguments)
        with contextlib.suppress(Exception):  # of what kind, `passes_or_refuses` asks
            subject.call(asked.hook, **asked.arguments)
        expect(as_bytes(asked.arguments) == before, f"it changed {asked}")


def _pass_or_refuse(subject: HooksSubject, asked: Asked) -> None:
    try:
        subject.call(asked.hook, **asked.arguments)
    except InvalidRequest:
        return
    except Exception as error:
        raise AssertionError(f"for {asked} it raised {type(error).__name__}, which is no InvalidRequest") from error
