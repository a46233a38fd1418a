"""Worker mixins are combined into one object, in order, and clashes are refused."""

from __future__ import annotations

import logging
import pickle
from abc import ABC
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from guideway.api import (
    InvalidConfiguration,
    LimitExceeded,
    PluginConflict,
    PluginError,
    PluginLoadError,
    SequencesFailed,
    UnsupportedCapability,
    WorkerMixin,
)
from guideway.api.forward import Append, ForwardStep, Region
from guideway.pipeline.mixins import Mixins

STEP = ForwardStep([Append(Region(0, 64), 0, [1, 2, 3], 1)])


class TheWorker:
    model = "a model"
    device = "cpu"
    rank = 0
    num_workers = 1


class Counter(WorkerMixin):
    name = "counter"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.steps = options.get("start", 0)
        self._counter_log: list[str] = []

    def on_model_loaded(self, worker: Any) -> None:
        self._counter_log.append(f"loaded {worker.model}")

    def before_step(self, step: Any) -> None:
        self._counter_log.append(f"before {step.num_tokens}")

    def after_step(self, step: Any) -> None:
        self.steps += 1
        self._counter_log.append("after")

    def count(self, factor: int = 1, *, plus: int = 0) -> int:
        return int(self.steps) * factor + plus

    def _secret(self) -> None: ...


class Observer(WorkerMixin, ABC):
    """Reads an attribute of another mixin, as both are one object."""

    name = "observer"
    level = 3

    def before_step(self, step: Any) -> None:
        self._counter_log.append("observer before")  # type: ignore[attr-defined]

    def log(self) -> list[str]:
        found: list[str] = self._counter_log  # type: ignore[attr-defined]
        return found

    def refuse(self) -> None:
        raise LimitExceeded("too much", field="n")

    def fail(self) -> None:
        raise ValueError("boom")


def test_methods_are_called_in_order_on_one_object() -> None:
    mixins = Mixins([(Counter, {"start": 5}), (Observer, {})])
    mixins.on_model_loaded(TheWorker())
    mixins.before_step(STEP)
    mixins.after_step(STEP)
    assert mixins.call("observer.log", (), {}) == ["loaded a model", "before 3", "observer before", "after"]
    assert mixins.call("counter.count", (10,), {"plus": 1}) == 61


def test_without_mixins_nothing_happens() -> None:
    mixins = Mixins([])
    mixins.on_model_loaded(TheWorker())
    mixins.before_step(STEP)
    mixins.after_step(STEP)
    mixins.close()
    with pytest.raises(UnsupportedCapability, match="there is none"):
        mixins.call("counter.count", (), {})


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("count", "as 'name.method', not 'count'"),
        (7, "as 'name.method', not 7"),
        ("conter.count", "no worker mixin named 'conter' is configured; did you mean 'counter'?"),
        ("counter.cuont", "no method 'cuont' to call; did you mean 'count'?"),
        ("counter.", "no method ''"),
        ("counter._secret", "no method '_secret'"),
        ("counter.__init__", "no method '__init__'"),
        ("counter.before_step", "no method 'before_step' to call: only the host calls it"),
        ("counter.close", "no method 'close' to call: only the host"),
        ("counter.steps", "no method 'steps'"),
        ("counter.log", "no method 'log'"),
        ("observer.level", "no method 'level'"),
        ("observer.count.real", "no method 'count.real'"),
    ],
)
def test_only_a_mixins_own_public_methods_can_be_called(address: Any, message: str) -> None:
    mixins = Mixins([(Counter, {}), (Observer, {})])
    with pytest.raises(UnsupportedCapability) as raised:
        mixins.call(address, (), {})
    assert message in str(raised.value)
    assert raised.value.field == "method"


def test_what_a_method_raises_names_the_mixin_unless_it_is_an_error_of_guideway() -> None:
    mixins = Mixins([(Observer, {})])
    with pytest.raises(PluginError, match=r"worker\.observer failed in fail: ValueError: boom") as raised:
        mixins.call("observer.fail", (), {})
    assert raised.value.plugin == "worker.observer"
    with pytest.raises(LimitExceeded, match="too much"):
        mixins.call("observer.refuse", (), {})


