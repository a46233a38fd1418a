"""The operator's options of a mixin."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from guideway.api import InvalidConfiguration
from guideway.api.options import fits, short_repr

from guideway_conformance.hints import hints_read
from guideway_conformance.recorded import Lent, recorded
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.worker.subject import WorkerSubject

__all__: list[str] = []

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, 8, 64, -1, 0.5, 1.0, 2.5, 1e9, math.inf, math.nan),
    *("", "a", "Linear", "lm_head"),
    *([], ["lm_head"], ["a", "b"], [1, 2], {}, {"a": 1}, {"a": "b"}, b"a", object),
)
MOST = 12
"""The values of an option with which a mixin is put to work."""


@check("worker", seconds=60)
def options_are_left_alone(subject: WorkerSubject) -> None:
    """The operator's options are the same mapping for every worker, so a mixin does not change them, nor takes out what
    may be in them, be they right or wrong."""
    for options in (subject.settings.options, *_others(subject)):
        written: list[str] = []
        lent = _Options(recorded(dict(options), written))
        before = repr(lent)
        try:
            mixin, worker = subject.mixin(lent), subject.worker()
            mixin.on_model_loaded(worker)
            subject.step(mixin, worker)
            mixin.close()
        except AssertionError:
            raise
        except Exception:  # which `takes_or_refuses_its_options` is about
            if options is subject.settings.options:
                raise
        expect(repr(lent) == before and not written, f"it changed its options from {before} to {lent!r}")


class _Options(dict[str, Any]):
    """Options of which nothing is taken, be it there or not."""

    def _refuse(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("it changes its options, or would if they were set")

    pop = popitem = clear = update = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse


@check("worker", seconds=60)
def takes_or_refuses_its_options(subject: WorkerSubject) -> None:
    """An option that a mixin does not know, or whose value is none that it can work with, is refused with
    InvalidConfiguration when it is built; options are any mapping."""
    usual = subject.settings.options
    subject.mixin(Lent(dict(usual)))
    for value in (1, None):
        try:
            subject.mixin({**usual, "no_such_option": value})
        except InvalidConfiguration:
            continue
        raise AssertionError("it took the option 'no_such_option', which it does not know")
    for options in _others(subject):
        what = ", ".join(f"{name} = {short_repr(value)}" for name, value in options.items() if name not in usual)
        try:
            mixin = subject.mixin(options)
        except InvalidConfiguration:
            continue
        except Exception as error:
            raise AssertionError(f"with {what or short_repr(options)} it raised {error!r}") from error
        worker = subject.worker()
        try:
            mixin.on_model_loaded(worker)
        except Exception:  # a path, a layer that this model does not have: that stops the start
            with contextlib.suppress(Exception):
                mixin.close()
            continue
        try:
            for _ in range(2):
                subject.step(mixin, worker)
            mixin.close()
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(
                f"with {what or short_repr(options)}, which it took, a step raised {error!r}"
            ) from error


def _others(subject: WorkerSubject) -> Iterator[Mapping[str, Any]]:
    """The options with other values, right and wrong, of each that the mixin has."""
    with hints_read() as hints:
        subject.mixin()
    for name, hint in hints.items():
        args = get_args(hint) if get_origin(hint) is Literal else ()
        taken = 0
        for value in (*args, *VALUES):
            taken += fits(value, hint)
            if taken <= MOST or not fits(value, hint):
                yield {**subject.settings.options, name: value}
