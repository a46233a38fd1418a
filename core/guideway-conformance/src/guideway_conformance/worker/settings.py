"""The operator's options of a mixin."""

from __future__ import annotations

import contextlib
from typing import Any

from guideway.api import GuidewayError, InvalidConfiguration
from guideway.api.options import short_repr

from guideway_conformance.recorded import Lent, recorded
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.worker.subject import WorkerSubject, without_arguments
from guideway_conformance.worker.ways import Options, combined, numbers_of_modules, one_at_a_time, said

__all__: list[str] = []

TOGETHER = 24
"""The combinations of options that are tried."""


@check("worker", seconds=60)
def options_are_left_alone(subject: WorkerSubject) -> None:
    """The operator's options are the same mapping for every worker, so a mixin does not change them, nor takes out what
    may be in them, be they right or wrong."""
    for options in (subject.settings.options, *one_at_a_time(subject)):
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
    """An option that a mixin does not know, or whose value is none that it can work with, alone or beside others, is
    refused with InvalidConfiguration when it is built, or when the model is loaded if only that shows it; options are
    any mapping."""
    usual = subject.settings.options
    subject.mixin(Lent(dict(usual)))
    for value in (1, None):
        try:
            subject.mixin({**usual, "no_such_option": value})
        except InvalidConfiguration:
            continue
        raise AssertionError("it took the option 'no_such_option', which it does not know")
    answering = _answering(subject, usual)
    for options in (*one_at_a_time(subject), *combined(subject, TOGETHER)):
        what = said(subject, options) or short_repr(options)
        try:
            subject.mixin(options)
        except InvalidConfiguration:
            continue
        except Exception as error:
            raise AssertionError(f"with {what} it raised {error!r}") from error
        _work(subject, options, what, answering if _plain(options, usual) else None)
    for options in numbers_of_modules(subject):
        _load(subject, options)


def _load(subject: WorkerSubject, options: Options) -> None:
    """Have a model loaded with options that name modules by numbers, some of which it does not have."""
    what = said(subject, options) or short_repr(options)
    with contextlib.suppress(InvalidConfiguration):
        mixin = None
        try:
            mixin = subject.mixin(options)
            mixin.on_model_loaded(subject.worker())
        except InvalidConfiguration:
            raise
        except Exception as error:
            raise AssertionError(
                f"with {what} it raised {error!r} when {'the model was loaded' if mixin else 'it was built'}, which is "
                "no InvalidConfiguration"
            ) from error
        finally:
            if mixin is not None:
                with contextlib.suppress(Exception):  # which `_work` is about
                    mixin.close()


def _work(subject: WorkerSubject, options: Options, what: str, answering: dict[str, bool] | None) -> None:
    """Put a mixin to work with options that it took. `answering`: the methods that are to answer; None if the options
    may name what is not there."""
    mixin, worker = subject.mixin(options), subject.worker()
    try:
        mixin.on_model_loaded(worker)
    except Exception as error:  # a path, a layer that this model does not have: that stops the start
        with contextlib.suppress(Exception):
            mixin.close()
        if answering is None or isinstance(error, GuidewayError):
            return
        raise AssertionError(f"with {what}, which it took, it raised {error!r} when the model was loaded") from error
    try:
        for _ in range(2):
            subject.step(mixin, worker)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"with {what}, which it took, a step raised {error!r}") from error
    for name, answers in (answering or {}).items():
        try:
            getattr(mixin, name)()
        except GuidewayError:
            continue
        except Exception as error:
            if answers:
                raise AssertionError(f"with {what}, which it took, {name}() raised {error!r}") from error
    try:
        mixin.close()
    except Exception as error:
        raise AssertionError(f"with {what}, which it took, it raised {error!r} when it was closed") from error


def _answering(subject: WorkerSubject, options: Options) -> dict[str, bool]:
    """The public methods that need no arguments, and whether each answers with the usual options."""
    mixin, worker = subject.mixin(options), subject.worker()
    mixin.on_model_loaded(worker)
    subject.step(mixin, worker)
    found: dict[str, bool] = {}
    for name in without_arguments(mixin):
        try:
            getattr(mixin, name)()
        except Exception:
            found[name] = False
        else:
            found[name] = True
    mixin.close()
    return found


def _plain(options: Options, usual: Options) -> bool:
    """Return whether all that is other than usual is a number, or true or false: no name of what may not be there."""
    return all(isinstance(value, int | float) for name, value in options.items() if name not in usual)
