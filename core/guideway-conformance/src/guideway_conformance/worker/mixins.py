"""The life of a worker mixin, alone and among others."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from guideway.api import UnsupportedCapability, Worker, WorkerMixin, WorkerStep

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.worker.subject import OneStep, WorkerSubject, blaming, public_methods

__all__: list[str] = []

STEPS_OF_EACH = (1, 2, 1, 3, 1)
"""The steps of worker after worker: a count of all grows by them."""
OF_ONE_WORKER = 31_415
"""The number of the first sequence that one worker alone has."""


class _Neighbor(WorkerMixin):
    """Another mixin of the same worker, which counts how often it is called."""

    name = "conformance_neighbor"
    conformance_calls: list[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._count("__init__")

    def on_model_loaded(self, worker: Worker) -> None:
        self._count("on_model_loaded")

    def before_step(self, step: WorkerStep) -> None:
        self._count("before_step")

    def after_step(self, step: WorkerStep) -> None:
        self._count("after_step")

    def close(self) -> None:
        self._count("close")

    def _count(self, call: str) -> None:
        vars(self).setdefault("conformance_calls", []).append(call)


@check("worker", tier="smoke")
def lives_through_a_run(subject: WorkerSubject) -> None:
    """A mixin is built with its options and follows the model's loading, steps and closing without an error."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    for _ in range(3):
        subject.step(mixin, worker)
    mixin.close()


@check("worker")
def knows_only_what_the_contract_offers(subject: WorkerSubject) -> None:
    """A mixin uses model, device, rank and num_workers of its worker, the three counts and the sequence ids of a step,
    and nothing else."""

    class Strict:
        def __init__(self, known: object) -> None:
            self._known = known

        def __getattr__(self, name: str) -> Any:
            if not hasattr(self._known, name):
                what = type(self._known).__name__.removeprefix("One").lower()
                raise AssertionError(f"it read {name!r} of its {what}, which the contract does not offer")
            return getattr(self._known, name)

    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(Strict(worker))
    subject.step(mixin, worker, Strict(OneStep()))  # type: ignore[arg-type]
    mixin.close()


@check("worker")
def survives_steps_of_any_size(subject: WorkerSubject) -> None:
    """A step may have any number of sequences and tokens, may have no rows, and has the name of a sequence more than
    once if there are companions beside it."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    for sizes in ((1, 1, 1), (512, 8192, 600), (1, 4096, 0), (3, 3, 3)):
        subject.step(mixin, worker, OneStep(*sizes))
    for companions in (1, 2):
        subject.step(mixin, worker, OneStep(num_sequences=4, companions=companions))
    mixin.close()


@check("worker")
def blames_sequences_of_its_step(subject: WorkerSubject) -> None:
    """A mixin that raises SequencesFailed names sequences of the step it was given, at least one, and goes on."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    steps = ((0, 7), (0, 7), (2, 7), (9, 7), (1, 7), (0, 4096), (2, 2), (0, 2), (9, 16_384), (1, 3))
    for first, num_tokens in (*steps, (0, 10**7), (20, 7), (0, 10**7), (30, 10**7), (20, 10**7), (0, 7)):
        subject.step(mixin, worker, OneStep(first=first, num_tokens=num_tokens))
    mixin.close()


@check("worker")
def survives_a_failed_step(subject: WorkerSubject) -> None:
    """After a step that failed in its forward pass, which has no after_step, before_step is called again."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    with blaming(OneStep()):
        mixin.before_step(OneStep())
    with contextlib.suppress(Exception):  # whatever the model makes of that
        worker.model(None)
    subject.step(mixin, worker)
    mixin.close()


@check("worker")
def closes_without_a_step(subject: WorkerSubject) -> None:
    """A worker that shuts down before its first step closes its mixins as well."""
    mixin = subject.mixin()
    mixin.on_model_loaded(subject.worker())
    mixin.close()


@check("worker")
def leaves_the_model_usable(subject: WorkerSubject) -> None:
    """While a mixin is at work and after it closed, the model still runs, and gives logits of the same shape, whatever
    the type of its weights."""
    for dtype in ("float32", "bfloat16"):
        mixin, worker = subject.mixin(), subject.worker(dtype=dtype)
        inputs = worker.model.dummy_inputs
        shape = worker.model(**inputs).logits.shape
        mixin.on_model_loaded(worker)
        try:
            subject.step(mixin, worker)
            during = worker.model(**inputs).logits.shape
            mixin.close()
            after = worker.model(**inputs).logits.shape
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"beside it a model in {dtype} raised {error!r}") from error
        expect(during == shape == after, f"logits {tuple(shape)} became {tuple(during)}, {tuple(after)} after close")


@check("worker")
def weights_change_in_the_open(subject: WorkerSubject) -> None:
    """Once the model is loaded, weights are changed by assignment or in place under `torch.no_grad`, and not through
    ``.data``, which an engine that keeps a copy of them does not see."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    for name in ("", *public_methods(mixin), "close"):
        before = [(each, each._version, each.detach().clone()) for each in worker.model.parameters()]
        if name == "":
            subject.step(mixin, worker)
        elif name == "close":
            mixin.close()
        else:
            _try(mixin, name)
        held = {id(each) for each in worker.model.parameters()}
        for weight, version, values in before:
            changed = id(weight) in held and weight._version == version and not values.equal(weight.detach())
            expect(not changed, f"{name or 'a step'} changed weights of the model through .data")