class SameMethod(WorkerMixin):
    name = "same-method"

    def count(self) -> None: ...


class SameState(WorkerMixin):
    name = "same-state"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._counter_log = ["mine"]


class MethodAsState(WorkerMixin):
    name = "method-as-state"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.count = 3


class StateAsMethod(WorkerMixin):
    name = "state-as-method"

    @property
    def steps(self) -> int:
        return 1


def same_private_name() -> tuple[type[WorkerMixin], type[WorkerMixin]]:
    def make(given: str) -> type[WorkerMixin]:
        class Timer(WorkerMixin):
            name = given

            def __private(self) -> None: ...

        return Timer

    return make("first"), make("second")


class Superfluous(WorkerMixin):
    name = "superfluous"

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.mine = options["mine"]

    def get(self) -> Any:
        return self.mine


def test_each_init_runs_once_with_its_own_options_also_if_it_calls_its_base() -> None:
    mixins = Mixins([(Superfluous, {"mine": 1}), (Counter, {"start": 2})])
    assert mixins.call("superfluous.get", (), {}) == 1
    assert mixins.call("counter.count", (), {}) == 2


class Magic(WorkerMixin):
    name = "magic"

    def __getattr__(self, name: str) -> int:
        return 1


class MoreMagic(WorkerMixin):
    name = "more-magic"

    def __getattr__(self, name: str) -> int:
        return 2


@pytest.mark.parametrize(
    ("first", "second", "attribute"),
    [
        (Counter, SameMethod, "count"),
        (Counter, SameState, "_counter_log"),
        (Counter, MethodAsState, "count"),
        (MethodAsState, Counter, "count"),
        (Counter, StateAsMethod, "steps"),
        (StateAsMethod, Counter, "steps"),
        (*same_private_name(), "_Timer__private"),
        (Magic, MoreMagic, "__getattr__"),
    ],
)
def test_a_clash_names_both_and_the_attribute(
    first: type[WorkerMixin], second: type[WorkerMixin], attribute: str
) -> None:
    with pytest.raises(PluginConflict) as raised:
        Mixins([(first, {}), (second, {})])
    for name in (first.name, second.name, attribute):
        assert repr(name) in str(raised.value)
    assert raised.value.plugin in (f"worker.{first.name}", f"worker.{second.name}")


class Helper:
    unit = "ms"

    def scale(self) -> int:
        return 1000


class WithHelper(Helper, WorkerMixin):
    name = "with-helper"


class AlsoWithHelper(Helper, WorkerMixin):
    name = "also-with-helper"


def test_a_helper_class_behind_two_mixins_is_no_clash() -> None:
    mixins = Mixins([(WithHelper, {}), (AlsoWithHelper, {})])
    assert mixins.call("also-with-helper.scale", (), {}) == 1000


class Derived(Counter):
    name = "derived"


@pytest.mark.parametrize("classes", [(Counter, Derived), (Derived, Counter)])
def test_a_mixin_and_one_derived_from_it_do_not_go_together(classes: tuple[type[WorkerMixin], ...]) -> None:
    with pytest.raises(PluginConflict, match="derived"):
        Mixins([(cls, {}) for cls in classes])


class Picky(WorkerMixin):
    name = "picky"

    def __init__(self, options: Mapping[str, Any]) -> None:
        if "option" in options:
            raise InvalidConfiguration("no such option", field="worker.picky.option")
        raise RuntimeError("never")


def test_refused_options_and_broken_mixins() -> None:
    with pytest.raises(InvalidConfiguration, match="no such option"):
        Mixins([(Picky, {"option": 1})])
    with pytest.raises(PluginLoadError, match=r"worker\.picky failed in __init__: RuntimeError: never") as raised:
        Mixins([(Counter, {}), (Picky, {})])
    assert raised.value.plugin == "worker.picky"


class Failing(WorkerMixin):
    name = "failing"

    def on_model_loaded(self, worker: Any) -> None:
        raise SystemExit(3)

    def before_step(self, step: Any) -> None:
        raise ZeroDivisionError("before")

    def after_step(self, step: Any) -> None:
        raise LimitExceeded("after", field="n")

    def close(self) -> None:
        raise RuntimeError("will not close")


