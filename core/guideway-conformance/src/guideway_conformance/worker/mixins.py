"""The life of a worker mixin, alone and among others."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Mapping
from typing import Any, cast

from guideway.api import SequencesFailed, Worker, WorkerMixin, WorkerStep

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.worker.subject import Failed, OneStep, WorkerSubject, blaming, public_methods, try_method
from guideway_conformance.worker.ways import under_many_options, under_other_options

__all__: list[str] = []

PLACES = ("<lm_head", "lm_head", ">lm_head", ">", "", ">model.embed_tokens", "model.layers.0.mlp", ">model.layers.1")
"""The places where a forward pass fails, as `WorkerSubject.forward` names them."""


STEPS = 20
"""The steps that few sequences have, one or the other of which is not in each."""


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
@under_other_options
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
@under_other_options
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
@under_many_options
def blames_sequences_of_its_step(subject: WorkerSubject) -> None:
    """A mixin that raises SequencesFailed names sequences of the step it was given, at least one, and goes on, whatever
    numbers the model computes."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    for factor in (math.nan, math.inf, -math.inf, 1e38):
        for sizes in ((2, 7, 3), (1, 4096, 0), (5, 70, 2), (3, 3, 3)):
            subject.step(mixin, worker, OneStep(*sizes, first=len(str(factor))), factor=factor)
        subject.step(mixin, worker, OneStep(num_sequences=4, companions=2), factor=factor)
        subject.step(mixin, worker, OneStep(first=40))
    steps = ((0, 7), (0, 7), (2, 7), (9, 7), (1, 7), (0, 4096), (2, 2), (0, 2), (9, 16_384), (1, 3))
    for first, num_tokens in (*steps, (0, 10**7), (20, 7), (0, 10**7), (30, 10**7), (20, 10**7), (0, 7)):
        subject.step(mixin, worker, OneStep(first=first, num_tokens=num_tokens))
    chance = random.Random(0)
    for _ in range(STEPS):  # sequences leave steps, good and bad ones, and come back
        step = OneStep(chance.randint(1, 3), 7, 3, first=60 + chance.randint(0, 3))
        subject.step(mixin, worker, step, factor=chance.choice((1.0, 1.0, math.nan, math.nan, math.inf, 1e38)))
    mixin.close()


@check("worker")
@under_other_options
def survives_a_failed_step(subject: WorkerSubject) -> None:
    """After a step that failed in its forward pass, which has no after_step, before_step is called again, and what came
    of that one is not held against the sequences of the next."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    with blaming(OneStep()):
        mixin.before_step(OneStep())
    with contextlib.suppress(Exception):  # whatever the model makes of that
        worker.model(None)
    subject.step(mixin, worker)
    mixin.close()
    usual = [_blamed(subject, None) for _ in range(2)]
    for place in PLACES:
        for factor in (math.nan, math.inf) if place == PLACES[0] else (math.nan,):
            after = _blamed(subject, factor, place)
            expect(
                any(usual) or not after,
                f"after a step whose numbers were {factor}, and which failed {_where(place)}, it ends sequences of the "
                f"next, {after}",
            )


def _where(place: str) -> str:
    """Say in words where a pass failed."""
    name = place.lstrip("<>") or "the model"
    return {"<": f"before {name}", ">": f"behind {name}"}.get(place[:1], f"in {name}")


def _blamed(subject: WorkerSubject, factor: float | None, place: str = "") -> str:
    """Return what it says of the sequences of two steps, after a failed one with numbers of `factor` if given, which
    failed at `place`."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    if factor is not None:
        failing = OneStep(first=50)
        with contextlib.suppress(SequencesFailed):
            mixin.before_step(failing)
            with contextlib.suppress(Failed):
                subject.forward(worker, failing, factor=factor, fails=place)
    try:
        for _ in range(2):
            mixin.before_step(OneStep())
            subject.forward(worker, OneStep())
            mixin.after_step(OneStep())
    except SequencesFailed as failed:
        return f"{failed}"
    finally:
        mixin.close()
    return ""


@check("worker")
@under_other_options
def closes_without_a_step(subject: WorkerSubject) -> None:
    """A worker that shuts down before its first step closes its mixins as well, also one that failed to load its model,
    and they raise nothing."""
    mixin = subject.mixin()
    mixin.on_model_loaded(subject.worker())
    mixin.close()
    for asked in (False, True):
        mixin = subject.mixin()
        for name in public_methods(mixin) if asked else ():
            try_method(mixin, name)
        try:
            mixin.close()
        except Exception as error:
            raise AssertionError(f"closed before a model was loaded, it raised {error!r}") from error