def _try(mixin: WorkerMixin, name: str) -> None:
    """Call a public method as an operator might: with nothing, and if it takes something to switch, with both."""
    method = getattr(mixin, name)
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):
        return
    needed = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    ways: list[tuple[Any, ...]] = [()] if not needed else []
    if parameters and needed in ([], parameters[:1]) and "bool" in re.findall(r"\w+", _written(parameters[0])):
        ways += [(True,), (True,), (False,), (True,)]
    for arguments in ways:
        with contextlib.suppress(Exception):  # what it makes of them is its own
            method(*arguments)


def _written(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


@check("worker")
def takes_its_hooks_with_it(subject: WorkerSubject) -> None:
    """When a mixin has closed, the modules of the model have the hooks that they had before it, and no others, whatever
    its public methods were asked for."""
    for steps, asked in ((0, False), (2, False), (1, True)):
        mixin, worker = subject.mixin(), subject.worker()
        modules = dict(worker.model.named_modules())  # what takes the place of one is its maker's
        before = {name: _hooks(module) for name, module in modules.items()}
        mixin.on_model_loaded(worker)
        for _ in range(steps):
            subject.step(mixin, worker)
        for name in public_methods(mixin) if asked else ():
            _try(mixin, name)
        mixin.close()
        left = [name or "the model itself" for name, module in modules.items() if _hooks(module) - before[name]]
        what = f"{steps} steps{', calls of its methods' * asked}"
        expect(not left, f"after {what} and close, hooks of its own are left on {', '.join(left[:3])}")


def _hooks(module: Any) -> frozenset[int]:
    """The functions that a module of torch calls beside its own, by identity."""
    tables = [value for name, value in vars(module).items() if name.endswith("_hooks") and isinstance(value, dict)]
    return frozenset(id(hook) for table in tables for hook in table.values())


@check("worker")
def speaks_for_itself_alone(subject: WorkerSubject) -> None:
    """The host calls every mixin's own methods, so a mixin's __init__ and life-cycle methods do not call another's."""
    composed = _composed(subject)
    instance = composed.__new__(composed)
    calls: list[str] = []
    vars(instance)["conformance_calls"] = calls
    worker, step = subject.worker(), OneStep()
    subject.component.__init__(instance, subject.settings.options)
    vars(instance)["conformance_calls"] = calls
    for method, arguments in (
        ("on_model_loaded", (worker,)),
        ("before_step", (step,)),
        ("after_step", (step,)),
        ("close", ()),
    ):
        with blaming(step):
            getattr(subject.component, method)(instance, *arguments)
    expect(not calls, f"in one class with another mixin it also called that one's {', '.join(dict.fromkeys(calls))}")


@check("worker")
def works_in_one_object_with_others(subject: WorkerSubject) -> None:
    """Several mixins are one object, so a mixin works beside the attributes and in front of the methods of another."""
    for first in (True, False):
        composed = _composed(subject, first=first)
        instance = composed.__new__(composed)
        subject.component.__init__(instance, subject.settings.options)
        _Neighbor.__init__(cast("_Neighbor", instance), {})
        worker = subject.worker()
        both = cast("tuple[type[WorkerMixin], ...]", composed.__bases__)
        for cls in both:
            cls.on_model_loaded(instance, worker)
        for _ in range(2):
            for cls in both:
                with blaming(OneStep()):
                    cls.before_step(instance, OneStep())
            worker.model(**worker.model.dummy_inputs)
            for cls in both:
                with blaming(OneStep()):
                    cls.after_step(instance, OneStep())
        for cls in reversed(both):
            cls.close(instance)
        expect(
            vars(instance).get("conformance_calls", [])[-1:] == ["close"], "it removed or replaced another's attributes"
        )


@check("worker")
def workers_do_not_share_what_they_see(subject: WorkerSubject) -> None:
    """Each worker has an object of its own: closing one leaves another, and its model, as they were, and what one has
    seen no other tells."""
    first, second = subject.mixin(), subject.mixin()
    one, other = subject.worker(), subject.worker()
    first.on_model_loaded(one)
    second.on_model_loaded(other)
    step = OneStep(first=OF_ONE_WORKER)
    subject.step(first, one, step)
    first.close()
    subject.step(second, other)
    _expect_silence(second, step)
    second.close()
    early = subject.mixin()
    early.on_model_loaded(one)
    subject.step(early, one, step)
    late = subject.mixin()
    late.on_model_loaded(other)
    subject.step(late, other)
    _expect_silence(late, step)
    early.close()
    late.close()
    _expect_own_counts(subject)
    _expect_own_model(subject)


def _expect_own_counts(subject: WorkerSubject) -> None:
    """That no number counts the steps of all objects there are."""
    seen: list[dict[str, int]] = []
    for number in STEPS_OF_EACH:
        mixin, worker = subject.mixin(), subject.worker()
        mixin.on_model_loaded(worker)
        for _ in range(number):
            subject.step(mixin, worker)
        seen.append(_numbers(mixin))
        mixin.close()
    growth = [sum(STEPS_OF_EACH[1 : i + 1]) for i in range(len(STEPS_OF_EACH))]
    for place in seen[0]:
        found = [each.get(place, 0) - seen[0][place] for each in seen]
        shared = found[1] and [value * growth[1] for value in found] == [found[1] * steps for steps in growth]
        expect(not shared, f"{place} grew by the steps of each new worker's object in turn: it counts those of all")


def _expect_own_model(subject: WorkerSubject) -> None:
    """That no number tells how large the model of another worker is."""
    seen = []
    for width in (16, 16, 128):
        mixin, neighbor = subject.mixin(), subject.mixin()
        worker, other = subject.worker(), subject.worker(width=width)
        mixin.on_model_loaded(worker)
        neighbor.on_model_loaded(other)
        with blaming(OneStep()):
            mixin.before_step(OneStep())
        for each in (worker, other):
            each.model(**each.model.dummy_inputs)
        with blaming(OneStep()):
            mixin.after_step(OneStep())
        seen.append(_numbers(mixin))
        neighbor.close()
        mixin.close()
    for place, value in seen[0].items():
        expect(
            value != seen[1].get(place) or value == seen[2].get(place),
            f"{place} was {value}, and beside another worker with a larger model {seen[2].get(place)}",
        )


def _numbers(mixin: WorkerMixin) -> dict[str, int]:
    """The whole numbers in what its public methods return, by where they stand."""
    found: dict[str, int] = {}

    def note(place: str, value: Any) -> None:
        if type(value) is int:
            found[place] = value
        elif isinstance(value, Mapping):
            for key, each in value.items():
                note(f"{place}[{key!r}]", each)
        elif isinstance(value, list | tuple):
            for i, each in enumerate(value):
                note(f"{place}[{i}]", each)

    for name, value in _answers(mixin):
        note(f"{name}()", value)
    return found


def _expect_silence(mixin: WorkerMixin, step: OneStep) -> None:
    """That `mixin` tells nothing of the sequences of `step`, which it has not seen."""
    for name, value in _answers(mixin):
        told = [known for known in step.sequence_ids if known in repr(value)]
        expect(not told, f"{name}() tells of {', '.join(told)}, which another worker's object saw")


@check("worker", tier="extended")
def results_pickle(subject: WorkerSubject) -> None:
    """Results of its public methods pickle, because they go to another process, and hold no tensors, whose device that
    one may not have."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    subject.step(mixin, worker)
    for name, value in _answers(mixin):
        try:
            pickle.loads(pickle.dumps(value))
        except Exception as error:
            kind = type(value).__name__
            raise AssertionError(f"what {name}() returned, a {kind}, does not pickle: {error}") from error
        expect(not _has_tensor(value), f"what {name}() returned holds a tensor; give numbers, or an array of NumPy")
    mixin.close()


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_tensor, value))
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")


def _answers(mixin: WorkerMixin) -> Iterator[tuple[str, Any]]:
    """Yield what the public methods return that need no arguments: others need what only their author knows."""
    for name in public_methods(mixin):
        method = getattr(mixin, name)
        try:
            inspect.signature(method).bind()
        except (TypeError, ValueError):
            continue
        with contextlib.suppress(UnsupportedCapability):
            yield name, method()


@check("worker")
def options_are_left_alone(subject: WorkerSubject) -> None:
    """The operator's options are the same mapping for every worker, so a mixin does not change them, nor takes out what
    may be in them."""
    options = _Options(subject.settings.options)
    before = repr(options)
    mixin, worker = subject.mixin(options), subject.worker()
    mixin.on_model_loaded(worker)
    subject.step(mixin, worker)
    mixin.close()
    expect(repr(options) == before, f"it changed its options from {before} to {options!r}")


class _Options(dict[str, Any]):
    """Options of which nothing is taken, be it there or not."""

    def _refuse(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("it changes its options, or would if they were set")

    pop = popitem = clear = update = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse


def _composed(subject: WorkerSubject, *, first: bool = True) -> type[WorkerMixin]:
    bases = (subject.component, _Neighbor) if first else (_Neighbor, subject.component)
    try:
        return cast("type[WorkerMixin]", type("Composed", bases, {}))
    except TypeError as error:
        raise AssertionError(f"it cannot be one class with another mixin: {error}") from error