def test_failures_name_mixin_and_phase(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class Last(WorkerMixin):
        name = "last"

        def close(self) -> None:
            closed.append("last")

    class First(WorkerMixin):
        name = "first"

        def close(self) -> None:
            closed.append("first")

    mixins = Mixins([(First, {}), (Failing, {}), (Last, {})])
    with pytest.raises(PluginLoadError, match=r"worker\.failing failed in on_model_loaded: SystemExit: 3"):
        mixins.on_model_loaded(TheWorker())
    with pytest.raises(PluginError, match=r"worker\.failing failed in before_step: ZeroDivisionError: before"):
        mixins.before_step(STEP)
    with pytest.raises(PluginError, match=r"worker\.failing failed in after_step: LimitExceeded: after") as raised:
        mixins.after_step(STEP)
    assert raised.value.plugin == "worker.failing"
    with caplog.at_level(logging.ERROR):
        mixins.close()
        mixins.close()
    assert closed == ["last", "first"]
    assert [record.getMessage() for record in caplog.records] == ["worker.failing failed in close"]


class Blaming(WorkerMixin):
    name = "blaming"
    blames: tuple[str, ...] = ()

    def before_step(self, step: Any) -> None:
        if self.blames:
            raise SequencesFailed("not these", sequence_ids=self.blames)

    after_step = before_step


def test_a_mixin_may_blame_some_sequences_of_a_step() -> None:
    heard: list[str] = []

    class Further(WorkerMixin):
        name = "further"

        def before_step(self, step: Any) -> None:
            heard.append("before")
            raise SequencesFailed("nor this", sequence_ids=[step.sequence_ids[0], step.sequence_ids[2]])

        def after_step(self, step: Any) -> None:
            heard.append("after")

    append = Append(Region(0, 64), 0, [1], 1)
    step = ForwardStep([append] * 4, sequence_ids=["a/0", "b/0", "b/1", "b/1"])
    mixins = Mixins([(Blaming, {}), (Further, {})])
    assert mixins.after_step(step) == {}
    Blaming.blames = ("a/0", "b/0")
    try:
        blamed = mixins.before_step(step)
        assert {sequence: str(fault) for sequence, fault in blamed.items()} == {
            "a/0": "worker.blaming failed in before_step: not these",
            "b/0": "worker.blaming failed in before_step: not these",
            "b/1": "worker.further failed in before_step: nor this",
        }
        assert set(mixins.after_step(step)) == {"a/0", "b/0"}
        assert heard == ["after", "before", "after"], "the others are called as ever"
        for blames, said in ((("a/0", "c/0"), "'c/0', which is not in the step"), ("", "not")):
            Blaming.blames = blames or ("x",)
            with pytest.raises(PluginError, match=f"worker.blaming failed in before_step: .*{said}"):
                mixins.before_step(step)
    finally:
        Blaming.blames = ()


def test_sequences_failed_names_some() -> None:
    class Nobody(WorkerMixin):
        name = "nobody"

        def after_step(self, step: Any) -> None:
            raise SequencesFailed("who?", sequence_ids=())

    with pytest.raises(PluginError, match=r"names no sequence at all \(who\?\)"):
        Mixins([(Nobody, {})]).after_step(STEP)
    error = pickle.loads(pickle.dumps(SequencesFailed("these", sequence_ids=iter(["a/0"]))))
    assert (str(error), error.sequence_ids) == ("these", ("a/0",))


def test_a_wish_to_stop_passes() -> None:
    class Interrupted(WorkerMixin):
        name = "interrupted"

        def before_step(self, step: Any) -> None:
            raise KeyboardInterrupt

    mixins = Mixins([(Interrupted, {})])
    with pytest.raises(KeyboardInterrupt):
        mixins.before_step(STEP)
    with ThreadPoolExecutor(1) as pool, pytest.raises(PluginError, match=r"worker\.interrupted failed in before_step"):
        pool.submit(mixins.before_step, STEP).result()  # where Ctrl-C is not raised