@check("worker")
@under_other_options
def leaves_the_model_usable(subject: WorkerSubject) -> None:
    """While a mixin is at work and after it closed, the model still runs, and gives logits of the same shape, whatever
    the type of its weights is, and whether it has biases or its head the weights of the embedding."""
    for dtype, rich in (("float32", False), ("bfloat16", False), ("float32", True), ("float16", True)):
        mixin, worker = subject.mixin(), subject.worker(dtype=dtype, rich=rich)
        inputs = worker.model.dummy_inputs
        shape = worker.model(**inputs).logits.shape
        mixin.on_model_loaded(worker)
        for name in ("", *public_methods(mixin), "close"):
            if name == "":
                subject.step(mixin, worker)
            elif name == "close":
                mixin.close()
            else:
                try_method(mixin, name)
            when = {"": "while it is at work", "close": "when it has closed"}.get(name, f"after {name}")
            try:
                found = worker.model(**inputs).logits.shape
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"{when} a model in {dtype} raised {error!r}") from error
            expect(found == shape, f"{when} logits of the shape {tuple(shape)} have {tuple(found)}")


@check("worker")
@under_other_options
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
            try_method(mixin, name)
        held = {id(each) for each in worker.model.parameters()}
        for weight, version, values in before:
            changed = id(weight) in held and weight._version == version and not values.equal(weight.detach())
            expect(not changed, f"{name or 'a step'} changed weights of the model through .data")


@check("worker")
@under_other_options
def takes_its_hooks_with_it(subject: WorkerSubject) -> None:
    """When a mixin has closed, the modules of the model have the hooks that they had before it, and no others, whatever
    its public methods were asked for, before that or after it."""
    for steps, asked in ((0, ""), (2, ""), (1, "while it works"), (1, "before and after")):
        mixin, worker = subject.mixin(), subject.worker()
        modules = dict(worker.model.named_modules())  # what takes the place of one is its maker's
        before = {name: _hooks(module) for name, module in modules.items()}
        methods = public_methods(mixin)
        for name in methods if asked == "before and after" else ():
            try_method(mixin, name)
        mixin.on_model_loaded(worker)
        for _ in range(steps):
            subject.step(mixin, worker)
        for name in methods if asked == "while it works" else ():
            try_method(mixin, name)
        mixin.close()
        for name in methods if asked == "before and after" else ():
            try_method(mixin, name)
        left = [name or "the model itself" for name, module in modules.items() if _hooks(module) - before[name]]
        what = f"{steps} steps{asked and f', calls of its methods {asked},'}"
        expect(not left, f"after {what} and close, hooks of its own are left on {', '.join(left[:3])}")


def _hooks(module: Any) -> frozenset[int]:
    """The functions that a module of torch calls beside its own, by identity."""
    tables = [value for name, value in vars(module).items() if name.endswith("_hooks") and isinstance(value, dict)]
    return frozenset(id(hook) for table in tables for hook in table.values())


@check("worker")
@under_other_options
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
@under_other_options
def works_in_one_object_with_others(subject: WorkerSubject) -> None:
    """Several mixins are one object, so a mixin works beside the attributes and in front of the methods of another; an
    attribute that it makes after its `__init__`, where no host sees a clash, has the mixin's name in it."""
    _expect_names_of_its_own(subject)
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


def _expect_names_of_its_own(subject: WorkerSubject) -> None:
    """That what it sets on its object later than in `__init__` can have no other mixin's name."""
    mixin, worker = subject.mixin(), subject.worker()
    known = set(vars(mixin))
    stem = re.sub(r"\W", "_", subject.component.name).lower()
    private = tuple(f"_{cls.__name__.lstrip('_')}__" for cls in type(mixin).__mro__)

    def look(when: str) -> None:
        for name in sorted(set(vars(mixin)) - known):
            known.add(name)
            expect(
                stem in name.lower() or name.startswith(private),
                f"{when} makes the attribute {name!r}, which any other mixin may have: name it _{stem}{name}, "
                "or make it in __init__",
            )

    mixin.on_model_loaded(worker)
    look("on_model_loaded")
    with blaming(OneStep()):
        mixin.before_step(OneStep())
    look("before_step")
    subject.forward(worker, OneStep())
    look("the forward pass")
    with blaming(OneStep()):
        mixin.after_step(OneStep())
    look("after_step")
    for name in public_methods(mixin):
        try_method(mixin, name)
        look(name)
    mixin.close()
    look("close")


def _composed(subject: WorkerSubject, *, first: bool = True) -> type[WorkerMixin]:
    bases = (subject.component, _Neighbor) if first else (_Neighbor, subject.component)
    try:
        return cast("type[WorkerMixin]", type("Composed", bases, {}))
    except TypeError as error:
        raise AssertionError(f"it cannot be one class with another mixin: {error}") from error
